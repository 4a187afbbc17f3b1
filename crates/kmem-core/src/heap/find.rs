//! Looks up an address: the live allocation that begins there, or the reason why none does.

use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::{Heap, ZoneSet};
use crate::class::SizeClass;
use crate::os::Platform;
use crate::page::{PageWords, Purpose, Run};
use crate::report::Fault;
use crate::slab::{Format, Kind, Place, SlabZone};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{PageCount, Pfn, TagId};

/// A live allocation.
#[derive(Clone, Copy)]
pub enum Live<'a> {
    /// An object of a slab. In an instance without books it has no word.
    Object {
        /// Its class.
        class: SizeClass,
        /// Its extension word. Where words are used for charged objects only, the word of another
        /// object does not say that it is live.
        ext: Option<&'a AtomicU32>,
    },
    /// A page allocation.
    Pages {
        /// Its zone.
        set: &'a ZoneSet,
        /// Its pages.
        run: Run,
        /// The words of its first page.
        words: PageWords<'a>,
    },
}

impl Live<'_> {
    /// The extension word, if there is one.
    pub fn word(&self) -> u32 {
        match self {
            Self::Object { ext, .. } => ext.map_or(0, |ext| ext.load(Ordering::Relaxed)),
            Self::Pages { words, .. } => words.word(),
        }
    }
}

impl<P: Platform> Heap<P> {
    /// Finds the live allocation that begins at an address.
    ///
    /// # Errors
    /// The reason why none does.
    pub fn find(&self, address: usize) -> Result<Live<'_>, Fault> {
        let Some(set) = self.zones.of(address) else {
            return Err(Fault::Foreign);
        };
        if set.purpose == Purpose::PerCpu {
            return Err(Fault::PerCpu);
        }
        self.find_in(set, address)
    }

    /// Finds the live allocation that begins at an address of a zone.
    ///
    /// # Errors
    /// The reason why none does.
    pub fn find_in<'a>(&'a self, set: &'a ZoneSet, address: usize) -> Result<Live<'a>, Fault> {
        let Some(pfn) = set.zone.pfn(address) else {
            return Err(Fault::Foreign);
        };
        let Some(words) = set.zone.words(pfn) else {
            return Err(Fault::NeverAllocated);
        };
        // SAFETY: a page of the zone.
        let (class, stale) = unsafe { set.slabs.class_of(pfn) };
        if class.0 == 0 {
            return find_pages(set, pfn, words, address);
        }
        let kind = self.kind_in(set, class);
        if stale {
            // SAFETY: the address lies in a stale slab of this class, whose kind this is.
            unsafe { set.slabs.mend_at(address, kind) };
        }
        find_object(kind, address)
    }

    /// The slabs of a class in a zone: those of per-CPU handles have no guards.
    pub fn kind_in(&self, set: &ZoneSet, class: SizeClass) -> Kind<'_> {
        let format = self.format();
        let format = Format { guards: format.guards && set.is_heap(), ..format };
        Kind::new(class, self.classes.geometry(class), format)
    }
}

fn find_object<'a>(
    Kind { class, geometry, format }: Kind<'a>,
    address: usize,
) -> Result<Live<'a>, Fault> {
    let size = geometry.size;
    match SlabZone::place(address, geometry) {
        Place::Tail => Err(Fault::Metadata),
        Place::Inside { object, offset } => Err(Fault::InsideObject { object, offset, size }),
        Place::Object { .. } if !format.has_words() => Ok(Live::Object { class, ext: None }),
        Place::Object { ext } => {
            // SAFETY: a slab with extension words has the object's word there.
            let ext = unsafe { &*(ext as *const AtomicU32) };
            match ext.load(Ordering::Relaxed) {
                _ if !format.extension => Ok(Live::Object { class, ext: Some(ext) }),
                0 => Err(Fault::NeverAllocatedObject { size }),
                word if word & EXT_LIVE == 0 => {
                    Err(Fault::FreeObject { size, last: TagId(word & TAG_MASK) })
                }
                _ => Ok(Live::Object { class, ext: Some(ext) }),
            }
        }
    }
}

fn find_pages<'a>(
    set: &'a ZoneSet,
    pfn: Pfn,
    words: PageWords<'a>,
    address: usize,
) -> Result<Live<'a>, Fault> {
    let pages = words.length();
    let begin = set.zone.address(pfn) + usize::from(words.bounds().front);
    if pages > PageCount::ZERO && begin == address {
        return Ok(Live::Pages { set, run: Run { start: pfn, pages }, words });
    }
    // Find the block that the page lies in, for a better report.
    for back in 0..=pfn.0.min(1 << 16) {
        let start = pfn - PageCount(back);
        let Some(words) = set.zone.words(start) else { break };
        let len = words.length().0;
        if len > back {
            return Err(inside(set.zone.address(start), words, address));
        }
        if len != 0 {
            break;
        }
    }
    match words.word() {
        0 => Err(Fault::NeverAllocated),
        word => Err(Fault::FreePages { last: TagId(word & TAG_MASK) }),
    }
}

/// The fault of an address in the pages of a live run, which begin at `start`.
fn inside(start: usize, words: PageWords<'_>, address: usize) -> Fault {
    let (pages, bounds) = (words.length(), words.bounds());
    let object = start + usize::from(bounds.front);
    let small = |bytes| u32::try_from(bytes).ok();
    // Only a block that does not fill its pages has a length in bytes.
    let place = address.checked_sub(object).and_then(small).zip(small(bounds.room(pages)));
    match place.filter(|_| bounds.is_fenced) {
        Some((offset, size)) => Fault::InsideObject { object, offset, size },
        None => Fault::InsidePages { block: start, offset: address - start, pages: pages.0 },
    }
}
