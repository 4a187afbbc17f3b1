//! The resident tables of an instance without books. It is the only test of its process.
#![cfg(all(target_os = "linux", not(miri)))]

use std::ffi::c_char;
use std::sync::atomic::AtomicPtr;

use kmem_core::units::{Gfp, Order, PAGE_SIZE};
use kmem_core::{Caller, Kmem};

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static kmem_conf: AtomicPtr<c_char> = AtomicPtr::new(c"mem_profiling:never".as_ptr().cast_mut());

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("it");
    let pages: usize = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("it");
    pages * PAGE_SIZE
}

#[test]
fn a_page_costs_a_length_word_and_no_extension_word() {
    static A: Kmem = Kmem::new();
    const PAGES: usize = 1 << 18;
    // The start of the instance and its first zone are not measured.
    let first = A.alloc_pages(Order(0), Gfp::KERNEL, Caller::NOBODY);
    // Nothing writes to the pages, so only tables become resident. The list is not zero, so that it
    // is resident before.
    let mut pages = vec![std::ptr::dangling_mut(); PAGES];
    let before = resident();
    for page in &mut pages {
        *page = A.alloc_pages(Order(0), Gfp::KERNEL, Caller::NOBODY);
    }
    let tables = resident() - before;
    let word = PAGES * 4;
    assert!((word..word + word / 2).contains(&tables), "{tables} bytes for {PAGES} pages");
    assert!(pages.iter().all(|&page| !page.is_null() && A.page_words(page).is_none()));
    assert_eq!(A.stats().large_blocks, PAGES as u64 + 1);
    for page in pages.into_iter().chain([first]) {
        // SAFETY: a live page, which is used no longer.
        unsafe { A.free_pages(page, Order(0)) };
    }
    A.drain();
    assert_eq!((A.stats().used, A.validate()), (0, Ok(())));
}
