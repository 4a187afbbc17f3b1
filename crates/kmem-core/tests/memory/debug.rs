//! `KMEM_CONF=debug`: the allocator reports each fault of the accounting once. Such are a count of
//! live objects below zero, memory that still names its holder, and frees without a tag.

use crate::instance::{case, pin, said_by_child};
use kmem_core::class::{SIZES, SizeClass};
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Kmem};
use kmem_layout::geometry::ClassGeometry;
use std::collections::BTreeSet;
use std::hint::black_box;
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

/// The words of free objects of two sites, and of a free block of pages, name their holders.
fn use_memory_whose_tags_were_not_cleared() {
    for (size, site) in
        [(64, 0x3456_7890), (64, 0x3456_7890), (900, 0x3456_7890), (64, 0x4567_8901)]
    {
        let one = A.alloc(size, Caller::at(site));
        let live = word(one, size).load(Ordering::Relaxed);
        // SAFETY: live, given up.
        unsafe { A.free(one) };
        // A stray write might do this.
        word(one, size).store(live, Ordering::Relaxed);
        let again = A.alloc(size, Caller::at(0x1234_5678));
        assert_eq!(again, one, "the object that was freed last");
        // SAFETY: live, given up.
        unsafe { A.free(again) };
    }
    let block = A.alloc_pages(Order(1), Gfp::KERNEL, Caller::at(0x5678_9012));
    let ext = A.page_words(block).expect("a page").0;
    let live = ext.load(Ordering::Relaxed);
    // SAFETY: live, given up.
    unsafe { A.free_pages(block, Order(1)) };
    ext.store(live, Ordering::Relaxed);
    let again = A.alloc_pages(Order(1), Gfp::KERNEL, Caller::at(0x1234_5678));
    assert_eq!(again, block, "the block that was freed last");
}

/// Frees an allocation. Each `ROW` and `PLACE` is a place of its own.
#[inline(never)]
fn free_at<const ROW: usize, const PLACE: usize>(object: *mut u8) {
    // SAFETY: live, given up.
    unsafe { A.free(object) };
    black_box((ROW, PLACE));
}

/// A place that frees.
type Place = fn(*mut u8);

/// Places that free.
fn places() -> Vec<Place> {
    macro_rules! row {
        ($row:literal: $($place:literal)*) => { [$(free_at::<$row, $place> as Place),*] };
    }
    macro_rules! rows {
        ($($row:literal)*) => { [$(row!($row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*] };
    }
    rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17).concat()
}

/// Allocates without a tag, and frees at the first `count` places, many times at each of them.
fn free_without_a_tag_at(count: usize) {
    for _ in 0..20 {
        for place in places().into_iter().take(count) {
            for size in [64, 900, 100 << 10] {
                place(A.alloc(size, Caller::NOBODY));
            }
        }
    }
    A.drain();
    assert_eq!((A.stats().used, A.validate()), (0, Ok(())));
}

/// The program: two sites. One frees an object that the other allocated.
#[test]
fn child() {
    match case().as_deref() {
        None => return,
        Some("not cleared") => {
            // SAFETY: takes nothing.
            assert!(pin(0, unsafe { libc::sched_getcpu() } as usize));
            return use_memory_whose_tags_were_not_cleared();
        }
        Some("two places") => return free_without_a_tag_at(2),
        Some("three places") => return free_without_a_tag_at(3),
        Some("many places") => return free_without_a_tag_at(places().len()),
        Some(_) => {}
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

/// Lines that kmem printed in a case.
fn said(conf: &str, case: &str) -> Vec<String> {
    said_by_child(child, conf, case)
}

#[test]
fn memory_whose_word_still_names_a_tag_is_told_of_once_for_each_tag() {
    for conf in ["debug", "debug,rseq:off", "debug,mem_profiling:1"] {
        let told = said(conf, "not cleared");
        let is_about = |line: &String, what: &str| {
            line.starts_with("kmem: debug: a tag was not cleared: 0x") && line.contains(what)
        };
        let expected = [
            (" 64 bytes, has that of 0x34567890"),
            (" 64 bytes, has that of 0x45678901"),
            (" 8192 bytes, has that of 0x56789012"),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (line, what) in told.iter().zip(expected) {
            assert!(is_about(line, what), "{told:?}");
        }
    }
    assert_eq!(said("debug:0", "not cleared"), [""; 0]);
}

#[test]
fn a_count_below_zero_is_told_once() {
    let said = |conf: &str| said(conf, "counts");
    let told = said("debug");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("more frees than allocations of 0x23456789"), "{told:?}");
    assert_eq!(said("debug:0"), [""; 0]);
}

/// The places that lines on frees without a tag name.
fn places_of_frees(told: &[String]) -> Vec<&str> {
    let free = "kmem: debug: a free without a reference: 0x";
    let frees = told.iter().filter(|line| line.starts_with(free));
    frees.map(|line| line.rsplit_once(" bytes, by ").expect("a place").1).collect()
}

#[test]
fn a_free_without_a_tag_is_told_once_for_each_place_that_frees() {
    for conf in ["debug", "debug,rseq:off", "debug,mem_profiling:1"] {
        for (case, count) in [("two places", 2), ("three places", 3)] {
            let told = said(conf, case);
            let places = places_of_frees(&told);
            assert_eq!(places.len(), count, "{conf}: {told:?}");
            assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), count, "{told:?}");
            assert!(places.iter().all(|place| place.contains("memory-")), "{told:?}");
            // The allocations are at no place that is known.
            assert_eq!(told.len(), count + 1, "{told:?}");
        }
    }
    assert_eq!(said("debug:0", "two places"), [""; 0]);
}

#[test]
fn no_more_places_are_told_of_than_there_is_room_for() {
    assert!(places().len() > 256);
    let told = said("debug", "many places");
    // One is that of the allocations.
    assert_eq!((told.len(), places_of_frees(&told).len()), (256, 255));
}
