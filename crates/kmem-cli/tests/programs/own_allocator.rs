//! A program whose global allocator counts calls, and calls that of the system. All memory is kept.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counted(AtomicU64);

#[global_allocator]
static COUNTED: Counted = Counted(AtomicU64::new(0));

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same contract.
        let at = unsafe { System.alloc(layout) };
        self.0.fetch_add(1, Ordering::Relaxed);
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the same contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the same contract.
        let at = unsafe { System.realloc(at, layout, size) };
        self.0.fetch_add(1, Ordering::Relaxed);
        at
    }
}

#[inline(never)]
fn lines(count: u32) -> Vec<String> {
    let mut all = Vec::with_capacity(count as usize);
    for i in 0..count {
        all.push(format!("line {i} of the text"));
    }
    all
}

fn main() {
    std::mem::forget(lines(500));
}
