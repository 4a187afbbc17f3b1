//! Objects of requests for no bytes: each has an address, which cannot be read or written.

use std::collections::HashSet;

use crate::instance::{Simulated, assert_empty, budget, free, free_all, started};
use kmem_core::Caller;

const SITE: Caller = Caller::at(0x1000);
/// More objects than one slab has.
const MANY: usize = 10_000;

/// Returns whether the kernel can read a byte.
fn is_readable(at: *mut u8) -> bool {
    let mut pipe = [0; 2];
    // SAFETY: the kernel writes two descriptors. It reads the byte, or says that it cannot.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let written = libc::write(pipe[1], at.cast(), 1);
        pipe.into_iter().for_each(|end| assert_eq!(libc::close(end), 0));
        written == 1
    }
}

fn many(a: &'static Simulated) -> Vec<*mut u8> {
    let objects: Vec<_> = (0..MANY).map(|_| a.alloc(0, SITE)).collect();
    assert!(objects.iter().all(|at| !at.is_null()));
    assert_eq!(objects.iter().collect::<HashSet<_>>().len(), MANY);
    objects
}

/// Fills more memory than the objects of no bytes had, and gives it back.
fn fill(a: &'static Simulated) {
    let blocks: Vec<_> = (0..200).map(|_| a.alloc(20_000, SITE)).collect();
    // SAFETY: live and that long.
    blocks.iter().for_each(|at| unsafe { at.write_bytes(1, 20_000) });
    free_all(a, blocks);
    a.trim();
}

#[test]
fn objects_of_no_bytes_are_distinct_and_without_access_and_give_their_pages_back() {
    let a = started(budget(16 << 20, 1));
    for _ in 0..2 {
        let objects = many(a);
        assert!(!objects.iter().step_by(97).any(|&at| is_readable(at)));
        // SAFETY: live.
        assert!(objects.iter().all(|&at| unsafe { a.usable_size(at) } == 0));
        assert_eq!(a.stats().tracked, 16 * MANY as u64);
        free_all(a, objects);
        a.trim();
        assert_empty(a);
        fill(a);
    }
}

#[test]
fn an_object_of_no_bytes_grows_by_a_move_and_nothing_else_shrinks_to_one() {
    let a = started(budget(16 << 20, 1));
    let at = a.alloc(0, SITE);
    // SAFETY: live, given up by each call.
    unsafe {
        assert_eq!(a.realloc(at, 0, SITE), at);
        let grown = a.realloc(at, 100, SITE);
        assert!(grown != at && is_readable(grown));
        grown.write_bytes(1, 100);
        let zeroed = a.alloc_zeroed(0, SITE);
        assert!(!is_readable(zeroed));
        a.free(zeroed);
        a.free(grown);
    }
    a.trim();
    assert_empty(a);
}

#[test]
fn objects_of_no_bytes_are_served_where_the_platform_does_not_protect_memory() {
    let a = started(budget(16 << 20, 1));
    a.platform().fail(1, u64::MAX);
    let objects = many(a);
    a.platform().fail(u64::MAX, u64::MAX);
    assert!(objects.iter().step_by(97).all(|&at| is_readable(at)));
    free_all(a, objects);
    a.trim();
    assert_empty(a);
    fill(a);
}

#[test]
fn pages_that_the_platform_does_not_make_accessible_again_are_not_handed_out() {
    let a = started(budget(16 << 20, 1));
    let objects = many(a);
    let first = objects[0];
    a.platform().fail(1, u64::MAX);
    free_all(a, objects);
    a.trim();
    a.platform().fail(u64::MAX, u64::MAX);
    assert_eq!((a.stats().objects, a.stats().tracked), (0, 0));
    assert!(!is_readable(first));
    // The program would end if a page without access were among these.
    fill(a);
    let again = many(a);
    assert!(!again.contains(&first));
    again.into_iter().for_each(|at| free(a, at));
}
