//! kmem as the global allocator of a Rust program.

use core::alloc::{GlobalAlloc, Layout};

use super::Kmem;
use crate::os::linux::Linux;
use crate::request::Caller;
use crate::task;
use crate::units::ObjcgId;

impl Kmem {
    /// An instance on Linux: `#[global_allocator] static KMEM: Kmem = Kmem::new();`.
    pub const fn new() -> Self {
        Self::over(Linux::new())
    }

    /// A reference that is valid as long as the program runs.
    ///
    /// # Safety
    /// `self` is a static, as a global allocator always is.
    unsafe fn forever(&self) -> &'static Self {
        // SAFETY: the same contract.
        unsafe { core::mem::transmute::<&Self, &'static Self>(self) }
    }
}

impl Default for Kmem {
    fn default() -> Self {
        Self::new()
    }
}

/// Defines functions that add the return address and the frame pointer to their arguments.
/// `GlobalAlloc` methods end in a jump to one of these. So the top of the stack is the return
/// address of the program's call of `__rust_alloc`. (In a build without optimisation it lies inside
/// the standard library's glue.)
macro_rules! with_call_site {
    (
        $(#[$doc:meta])*
        $name:ident => $inner:ident, $x86:literal, $arm:literal, ($($arg:ident: $ty:ty),*)
    ) => {
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
    alloc_here => alloc_at, "mov rcx, [rsp]; mov r8, rbp", "mov x3, x30; mov x4, x29",
    (kmem: &'static Kmem, size: usize, align: usize));
with_call_site!(
    /// See [`zeroed_at`].
    zeroed_here => zeroed_at, "mov rcx, [rsp]; mov r8, rbp", "mov x3, x30; mov x4, x29",
    (kmem: &'static Kmem, size: usize, align: usize));
with_call_site!(
    /// See [`resize_at`].
    resize_here => resize_at, "mov r8, [rsp]; mov r9, rbp", "mov x4, x30; mov x5, x29",
    (kmem: &'static Kmem, at: *mut u8, align: usize, size: usize));

/// Caller of a Rust program's request. Outside of [`task::fallible`] its group must not refuse the
/// request: that would end the program.
#[inline(always)]
fn caller(ret: usize, frame: usize) -> Caller {
    // SAFETY: the key of a return address.
    let caller = unsafe { Caller::in_frame(task::caller(ret), frame) };
    if caller.objcg() == ObjcgId::ROOT || task::is_fallible() { caller } else { caller.nofail() }
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
        // SAFETY: this call allocated the memory, of that length.
        unsafe { at.write_bytes(0, size) };
    }
    at
}

/// # Safety
/// See `GlobalAlloc::realloc`.
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
        // SAFETY: the same contract.
        return unsafe { kmem.realloc(at, size, caller) };
    }
    let moved = kmem.alloc_aligned(size, align, caller);
    if !moved.is_null() {
        // SAFETY: both are live, distinct and that long. The caller gave the old one up.
        unsafe {
            core::ptr::copy_nonoverlapping(at, moved, kmem.usable_size(at).min(size));
            kmem.free(at);
        }
    }
    moved
}

// SAFETY: live blocks of an instance are disjoint, aligned, and of the size requested. Nothing
// unwinds.
unsafe impl GlobalAlloc for Kmem {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a global allocator is a static.
        unsafe { alloc_here(self.forever(), layout.size(), layout.align()) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _layout: Layout) {
        // SAFETY: a global allocator is a static. The caller gives the block up, by the contract.
        unsafe { self.forever().free(at) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a global allocator is a static.
        unsafe { zeroed_here(self.forever(), layout.size(), layout.align()) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: a global allocator is a static. Else the same contract.
        unsafe { resize_here(self.forever(), at, layout.align(), size) }
    }
}
