//! `KMEM_CONF=debug`: the allocator reports a site whose count of live objects falls below zero,
//! once.
#![cfg(all(target_os = "linux", not(miri)))]

mod instance;

use instance::{case, lines, pin, run_child};
use kmem_core::class::{SIZES, SizeClass};
use kmem_core::units::{Gfp, Order};
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
    let output = run_child(conf, case);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    lines(&output)
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
