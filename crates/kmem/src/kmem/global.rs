//! kmem as the allocator of a Rust program.

use core::alloc::{GlobalAlloc, Layout};

use super::Kmem;
use crate::os::linux::Linux;

impl Kmem {
    /// An instance on Linux; `#[global_allocator] static A: Kmem = Kmem::new();`
    pub const fn new() -> Self {
        Self::over(Linux::new())
    }

    /// A reference for as long as the program runs.
    ///
    /// # Safety
    /// `self` is a static, as a global allocator always is.
    unsafe fn forever(&self) -> &'static Self {
        // SAFETY: the caller's promise.
        unsafe { core::mem::transmute::<&Self, &'static Self>(self) }
    }
}

impl Default for Kmem {
    fn default() -> Self {
        Self::new()
    }
}

/// Passes the return address on: `GlobalAlloc` methods end in a jump to one of these, so what
/// is on top of the stack is where the program's call of `__rust_alloc` returns to (in a build
/// without optimisation, a place inside the standard library's glue).
macro_rules! with_call_site {
    ($(#[$doc:meta])* $name:ident => $inner:ident, $x86:literal, $arm:literal, ($($arg:ident: $ty:ty),*)) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut u8 {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym $inner);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym $inner);
        }
    };
}

with_call_site!(
    /// See [`alloc_at`].
    alloc_here => alloc_at, "rcx", "x3", (kmem: &'static Kmem, size: usize, align: usize));
with_call_site!(
    /// See [`zeroed_at`].
    zeroed_here => zeroed_at, "rcx", "x3", (kmem: &'static Kmem, size: usize, align: usize));
with_call_site!(
    /// See [`resize_at`].
    resize_here => resize_at, "r9", "x5",
    (kmem: &'static Kmem, at: *mut u8, size: usize, align: usize, new: usize));

extern "C" fn alloc_at(kmem: &'static Kmem, size: usize, align: usize, ret: usize) -> *mut u8 {
    if align <= 16 { kmem.alloc(size, ret) } else { kmem.alloc_aligned(size, align, ret) }
}

extern "C" fn zeroed_at(kmem: &'static Kmem, size: usize, align: usize, ret: usize) -> *mut u8 {
    if align <= 16 {
        return kmem.alloc_zeroed(size, ret);
    }
    let at = kmem.alloc_aligned(size, align, ret);
    if !at.is_null() {
        // SAFETY: at least that long, ours alone.
        unsafe { at.write_bytes(0, size) };
    }
    at
}

/// # Safety
/// As for `GlobalAlloc::realloc`.
unsafe extern "C" fn resize_at(
    kmem: &'static Kmem,
    at: *mut u8,
    size: usize,
    align: usize,
    new: usize,
    ret: usize,
) -> *mut u8 {
    if align <= 16 {
        // SAFETY: the caller's promise.
        return unsafe { kmem.realloc(at, new, ret) };
    }
    let moved = kmem.alloc_aligned(new, align, ret);
    if !moved.is_null() {
        // SAFETY: both are at least that long, and distinct; the old one is given up.
        unsafe {
            core::ptr::copy_nonoverlapping(at, moved, size.min(new));
            kmem.free(at);
        }
    }
    moved
}

// SAFETY: blocks come from `alloc` and its relatives, which are disjoint, aligned and of the
// size asked for; nothing unwinds.
unsafe impl GlobalAlloc for Kmem {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a global allocator is a static.
        unsafe { alloc_here(self.forever(), layout.size(), layout.align()) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _layout: Layout) {
        // SAFETY: a static; the caller gives the block up.
        unsafe { self.forever().free(at) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a global allocator is a static.
        unsafe { zeroed_here(self.forever(), layout.size(), layout.align()) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: a static; the caller's promise.
        unsafe { resize_here(self.forever(), at, layout.size(), layout.align(), size) }
    }
}
