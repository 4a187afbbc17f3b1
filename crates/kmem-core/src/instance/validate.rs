//! Recounts of everything that an instance has, at rest.

use super::Instance;
use crate::codetag::SiteFault;
use crate::cpu::AreaFault;
use crate::heap::HeapFault;
use crate::memcg::GroupId;
use crate::os::Platform;

/// The first thing that [`Instance::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The heap.
    Heap(HeapFault),
    /// A call site.
    Site(SiteFault),
    /// A group's charge is not the sum of what it holds.
    Group {
        /// The group.
        id: GroupId,
        /// Bytes that it is charged.
        charged: u64,
        /// Bytes that it holds.
        counted: u64,
    },
    /// The arrays of per-CPU objects.
    PerCpu(AreaFault),
    /// The arrays of areas.
    Areas(AreaFault),
    /// The count of guard pages is wrong.
    Guards {
        /// The count.
        count: usize,
        /// Guards that there are.
        guards: usize,
    },
}

impl<P: Platform> Instance<P> {
    /// Recounts everything: zones, slabs, the barn, the arrays of CPUs, call sites, groups, guards.
    /// For an instance at rest.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn validate(&'static self) -> Result<(), Invalid> {
        if !self.ready() {
            return Ok(());
        }
        self.heap().validate().map_err(Invalid::Heap)?;
        self.ledger.books.sites.validate().map_err(Invalid::Site)?;
        let group = |(id, charged, counted)| Invalid::Group { id, charged, counted };
        self.validate_groups().map_err(group)?;
        self.percpu.on(&self.ledger).validate().map_err(Invalid::PerCpu)?;
        let areas = self.vmalloc.on(&self.ledger);
        areas.validate().map_err(Invalid::Areas)?;
        let (count, guards) = (areas.stats().guards, areas.count_guards());
        if count != guards {
            return Err(Invalid::Guards { count, guards });
        }
        Ok(())
    }
}

#[cfg(all(test, kmem_linux))]
mod tests {
    use kmem_layout::group::{GroupBlock, MAX_GROUPS};
    use kmem_layout::root::{RootBlock, ZoneBlock};
    use kmem_layout::site::Site;
    use kmem_layout::word::{EXT_LIVE, OBJCG_SHIFT, TAG_FIRST_SITE};

    use super::*;
    use crate::Kmem;
    use crate::class::SizeClass;
    use crate::memcg::GroupId;
    use crate::page::ZoneFault;
    use crate::request::Caller;
    use crate::row::Row;
    use crate::slab::SlabFault;
    use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
    use crate::units::{Gfp, Item, TagId};

    const CALLER: Caller = Caller::at(0x1234_5678);
    const SIZE: usize = 112;

    /// An instance with a live object, and its address.
    fn instance() -> (&'static Kmem, usize) {
        let kmem: &'static Kmem = std::boxed::Box::leak(std::boxed::Box::new(Kmem::new()));
        let at = kmem.alloc(SIZE, CALLER);
        assert!(!at.is_null());
        assert_eq!(kmem.validate(), Ok(()));
        (kmem, at as usize)
    }

    fn root(kmem: &'static Kmem) -> &'static RootBlock {
        kmem.ledger.books.root().expect("a started instance")
    }

    fn zone(kmem: &'static Kmem) -> &'static ZoneBlock {
        // SAFETY: the table of zones, of which there is one.
        unsafe { &*(root(kmem).zones as *const ZoneBlock) }
    }

    /// Address of the slab of an object, and the last row of its slab.
    fn slab(kmem: &'static Kmem, at: usize) -> (usize, &'static Row) {
        let geometry = kmem.heap().classes.geometry(SizeClass::of(SIZE));
        let slab = at & !(geometry.slab_mask as usize);
        let rows = slab + geometry.rows_offset() as usize;
        // SAFETY: a slab has its rows there.
        (slab, unsafe { &*(rows as *const Row).add(geometry.rows() as usize - 1) })
    }

    fn ext(kmem: &'static Kmem, at: usize) -> &'static AtomicU32 {
        // SAFETY: an object of that class, in an instance with books.
        unsafe { kmem.ledger.object_word(at, SizeClass::of(SIZE)) }
    }

    fn fault(kmem: &'static Kmem) -> HeapFault {
        match kmem.validate() {
            Err(Invalid::Heap(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_object_whose_word_names_a_group_that_never_was_can_be_freed() {
        for objcg in [1, 9000, MAX_GROUPS - 1] {
            let (kmem, at) = instance();
            ext(kmem, at).fetch_or(objcg << OBJCG_SHIFT, Ordering::Relaxed);
            // SAFETY: live, and used no longer.
            unsafe { kmem.free(at as *mut u8) };
            kmem.drain();
            assert_eq!(kmem.stats().used, 0);
        }
    }

    #[test]
    fn an_object_that_is_lost_to_its_slab_is_found() {
        let (kmem, at) = instance();
        let (slab, row) = slab(kmem, at);
        let bit = row.load() & row.load().wrapping_neg();
        row.0.fetch_and(!bit, Ordering::Relaxed);
        let found = fault(kmem);
        assert!(matches!(
            found,
            HeapFault::Slab(SlabFault::Credit { slab: its, credit, bits })
                if its == slab && bits + 1 == credit
        ));
    }

    #[test]
    fn an_object_behind_the_last_one_is_found() {
        let (kmem, at) = instance();
        let (slab, row) = slab(kmem, at);
        row.0.fetch_or(1 << 63, Ordering::Relaxed);
        assert_eq!(fault(kmem), HeapFault::Slab(SlabFault::Tail { slab }));
    }

    #[test]
    fn a_free_object_that_is_marked_as_live_is_found() {
        let (kmem, at) = instance();
        // The last object of a fresh slab, which no CPU has taken.
        let geometry = kmem.heap().classes.geometry(SizeClass::of(SIZE));
        let object = slab(kmem, at).0 + ((geometry.objects - 1) * geometry.size) as usize;
        ext(kmem, object).fetch_or(EXT_LIVE, Ordering::Relaxed);
        assert_eq!(fault(kmem), HeapFault::Slab(SlabFault::Live { object }));
    }

    #[test]
    fn a_chunk_of_no_slab_that_names_a_class_is_found() {
        let (kmem, _) = instance();
        let chunk = (zone(kmem).committed.load(Ordering::Relaxed) >> 4) as u32 - 1;
        // SAFETY: the class byte of the last committed chunk, which no slab has.
        unsafe {
            let bytes = zone(kmem).chunk_class as *const AtomicU8;
            (*bytes.add(chunk as usize)).store(5, Ordering::Relaxed);
        }
        assert_eq!(fault(kmem), HeapFault::Slab(SlabFault::Class { chunk }));
    }

    #[test]
    fn a_page_that_is_lost_to_its_zone_is_found() {
        let (kmem, _) = instance();
        let page = kmem.alloc_pages(crate::units::Order(0), Gfp::KERNEL, CALLER);
        let pfn = (page as u64 - zone(kmem).base) >> 12;
        // SAFETY: the row of a page.
        let row = unsafe { &*(zone(kmem).rows as *const AtomicU64).add(pfn as usize / 64) };
        row.fetch_or(1 << (pfn % 64), Ordering::Relaxed);
        assert!(matches!(fault(kmem), HeapFault::Zone(ZoneFault::Credit { .. })));
    }

    #[test]
    fn an_object_that_a_cpu_keeps_though_it_is_live_is_found() {
        let (kmem, at) = instance();
        // SAFETY: a live object, given up.
        unsafe { kmem.free(at as *mut u8) };
        assert_eq!(kmem.validate(), Ok(()));
        ext(kmem, at).fetch_or(EXT_LIVE, Ordering::Relaxed);
        let item = Item::at(at);
        assert!(
            matches!(fault(kmem), HeapFault::Area(AreaFault::Item { item: its, .. }) if its == item)
        );
    }

    #[test]
    fn an_object_that_is_kept_twice_is_found() {
        let (kmem, at) = instance();
        kmem.heap().drain();
        // SAFETY: none: the object is kept twice, and never handed out.
        unsafe {
            kmem.free(at as *mut u8);
            let array = SizeClass::of(SIZE).array();
            let hint = kmem.heap().slots.hint(kmem.platform());
            assert_eq!(kmem.heap().slots.push_many(array, hint, &[Item::at(at)]), 1);
        }
        assert!(matches!(fault(kmem), HeapFault::Objects { kept: 2, .. }));
    }

    #[test]
    fn an_object_in_the_barn_that_is_live_is_found() {
        let (kmem, at) = instance();
        let objects: std::vec::Vec<_> = (0..2000).map(|_| kmem.alloc(SIZE, CALLER)).collect();
        // SAFETY: live objects, given up.
        objects.iter().for_each(|&at| unsafe { kmem.free(at) });
        assert_eq!(kmem.validate(), Ok(()));
        objects
            .iter()
            .for_each(|&at| _ = ext(kmem, at as usize).fetch_or(EXT_LIVE, Ordering::Relaxed));
        assert!(matches!(
            fault(kmem),
            HeapFault::Sheaf(_) | HeapFault::Slab(SlabFault::Live { .. })
        ));
        assert_ne!(at, 0);
    }

    #[test]
    fn a_site_that_cannot_be_found_any_more_is_told() {
        let (kmem, _) = instance();
        // SAFETY: the table of sites.
        let site = unsafe { &*(root(kmem).sites as *const Site).add(TAG_FIRST_SITE as usize) };
        site.addr.store(0x9999, Ordering::Relaxed);
        let tag = TagId(TAG_FIRST_SITE);
        assert_eq!(kmem.validate(), Err(Invalid::Site(SiteFault::Lost { tag, found: None })));
        site.kind.store(77, Ordering::Relaxed);
        assert_eq!(kmem.validate(), Err(Invalid::Site(SiteFault::Kind { tag })));
    }

    #[test]
    fn a_tag_in_the_cache_that_was_never_given_is_found() {
        let (kmem, _) = instance();
        // SAFETY: the cache of call sites.
        let slot = unsafe { &*(root(kmem).cache as *const AtomicU64).add(9) };
        slot.store(0x1_0000, Ordering::Relaxed);
        let tag = TagId(0x1_0000);
        assert_eq!(kmem.validate(), Err(Invalid::Site(SiteFault::Cache { slot: 9, tag })));
    }

    #[test]
    fn a_group_that_is_charged_for_what_it_does_not_hold_is_found() {
        let (kmem, _) = instance();
        let id = kmem.group_create(GroupId::ROOT, b"a").expect("room");
        let blocks = root(kmem).groups as *const GroupBlock;
        // SAFETY: the table of groups.
        let block = unsafe { &*blocks.add(id.objcg().0 as usize) };
        block.own.fetch_add(100, Ordering::Relaxed);
        block.charged.fetch_add(100, Ordering::Relaxed);
        let found = Invalid::Group { id, charged: 100, counted: 0 };
        assert_eq!(kmem.validate(), Err(found));
        block.own.store(0, Ordering::Relaxed);
        assert_eq!(kmem.validate(), Err(found));
    }

    #[test]
    fn a_guard_that_is_not_counted_is_found() {
        let (kmem, _) = instance();
        assert!(!kmem.vmalloc(4096, Gfp::KERNEL, CALLER).is_null());
        assert_eq!(kmem.validate(), Ok(()));
        let guards = kmem.vmalloc_stats().guards;
        kmem.vmalloc.miscount_guards();
        assert_eq!(kmem.validate(), Err(Invalid::Guards { count: guards + 1, guards }));
    }
}
