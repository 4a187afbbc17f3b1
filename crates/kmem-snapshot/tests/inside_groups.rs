//! Groups by the reader outside, by the process itself, and by a plain list of allocations: all
//! agree to the byte.

use std::collections::BTreeMap;

use kmem_core::Kmem;
use kmem_core::class::{SIZES, SizeClass};
use kmem_core::memcg::GroupId;
use kmem_core::request::Caller;
use kmem_core::units::Gfp;
use kmem_layout::group::{Limit, group_event};
use kmem_snapshot::books::{Books, Group, Usage};
use kmem_snapshot::{Process, Snapshot};

static KMEM: Kmem = Kmem::new();

fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize
}

/// Function of an allocation.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Alloc,
    Vmalloc,
    PerCpu,
}

impl Way {
    fn alloc(self, size: usize, caller: Caller) -> *mut u8 {
        match self {
            Self::Alloc => KMEM.alloc(size, caller),
            Self::Vmalloc => KMEM.vmalloc(size, Gfp::KERNEL, caller),
            Self::PerCpu => KMEM.alloc_percpu(size, 8, Gfp::KERNEL, caller),
        }
    }
}

/// A live allocation: its address, size, call, and the group that is charged.
struct Live {
    at: *mut u8,
    way: Way,
    bytes: u64,
    site: usize,
    payer: GroupId,
}

/// The model: a list of allocations, and the groups.
#[derive(Default)]
struct Model {
    live: Vec<Live>,
    parents: BTreeMap<u64, GroupId>,
    reserved: BTreeMap<u64, u64>,
}

impl Model {
    fn own(&self, id: GroupId) -> Usage {
        let mut usage =
            Usage { reserved: self.reserved.get(&id.0).copied().unwrap_or(0), ..Usage::default() };
        for live in self.live.iter().filter(|live| live.payer == id) {
            usage.objects += 1;
            let (sum, pages) = match live.way {
                Way::Alloc if live.bytes <= 32 << 10 => (&mut usage.slab, false),
                Way::Alloc => (&mut usage.pages, true),
                Way::Vmalloc => (&mut usage.vmalloc, true),
                Way::PerCpu => (&mut usage.percpu, false),
            };
            *sum += live.bytes;
            usage.metadata += if pages { live.bytes / 4096 * 4 } else { 4 };
        }
        usage
    }

    /// Bytes and objects by call.
    fn sites(&self, id: GroupId) -> BTreeMap<u64, (i64, u64)> {
        let mut sums = BTreeMap::new();
        for live in self.live.iter().filter(|live| live.payer == id) {
            let sum = sums.entry(live.site as u64).or_insert((0, 0));
            *sum = (sum.0 + live.bytes as i64, sum.1 + 1);
        }
        sums
    }

    /// Allocates, unless the group's limit refuses it.
    fn alloc(&mut self, way: Way, size: usize, site: usize, payer: GroupId) {
        let at = way.alloc(size, Caller::at(site).charged_to(payer.objcg()));
        if at.is_null() {
            return;
        }
        let bytes = match way {
            // SAFETY: the object is live.
            Way::Alloc => unsafe { KMEM.usable_size(at) as u64 },
            Way::Vmalloc => size.next_multiple_of(4096) as u64,
            Way::PerCpu => SIZES[SizeClass::of(size).0 as usize].into(),
        };
        self.live.push(Live { at, way, bytes, site, payer });
    }

    fn free(&mut self, gone: usize) {
        let Live { at, way, .. } = self.live.swap_remove(gone);
        // SAFETY: the allocation is live, made by the function that fits, and freed once.
        unsafe {
            match way {
                Way::Alloc => KMEM.free(at),
                Way::Vmalloc => KMEM.vfree(at),
                Way::PerCpu => KMEM.free_percpu(at),
            }
        }
    }

    fn delete(&mut self, id: GroupId) {
        let Ok(Some(parent)) = KMEM.group_parent(id) else { panic!("no parent") };
        if KMEM.group_delete(id).is_ok() {
            self.live
                .iter_mut()
                .filter(|live| live.payer == id)
                .for_each(|live| live.payer = parent);
            let reserved = self.reserved.remove(&id.0).unwrap_or(0);
            *self.reserved.entry(parent.0).or_default() += reserved;
            self.parents.remove(&id.0);
        }
    }
}

fn books() -> Books {
    let process = Process::open(std::process::id()).expect("this process");
    let mut snapshot = Snapshot::take(&process).expect("its books");
    assert_eq!((snapshot.torn(), snapshot.books[0].groups.torn), (0, 0));
    snapshot.books.remove(0)
}

fn find(books: &Books, id: GroupId) -> (usize, &Group) {
    let objcg = id.objcg().0;
    let at = books.groups.all().iter().position(|group| group.objcg == objcg).expect("a group");
    (at, &books.groups.all()[at])
}

fn assert_same(model: &Model, books: &Books) {
    assert_eq!(KMEM.validate_groups(), Ok(()));
    let all: Vec<GroupId> = KMEM.group_all().collect();
    assert_eq!(books.groups.all().len(), all.len());
    for id in all {
        let (at, group) = find(books, id);
        let inside = KMEM.group_stat(id).expect("a group");
        assert_eq!(u64::from(group.generation) << 14 | u64::from(group.objcg), id.0);
        assert_eq!(group.usage.current(), inside.current, "{}", books.groups.path(at));
        assert_eq!(group.cached, inside.cached, "{}", books.groups.path(at));
        assert_eq!(group.own, model.own(id), "{}", books.groups.path(at));
        assert_eq!((group.peak, group.events), (inside.peak, inside.events));
        assert_eq!(group.over_limit, inside.over_limit);
        let limit = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        if id != GroupId::ROOT {
            assert_eq!((limit(group.max), limit(group.high)), (inside.max, inside.high));
            assert_eq!(limit(group.low), inside.low);
            let parent = model.parents[&id.0];
            assert_eq!(find(books, parent).0, group.parent);
        }
        assert_eq!(books.groups.find(&books.groups.path(at)), Some(at));
        let mut name = [0; 255];
        assert_eq!(group.name.as_bytes(), KMEM.group_name(id, &mut name).expect("a group"));

        let own = books.rows_of(&(at..at + 1));
        let rows = own.iter().map(|row| (row.key.addresses()[0], (row.bytes, row.calls)));
        assert_eq!(rows.collect::<BTreeMap<_, _>>(), model.sites(id));
        let caches = books.caches_of(&(at..at + 1));
        let slab = |of: u64, cache: &kmem_snapshot::books::Cache| {
            of + cache.active * u64::from(cache.size)
        };
        assert_eq!(caches.iter().fold(0, slab), group.own.slab);
        // Each group's usage is its own and that of its children.
        let below = books.groups.below(at);
        let sum: u64 = below.clone().map(|at| books.groups.all()[at].own.current()).sum();
        assert_eq!(sum, group.usage.current());
        let objects: u64 = books.rows_of(&below).iter().map(|row| row.calls).sum();
        assert_eq!(objects, group.usage.objects);
    }
    assert_eq!(books.rows_of(&books.groups.below(0)), books.rows);
}

#[test]
fn the_reader_outside_agrees_with_the_process_and_with_a_list_of_what_was_allocated() {
    let mut state = 7;
    let mut model = Model::default();
    // The root exists from the first allocation on.
    model.alloc(Way::Alloc, 1, 0x10_0000, GroupId::ROOT);
    for round in 0..25 {
        let groups: Vec<GroupId> = KMEM.group_all().collect();
        for i in 0..4 {
            let parent = groups[random(&mut state) % groups.len()];
            let name = format!("g{round}-{i}");
            if let Ok(id) = KMEM.group_create(parent, name.as_bytes()) {
                model.parents.insert(id.0, parent);
            }
        }
        let groups: Vec<GroupId> = KMEM.group_all().collect();
        for _ in 0..2000 {
            let r = random(&mut state);
            let size = match r % 40 {
                0 => r % 300_000,
                1..4 => r % 60_000,
                _ => r % 1200,
            };
            let payer = groups[random(&mut state) % groups.len()];
            let site = 0x10_0000 + random(&mut state) % 30;
            // Each CPU has a copy of an object, so their count is small.
            let way = match random(&mut state) % 50 {
                0 => Way::Vmalloc,
                1 => Way::PerCpu,
                _ => Way::Alloc,
            };
            let size = if way == Way::PerCpu { 1 + size % 1000 } else { size.max(1) };
            model.alloc(way, size, site, payer);
            if !r.is_multiple_of(3) && !model.live.is_empty() {
                model.free(random(&mut state) % model.live.len());
            }
        }
        let one = groups[random(&mut state) % groups.len()];
        if one != GroupId::ROOT {
            let limit = [Limit::Max, Limit::High, Limit::Low][round % 3];
            KMEM.group_set(one, limit, (random(&mut state) % (64 << 20)) as u64).expect("a group");
            if KMEM.group_try_charge(one, 12_345).is_ok() {
                *model.reserved.entry(one.0).or_default() += 12_345;
            }
        }
        // The group is deleted with its live objects, and perhaps with reserved bytes.
        let leaf = groups[random(&mut state) % groups.len()];
        if leaf != GroupId::ROOT {
            model.delete(leaf);
        }
        assert_same(&model, &books());
    }
    let books = books();
    assert!(books.groups.all().len() > 40);
    assert!(KMEM.group_dying() > 2, "deleted groups hold something");
    assert!(books.groups.all().iter().any(|group| group.depth > 3));
    let refused = |group: &Group| group.events[group_event::MAX] != 0;
    assert!(books.groups.all().iter().any(refused), "a limit was met");
    assert!(books.holdings.is_exact());
    let all = books.groups.all()[0].usage;
    assert!([all.slab, all.pages, all.vmalloc, all.percpu, all.reserved].iter().all(|&of| of > 0));
}
