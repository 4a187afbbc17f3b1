//! `KMEM_CONF=age:1`: each object and each run of pages has the time of its allocation, which
//! readers outside the process see.

use crate::instance::{Simulated, budget, case, said_by_child, simulated};
use kmem_core::Caller;
use kmem_core::class::{SIZES, SizeClass};
use kmem_layout::geometry::ClassGeometry;
use kmem_layout::time;
use std::sync::atomic::{AtomicU32, Ordering};

/// Time of an object of a slab that has `vectors` vectors, of which the last one has times.
fn time_of(object: *mut u8, size: usize, vectors: u32) -> u32 {
    let geometry = ClassGeometry::with_vectors(SIZES[SizeClass::of(size).0 as usize], vectors);
    let offset = object as u32 & geometry.slab_mask;
    let slab = object as usize - offset as usize;
    let at = slab + geometry.word_of(offset, vectors - 1) as usize;
    // SAFETY: a live object of that class has its word there.
    unsafe { (*(at as *const AtomicU32)).load(Ordering::Relaxed) }
}

/// Allocates at different times, and again in the place of what was freed.
fn allocate_at_times(vectors: u32) {
    let instance: &Simulated = simulated(budget(64 << 20, 2));
    let alloc = |size| instance.alloc(size, Caller::at(0x3456_7890));
    let first = alloc(50);
    instance.platform().advance_ms(4800);
    let second = alloc(50);
    let large = alloc(1000);
    let [one, two, three] =
        [(first, 50), (second, 50), (large, 1000)].map(|(at, size)| time_of(at, size, vectors));
    assert!(one >= 1 && two - one == time::word(4800) - 1, "{one} {two}");
    assert_eq!(two, three);
    instance.platform().advance_ms(16);
    // SAFETY: live, and used no longer.
    unsafe { instance.free(first) };
    let again = alloc(50);
    assert_eq!(time_of(again, 50, vectors), two + 1);
    instance.platform().advance_ms(160);
    // SAFETY: live, and this thread alone uses it.
    let resized = unsafe { instance.realloc(second, 49, Caller::at(0x4567_8901)) };
    assert_eq!((resized, time_of(second, 50, vectors)), (second, two + 11));
}

#[test]
fn child() {
    match case().as_deref() {
        Some("alone") => allocate_at_times(2),
        Some("with records") => allocate_at_times(3),
        _ => {}
    }
}

#[test]
fn times_are_those_of_the_last_allocation_or_resize() {
    assert_eq!(said_by_child(child, "age:1", "alone"), [""; 0]);
    assert_eq!(said_by_child(child, "age:1,rseq:off", "alone"), [""; 0]);
    assert_eq!(said_by_child(child, "age:1,check_caches:1", "with records"), [""; 0]);
}
