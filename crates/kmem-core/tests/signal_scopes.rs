//! A signal handler that allocates while its thread works under a tag and in a group: who pays.
#![cfg(all(target_os = "linux", not(miri)))]

mod instance;

use instance::{cost, group};
use kmem_core::memcg::GroupId;
use kmem_core::{Kmem, tag};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

static A: Kmem = Kmem::new();

const CALLS: usize = 50;
/// Allocations of 100 bytes have this size class.
const CLASS: u64 = 112;
const LAYOUT: Layout = Layout::new::<[u8; 100]>();

/// True while the handler makes scopes of its own.
static APART: AtomicBool = AtomicBool::new(false);
static OF_HANDLER: [AtomicPtr<u8>; 2 * CALLS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; 2 * CALLS];
static HANDLED: AtomicUsize = AtomicUsize::new(0);

fn allocate() -> *mut u8 {
    // SAFETY: the layout has a size that is not zero.
    unsafe { GlobalAlloc::alloc(&A, LAYOUT) }
}

fn free(at: *mut u8) {
    // SAFETY: `allocate` returned it, and it is used no longer.
    unsafe { GlobalAlloc::dealloc(&A, at, LAYOUT) }
}

extern "C" fn handler(_number: libc::c_int) {
    let at = if APART.load(Ordering::Relaxed) {
        let root = A.group(GroupId::ROOT).expect("the root");
        let _group = root.enter();
        let _tag = tag!("of the handler");
        allocate()
    } else {
        allocate()
    };
    OF_HANDLER[HANDLED.fetch_add(1, Ordering::Relaxed)].store(at, Ordering::Relaxed);
}

fn held_by(name: &str) -> u64 {
    let mut sum = 0;
    A.census(|tag, bytes, _| {
        if A.sites().names(tag).is_some_and(|names| names.function == name.as_bytes()) {
            sum += bytes;
        }
    });
    sum
}

#[test]
fn handler_works_for_the_scopes_that_it_interrupts_unless_it_makes_its_own() {
    let tenant = group(&A, "interrupted");
    let root = A.group(GroupId::ROOT).expect("the root");
    let (each, calls, before) = (cost(CLASS), CALLS as u64, root.stat().own);
    let handler = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler only calls kmem and stores to atomics, which handlers may.
    assert_ne!(unsafe { libc::signal(libc::SIGUSR1, handler) }, libc::SIG_ERR);
    let interrupted = |apart| {
        APART.store(apart, Ordering::Relaxed);
        let _group = tenant.enter();
        let _tag = tag!("of the scope");
        let work = || {
            let at = allocate();
            // SAFETY: the call takes no pointer. The handler runs on this thread before it returns.
            assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
            assert_eq!(A.group_current(), tenant.id());
            at
        };
        (0..CALLS).map(|_| work()).collect::<Vec<_>>()
    };

    let first = interrupted(false);
    assert_eq!(held_by("of the scope"), 2 * calls * CLASS);
    assert_eq!(tenant.stat().current, 2 * calls * each);
    assert_eq!(root.stat().own, before);

    let second = interrupted(true);
    assert_eq!(held_by("of the scope"), 3 * calls * CLASS);
    assert_eq!(held_by("of the handler"), calls * CLASS);
    assert_eq!(tenant.stat().current, 3 * calls * each);
    assert_eq!(root.stat().own, before + calls * each);

    let of_handler = OF_HANDLER.iter().map(|at| at.load(Ordering::Relaxed));
    first.into_iter().chain(second).chain(of_handler).for_each(free);
    assert_eq!((held_by("of the scope"), held_by("of the handler")), (0, 0));
    assert_eq!((tenant.stat().current, root.stat().own), (0, before));
    assert_eq!(A.validate(), Ok(()));
}
