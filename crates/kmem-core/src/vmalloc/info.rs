//! Facts about areas: by address, as a list, as text, as counts.

use kmem_layout::word::TAG_MASK;

use super::area::On;
use super::{Area, Kind};
use crate::heap::ZoneSet;
use crate::os::Platform;
use crate::report::{Fault, FunctionName, Line};
use crate::sync::Ordering;
use crate::units::{PageCount, Pfn, TagId};

/// Counts of an instance's vmalloc areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmallocStats {
    /// Number of guards: pages that fault.
    pub guards: usize,
    /// Number of areas made without a guard so far: the system allowed no more mappings.
    pub unguarded: u64,
    /// Number of pages that still fault although their areas are freed: the system refused to make
    /// them accessible.
    pub stuck: u64,
}

impl<P: Platform> On<P> {
    /// Area, its guard included, that an address lies in. Takes constant time.
    pub fn find(self, at: usize) -> Option<Area> {
        let set = self.zone()?;
        let page = set.zone.pfn(at)?;
        let back = PageCount(set.zone.words(page)?.word());
        // The page may be the first of an area, whose word is no distance.
        [PageCount::ZERO, back].into_iter().filter(|&back| back <= page.index()).find_map(|back| {
            let area = self.area_at(set, page - back)?;
            (area.pages >= back).then_some(area)
        })
    }

    /// The live area that begins at a page.
    pub(super) fn area_at(self, set: &ZoneSet, first: Pfn) -> Option<Area> {
        let words = set.zone.words(first)?;
        let len = words.len.load(Ordering::Acquire);
        let (pages, kind) = if len != 0 {
            (PageCount(len), Kind::Vmalloc)
        } else if self.map_bits(set).has(first) {
            (PageCount(words.word()), Kind::Vmap)
        } else {
            return None;
        };
        let guarded = self.guard_bits(set).has(first + pages);
        let fenced = words.bounds().is_fenced && kind == Kind::Vmalloc;
        Some(Area { start: set.zone.address(first), pages, kind, guarded, fenced })
    }

    /// Reason why an address is not that of a live area.
    pub fn fault_at(self, set: &ZoneSet, at: usize) -> Fault {
        match self.find(at) {
            Some(Area { start, pages, kind: Kind::Vmalloc, .. }) => {
                Fault::InsidePages { block: start, offset: at - start, pages: pages.0 }
            }
            Some(Area { kind: Kind::Unpurged, .. }) => {
                let words = set.zone.pfn(at).and_then(|page| set.zone.words(page));
                let word = words.map_or(0, |words| words.word());
                Fault::FreePages { last: TagId(word & TAG_MASK) }
            }
            _ => Fault::NeverAllocated,
        }
    }

    /// Calls `each` with every area, lowest first, and with free areas with a guard that CPUs keep.
    pub fn each_area(self, mut each: impl FnMut(Area)) {
        let Some(set) = self.zone() else { return };
        let mut page = Pfn::ZERO;
        while let Some(words) = set.zone.words(page) {
            if let Some(area) = self.area_at(set, page) {
                each(area);
                page += area.pages + PageCount::ONE;
                continue;
            }
            if self.guard_bits(set).has(page) {
                let pages = PageCount(words.word()).min(page.index());
                let start = set.zone.address(page - pages);
                each(Area { start, pages, kind: Kind::Unpurged, guarded: true, fenced: false });
            }
            page += PageCount::ONE;
        }
    }

    /// Passes lines in the format of the kernel's `/proc/vmallocinfo` to `write`. Instead of a
    /// function they name `function@file:line`, or the return address of the call.
    pub fn info(self, mut write: impl FnMut(&[u8])) {
        self.each_area(|area| {
            let mut line = Line::new();
            let bytes = (area.pages + PageCount::ONE).bytes();
            let (start, end) = (area.start, area.start + bytes);
            line.add(format_args!("{start:#018x}-{end:#018x} {bytes:>7}"));
            match area.kind {
                Kind::Unpurged => line.add(format_args!(" unpurged vm_area")),
                Kind::Vmap => line.add(format_args!(" vmap")),
                Kind::Vmalloc => {
                    if let Some(tag) = self.tag_at(start) {
                        let name = FunctionName(&self.ledger.books.sites, tag);
                        line.add(format_args!(" {name}"));
                    }
                    let pages = area.pages.0;
                    line.add(format_args!(" pages={pages} vmalloc N0={pages}"));
                }
            }
            line.add(format_args!("\n"));
            write(line.text());
        });
    }

    /// The tag of the area that begins at an address.
    fn tag_at(self, start: usize) -> Option<TagId> {
        let set = self.zone()?;
        let words = set.zone.words(set.zone.pfn(start)?)?;
        Some(TagId(words.word() & TAG_MASK))
    }

    /// Counts of vmalloc.
    pub fn stats(self) -> VmallocStats {
        VmallocStats {
            guards: self.part.guards.load(Ordering::Relaxed),
            unguarded: self.part.unguarded.load(Ordering::Relaxed),
            stuck: self.part.stuck.load(Ordering::Relaxed),
        }
    }
}
