//! Groups: who pays, exactly; limits; deletion.
#![cfg(all(target_os = "linux", not(miri)))]

use kmem::memcg::{GroupError, GroupId, Limit};
use kmem::root::group_event;
use kmem::units::{Gfp, Order};
use kmem::{Caller, Group, Kmem, alloc};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

type Linux = kmem::os::linux::Linux;

/// A group below the root.
fn group(kmem: &'static Kmem, name: &str) -> Group<Linux> {
    let id = kmem.group_create(GroupId::ROOT, name.as_bytes()).expect("a new group");
    kmem.group(id).expect("it is there")
}

/// What an allocation is charged as.
fn cost(kmem: &'static Kmem, at: *mut u8) -> u64 {
    // SAFETY: a live allocation.
    let size = unsafe { kmem.usable_size(at) } as u64;
    if size > 32 << 10 { size / 4096 * 4100 } else { size + 4 }
}

fn free(kmem: &'static Kmem, at: *mut u8) {
    // SAFETY: live, and given up.
    unsafe { kmem.free(at) }
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
            // In the other group: who frees does not matter.
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
fn above_max_a_request_is_refused_and_nothing_is_left_of_it() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(1 << 20)).expect("a living group");
    let scope = tenant.enter();
    let mut all = Vec::new();
    loop {
        let at = alloc!(A, 1000);
        if at.is_null() {
            break;
        }
        all.push(at);
    }
    // To the last object: what CPUs had in stock was brought back first.
    let each = cost(&A, all[0]);
    assert_eq!(all.len() as u64, (1 << 20) / each);
    let stat = tenant.stat();
    assert_eq!(stat.current, all.len() as u64 * each);
    assert!(stat.peak <= 1 << 20);
    assert_eq!((stat.events[group_event::MAX], stat.events[group_event::OOM]), (1, 1));
    assert!(alloc!(A, 100_000).is_null());
    assert!(alloc!(A, 10, zeroed).is_null() || tenant.stat().current <= 1 << 20);
    assert!(tenant.try_charge(1 << 19).is_err());
    drop(scope);
    // Others are not concerned.
    let other = alloc!(A, 1000);
    assert!(!other.is_null());
    free(&A, other);
    let _scope = tenant.enter();
    free(&A, all.pop().expect("one"));
    all.push(alloc!(A, 1000));
    assert!(!all[all.len() - 1].is_null());
    assert_eq!(A.validate_groups(), Ok(()));
    all.into_iter().for_each(|at| free(&A, at));
}

#[test]
fn shrinkers_hold_a_group_below_its_limits_and_are_never_called_from_within() {
    static A: Kmem = Kmem::new();
    static CACHE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static DEPTH: AtomicUsize = AtomicUsize::new(0);
    let tenant = group(&A, "tenant");
    let shrink = Box::leak(Box::new(|bytes: usize| {
        assert_eq!(DEPTH.fetch_add(1, Ordering::Relaxed), 0);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // It may allocate, above the limit too.
        let note = alloc!(A, 2000);
        assert!(!note.is_null());
        let mut freed = 0;
        let mut cache = CACHE.lock().expect("not held while we allocate");
        while freed < bytes
            && let Some(at) = cache.pop()
        {
            freed += 1028;
            free(&A, at as *mut u8);
        }
        free(&A, note);
        DEPTH.fetch_sub(1, Ordering::Relaxed);
        freed
    }));
    let registered = tenant.add_shrinker(shrink).expect("a living group");
    for (limit, event) in [(Limit::Max, group_event::MAX), (Limit::High, group_event::HIGH)] {
        tenant.set(limit, Some(1 << 20)).expect("a living group");
        A.group_reset_peak(tenant.id()).expect("a living group");
        let before = (CALLS.load(Ordering::Relaxed), tenant.stat().events[event]);
        let _scope = tenant.enter();
        for _ in 0..20_000 {
            let at = alloc!(A, 1000);
            assert!(!at.is_null());
            CACHE.lock().expect("no panic").push(at as usize);
        }
        let stat = tenant.stat();
        assert!(stat.current <= (1 << 20) + (64 << 10), "{stat:?}");
        assert!(CALLS.load(Ordering::Relaxed) > before.0 && stat.events[event] > before.1);
        assert_eq!(stat.events[group_event::OOM], 0);
        tenant.set(limit, None).expect("a living group");
    }
    A.shrinker_remove(registered).expect("not within one");
    let _scope = tenant.enter();
    tenant.set(Limit::Max, Some(0)).expect("a living group");
    assert!(alloc!(A, 1000).is_null());
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn a_limit_set_below_what_is_held_calls_shrinkers_and_grants_nothing_more() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let _scope = tenant.enter();
    let all: Vec<*mut u8> = (0..1000).map(|_| alloc!(A, 1000)).collect();
    tenant.set(Limit::Max, Some(100_000)).expect("a living group");
    assert!(alloc!(A, 16).is_null());
    assert_eq!(tenant.stat().current, 1000 * 1028);
    all.into_iter().for_each(|at| free(&A, at));
    assert!(!alloc!(A, 16).is_null());
}

#[test]
fn what_cannot_be_refused_goes_above_the_limit_and_says_so() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(4096)).expect("a living group");
    let caller = Caller::at(0x1000).charged_to(tenant.id().objcg());
    assert!(A.alloc(8000, caller).is_null());
    assert!(!tenant.stat().over_limit);
    let at = A.alloc(8000, caller.nofail());
    assert!(!at.is_null() && tenant.stat().over_limit);
    A.group_reset_peak(tenant.id()).expect("a living group");
    assert!(!tenant.stat().over_limit);
    free(&A, at);
    assert_eq!(A.validate_groups(), Ok(()));
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
fn a_reservation_is_charged_until_it_is_dropped() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(1 << 20)).expect("a living group");
    let half = tenant.try_charge(1 << 19).expect("there is room");
    let other = tenant.try_charge(1 << 19).expect("there is room");
    assert_eq!(tenant.try_charge(1).err(), Some(GroupError::NoMemory));
    let stat = tenant.stat();
    assert_eq!((stat.current, stat.reserved), (1 << 20, 1 << 20));
    assert_eq!(A.validate_groups(), Ok(()));
    drop(half);
    assert_eq!(tenant.stat().current, 1 << 19);
    assert_eq!(A.group_uncharge(tenant.id(), 1 << 20), Err(GroupError::NotFound));
    drop(other);
    assert_eq!(tenant.stat().current, 0);
}

#[test]
fn a_reservation_of_more_than_there_can_be_is_refused_and_disturbs_nobody() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let (tenant, other) =
        (parent.create("tenant").expect("a group"), parent.create("other").expect("a group"));
    for bytes in [u64::MAX, 1 << 63, (1 << 62) + 1] {
        assert_eq!(tenant.try_charge(bytes).err(), Some(GroupError::NoMemory), "{bytes:#x}");
        assert_eq!((tenant.stat().current, parent.stat().peak), (0, 0));
    }
    let most = tenant.try_charge(1 << 62).expect("no limit");
    let caller = Caller::at(0x1000).charged_to(other.id().objcg());
    assert!(A.alloc(100, caller).is_null());
    // What cannot be refused is counted, so that it can be taken back.
    let at = A.alloc(100, caller.nofail());
    assert_eq!(parent.stat().current, (1 << 62) + cost(&A, at));
    assert_eq!(A.validate_groups(), Ok(()));
    free(&A, at);
    drop(most);
    assert_eq!(parent.stat().current, 0);
    assert_eq!(A.validate_groups(), Ok(()));
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
fn a_forked_child_has_books_of_its_own() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let all: Vec<usize> = {
        let _scope = tenant.enter();
        (0..5000).map(|i| alloc!(A, i % 3000 + 1) as usize).collect()
    };
    let held = tenant.stat().current;
    // SAFETY: the child only uses this instance, and leaves by `_exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let first = alloc!(A, 64);
            let mut right = tenant.stat().current == held && A.validate_groups().is_ok();
            all.iter().for_each(|&at| free(&A, at as *mut u8));
            right &= tenant.stat().current == 0 && A.validate_groups().is_ok();
            free(&A, first);
            libc::_exit(i32::from(!right));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
    assert_eq!(tenant.stat().current, held);
    assert_eq!(A.validate_groups(), Ok(()));
}

/// What a child does right after `fork`, which must be done within seconds.
///
/// # Safety
/// `work` does what a forked child may do.
unsafe fn forked(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the caller's promise; the child leaves by `_exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            libc::_exit(i32::from(!work()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status == 0
    }
}

#[test]
fn a_child_that_is_forked_while_others_make_and_delete_groups_has_all_in_order() {
    static A: Kmem = Kmem::new();
    let parent = A.group_create(GroupId::ROOT, b"parent").expect("a group");
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) == 0 {
                let id = A.group_create(parent, b"child").expect("a group");
                A.group_delete(id).expect("no groups below");
            }
        });
        let wrong = (0..500).find(|_| {
            // SAFETY: only this instance is used.
            let right = unsafe {
                forked(|| {
                    // Whoever was at the index is not there any more.
                    let child = A.group_find(parent, b"child");
                    let _ = child.and_then(|child| A.group_delete(child));
                    A.group_create(parent, b"child")
                        .is_ok_and(|id| id.objcg().0 <= 2 && A.group_delete(id).is_ok())
                        && A.group_delete(parent).is_ok()
                        && A.group_dying() == 0
                })
            };
            !right
        });
        done.store(1, Ordering::Relaxed);
        assert_eq!(wrong, None, "a fork");
    });
}

#[test]
fn a_child_that_is_forked_while_a_shrinker_runs_can_remove_it() {
    static A: Kmem = Kmem::new();
    static WITHIN: Barrier = Barrier::new(2);
    let tenant = group(&A, "tenant");
    let wait = |_: usize| {
        WITHIN.wait();
        WITHIN.wait();
        0
    };
    let shrinker = tenant.add_shrinker(Box::leak(Box::new(wait))).expect("a living group");
    tenant.set(Limit::Max, Some(0)).expect("a living group");
    thread::scope(|scope| {
        scope.spawn(|| {
            let _scope = tenant.enter();
            assert!(alloc!(A, 100).is_null());
        });
        WITHIN.wait();
        // SAFETY: only this instance is used.
        let removed = unsafe { forked(|| A.shrinker_remove(shrinker).is_ok()) };
        WITHIN.wait();
        assert!(removed);
    });
}

#[test]
fn an_eventfd_is_told_of_events() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    // SAFETY: a fresh descriptor, read into a word.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_NONBLOCK);
        assert!(fd >= 0);
        A.group_notify(tenant.id(), Some(fd as u32)).expect("a living group");
        tenant.set(Limit::Max, Some(0)).expect("a living group");
        assert!(A.alloc(64, Caller::at(0x1000).charged_to(tenant.id().objcg())).is_null());
        let mut count = 0u64;
        assert_eq!(libc::read(fd, (&raw mut count).cast(), 8), 8);
        assert_eq!(count, 2, "max and oom");
        libc::close(fd);
    }
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
    // SAFETY: live, used by nobody else; then given up.
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
