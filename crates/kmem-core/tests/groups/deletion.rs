//! Groups that are deleted while they are in use: their numbers, their threads, their stocks on
//! CPUs, and their state in a forked child.

use crate::instance::{forked, free, group, until_null};
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::linux::Linux;
use kmem_core::{Caller, Group, Kmem, alloc};
use kmem_layout::group::Limit;
use kmem_layout::group::group_event;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

#[test]
fn a_thread_in_a_deleted_group_works_for_its_parent_and_keeps_nothing_of_the_group() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let child = parent.create("child").expect("a group");
    let (before, after): (Vec<_>, Vec<_>) = {
        let _scope = child.enter();
        let before = (0..1000).map(|i| alloc!(A, i % 3000)).collect();
        child.delete().expect("no groups below");
        assert_eq!(A.group_current(), parent.id());
        (before, (0..10_000).map(|i| alloc!(A, i * 7 % 50_000)).collect())
    };
    let held = parent.stat().current;
    drop(child);
    // Earlier allocations keep the group's number. Later ones have the parent's.
    assert_eq!(A.group_dying(), 1);
    before.into_iter().for_each(|at| free(&A, at));
    assert_eq!(A.group_dying(), 0);
    assert!(parent.stat().current < held && parent.stat().current > 0);
    assert_eq!(A.validate_groups(), Ok(()));
    after.into_iter().for_each(|at| free(&A, at));
    assert_eq!(parent.stat().current, 0);
}

#[test]
fn the_group_above_is_the_nearest_that_lives() {
    static A: Kmem = Kmem::new();
    let upper = group(&A, "upper");
    let parent = upper.create("parent").expect("a group");
    let child = parent.create("child").expect("a group");
    assert_eq!(child.parent().map(|above| above.id()), Some(parent.id()));
    assert_eq!(child.to_string(), "/upper/parent/child");
    child.delete().expect("no groups below");
    parent.delete().expect("no groups below");
    assert_eq!(child.parent().map(|above| above.id()), Some(upper.id()));
    let root = upper.parent().expect("the root");
    assert_eq!((root.id(), root.to_string().as_str()), (GroupId::ROOT, "/"));
    assert!(root.parent().is_none());
}

#[test]
fn a_deleted_group_is_limited_by_its_parent() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let child = parent.create("child").expect("a group");
    parent.set(Limit::Max, Some(100_000)).expect("a living group");
    let _scope = child.enter();
    child.delete().expect("no groups below");
    let all = until_null(|| alloc!(A, 1000));
    assert_eq!(all.len(), 100_000 / 1028);
    assert_eq!(parent.stat().events[group_event::OOM], 1);
    all.into_iter().for_each(|at| free(&A, at));
}

#[test]
fn nothing_can_be_set_in_a_deleted_group() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let at = A.alloc(1000, Caller::at(0x1000).charged_to(tenant.id().objcg()));
    tenant.delete().expect("no groups below");
    let gone = Err(GroupError::NotFound);
    for limit in [Limit::Max, Limit::High, Limit::Low] {
        assert_eq!(tenant.set(limit, Some(1)), gone);
    }
    assert_eq!(A.group_reset_peak(tenant.id()), gone);
    assert_eq!(A.group_notify(tenant.id(), Some(1)), gone);
    assert_eq!(A.group_try_charge(tenant.id(), 1), gone);
    assert_eq!(A.group_enter(tenant.id()).err(), Some(GroupError::NotFound));
    assert_eq!(tenant.create("below").err(), Some(GroupError::NotFound));
    assert_eq!(tenant.delete(), gone);
    // The counts of its remaining charge can be read.
    assert_eq!(tenant.stat().current, 1028);
    free(&A, at);
    assert_eq!(tenant.stat().current, 0);
}

/// Threads set limits while the group is deleted and its entry used again. They change that group
/// or get an error, and never change the next group.
#[test]
fn a_limit_never_reaches_the_next_group_of_an_entry() {
    static A: Kmem = Kmem::new();
    static ID: Mutex<GroupId> = Mutex::new(GroupId::ROOT);
    static DONE: AtomicBool = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !DONE.load(Ordering::Relaxed) {
                    let id = *ID.lock().expect("no panic");
                    if id != GroupId::ROOT {
                        let _ = A.group_set(id, Limit::Low, id.0);
                    }
                }
            });
        }
        for round in 0..30_000u32 {
            let name = format!("{round}");
            let id = A.group_create(GroupId::ROOT, name.as_bytes()).expect("room");
            *ID.lock().expect("no panic") = id;
            let low = A.group_stat(id).expect("a living group").low;
            if low != 0 && low != id.0 {
                DONE.store(true, Ordering::Relaxed);
                panic!("the limit of {low:#x} is at {:#x}", id.0);
            }
            A.group_delete(id).expect("a living group");
        }
        DONE.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_shrinker_may_delete_its_group_and_make_others() {
    static A: Kmem = Kmem::new();
    static ID: Mutex<GroupId> = Mutex::new(GroupId::ROOT);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let tenant = group(&A, "tenant");
    *ID.lock().expect("no panic") = tenant.id();
    let shrink = Box::leak(Box::new(|_: usize| {
        let id = *ID.lock().expect("no panic");
        A.group_delete(id).expect("not deleted before");
        let other = A.group_create(GroupId::ROOT, b"other").expect("room");
        A.group_set(other, Limit::Max, 1).expect("a living group");
        CALLS.fetch_add(1, Ordering::Relaxed);
        0
    }));
    tenant.add_shrinker(shrink).expect("a living group");
    tenant.set(Limit::Max, Some(10_000)).expect("a living group");
    let _scope = tenant.enter();
    let all: Vec<_> = (0..100).map(|_| alloc!(A, 1000)).collect();
    // The parent of the deleted group has no limit.
    assert!(all.iter().all(|at| !at.is_null()));
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    all.into_iter().for_each(|at| free(&A, at));
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn children_forked_amid_creation_and_deletion_find_groups_that_work() {
    static A: Kmem = Kmem::new();
    static DONE: AtomicBool = AtomicBool::new(false);
    let parent = group(&A, "parent");
    let held: Vec<usize> = {
        let _scope = parent.enter();
        (0..100).map(|_| alloc!(A, 500) as usize).collect()
    };
    thread::scope(|scope| {
        for me in 0..3 {
            let parent = &parent;
            scope.spawn(move || {
                for round in 0.. {
                    if DONE.load(Ordering::Relaxed) {
                        break;
                    }
                    let child = parent.create(&format!("{me}-{round}")).expect("room");
                    let at = A.alloc(100, Caller::at(0x1000).charged_to(child.id().objcg()));
                    child.delete().expect("no groups below");
                    free(&A, at);
                }
            });
        }
        for round in 0..60 {
            let work = || {
                // The child looks at groups before all else.
                let found = A.group_find(GroupId::ROOT, b"parent") == Ok(parent.id());
                let mut all = [GroupId::ROOT; 8];
                let mut count = 0;
                for id in A.group_all().filter(|&id| id != GroupId::ROOT && id != parent.id()) {
                    all[count] = id;
                    count += 1;
                }
                let books = A.validate_groups().is_ok();
                let deleted = all[..count].iter().all(|&id| A.group_delete(id).is_ok());
                held.iter().for_each(|&at| free(&A, at as *mut u8));
                found && books && deleted && A.group_delete(parent.id()).is_ok()
            };
            // SAFETY: the child uses this instance only.
            let right = unsafe { forked(work) };
            if !right {
                DONE.store(true, Ordering::Relaxed);
            }
            assert!(right, "child {round}");
        }
        DONE.store(true, Ordering::Relaxed);
    });
    held.into_iter().for_each(|at| free(&A, at as *mut u8));
    assert_eq!(parent.stat().current, 0);
    assert_eq!(A.group_dying(), 0);
}

#[test]
fn a_shrinker_can_be_removed_in_a_child_that_was_forked_while_another_thread_was_in_it() {
    static A: Kmem = Kmem::new();
    static INSIDE: Barrier = Barrier::new(2);
    static FORKED: Barrier = Barrier::new(2);
    let tenant = group(&A, "tenant");
    let shrink = Box::leak(Box::new(|_: usize| {
        INSIDE.wait();
        FORKED.wait();
        0
    }));
    let registered = tenant.add_shrinker(shrink).expect("a living group");
    tenant.set(Limit::Max, Some(0)).expect("a living group");
    thread::scope(|scope| {
        let tenant = &tenant;
        scope.spawn(move || {
            let _scope = tenant.enter();
            assert!(alloc!(A, 100).is_null());
        });
        INSIDE.wait();
        // SAFETY: the child uses this instance only.
        let removed = unsafe { forked(|| A.shrinker_remove(registered).is_ok()) };
        FORKED.wait();
        assert!(removed);
    });
    A.shrinker_remove(registered).expect("not within one");
}

/// While a child of `vfork` runs, arrays and stocks of CPUs are out of use. Their contents are
/// still brought back, and everything is charged without them.
#[test]
fn groups_work_while_all_cpus_are_paused() {
    static A: Kmem = Kmem::new();
    let (tenant, other) = (group(&A, "tenant"), group(&A, "other"));
    let work = |tenant: &Group<Linux>| {
        let _scope = tenant.enter();
        let held: Vec<_> = (0..2000).map(|i| alloc!(A, i * 31 % 60_000)).collect();
        held.into_iter().for_each(|at| free(&A, at));
    };
    work(&tenant);
    work(&other);
    assert!(tenant.stat().cached > 0 && other.stat().cached > 0);
    assert!(A.before_vfork());
    work(&other);
    tenant.delete().expect("no groups below");
    drop(tenant);
    assert_eq!(A.group_dying(), 0);
    other.set(Limit::Max, Some(100_000)).expect("a living group");
    let at = A.alloc(99_000, Caller::at(0x1000).charged_to(other.id().objcg()));
    assert!(at.is_null(), "25 pages and their metadata are more");
    let at = A.alloc(80_000, Caller::at(0x1000).charged_to(other.id().objcg()));
    assert!(!at.is_null());
    assert_eq!(A.validate_groups(), Ok(()));
    A.after_vfork();
    free(&A, at);
    work(&other);
    assert_eq!(other.stat().current, 0);
    assert_eq!(A.validate_groups(), Ok(()));
}
