//! Pages that are freed with another order or length than they have: the misuse is reported, and
//! nothing is freed.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kmem_core::os::regions::{Doors, Regions};
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Instance};

use crate::instance::leaked;

const BYTES: usize = 32 << 20;
const PAGE: usize = 4096;
const CALLER: Caller = Caller::at(0x55_0000);

thread_local! {
    /// Text that instances of this thread printed.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

fn print(text: &[u8]) {
    SAID.with_borrow_mut(|said| said.push_str(&String::from_utf8_lossy(text)));
}

fn fatal() -> ! {
    panic!("the allocator gave up")
}

fn instance() -> &'static Instance<Regions> {
    let doors = Doors { print, fatal, ..Doors::NONE };
    let kmem = leaked(Regions::new(1, doors));
    let layout = Layout::from_size_align(BYTES, PAGE).expect("a layout");
    // SAFETY: fresh zeroed memory, which is never freed and used by this instance alone.
    assert!(unsafe { kmem.platform().add(alloc_zeroed(layout), BYTES) });
    kmem
}

fn alloc(kmem: &'static Instance<Regions>, order: u8) -> *mut u8 {
    let at = kmem.alloc_pages(Order(order), Gfp::KERNEL, CALLER);
    assert!(!at.is_null());
    at
}

/// Adjacent pages, each an allocation of its own. The first is at a multiple of their size.
fn neighbours(kmem: &'static Instance<Regions>, order: u8) -> Vec<*mut u8> {
    let all: Vec<_> = (0..256).map(|_| alloc(kmem, 0)).collect();
    let bytes = PAGE << order;
    let are_adjacent = |first: &&*mut u8| {
        let mut pages = (0..1 << order).map(|page: usize| first.wrapping_add(page * PAGE));
        (**first as usize).is_multiple_of(bytes) && pages.all(|page| all.contains(&page))
    };
    let first = *all.iter().find(are_adjacent).expect("adjacent pages");
    (0..1 << order).map(|page: usize| first.wrapping_add(page * PAGE)).collect()
}

/// Does a misuse that ends the program. Returns what the instance said. No page is freed by it.
fn refused(kmem: &'static Instance<Regions>, misuse: impl FnOnce()) -> String {
    let held = || (kmem.stats().tracked, kmem.stats().objects);
    let before = held();
    SAID.with_borrow_mut(String::clear);
    let ended = catch_unwind(AssertUnwindSafe(misuse)).is_err();
    let said = SAID.with_borrow(String::clone);
    assert!(ended, "the program went on: {said}");
    assert_eq!(held(), before, "{said}");
    said
}

fn free(kmem: &'static Instance<Regions>, at: *mut u8, order: u8) {
    // SAFETY: pages of this test. Wrong orders are what it tests.
    unsafe { kmem.free_pages(at, Order(order)) }
}

#[test]
fn a_page_that_is_freed_with_a_higher_order_frees_no_neighbour() {
    let kmem = instance();
    let pages = neighbours(kmem, 3);
    let said = refused(kmem, || free(kmem, pages[0], 3));
    let what = format!("invalid free_pages: {:#x} is an allocation of 1 page, not of 8", {
        pages[0] as usize
    });
    assert!(said.contains(&what) && said.contains("allocated by"), "{said}");
    pages.into_iter().for_each(|page| free(kmem, page, 0));
}

#[test]
fn a_block_that_is_freed_with_another_order_stays() {
    let kmem = instance();
    for (order, wrong) in
        [(3, 0), (3, 2), (0, 1), (5, 4), (4, 5), (9, 3), (2, 9), (1, 12), (1, 255)]
    {
        let block = alloc(kmem, order);
        let said = refused(kmem, || free(kmem, block, wrong));
        assert!(said.contains("invalid free_pages: ") && said.contains(", not of "), "{said}");
        free(kmem, block, order);
    }
    assert_eq!(kmem.stats().objects, 0);
}

#[test]
fn an_exact_allocation_that_is_freed_with_another_length_stays() {
    let kmem = instance();
    let exact = kmem.alloc_pages_exact(5 * PAGE, Gfp::KERNEL, CALLER);
    // SAFETY: a live allocation; wrong lengths are what is tested.
    let free = |bytes| unsafe { kmem.free_pages_exact(exact, bytes) };
    for wrong in [PAGE, 4 * PAGE, 6 * PAGE] {
        let said = refused(kmem, || free(wrong));
        assert!(said.contains("invalid free_pages_exact: "), "{said}");
        assert!(said.contains("is an allocation of 5 pages, not of "), "{said}");
    }
    free(4 * PAGE + 1);
    assert_eq!(kmem.stats().objects, 0);
}

#[test]
fn pieces_of_a_block_are_freed_together_and_not_beyond_it() {
    let kmem = instance();
    let block = alloc(kmem, 4);
    // SAFETY: a live block of this test.
    unsafe { kmem.split_page(block, Order(4)) };
    assert_eq!(kmem.stats().objects, 16);
    let piece = |page: usize| block.wrapping_add(page * PAGE);
    // Both reach beyond the block.
    for (page, order) in [(0, 5), (12, 3)] {
        let said = refused(kmem, || free(kmem, piece(page), order));
        assert!(said.contains("is an allocation of 1 page, not of "), "{said}");
    }
    free(kmem, piece(2), 1);
    free(kmem, piece(4), 2);
    let said = refused(kmem, || free(kmem, piece(0), 2));
    assert!(said.contains("double free: "), "a piece is free: {said}");
    free(kmem, piece(8), 3);
    free(kmem, piece(0), 0);
    // SAFETY: the last piece.
    unsafe { kmem.free(piece(1)) };
    assert_eq!(kmem.stats().objects, 0);
    kmem.drain();
    assert_eq!(kmem.validate(), Ok(()));
}

#[test]
fn a_page_that_was_allocated_again_is_no_piece() {
    let kmem = instance();
    let block = alloc(kmem, 2);
    // SAFETY: a live block of this test; then a piece of it.
    unsafe {
        kmem.split_page(block, Order(2));
        kmem.free_pages(block.wrapping_add(PAGE), Order(0));
    }
    let others: Vec<_> = (0..600).map(|_| alloc(kmem, 0)).collect();
    assert!(others.contains(&block.wrapping_add(PAGE)), "the piece is used again");
    refused(kmem, || free(kmem, block, 2));
}

#[test]
fn an_object_that_is_freed_as_pages_stays() {
    let kmem = instance();
    let object = kmem.alloc(PAGE, CALLER);
    let said = refused(kmem, || free(kmem, object, 0));
    assert!(said.contains("-byte object, not pages"), "{said}");
    // SAFETY: live, given up.
    unsafe { kmem.free(object) };
}
