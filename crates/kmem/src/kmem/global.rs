//! kmem as the allocator of a Rust program.

use core::alloc::{GlobalAlloc, Layout};

use super::Kmem;
use crate::codetag::{Caller, scope};
use crate::os::linux::Linux;
use crate::units::ObjcgId;

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

/// Passes the return address and the frame pointer on: `GlobalAlloc` methods end in a jump to one of these, so what
/// is on top of the stack is where the program's call of `__rust_alloc` returns to (in a build
/// without optimisation, a place inside the standard library's glue).
macro_rules! with_call_site {
    ($(#[$doc:meta])* $name:ident => $inner:ident, $x86:literal, $arm:literal, ($($arg:ident: $ty:ty),*)) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut u8 {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!($x86, "jmp {}", sym $inner);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!($arm, "b {}", sym $inner);
        }
    };
}

with_call_site!(
    /// See [`alloc_at`].
    alloc_here => alloc_at, "mov rcx, [rsp]; mov r8, rbp", "mov x3, x30; mov x4, x29", (kmem: &'static Kmem, size: usize, align: usize));
with_call_site!(
    /// See [`zeroed_at`].
    zeroed_here => zeroed_at, "mov rcx, [rsp]; mov r8, rbp", "mov x3, x30; mov x4, x29", (kmem: &'static Kmem, size: usize, align: usize));
with_call_site!(
    /// See [`resize_at`].
    resize_here => resize_at, "mov r8, [rsp]; mov r9, rbp", "mov x4, x30; mov x5, x29",
    (kmem: &'static Kmem, at: *mut u8, align: usize, size: usize));

/// Who a Rust program's request is from. What cannot be refused is not, for a group's sake: the program
/// would be ended. See [`super::fallible`].
#[inline(always)]
fn caller(ret: usize, frame: usize) -> Caller {
    let caller = Caller::in_frame(scope::caller(ret), frame);
    if caller.objcg() == ObjcgId::ROOT || scope::is_fallible() { caller } else { caller.nofail() }
}

extern "C" fn alloc_at(
    kmem: &'static Kmem,
    size: usize,
    align: usize,
    ret: usize,
    frame: usize,
) -> *mut u8 {
    let caller = caller(ret, frame);
    if align <= 16 { kmem.alloc(size, caller) } else { kmem.alloc_aligned(size, align, caller) }
}

extern "C" fn zeroed_at(
    kmem: &'static Kmem,
    size: usize,
    align: usize,
    ret: usize,
    frame: usize,
) -> *mut u8 {
    let caller = caller(ret, frame);
    if align <= 16 {
        return kmem.alloc_zeroed(size, caller);
    }
    let at = kmem.alloc_aligned(size, align, caller);
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
    align: usize,
    size: usize,
    ret: usize,
    frame: usize,
) -> *mut u8 {
    let caller = caller(ret, frame);
    if align <= 16 {
        // SAFETY: the caller's promise.
        return unsafe { kmem.realloc(at, size, caller) };
    }
    let moved = kmem.alloc_aligned(size, align, caller);
    if !moved.is_null() {
        // SAFETY: both are at least that long, and distinct; the old one is given up.
        unsafe {
            core::ptr::copy_nonoverlapping(at, moved, kmem.usable_size(at).min(size));
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
        unsafe { resize_here(self.forever(), at, layout.align(), size) }
    }
}
