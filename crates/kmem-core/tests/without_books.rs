//! An instance without books and without groups: what `mem_profiling:never` leaves out.
#![cfg(all(target_os = "linux", not(miri)))]

use std::ffi::c_char;
use std::sync::atomic::AtomicPtr;

use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::units::{Gfp, Order, PAGE_SIZE, PageCount};
use kmem_core::{Caller, Kmem};

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static kmem_conf: AtomicPtr<c_char> = AtomicPtr::new(c"mem_profiling:never".as_ptr().cast_mut());

#[test]
fn pages_of_each_call_go_back_whole_without_extension_words() {
    static A: Kmem = Kmem::new();
    for order in 0..=11 {
        let order = Order(order);
        let whole = A.alloc_pages(order, Gfp::KERNEL, Caller::NOBODY);
        let split = A.alloc_pages(order, Gfp::ZERO, Caller::NOBODY);
        assert!(!whole.is_null() && !split.is_null());
        // SAFETY: live blocks of that order, which are used no longer after their frees.
        unsafe {
            A.split_page(split, order);
            A.free_pages(split, order);
            A.free_pages(whole, order);
        }
    }
    let mut many = [core::ptr::null_mut(); 100];
    assert_eq!(A.alloc_pages_bulk(Gfp::KERNEL, &mut many, Caller::NOBODY), many.len());
    for page in many {
        // SAFETY: a live page, which is used no longer.
        unsafe { A.free(page) };
    }
    let area = A.vmalloc(5 * PAGE_SIZE, Gfp::KERNEL, Caller::NOBODY);
    let mut run = A.alloc(100 * PAGE_SIZE, Caller::NOBODY);
    for pages in [200, 30, 31, 3000] {
        let bytes = PageCount(pages).bytes();
        // SAFETY: a live allocation, of which only the new address is used from here on.
        run = unsafe { A.realloc(run, bytes, Caller::NOBODY) };
        // SAFETY: the same live allocation.
        assert!(!run.is_null() && unsafe { A.usable_size(run) } >= bytes);
    }
    // SAFETY: live allocations, which are used no longer.
    unsafe {
        A.vfree(area);
        A.free(run);
    }
    A.drain();
    assert_eq!((A.stats().used, A.validate()), (0, Ok(())));
}

#[test]
fn there_are_no_groups() {
    static A: Kmem = Kmem::new();
    assert_eq!(A.group_create(GroupId::ROOT, b"tenant"), Err(GroupError::NoBooks));
}
