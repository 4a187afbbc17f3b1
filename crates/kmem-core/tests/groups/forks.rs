//! Groups of forked children.

use super::*;
use crate::instance::{case, said_by_child};

#[test]
fn a_forked_child_has_books_of_its_own() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let all: Vec<usize> = {
        let _scope = tenant.enter();
        (0..5000).map(|i| alloc!(A, i % 3000 + 1) as usize).collect()
    };
    let held = tenant.stat().current;
    let work = || {
        let first = alloc!(A, 64);
        let mut right = tenant.stat().current == held && A.validate_groups().is_ok();
        all.iter().for_each(|&at| free(&A, at as *mut u8));
        right &= tenant.stat().current == 0 && A.validate_groups().is_ok();
        free(&A, first);
        right
    };
    // SAFETY: the child uses this instance only.
    assert!(unsafe { forked(work) }, "what the child found");
    assert_eq!(tenant.stat().current, held);
    assert_eq!(A.validate_groups(), Ok(()));
}

/// A process of its own: many forks of one with the memory of all other tests take minutes.
#[test]
fn a_child_that_is_forked_while_others_make_and_delete_groups_has_all_in_order() {
    said_by_child(child, "", "forks");
}

#[test]
fn child() {
    if case().is_none() {
        return;
    }
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
            // SAFETY: the child uses this instance only.
            let right = unsafe {
                forked(|| {
                    // A group of the parent may be at the index.
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
        // SAFETY: the child uses this instance only.
        let removed = unsafe { forked(|| A.shrinker_remove(shrinker).is_ok()) };
        WITHIN.wait();
        assert!(removed);
    });
}
