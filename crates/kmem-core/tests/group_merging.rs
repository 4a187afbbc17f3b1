//! Deleted groups with live objects: their objects become the parent's, and their ids are used
//! again.
#![cfg(all(target_os = "linux", not(miri)))]

mod instance;

use instance::{case, cost, forked, free, free_all, group, random, said_by_child};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Elements, Group, Kmem};
use kmem_layout::group::Limit;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

const USER: Caller = Caller::at(0x1000);

/// Makes a group, has it pay for what `alloc` returns, and deletes it.
fn within<T>(a: &'static Kmem, parent: GroupId, name: u64, alloc: impl FnOnce(Caller) -> T) -> T {
    let id = a.group_create(parent, name.to_string().as_bytes()).expect("a free id");
    let before = a.group_enter(id).expect("a living group");
    let got = alloc(USER.here());
    a.group_leave(before);
    a.group_delete(id).expect("a living group");
    got
}

/// Makes and deletes groups with one live object each until objects are merged twice. So those of
/// all groups that were deleted before are merged. Returns the new objects.
fn merge_all(a: &'static Kmem, parent: GroupId) -> Vec<*mut u8> {
    let (mut objects, mut ends, mut most) = (Vec::new(), 0, 0);
    while ends < 2 {
        let name = 1 << 40 | objects.len() as u64;
        objects.push(within(a, parent, name, |caller| a.alloc(1, caller)));
        let dying = a.group_dying();
        ends += usize::from(dying < most / 2);
        most = if dying < most / 2 { 0 } else { most.max(dying) };
    }
    objects
}

/// Makes groups below a parent, one live object each. Frees all objects at the end, and checks the
/// parent's charge on the way.
fn come_and_go(a: &'static Kmem, parent: &Group<Linux>, groups: u64) {
    let start = Instant::now();
    let mut objects = Vec::with_capacity(groups as usize);
    for name in 0..groups {
        objects.push(within(a, parent.id(), name, |caller| a.alloc(16, caller)) as usize);
        if name % (groups / 8) == 0 {
            assert_eq!(parent.stat().current, (name + 1) * cost(16));
        }
    }
    let took = start.elapsed();
    let resident = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let resident = resident.lines().find(|line| line.starts_with("VmRSS")).expect("a line");
    println!("{groups} groups: {took:?}, {} left, {resident}", a.group_dying());
    assert_eq!(parent.stat().current, groups * cost(16));
    assert_eq!(a.validate_groups(), Ok(()));
    for &at in objects.iter().step_by(7) {
        free(a, at as *mut u8);
    }
    let left = objects.len() - objects.len().div_ceil(7);
    assert_eq!(parent.stat().current, left as u64 * cost(16));
    assert_eq!(a.validate_groups(), Ok(()));
    let rest = objects.iter().enumerate().filter(|(i, _)| i % 7 != 0);
    free_all(a, rest.map(|(_, &at)| at as *mut u8));
    let stat = parent.stat();
    assert_eq!((stat.current, stat.own, a.group_dying()), (0, 0, 0));
    assert_eq!((a.validate_groups(), a.validate()), (Ok(()), Ok(())));
}

#[test]
fn a_hundred_thousand_groups_come_and_go_with_one_live_object_each() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    come_and_go(&A, &parent, 100_000);
}

/// The child has 256 MiB of address space, so there are few ids.
#[test]
fn twenty_thousand_groups_come_and_go_in_a_process_with_little_address_space() {
    said_by_child(child, "", "limited");
}

/// A process of its own, whose resident memory no other test changes.
#[test]
fn a_group_that_was_merged_takes_no_memory() {
    said_by_child(child, "", "resident");
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("it is there");
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a line");
    let kib = line.trim_end_matches("kB").trim().parse::<usize>().expect("a number");
    kib << 10
}

fn compare_resident() {
    static A: Kmem = Kmem::new();
    const GROUPS: u64 = 60_000;
    let parent = group(&A, "parent");
    let mut objects = vec![std::ptr::null_mut(); GROUPS as usize];
    // Bytes in memory with one object for each number, allocated by `one`.
    let mut with = |one: &dyn Fn(u64) -> *mut u8| {
        (0..).zip(&mut objects).for_each(|(name, at)| *at = one(name));
        free_all(&A, merge_all(&A, parent.id()));
        A.trim();
        assert_eq!(A.group_dying(), 0);
        let now = resident();
        free_all(&A, objects.drain(..));
        objects.resize(GROUPS as usize, std::ptr::null_mut());
        A.trim();
        now
    };
    let of_group = |name| within(&A, parent.id(), name, |caller| A.alloc(16, caller));
    let of_parent = |_| A.alloc(16, USER.charged_to(parent.id().objcg()));
    // The first round has all ids used once, so that the table of groups is in memory.
    with(&of_group);
    let (dead, alone) = (with(&of_group), with(&of_parent));
    let more = dead.saturating_sub(alone);
    assert!(more < GROUPS as usize * 4, "{more} bytes for {GROUPS} merged groups");
}

#[test]
fn child() {
    match case().as_deref() {
        None => return,
        Some("resident") => return compare_resident(),
        Some(_) => {}
    }
    static A: Kmem = Kmem::new();
    let limit = libc::rlimit { rlim_cur: 256 << 20, rlim_max: 256 << 20 };
    // SAFETY: a valid limit, set before the instance is used.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let parent = group(&A, "parent");
    come_and_go(&A, &parent, 20_000);
    let ids = (0..)
        .map_while(|name: u64| A.group_create(GroupId::ROOT, name.to_string().as_bytes()).ok());
    assert!(ids.count() < 1000);
}

/// Forks at many points of a walk. The child has exact charges, ends the walk and begins others.
#[test]
fn a_forked_child_goes_on_with_exact_charges() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let mut objects = Vec::with_capacity(40_000);
    let (mut before, mut walks) = (0, 0);
    for name in 0..40_000 {
        objects.push(within(&A, parent.id(), name, |caller| A.alloc(16, caller)));
        let dying = A.group_dying();
        let ends = dying < before;
        walks += usize::from(ends);
        before = dying;
        // A fork after each end, when the next group begins a part of a walk, and at others.
        if !ends && name % 1024 != 1023 {
            continue;
        }
        let count = objects.len() as u64;
        let work = || {
            let exact = parent.stat().current == count * cost(16);
            let valid = A.validate_groups() == Ok(());
            let more = merge_all(&A, parent.id());
            let all = parent.stat().current == (count + more.len() as u64) * cost(16);
            free_all(&A, more);
            objects.iter().for_each(|&at| free(&A, at));
            let none = parent.stat().current == 0 && A.group_dying() == 0;
            exact && valid && all && none && A.validate_groups() == Ok(())
        };
        // SAFETY: no other thread of this process uses the instance; nothing panics.
        assert!(unsafe { forked(work) });
    }
    assert!(walks > 1);
    free_all(&A, objects);
    assert_eq!((parent.stat().current, A.group_dying()), (0, 0));
}

#[test]
#[ignore = "takes minutes"]
fn ten_million_groups_come_and_go_with_one_live_object_each() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    come_and_go(&A, &parent, 10_000_000);
}

#[test]
fn all_kinds_of_allocations_become_the_parents() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let cache = A.cache_create(b"kind", 200, 8, None, USER).expect("memory");
    // SAFETY: a cache that is never destroyed.
    let cache = unsafe { cache.as_ref() };
    let order = Order(2);
    type Free = fn(*mut u8);
    let mut pointers: Vec<(*mut u8, Free)> = Vec::new();
    let mut add = |at: *mut u8, free: Free| {
        assert!(!at.is_null());
        pointers.push((at, free));
    };
    let any: Free = |at| free(&A, at);
    // SAFETY: it is called once with a block of this order.
    let pages: Free = |at| unsafe { A.free_pages(at, Order(2)) };
    // SAFETY: it is called once with an area.
    let area: Free = |at| unsafe { A.vfree(at) };
    // SAFETY: it is called once with a handle.
    let percpu: Free = |at| unsafe { A.free_percpu(at) };
    for name in 0..40 {
        within(&A, parent.id(), name, |caller| match name % 8 {
            0 => add(A.cache_alloc(cache, Gfp::KERNEL, caller), any),
            1 => add(A.alloc(100_000, caller), any),
            2 => add(A.alloc_pages(order, Gfp::KERNEL, caller), pages),
            3 => add(A.vmalloc(20_000, Gfp::KERNEL, caller), area),
            4 => add(A.alloc_percpu(48, 16, Gfp::KERNEL, caller), percpu),
            5 => add(A.alloc(5 << 20, caller), any),
            6 => add(A.alloc_aligned(1000, 4096, caller), any),
            _ => add(A.alloc(30_000, caller), any),
        });
    }
    let before = (parent.stat().current, parent.kinds());
    assert!(before.0 > 5 * (100_000 + 16_384 + 20_000 + 48 + (5 << 20)));
    assert_eq!((A.group_dying(), parent.stat().own), (40, 0));
    free_all(&A, merge_all(&A, parent.id()));
    assert_eq!(A.group_dying(), 0);
    assert_eq!((parent.stat().current, parent.kinds()), before);
    assert_eq!(parent.stat().own, before.0);
    assert_eq!(A.validate_groups(), Ok(()));
    pointers.into_iter().for_each(|(at, free)| free(at));
    assert_eq!((parent.stat().current, parent.stat().own), (0, 0));
    assert_eq!((A.validate_groups(), A.validate()), (Ok(()), Ok(())));
}

#[test]
fn objects_of_deleted_groups_count_against_the_limit_of_the_parent_before_and_after() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let held: Vec<_> = (0..100)
        .map(|name| within(&A, parent.id(), name, |caller| A.alloc(1024, caller)))
        .collect();
    let limit = 150 * cost(1024);
    let room = || {
        parent.set(Limit::Max, Some(limit)).expect("a living group");
        let caller = USER.charged_to(parent.id().objcg()).quietly();
        let all = instance::until_null(|| A.alloc(1024, caller));
        let count = all.len();
        free_all(&A, all);
        parent.set(Limit::Max, None).expect("a living group");
        count
    };
    assert_eq!(room(), 50);
    free_all(&A, merge_all(&A, parent.id()));
    assert_eq!(A.group_dying(), 0);
    assert_eq!(room(), 50);
    free_all(&A, held);
    assert_eq!(parent.stat().current, 0);
}

#[test]
fn a_used_id_never_shows_objects_of_the_group_before() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let old: Vec<_> = (0..20_000)
        .map(|name| within(&A, parent.id(), name, |caller| A.alloc(48, caller)))
        .collect();
    let new = parent.create("new").expect("a free id");
    assert_eq!((new.stat().current, new.kinds().slab), (0, 0));
    for &at in &old {
        // SAFETY: a live allocation of this thread.
        assert_eq!(unsafe { A.group_of_allocation(at) }, parent.id());
    }
    free_all(&A, old);
    assert_eq!((new.stat().current, parent.stat().current), (0, 0));
}

#[test]
fn groups_with_threads_handles_and_reservations_are_left_alone() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let [entered, handle, reserved] = ["entered", "handle", "reserved"].map(|name| {
        let id = A.group_create(parent.id(), name.as_bytes()).expect("a free id");
        A.alloc(100, USER.charged_to(id.objcg()));
        id
    });
    let before = A.group_enter(entered).expect("it lives");
    let kept = A.group(handle).expect("it lives");
    A.group_try_charge(reserved, 5000).expect("no limit");
    for id in [entered, handle, reserved] {
        A.group_delete(id).expect("no groups below");
    }
    free_all(&A, merge_all(&A, parent.id()));
    assert_eq!(A.group_dying(), 3);
    assert_eq!(A.group_current(), parent.id());
    let more = A.alloc(100, USER.here());
    assert_eq!(kept.stat().current, cost(112));
    assert_eq!(parent.stat().current, 4 * cost(112) + 5000);
    A.group_uncharge(reserved, 5000).expect("reserved before");
    A.group_leave(before);
    drop(kept);
    assert_eq!(parent.stat().current, 4 * cost(112));
    free_all(&A, merge_all(&A, parent.id()));
    assert_eq!((A.group_dying(), parent.stat().current), (0, 4 * cost(112)));
    free(&A, more);
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn a_pool_of_a_deleted_group_is_billed_to_the_parent_and_never_to_a_later_group() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let pool = within(&A, parent.id(), 0, |caller| {
        A.mempool_create(8, Elements::Kmalloc(256), caller).expect("memory")
    });
    let held = parent.stat().current;
    let objects = merge_all(&A, parent.id());
    free_all(&A, objects);
    // Every id but those of the parent and the pool is a group's now.
    let all: Vec<_> = (0..)
        .map_while(|name: u64| A.group_create(GroupId::ROOT, name.to_string().as_bytes()).ok())
        .collect();
    let outside: Vec<_> =
        (0..8).map(|_| pool.alloc(Gfp::KERNEL, USER).expect("a reserve")).collect();
    for element in outside {
        // SAFETY: an element of the pool that is used no longer.
        unsafe { pool.free(element) };
    }
    pool.resize(100).expect("memory");
    assert!(all.iter().all(|&id| A.group_stat(id).expect("it lives").own == 0));
    assert!(parent.stat().current > held);
    drop(pool);
    assert_eq!((parent.stat().current, A.group_dying()), (0, 0));
    all.into_iter().for_each(|id| A.group_delete(id).expect("it lives"));
    assert_eq!(A.validate_groups(), Ok(()));
}

/// Threads free, move and resize objects while their groups are deleted and merged.
#[test]
fn concurrent_frees_and_resizes_lose_no_charge() {
    static A: Kmem = Kmem::new();
    const THREADS: usize = 3;
    let parent = group(&A, "parent");
    let (mut kept, mut merged) = (Vec::new(), 0);
    thread::scope(|scope| {
        let senders: Vec<_> = (0..THREADS)
            .map(|me| {
                let (sender, receiver) = sync_channel::<usize>(20_000);
                scope.spawn(move || {
                    let mut state = 0x1234_5678 + me as u64;
                    let mut held: Vec<usize> = Vec::new();
                    for at in receiver {
                        held.push(at);
                        let which = random(&mut state) as usize % held.len();
                        let size = [40, 5000, 50_000][random(&mut state) as usize % 3];
                        match random(&mut state) % 4 {
                            // SAFETY: an allocation that only this thread has.
                            0 => unsafe {
                                let at = A.realloc(held[which] as *mut u8, size, USER);
                                assert!(!at.is_null());
                                held[which] = at as usize;
                            },
                            _ => free(&A, held.swap_remove(which) as *mut u8),
                        }
                        if held.len() > 9000 {
                            held.drain(..3000).for_each(|at| free(&A, at as *mut u8));
                        }
                    }
                    held.into_iter().for_each(|at| free(&A, at as *mut u8));
                });
                sender
            })
            .collect();
        let (mut state, mut before) = (99, 0);
        for name in 0..60_000u64 {
            let size = [24, 24, 700, 40_000][random(&mut state) as usize % 4];
            for sender in &senders {
                let at = within(&A, parent.id(), name, |caller| A.alloc(size, caller));
                sender.send(at as usize).expect("the thread lives");
            }
            kept.push(within(&A, parent.id(), name, |caller| A.alloc(24, caller)));
            let dying = A.group_dying();
            merged += usize::from(dying < before / 2);
            before = dying;
        }
        drop(senders);
    });
    assert!(merged > 2);
    assert_eq!(A.validate_groups(), Ok(()));
    assert_eq!(parent.stat().current, kept.len() as u64 * cost(32));
    free_all(&A, kept);
    assert_eq!((parent.stat().current, parent.stat().own, A.group_dying()), (0, 0, 0));
    assert_eq!((A.validate_groups(), A.validate()), (Ok(()), Ok(())));
}
