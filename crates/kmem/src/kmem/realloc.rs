//! Freeing and resizing by address alone: what is at an address, and is it live.

use super::account::objcg_of;
use super::{Fault, Instance, Purpose, ZoneSet};
use crate::class::{ClassGeometry, MAX_OBJECT, SizeClass};
use crate::codetag::Caller;
use crate::os::Platform;
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::slab::{Place, SlabZone};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Item, ObjcgId, PageCount, Pfn};

/// A live allocation.
pub(super) enum Live<'a> {
    /// An object of a slab; no word without books.
    Object { class: SizeClass, ext: Option<&'a AtomicU32> },
    /// A page allocation.
    Pages { set: &'a ZoneSet, pfn: Pfn, pages: PageCount },
}

impl<P: Platform> Instance<P> {
    /// The live allocation at exactly this address.
    pub(super) fn find(&'static self, at: *mut u8) -> Result<Live<'static>, Fault> {
        let address = at as usize;
        let Some(set) = self.zone_of(address) else {
            return Err(Fault::Foreign);
        };
        if set.purpose == Purpose::PerCpu {
            return Err(Fault::PerCpu);
        }
        self.find_in(set, address)
    }

    /// The same, in a zone that is known to hold the address.
    pub(super) fn find_in(
        &'static self,
        set: &'static ZoneSet,
        address: usize,
    ) -> Result<Live<'static>, Fault> {
        let Some(pfn) = set.zone.pfn(address) else {
            return Err(Fault::Foreign);
        };
        if pfn.0 >= set.zone.committed() {
            return Err(Fault::NeverAllocated);
        }
        let (class, stale) = set.slabs.class_of(pfn);
        if class.0 == 0 {
            return self.find_pages(set, pfn, address);
        }
        let geometry = self.geometry(class);
        if stale {
            set.slabs.mend_at(address, geometry, self.books());
        }
        self.find_object(class, geometry, address)
    }

    fn find_object(
        &'static self,
        class: SizeClass,
        geometry: &ClassGeometry,
        address: usize,
    ) -> Result<Live<'static>, Fault> {
        let size = geometry.size;
        match SlabZone::place(address, geometry) {
            Place::Tail => Err(Fault::Metadata),
            Place::Inside { object, offset } => Err(Fault::InsideObject { object, offset, size }),
            Place::Object { .. } if !self.books() => Ok(Live::Object { class, ext: None }),
            Place::Object { ext } => {
                // SAFETY: every slab made with books has its vector there.
                let ext = unsafe { &*(ext as *const AtomicU32) };
                match ext.load(Ordering::Relaxed) {
                    0 => Err(Fault::NeverAllocatedObject { size }),
                    word if word & EXT_LIVE == 0 => {
                        Err(Fault::FreeObject { size, last: self.sites.address(tag(word)) })
                    }
                    _ => Ok(Live::Object { class, ext: Some(ext) }),
                }
            }
        }
    }

    fn find_pages(
        &'static self,
        set: &'static ZoneSet,
        pfn: Pfn,
        address: usize,
    ) -> Result<Live<'static>, Fault> {
        let pages = set.zone.len(pfn).load(Ordering::Acquire);
        if pages != 0 && set.zone.address(pfn) == address {
            return Ok(Live::Pages { set, pfn, pages: PageCount(pages) });
        }
        // The nearest start of a block at or before this page tells more.
        for back in 0..=pfn.0.min(1 << 16) {
            let start = Pfn(pfn.0 - back);
            let len = set.zone.len(start).load(Ordering::Acquire);
            if len > back {
                let block = set.zone.address(start);
                return Err(Fault::InsidePages { block, offset: address - block, pages: len });
            }
            if len != 0 {
                break;
            }
        }
        match set.zone.ext(pfn).load(Ordering::Relaxed) {
            0 => Err(Fault::NeverAllocated),
            word => Err(Fault::FreePages { last: self.sites.address(tag(word)) }),
        }
    }

    /// `free` when the fast path cannot do it.
    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&'static self, at: *mut u8) {
        if at.is_null() || !self.ready() {
            return;
        }
        match self.find(at) {
            Ok(Live::Object { class, ext }) => {
                if let Some(ext) = ext {
                    // One winner among threads that free the same object.
                    let word = ext.fetch_and(TAG_MASK, Ordering::AcqRel);
                    if word & EXT_LIVE == 0 {
                        let (size, last) =
                            (self.geometry(class).size, self.sites.address(tag(word)));
                        self.fault("free", at as usize, Fault::FreeObject { size, last });
                    }
                    if self.watch().any() {
                        self.saw_free(word, self.geometry(class).size.into(), at as usize);
                        self.check_red_zones(at, class, word);
                    }
                    if objcg_of(word) != ObjcgId::ROOT {
                        self.refund_object(class, objcg_of(word));
                    }
                }
                if !self.hold_back(at, class) {
                    self.give_object(class, Item::at(at as usize));
                }
            }
            Ok(Live::Pages { set, pfn, .. }) => {
                if !self.free_large(set, pfn, true) {
                    let last = self.sites.address(tag(set.zone.ext(pfn).load(Ordering::Relaxed)));
                    self.fault("free", at as usize, Fault::FreePages { last });
                }
            }
            Err(fault) => self.fault("free", at as usize, fault),
        }
    }

    /// Puts a freed object where it may be used again.
    pub(super) fn give_object(&'static self, class: SizeClass, item: Item) {
        let is_far = |set: &ZoneSet| !self.is_near(set);
        if self.nodes.several() && self.zone_of(item.address()).is_some_and(is_far) {
            return self.give_to_slabs(class, &[item]);
        }
        // SAFETY: a live object until now, given up by its user.
        if !unsafe { self.slots.push(class, item) } {
            self.flush(class, item);
        }
    }

    /// Bytes that may be used at `at`.
    ///
    /// # Safety
    /// As for [`Self::free`]: what is not live is reported.
    pub unsafe fn usable_size(&'static self, at: *mut u8) -> usize {
        if at.is_null() {
            return 0;
        }
        self.ready();
        match self.find(at) {
            Ok(Live::Object { class, .. }) => self.object_len(at, class),
            Ok(Live::Pages { pages, .. }) => pages.bytes(),
            Err(fault) => self.fault("malloc_usable_size", at as usize, fault),
        }
    }

    /// The group in the word of a live allocation.
    pub(super) fn payer(&'static self, at: *mut u8) -> ObjcgId {
        self.ready();
        let word = match self.find(at) {
            Ok(Live::Object { ext, .. }) => ext.map_or(0, |ext| ext.load(Ordering::Relaxed)),
            Ok(Live::Pages { set, pfn, .. }) => set.zone.ext(pfn).load(Ordering::Relaxed),
            Err(fault) => self.fault("group_of_allocation", at as usize, fault),
        };
        objcg_of(word)
    }

    /// Whether an address lies in this instance's memory.
    pub fn owns(&'static self, at: *mut u8) -> bool {
        self.zone_of(at as usize).is_some()
    }

    /// Changes the size of an allocation, in place or by moving it; the call's site becomes
    /// its holder, and the group that paid for it goes on to pay. Null, and the old block as it was, if there is no memory.
    ///
    /// # Safety
    /// `at` is null or a live allocation that nobody else uses; if it moves, the old address
    /// is free.
    pub unsafe fn realloc(&'static self, at: *mut u8, size: usize, caller: Caller) -> *mut u8 {
        if at.is_null() {
            return self.alloc(size, caller);
        }
        if !self.ready() {
            return core::ptr::null_mut();
        }
        let owner = |word: u32| self.groups.living(objcg_of(word));
        let (old, run, objcg) = match self.find(at) {
            Ok(Live::Object { class, ext }) => {
                let word = ext.map_or(0, |ext| ext.load(Ordering::Relaxed));
                if self.resize_object(at, class, word, size) {
                    if let Some(ext) = ext {
                        let bytes = self.geometry(class).size.into();
                        self.rebook(ext, caller, (bytes, bytes));
                    }
                    return at;
                }
                (self.object_len(at, class), None, owner(word))
            }
            Ok(Live::Pages { set, .. }) if set.purpose == Purpose::Vmalloc && size > 0 => {
                // SAFETY: the caller's promise.
                return unsafe { self.vrealloc(at, size, crate::units::Gfp::KERNEL, caller) };
            }
            Ok(Live::Pages { set, pfn, pages }) => {
                let resized = if size > MAX_OBJECT {
                    self.resize_charged(set, pfn, pages, size, caller)
                } else {
                    Some(false)
                };
                match resized {
                    // To move it would take more.
                    None => return core::ptr::null_mut(),
                    Some(false) => {}
                    Some(true) => {
                        if self.books() {
                            let now = set.zone.len(pfn).load(Ordering::Relaxed);
                            let now = PageCount(now).bytes() as u64;
                            self.rebook(set.zone.ext(pfn), caller, (pages.bytes() as u64, now));
                        }
                        return at;
                    }
                }
                let word = set.zone.ext(pfn).load(Ordering::Relaxed);
                (pages.bytes(), Some((set, pfn)), owner(word))
            }
            Err(fault) => self.fault("realloc", at as usize, fault),
        };
        // Who paid goes on to pay.
        let caller = caller.charged_to(objcg);
        // A run that grew once grows again, often page by page: an eighth more, which costs nothing
        // until it is written to, saves most of the moves. But no group gives anything up for it.
        let roomy = size.saturating_add(size / 8);
        let wanted = run.is_some() && size > old && roomy > MAX_OBJECT;
        let mut new = if wanted && self.groups.has_room(objcg, (roomy as u64).saturating_mul(2)) {
            self.alloc(roomy, caller.once())
        } else {
            core::ptr::null_mut()
        };
        if new.is_null() {
            new = self.alloc(size, caller);
        }
        if !new.is_null() {
            // SAFETY: both are at least that long, and distinct.
            unsafe { core::ptr::copy_nonoverlapping(at, new, old.min(size)) };
            // What grows does not come back to this length: its neighbours need the pages more
            // than the CPU does.
            if !run.is_some_and(|(set, pfn)| self.free_large(set, pfn, false)) {
                // SAFETY: the caller gave it up.
                unsafe { self.free(at) };
            }
        }
        new
    }

    /// Puts another site into the word of a live allocation, whose length changed from and to
    /// these bytes.
    pub(super) fn rebook(&self, ext: &AtomicU32, caller: Caller, bytes: (u64, u64)) {
        let word = ext.load(Ordering::Relaxed);
        let site = self.word_for(caller);
        let tag_and_live = crate::root::TAG_MASK | EXT_LIVE;
        ext.store(word & !tag_and_live | site, Ordering::Relaxed);
        if self.watch().any() {
            self.saw_free(word, bytes.0, ext.as_ptr() as usize);
            self.saw_alloc(site, bytes.1, caller);
        }
    }
}

/// The tag in an extension word.
fn tag(word: u32) -> crate::units::TagId {
    crate::units::TagId(word & crate::root::TAG_MASK)
}
