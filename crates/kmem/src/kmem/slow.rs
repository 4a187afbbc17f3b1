//! What happens when a CPU's array is empty or full.

use super::account::objcg_bits;
use super::page_debug::PageDebug;
use super::reclaim::COSTLY;
use super::{Instance, ZoneSet, mode, no_memory};
use crate::alloc_tag::{self, Held, Kind, Tally};
use crate::class::{ClassGeometry, SizeClass};
use crate::codetag::Caller;
use crate::os::Platform;
use crate::root::{EXT_LIVE, PeakTable, RootBlock, TAG_UNTAGGED, profiling};
use crate::slab::Retired;
use crate::slab::purge::Work;
use crate::slab::sheaf::SHEAF_OBJECTS;
use crate::sync::{Ordering, fence};
use crate::units::{CHUNK_ORDER, Item, ObjcgId, PageCount, TagId};

impl<P: Platform> Instance<P> {
    /// The extension word for a caller, found the slow way.
    pub(super) fn word_for(&self, caller: Caller) -> u32 {
        if let Some(word) = self.sites.cached(caller.key) {
            return word;
        }
        self.look_outside();
        let mode = self.mode();
        let keep = !self.watch().any();
        let tag = if mode == mode::ON {
            let tag = self.sites.lookup(&self.platform, caller, keep);
            self.blackbox.note_site(&self.sites, tag);
            tag
        } else {
            // The fast path needs a word, whatever it says.
            let tag = TagId(TAG_UNTAGGED);
            if keep {
                self.sites.remember(caller.key, tag);
            }
            tag
        };
        // Whoever switches writes the mode before it empties the cache.
        fence(Ordering::SeqCst);
        if self.mode() != mode {
            self.sites.forget();
        }
        tag.0 | EXT_LIVE
    }

    /// `alloc` when the fast path cannot serve it.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        if !self.ready() {
            return no_memory();
        }
        let take = || {
            let item = self.slots.pop(class);
            if !item.is_none() {
                return item;
            }
            self.look_outside();
            self.refill(class)
        };
        self.obtain(class, caller, take).address() as *mut u8
    }

    /// An object of a class, as `take` finds one, paid for and booked; none if there is no memory or
    /// the group is at its limit.
    pub(super) fn obtain(
        &'static self,
        class: SizeClass,
        caller: Caller,
        mut take: impl FnMut() -> Item,
    ) -> Item {
        let objcg = self.group_of(caller);
        let charged = objcg != ObjcgId::ROOT;
        if charged && !self.pay_object(class, objcg, caller) {
            return Item::NONE;
        }
        let size = self.geometry(class).size as usize;
        let found = self.with_effort(size, COSTLY, caller, || {
            let item = take();
            (!item.is_none()).then_some(item)
        });
        let Some(item) = found else {
            if charged {
                self.refund_object(class, objcg);
            }
            self.out_of_memory(size, caller);
            return Item::NONE;
        };
        if self.books() {
            let word = self.word_for(caller) | objcg_bits(objcg);
            self.book(item, class, word);
            if self.watch().any() {
                self.saw_alloc(word, size as u64, caller);
            }
        }
        item
    }

    /// The slot of this thread in the locked kind; the rseq kind needs none.
    pub(super) fn slot_hint(&self) -> u32 {
        if self.slots.uses_rseq() { 0 } else { self.platform.slot_hint() }
    }

    /// One object, and more for the CPU's array if it can take them.
    fn refill(&'static self, class: SizeClass) -> Item {
        self.look_at_clock();
        let hint = self.slot_hint();
        let cpu = self.slots.current(hint);
        if let Some(cpu) = cpu {
            self.ensure_area(cpu);
        }
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        if !self.slots.uses_rseq() && self.slots.pop_many(class, hint, &mut buffer[..1]) == 1 {
            return buffer[0];
        }
        let keeps = cpu.is_some_and(|cpu| self.slots.area(cpu).is_some());
        let batch = if keeps { self.geometry(class).batch as usize } else { 1 };
        // What is in the barn may be of any node.
        if !self.nodes.several()
            && let Some(held) = self.barn.take_full(class)
        {
            let len = held.sheaf.len as usize;
            let objects = &held.sheaf.objects[..len];
            let (&one, rest) = objects.split_last().expect("a full sheaf is not empty");
            // SAFETY: objects out of the barn are in our hands.
            let kept = unsafe { self.slots.push_many(class, hint, rest) };
            if kept < rest.len() {
                self.give_to_slabs(class, &rest[kept..]);
            }
            self.barn.give_empty(held);
            return one;
        }
        let got = self.claim_objects(class, &mut buffer[..batch]);
        let Some((&one, rest)) = buffer[batch - got..batch].split_last() else {
            return Item::NONE;
        };
        // SAFETY: objects just claimed.
        let kept = unsafe { self.slots.push_many(class, hint, rest) };
        if kept < rest.len() {
            self.give_to_slabs(class, &rest[kept..]);
        }
        one
    }

    /// Free objects out of the slabs, in the last part of `out`, highest first, so that they
    /// come off an array lowest first; a new slab if there is none.
    fn claim_objects(&'static self, class: SizeClass, out: &mut [Item]) -> usize {
        let geometry = self.geometry(class);
        let mut mixer = self.mixer();
        let in_order = mixer.is_none();
        let mut claim = |set: &ZoneSet, out: &mut [Item]| {
            let got = set.slabs.claim(class, geometry, self.books(), mixer.as_mut(), out);
            self.note_contents(set, geometry, in_order, &out[out.len() - got..]);
            got
        };
        for set in self.heap_sets().filter(|set| self.is_near(set)) {
            let got = claim(set, out);
            if got > 0 {
                return got;
            }
        }
        let pages = PageCount(geometry.chunks() << CHUNK_ORDER);
        loop {
            let Some((set, run)) = self.claim_pages(pages, pages) else {
                // What the slabs of other nodes have.
                let mut far = self.heap_sets().filter(|set| !self.is_near(set));
                return far
                    .find_map(|set| Some(claim(set, out)).filter(|&got| got > 0))
                    .unwrap_or(0);
            };
            if !self.prepare_pages(set, run) {
                continue;
            }
            self.note_peak();
            let first = if in_order { &mut *out } else { &mut [] };
            // SAFETY: pages just claimed, aligned to their length.
            let got = unsafe {
                let zero = !self.books() || set.zone.reads_zero(run);
                set.slabs.create(class, geometry, run.start, zero, self.books(), first)
            };
            self.note_contents(set, geometry, true, &out[out.len() - got..]);
            // The first objects of a slab are as any others where the order is mixed.
            let got = if in_order { got } else { claim(set, out) };
            if got > 0 {
                return got;
            }
        }
    }

    /// Notes that the pages of objects that were just claimed of one slab will hold something; lowest
    /// last, or in any order.
    fn note_contents(
        &self,
        set: &ZoneSet,
        geometry: &ClassGeometry,
        in_order: bool,
        items: &[Item],
    ) {
        let (low, high) = if in_order {
            (items.last(), items.first())
        } else {
            let address = |item: &&Item| item.address();
            (items.iter().min_by_key(address), items.iter().max_by_key(address))
        };
        let (Some(low), Some(high)) = (low, high) else { return };
        let end = high.address() + geometry.size as usize - 1;
        if let (Some(first), Some(last)) = (set.zone.pfn(low.address()), set.zone.pfn(end)) {
            set.zone.mark_dirty(first, last.0 + 1 - first.0);
        }
    }

    /// Makes room in a full array, then puts a freed object there.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&'static self, class: SizeClass, item: Item) {
        // A child that repairs itself finds the object free by its word.
        let found = !self.slots.alive();
        if !self.ready() || found {
            return;
        }
        self.look_at_clock();
        let hint = self.slot_hint();
        if let Some(cpu) = self.slots.current(hint) {
            self.ensure_area(cpu);
            for _ in 0..2 {
                // SAFETY: a freed object in our hands.
                if unsafe { self.slots.push_many(class, hint, &[item]) } == 1 {
                    return;
                }
                self.make_room(class, hint);
            }
        }
        self.give_to_slabs(class, &[item]);
    }

    fn make_room(&'static self, class: SizeClass, hint: u32) {
        let geometry = self.geometry(class);
        let batch = geometry.batch as usize;
        if !self.nodes.several()
            && let Some(held) = self.barn.take_empty(class, geometry)
        {
            let len = self.slots.pop_many(class, hint, &mut held.sheaf.objects[..batch]);
            held.sheaf.len = len as u32;
            if len > 0 {
                self.barn.give_full(class, held);
            } else {
                self.barn.give_empty(held);
            }
            return;
        }
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        let len = self.slots.pop_many(class, hint, &mut buffer[..batch]);
        self.give_to_slabs(class, &buffer[..len]);
    }

    /// Gives free objects back to their slabs, and wholly free slabs to their zone.
    pub(super) fn give_to_slabs(&'static self, class: SizeClass, items: &[Item]) {
        let geometry = self.geometry(class);
        let mut rest = items;
        while let Some(&first) = rest.first() {
            let Some(set) = self.zone_of(first.address()) else {
                return;
            };
            let inside = |item: &&Item| set.zone.pfn(item.address()).is_some();
            let one_zone = self.zone_slots.load(Ordering::Relaxed) == 1;
            let here = if one_zone { rest.len() } else { rest.iter().take_while(inside).count() };
            let (here, others) = rest.split_at(here);
            // SAFETY: freed objects of this class in our hands.
            let given =
                unsafe { set.slabs.give(class, geometry, here, |slab| self.retire(set, slab)) };
            if let Err(twice) = given {
                self.freed_twice(twice.0, class);
            }
            rest = others;
        }
    }

    /// Gives the pages of a slab that is out of use to their zone.
    fn retire(&'static self, set: &ZoneSet, slab: Retired) {
        self.retire_pages(set, slab.start, slab.pages.0);
        self.give_pages(set, slab.start, slab.pages);
    }

    /// Gives the memory of free objects back to the platform, where no object was claimed of a slab
    /// for `age` generations of the decay; bytes given back.
    pub(super) fn purge_slabs(&'static self, set: &ZoneSet, age: u32, work: Work) -> usize {
        // Slabs are looked into before they are held, so what was one a moment ago must be readable.
        if self.page_debug().has(PageDebug::PROTECT) {
            return 0;
        }
        let on = set.zone.on(&self.platform);
        set.slabs.purge(on, self.geometries(), age, work, |slab| self.retire(set, slab))
    }

    /// Takes over what readers wrote into the root block.
    pub(super) fn look_outside(&self) {
        let Some(root) = self.root() else { return };
        let wish = root.profiling.load(Ordering::Relaxed);
        if self.books() && wish <= profiling::ON {
            let wish = mode::from(wish);
            if self.mode() != wish && self.hot.mode.swap(wish, Ordering::SeqCst) != wish {
                self.sites.forget();
            }
        }
    }

    /// Writes the peak table and the black box if use is higher than they say, and that was asked
    /// for.
    pub(super) fn note_peak(&'static self) {
        if self.keep_peak.load(Ordering::Relaxed) == 0 && !self.blackbox.is_there() {
            return;
        }
        let Some(root) = self.root() else { return };
        if self.blackbox.is_peak(root.used_pages.load(Ordering::Relaxed)) {
            self.write_record(crate::blackbox::reason::PEAK);
        }
        if self.keep_peak.load(Ordering::Relaxed) == 0 {
            return;
        }
        // SAFETY: the root block names a valid table.
        let peak = unsafe { &*(root.peak as *const PeakTable) };
        if let Some(mut update) = alloc_tag::begin_peak(root, peak) {
            self.census(|tag, bytes, calls| update.tally.add(tag, bytes, calls));
            update.finish();
        }
    }

    /// Live bytes and objects by tag, in parts.
    pub fn census(&'static self, mut each: impl FnMut(TagId, u64, u64)) {
        self.census_by_group(|held| each(held.tag, held.bytes, held.calls));
    }

    /// Everything live by tag, group and class, in parts.
    pub fn census_by_group(&'static self, mut each: impl FnMut(Held)) {
        self.census_by_kind(|held, _| each(held));
    }

    /// The same with what the allocations are.
    pub(super) fn census_by_kind(&'static self, mut each: impl FnMut(Held, Kind)) {
        for set in self.zone_sets() {
            let each = |held| each(held, set.kind(&held));
            alloc_tag::census(&set.zone, &set.slabs, self.geometries(), self.books(), each);
        }
    }

    /// Writes the books to the black box.
    pub fn write_record(&'static self, reason: u32) {
        let Some(root) = self.root().filter(|_| self.blackbox.is_there()) else { return };
        self.scratch.with(root, |tally| self.census_recorded(root, tally, reason));
    }

    /// Everything live by tag into `tally`, and with the groups into the black box, if there is one.
    pub(super) fn census_recorded(
        &'static self,
        root: &RootBlock,
        tally: &mut Tally<'_>,
        reason: u32,
    ) {
        let mut recording = self.blackbox.begin(self.groups.entries());
        self.census_by_kind(|held, kind| {
            tally.add(held.tag, held.bytes, held.calls);
            if let Some(recording) = &mut recording {
                recording.add(&held, kind);
            }
        });
        if let Some(recording) = recording {
            let used = root.used_pages.load(Ordering::Relaxed);
            recording.finish(&self.platform, reason, used, tally, &self.sites);
        }
    }

    /// What a tag stands for.
    pub fn sites(&self) -> &crate::codetag::Sites {
        &self.sites
    }

    /// The return address a tag stands for, 0 for the reserved ones.
    pub fn site_address(&'static self, tag: TagId) -> usize {
        self.sites.address(tag)
    }
}
