//! What there is: by address, as a list, as text, as counts.

use super::super::{Instance, ZoneSet};
use super::VmallocStats;
use crate::os::Platform;
use crate::root::TAG_MASK;
use crate::sync::Ordering;
use crate::units::{PageCount, Pfn};
use crate::vmalloc::{Area, Kind};

impl<P: Platform> Instance<P> {
    /// The area that an address lies in, its guard included; in constant time.
    pub fn find_area(&'static self, at: usize) -> Option<Area> {
        let set = self.vmalloc_zone()?;
        let page = set.zone.pfn(at)?;
        if page.0 >= set.zone.committed() {
            return None;
        }
        let back = set.zone.ext(page).load(Ordering::Relaxed);
        // The page may be a first one, whose word says something else.
        [0, back].into_iter().filter(|&back| back <= page.0).find_map(|back| {
            let first = page.back(back);
            let area = self.area_at(set, first)?;
            (area.pages >= back).then_some(area)
        })
    }

    pub(in crate::kmem) fn area_at(
        &'static self,
        set: &'static ZoneSet,
        first: Pfn,
    ) -> Option<Area> {
        let len = set.zone.len(first).load(Ordering::Acquire);
        let start = set.zone.address(first);
        let guarded = |pages: u32| self.guard_bits(set).has(first.offset(pages));
        if len != 0 {
            return Some(Area { start, pages: len, kind: Kind::Vmalloc, guarded: guarded(len) });
        }
        if self.map_bits(set).has(first) {
            let pages = set.zone.ext(first).load(Ordering::Relaxed);
            return Some(Area { start, pages, kind: Kind::Vmap, guarded: guarded(pages) });
        }
        None
    }

    /// Calls `each` with every area, lowest first, free ones that CPUs keep included (if they have a guard).
    pub fn each_area(&'static self, mut each: impl FnMut(Area)) {
        let Some(set) = self.vmalloc_zone() else { return };
        let mut page = 0;
        while page < set.zone.committed() {
            if let Some(area) = self.area_at(set, Pfn(page)) {
                each(area);
                page += area.pages + 1;
                continue;
            }
            if self.guard_bits(set).has(Pfn(page)) {
                let pages = set.zone.ext(Pfn(page)).load(Ordering::Relaxed).min(page);
                let start = set.zone.address(Pfn(page - pages));
                each(Area { start, pages, kind: Kind::Unpurged, guarded: true });
            }
            page += 1;
        }
    }

    /// Writes the lines of `/proc/vmallocinfo`, as the kernel lays them out, to `write`. Where the kernel names a function,
    /// this names `function@file:line`, or the address that the call returns to.
    pub fn vmallocinfo(&'static self, mut write: impl FnMut(&[u8])) {
        self.each_area(|area| {
            let mut line = super::super::fault::Line::new();
            line.address(area.start);
            line.bytes(b"-");
            let bytes = PageCount(area.pages + 1).bytes();
            line.address(area.start + bytes);
            line.bytes(b" ");
            line.padded(bytes as u64, 7);
            match area.kind {
                Kind::Unpurged => line.bytes(b" unpurged vm_area"),
                Kind::Vmap => {
                    line.bytes(b" vmap");
                }
                Kind::Vmalloc => {
                    if let Some(set) = self.vmalloc_zone()
                        && let Some(pfn) = set.zone.pfn(area.start)
                    {
                        line.bytes(b" ");
                        let word = set.zone.ext(pfn).load(Ordering::Relaxed);
                        self.name_caller(&mut line, crate::units::TagId(word & TAG_MASK));
                    }
                    line.bytes(b" pages=");
                    line.decimal(area.pages as usize);
                    line.bytes(b" vmalloc N0=");
                    line.decimal(area.pages as usize);
                }
            }
            line.bytes(b"\n");
            write(line.text());
        });
    }

    pub(in crate::kmem) fn name_caller(
        &self,
        line: &mut super::super::fault::Line,
        tag: crate::units::TagId,
    ) {
        let Some(names) = self.sites.names(tag) else {
            return line.hex(self.sites.address(tag));
        };
        line.word(names.function);
        line.bytes(b"@");
        line.word(names.file);
        line.bytes(b":");
        line.decimal(names.line as usize);
    }

    /// Counts of vmalloc.
    pub fn vmalloc_stats(&self) -> VmallocStats {
        VmallocStats {
            guards: self.vmalloc.guards.load(Ordering::Relaxed),
            unguarded: self.vmalloc.unguarded.load(Ordering::Relaxed),
            stuck: self.vmalloc.stuck.load(Ordering::Relaxed),
        }
    }
}
