//! Groups of an instance: exact charges, limits, deletion, and forked children.
#![cfg(all(target_os = "linux", not(miri)))]

#[path = "../instance/mod.rs"]
mod instance;

mod deletion;
mod fault_kinds;
mod faults;
mod forks;
mod limits;
mod memcg_kmem;
mod percpu;
mod storm;

use instance::{forked, free, group, until_null};
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Group, Kmem, alloc};
use kmem_layout::group::Limit;
use kmem_layout::group::group_event;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

type Linux = kmem_core::os::linux::Linux;

/// Charge of an allocation.
fn cost(kmem: &'static Kmem, at: *mut u8) -> u64 {
    // SAFETY: a live allocation.
    instance::cost(unsafe { kmem.usable_size(at) } as u64)
}

#[test]
fn who_allocates_in_a_group_pays_for_object_and_metadata_until_it_is_freed() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let mut all = Vec::new();
    {
        let _scope = tenant.enter();
        for size in [1, 64, 100, 1000, 5000, 32 << 10, 40 << 10, 3 << 20] {
            for _ in 0..100 {
                all.push(alloc!(A, size));
            }
        }
    }
    let outside = alloc!(A, 64);
    let sum = all.iter().map(|&at| cost(&A, at)).sum::<u64>();
    assert_eq!(tenant.stat().current, sum);
    assert_eq!(tenant.stat().own, sum);
    assert_eq!(A.validate_groups(), Ok(()));
    // SAFETY: live allocations.
    unsafe {
        assert_eq!(A.group_of_allocation(all[0]), tenant.id());
        assert_eq!(A.group_of_allocation(outside), GroupId::ROOT);
    }
    all.into_iter().for_each(|at| free(&A, at));
    assert_eq!(tenant.stat().current, 0);
    assert_eq!(A.validate_groups(), Ok(()));
    free(&A, outside);
}

#[test]
fn a_free_on_another_thread_credits_the_group_that_was_charged() {
    static A: Kmem = Kmem::new();
    let (left, right) = (group(&A, "left"), group(&A, "right"));
    let all: Vec<usize> = (0..50_000)
        .map(|i| {
            let _scope = if i % 2 == 0 { left.enter() } else { right.enter() };
            alloc!(A, 16 + i % 500) as usize
        })
        .collect();
    assert_eq!(A.validate_groups(), Ok(()));
    let held = right.stat().current;
    assert!(held > 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The group of the freeing thread does not matter.
            let _scope = right.enter();
            all.iter().step_by(2).for_each(|&at| free(&A, at as *mut u8));
        });
    });
    assert_eq!(left.stat().current, 0);
    assert_eq!(right.stat().current, held);
    all.iter().skip(1).step_by(2).for_each(|&at| free(&A, at as *mut u8));
    assert_eq!(right.stat().current, 0);
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn children_and_own_are_the_hierarchy() {
    static A: Kmem = Kmem::new();
    let top = group(&A, "top");
    let below = top.create("below").expect("a group");
    let deep = below.create("deep").expect("a group");
    for at in [&top, &below, &deep] {
        let _scope = at.enter();
        assert!(!alloc!(A, 1024).is_null());
    }
    let own = [&top, &below, &deep].map(|at| at.stat().own);
    assert_eq!(own, [1028; 3]);
    assert_eq!([&top, &below, &deep].map(|at| at.stat().current), [3084, 2056, 1028]);
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn what_a_deleted_group_holds_is_its_parents_without_a_walk() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let child = parent.create("child").expect("a group");
    let all: Vec<*mut u8> = {
        let _scope = child.enter();
        (0..1000).map(|_| alloc!(A, 256)).collect()
    };
    let held = child.stat().current;
    child.delete().expect("no groups below");
    assert_eq!(parent.stat().current, held);
    assert_eq!(A.group_dying(), 1);
    assert_eq!(A.group_find(parent.id(), b"child"), Err(GroupError::NotFound));
    // The name is free at once, for another group.
    let again = parent.create("child").expect("the name is free");
    assert_ne!(again.id(), child.id());
    assert_eq!(again.stat().current, 0);
    // SAFETY: live.
    assert_eq!(unsafe { A.group_of_allocation(all[0]) }, parent.id());
    all.into_iter().for_each(|at| free(&A, at));
    assert_eq!(parent.stat().current, 0);
    let stale = child.id();
    drop(child);
    assert_eq!(A.group_dying(), 0);
    assert_eq!(A.group_set(stale, Limit::Max, 0), Err(GroupError::NotFound));
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn a_number_is_used_again_only_when_nothing_is_charged_to_it_and_never_names_the_old_group() {
    static A: Kmem = Kmem::new();
    let mut seen = Vec::new();
    for round in 0..1000 {
        let id = A.group_create(GroupId::ROOT, format!("g{round}").as_bytes()).expect("a group");
        assert!(!seen.contains(&id));
        seen.push(id);
        let kept = round % 100 == 0;
        let at = A.alloc(100, Caller::at(0x1000).charged_to(id.objcg()));
        if !kept {
            free(&A, at);
        }
        A.group_delete(id).expect("a group");
    }
    assert_eq!(A.group_dying(), 10);
    let numbers: std::collections::BTreeSet<u32> = seen.iter().map(|id| id.objcg().0).collect();
    assert!(numbers.len() <= 11, "{} numbers for 11 groups at most", numbers.len());
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn names_and_places_that_cannot_be_are_refused() {
    static A: Kmem = Kmem::new();
    let long = "x".repeat(256);
    for name in ["", "a/b", "/", ".", "..", "nul\0", &long] {
        assert_eq!(
            A.group_create(GroupId::ROOT, name.as_bytes()),
            Err(GroupError::BadName),
            "{name:?}"
        );
    }
    assert_eq!(A.group_create(GroupId::ROOT, b"\xff"), Err(GroupError::BadName));
    let longest = group(&A, &"x".repeat(255));
    assert_eq!(A.group_create(GroupId::ROOT, "x".repeat(255).as_bytes()), Err(GroupError::Exists));
    let id = longest.id().0;
    for stale in [0, u64::MAX, 1, i32::MAX as u64, id + (1 << 14), id | 1 << 46, id | 1 << 63] {
        let stale = GroupId(stale);
        assert_eq!(A.group_create(stale, b"x"), Err(GroupError::NotFound), "{stale:?}");
        assert_eq!(A.group_delete(stale), Err(GroupError::NotFound));
        assert_eq!(A.group_enter(stale).map(|_| ()), Err(GroupError::NotFound));
        assert_eq!(A.group_stat(stale), Err(GroupError::NotFound));
    }
    assert_eq!(A.group_delete(GroupId::ROOT), Err(GroupError::IsRoot));
    assert_eq!(A.group_set(GroupId::ROOT, Limit::Max, 1), Err(GroupError::IsRoot));
    let mut at = longest.id();
    for depth in 2..32 {
        at = A.group_create(at, b"down").unwrap_or_else(|e| panic!("{depth}: {e}"));
    }
    assert_eq!(A.group_create(at, b"down"), Err(GroupError::TooDeep));
    assert_eq!(longest.delete(), Err(GroupError::HasChildren));
    assert_eq!(
        A.group_at(&[b"/".as_slice(), "x".repeat(255).as_bytes(), b"/down/down"].concat())
            .map(|id| A.group_parent(id).is_ok()),
        Ok(true)
    );
}

#[test]
fn resizing_that_recharges_bills_all_of_it_to_the_caller_or_changes_nothing() {
    static A: Kmem = Kmem::new();
    let (payer, other) = (group(&A, "payer"), group(&A, "other"));
    let by = |group: &Group<_>| Caller::at(0x2000).charged_to(group.id().objcg()).quietly();
    let charged = |at, of: &Group<_>, not: &Group<_>| {
        assert_eq!((of.stat().current, not.stat().current), (cost(&A, at), 0));
        assert_eq!(A.validate_groups(), Ok(()));
    };
    // In place and by moving: objects, runs of pages, areas.
    for (first, size) in [(100, 110), (100, 5000), (70_000, 70_001), (70_000, 90_000), (90_000, 99)]
    {
        let at = A.alloc(first, by(&payer));
        // SAFETY: live; replaced.
        let at = unsafe { A.realloc(at, size, by(&other).recharging()) };
        charged(at, &other, &payer);
        // SAFETY: live; replaced.
        let at = unsafe { A.realloc(at, size, by(&payer)) };
        charged(at, &other, &payer);
        let before = (cost(&A, at), other.stat().current);
        payer.set(Limit::Max, Some(10)).expect("a living group");
        for size in [size, size + 1, 2 * size, 200_000] {
            // SAFETY: live; it stays.
            assert!(unsafe { A.realloc(at, size, by(&payer).recharging()) }.is_null(), "{size}");
            assert_eq!((cost(&A, at), other.stat().current), before);
            charged(at, &other, &payer);
        }
        payer.set(Limit::Max, None).expect("a living group");
        // SAFETY: live; replaced.
        let at = unsafe { A.realloc(at, size, Caller::at(0x2000).recharging()) };
        assert_eq!((payer.stat().current, other.stat().current), (0, 0));
        // SAFETY: live; replaced.
        let at = unsafe { A.realloc(at, size, by(&payer).recharging()) };
        charged(at, &payer, &other);
        free(&A, at);
    }
    for (first, size) in [(20_000, 20_000), (20_000, 8000), (20_000, 60_000)] {
        let at = A.vmalloc(first, Gfp::KERNEL, by(&payer));
        let pages = |bytes: usize| bytes.div_ceil(4096) as u64 * 4100;
        assert_eq!(payer.stat().current, pages(first));
        // SAFETY: live; replaced.
        let at = unsafe { A.vrealloc(at, size, Gfp::RECHARGE, by(&other)) };
        assert_eq!((payer.stat().current, other.stat().current), (0, pages(size)));
        assert_eq!(A.validate_groups(), Ok(()));
        // SAFETY: live, and used no longer.
        unsafe { A.vfree(at) };
    }
    assert_eq!((payer.stat().current, other.stat().current), (0, 0));
}

#[test]
fn resizing_bills_the_difference_to_who_paid() {
    static A: Kmem = Kmem::new();
    let (payer, other) = (group(&A, "payer"), group(&A, "other"));
    let caller = Caller::at(0x1000).charged_to(payer.id().objcg());
    let _scope = other.enter();
    let mut at = A.alloc(10, caller);
    for size in [100, 30, 3000, 70_000, 5 << 20, 6 << 20, 200_000, 1000, 16] {
        // SAFETY: live; replaced.
        at = unsafe { A.realloc(at, size, Caller::at(0x2000).here()) };
        assert_eq!(payer.stat().current, cost(&A, at), "{size}");
        assert_eq!(other.stat().current, 0);
        assert_eq!(A.validate_groups(), Ok(()));
    }
    payer.set(Limit::Max, Some(100_000)).expect("a living group");
    // SAFETY: live; stays where it is.
    assert!(unsafe { A.realloc(at, 1 << 20, Caller::at(0x2000)) }.is_null());
    free(&A, at);
    assert_eq!(payer.stat().current, 0);
}

#[test]
fn pages_are_charged_and_stay_so_when_they_are_split() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let caller = Caller::at(0x1000).charged_to(tenant.id().objcg());
    let block = A.alloc_pages(Order(4), Gfp::KERNEL, caller);
    assert_eq!(tenant.stat().current, 16 * 4100);
    // SAFETY: a block of that order; then its pieces.
    unsafe {
        A.split_page(block, Order(4));
        assert_eq!(tenant.stat().current, 16 * 4100);
        assert_eq!(A.validate_groups(), Ok(()));
        A.free(block.add(4096));
        assert_eq!(tenant.stat().current, 15 * 4100);
        A.free(block);
        for page in 2..16 {
            A.free(block.add(page * 4096));
        }
    }
    assert_eq!(tenant.stat().current, 0);
    let unaccounted = A.kmalloc(64, Gfp::UNACCOUNTED, caller);
    assert_eq!(tenant.stat().current, 0);
    free(&A, unaccounted);
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn kept_pages_are_paid_from_stocks_to_the_page() {
    static A: Kmem = Kmem::new();
    let groups = [group(&A, "one"), group(&A, "other")];
    for order in [0, 1, 3, 4, 6, 8, 9].map(Order) {
        let cost = 4100 << order.0;
        for tenant in &groups {
            tenant.set(Limit::Max, Some(10 * cost)).expect("a living group");
        }
        let mut held = Vec::new();
        // The groups take turns, so that the stock of the CPU changes its owner each time.
        for turn in 0..22 {
            let caller = Caller::at(0x1000).charged_to(groups[turn % 2].id().objcg());
            let page = A.alloc_pages(order, Gfp::NOWARN, caller);
            assert_eq!(page.is_null(), turn >= 20, "{turn}");
            held.push(page);
        }
        for tenant in &groups {
            assert_eq!(tenant.stat().current, 10 * cost);
        }
        // One group alone can allocate at once what it freed.
        for _ in 0..100 {
            // SAFETY: live, given up.
            unsafe { A.free_pages(held[0], order) };
            assert_eq!(groups[0].stat().current, 9 * cost);
            let caller = Caller::at(0x2000).charged_to(groups[0].id().objcg());
            held[0] = A.alloc_pages(order, Gfp::KERNEL, caller);
            assert!(!held[0].is_null());
        }
        assert_eq!(A.validate_groups(), Ok(()));
        // A free on another thread credits the group that was charged.
        let held: Vec<usize> = held.into_iter().take(20).map(|page| page as usize).collect();
        thread::scope(|scope| {
            // SAFETY: live, given up.
            let free = || held.iter().for_each(|&at| unsafe { A.free_pages(at as _, order) });
            scope.spawn(free).join().expect("no panic");
        });
        assert!(groups.iter().all(|tenant| tenant.stat().current == 0));
        assert_eq!(A.validate_groups(), Ok(()));
    }
}

#[test]
fn a_future_pays_from_its_group_on_whichever_thread_it_runs() {
    static A: Kmem = Kmem::new();
    let (outer, inner) = (group(&A, "outer"), group(&A, "inner"));
    let mut steps = 0;
    let task = inner.clone().run(std::future::poll_fn(move |_| {
        steps += 1;
        assert!(!alloc!(A, 100).is_null());
        if steps < 3 { Poll::Pending } else { Poll::Ready(()) }
    }));
    let mut task = pin!(task);
    let mut poll = || task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let _scope = outer.enter();
    assert!(poll().is_pending());
    assert!(!alloc!(A, 200).is_null());
    thread::scope(|scope| {
        let poll = &mut poll;
        scope.spawn(|| assert!(poll().is_pending())).join().expect("no panic");
    });
    assert!(poll().is_ready());
    assert_eq!(inner.stat().current, 3 * (112 + 4));
    assert_eq!(outer.stat().current, 208 + 4);
}

#[test]
fn groups_that_alternate_and_threads_that_come_and_go_leave_no_drift() {
    static A: Kmem = Kmem::new();
    let groups: Vec<Group<Linux>> = (0..100).map(|i| group(&A, &format!("g{i}"))).collect();
    thread::scope(|scope| {
        for thread in 0..4usize {
            let groups = &groups;
            scope.spawn(move || {
                let mut held: Vec<*mut u8> = Vec::new();
                for i in 0..200_000usize {
                    let _scope = groups[(i * 7 + thread) % groups.len()].enter();
                    held.push(alloc!(A, 8 + i * 13 % 2000));
                    if held.len() > 500 {
                        free(&A, held.swap_remove(i * 31 % 500));
                    }
                }
                held.into_iter().for_each(|at| free(&A, at));
            });
        }
    });
    assert_eq!(A.validate_groups(), Ok(()));
    assert_eq!(groups.iter().map(|group| group.stat().current).sum::<u64>(), 0);
    let ids: Vec<GroupId> = groups.iter().map(Group::id).collect();
    drop(groups);
    for id in ids {
        A.group_delete(id).expect("a group");
    }
    assert_eq!(A.group_dying(), 0);
}

#[test]
fn per_cpu_objects_and_areas_are_paid_for_until_they_are_freed() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let who = Caller::at(0x1000).charged_to(tenant.id().objcg());
    let current = || tenant.stat().current;
    let (mut objects, mut areas) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        objects.push(A.alloc_percpu(100, 8, Gfp::KERNEL, who));
    }
    assert_eq!(current(), 100 * (112 + 4));
    for pages in 1..=100 {
        areas.push(A.vmalloc(pages * 4096, Gfp::KERNEL, who));
    }
    let pages = 5050;
    assert_eq!(current(), 100 * 116 + pages * 4100);
    // Allocate something of each kind, and check the charge of each.
    let (object, block) = (A.alloc(1000, who), A.alloc_pages(Order(2), Gfp::KERNEL, who));
    let kinds = tenant.kinds();
    assert_eq!((kinds.slab, kinds.pages), (1028, 4 * 4100));
    assert_eq!((kinds.percpu, kinds.vmalloc), (100 * 116, pages * 4100));
    assert_eq!(current(), kinds.slab + kinds.pages + kinds.percpu + kinds.vmalloc);
    free(&A, object);
    free(&A, block);
    // SAFETY: live, and only this test uses it; then given up.
    unsafe {
        areas[0] = A.vrealloc(areas[0], 300 * 4096, Gfp::KERNEL, Caller::at(0x2000));
        assert_eq!(current(), 100 * 116 + (pages + 299) * 4100);
        areas[0] = A.vrealloc(areas[0], 4096, Gfp::KERNEL, Caller::at(0x2000));
        assert_eq!((current(), A.validate_groups()), (100 * 116 + pages * 4100, Ok(())));
        tenant.set(Limit::Max, Some(0)).expect("a limit");
        assert!(A.vmalloc(4096, Gfp::NOWARN, who).is_null());
        assert!(A.vrealloc(areas[0], 90_000, Gfp::NOWARN, who).is_null());
        assert!(A.alloc_percpu(8000, 8, Gfp::NOWARN, who).is_null());
        objects.into_iter().for_each(|handle| A.free_percpu(handle));
        areas.into_iter().for_each(|at| A.vfree(at));
    }
    assert_eq!((current(), A.validate_groups()), (0, Ok(())));
}

#[test]
fn an_address_in_an_allocation_is_paid_for_by_its_group_and_free_memory_by_none() {
    static A: Kmem = Kmem::new();
    let (tenant, other) = (group(&A, "tenant"), group(&A, "other"));
    let to = |group: &Group<Linux>| Caller::at(0x1000).charged_to(group.id().objcg());
    let held = [
        (A.alloc(200, to(&tenant)), 200),
        (A.alloc(300_000, to(&tenant)), 300_000),
        (A.vmalloc(50_000, Gfp::KERNEL, to(&tenant)), 50_000),
        (A.alloc_pages(Order(3), Gfp::KERNEL, to(&tenant)), 8 * 4096),
    ];
    let of = |at: *mut u8, offset| A.group_of_address(at.wrapping_add(offset));
    for (at, bytes) in held {
        for offset in [0, 1, bytes / 2, bytes - 1] {
            assert_eq!(of(at, offset), Some(tenant.id()), "{offset} of {bytes}");
        }
    }
    let area = held[2].0;
    assert_eq!(of(area, 13 * 4096), None, "the page behind an area");
    let root = A.alloc(200, Caller::at(0x1000));
    let others = A.alloc(200, to(&other));
    assert_eq!((of(root, 50), of(others, 199)), (Some(GroupId::ROOT), Some(other.id())));
    let local = 0u8;
    assert_eq!(A.group_of_address(&raw const local), None);
    assert_eq!(A.group_of_address(std::ptr::null()), None);
    tenant.delete().expect("no groups below");
    for (at, bytes) in held {
        assert_eq!(of(at, bytes - 1), Some(GroupId::ROOT), "its parent");
        free(&A, at);
        assert_eq!((of(at, 0), of(at, bytes - 1)), (None, None), "{bytes}");
    }
    free(&A, root);
    free(&A, others);
}
