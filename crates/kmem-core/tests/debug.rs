//! `KMEM_CONF=debug`: the allocator reports a site whose count of live objects falls below zero,
//! once.
#![cfg(all(target_os = "linux", not(miri)))]

mod instance;

use instance::{case, lines, run_child};
use kmem_core::class::{SIZES, SizeClass};
use kmem_core::{Caller, Kmem};
use kmem_layout::geometry::ClassGeometry;
use std::sync::atomic::{AtomicU32, Ordering};

static A: Kmem = Kmem::new();

/// The extension word of a small object.
fn word(object: *mut u8, size: usize) -> &'static AtomicU32 {
    let size = SIZES[SizeClass::of(size).0 as usize];
    let geometry = ClassGeometry::new(size, true);
    let offset = object as u32 & geometry.slab_mask;
    let at = object as usize - offset as usize + geometry.ext_of(offset) as usize;
    // SAFETY: a live object of that class has its word there.
    unsafe { &*(at as *const AtomicU32) }
}

/// The program: two sites. One frees an object that the other allocated.
#[test]
fn child() {
    if case().is_none() {
        return;
    }
    for _ in 0..3 {
        let one = A.alloc(64, Caller::at(0x1234_5678));
        let other = A.alloc(64, Caller::at(0x2345_6789));
        // A stray write might do this.
        let theirs = word(other, 64).load(Ordering::Relaxed);
        word(one, 64).store(theirs, Ordering::Relaxed);
        // SAFETY: live, given up.
        unsafe {
            A.free(one);
            A.free(other);
        }
    }
}

#[test]
fn a_count_below_zero_is_told_once() {
    let said = |conf: &str| {
        let output = run_child(conf, "counts");
        assert!(output.status.success());
        lines(&output)
    };
    let told = said("debug");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("more frees than allocations of 0x23456789"), "{told:?}");
    assert_eq!(said("debug:0"), [""; 0]);
}
