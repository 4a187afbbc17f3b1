//! kmem as the global allocator of a Rust program, on Linux and on a bare machine.

use core::alloc::{GlobalAlloc, Layout};

use super::Instance;
use crate::os::Platform;
use crate::request::Caller;
use crate::task;
use crate::units::ObjcgId;

#[cfg(kmem_linux)]
impl super::Kmem {
    /// An instance on Linux: `#[global_allocator] static KMEM: Kmem = Kmem::new();`.
    pub const fn new() -> Self {
        Self::over(crate::os::linux::Linux::new())
    }
}

#[cfg(kmem_linux)]
impl Default for super::Kmem {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform + 'static> Instance<P> {
    /// A reference that is valid as long as the program runs.
    ///
    /// # Safety
    /// `self` is a static, as a global allocator always is.
    unsafe fn forever(&self) -> &'static Self {
        // SAFETY: the same contract.
        unsafe { core::mem::transmute::<&Self, &'static Self>(self) }
    }
}

/// Defines functions that add their return address to their arguments. `GlobalAlloc` methods end in
/// a jump to one of these. So the top of the stack is the return address of the program's call of
/// `__rust_alloc`. (In a build without optimisation it lies inside the standard library's glue.)
macro_rules! with_call_site {
    ($(
        $(#[$doc:meta])*
        $name:ident => $inner:ident, $x86:literal, $arm:literal, ($($arg:ident: $ty:ty),*);
    )*) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name<P: Platform + 'static>($($arg: $ty),*) -> *mut u8 {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym $inner::<P>);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym $inner::<P>);
        }
    )*};
}

/// Defines functions that make a frame. They add the address of its record to their arguments: see
/// [`Caller::in_frame`]. Functions without a frame of their own reach them by a jump.
macro_rules! with_record {
    ($(
        $(#[$doc:meta])*
        $name:ident => $inner:ident, $x86:literal, $arm:literal, ($($arg:ident: $ty:ty),*);
    )*) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name<P: Platform + 'static>($($arg: $ty),*) -> *mut u8 {
            $crate::call_with_record!($inner::<P>, $x86, $arm, [], []);
        }
    )*};
}

with_call_site! {
    /// See [`alloc_at`].
    alloc_here => alloc_at, "rcx", "x3", (kmem: &'static Instance<P>, size: usize, align: usize);
    /// See [`zeroed_at`].
    zeroed_here => zeroed_at, "rcx", "x3", (kmem: &'static Instance<P>, size: usize, align: usize);
}

with_record! {
    /// See [`alloc_any_at`].
    alloc_any => alloc_any_at, "r8", "x4",
        (kmem: &'static Instance<P>, size: usize, align: usize, key: usize);
    /// See [`zeroed_any_at`].
    zeroed_any => zeroed_any_at, "r8", "x4",
        (kmem: &'static Instance<P>, size: usize, align: usize, key: usize);
    /// See [`resize_at`].
    resize_here => resize_at, "r8", "x4",
        (kmem: &'static Instance<P>, at: *mut u8, align: usize, size: usize);
}

/// Key of a Rust program's request, which returns to `ret`. Outside of [`task::fallible`] its group
/// must not refuse the request: that would end the program.
#[inline(always)]
fn key(ret: usize) -> usize {
    // SAFETY: the key of a return address.
    let caller = unsafe { Caller::of_key(task::caller(ret)) };
    let may_refuse = caller.objcg() == ObjcgId::ROOT || task::is_fallible();
    if may_refuse { caller.key() } else { caller.nofail().key() }
}

/// Takes an object by the fast path for a [`key`]. Null: only the slow path can serve.
#[inline(always)]
fn take<P: Platform>(kmem: &'static Instance<P>, size: usize, align: usize, key: usize) -> *mut u8 {
    if align > 16 {
        return core::ptr::null_mut();
    }
    // SAFETY: the key of a caller.
    unsafe { kmem.alloc_fast(size, key) }
}

extern "C" fn alloc_at<P: Platform + 'static>(
    kmem: &'static Instance<P>,
    size: usize,
    align: usize,
    ret: usize,
) -> *mut u8 {
    let key = key(ret);
    let at = take(kmem, size, align, key);
    if !at.is_null() {
        return at;
    }
    // SAFETY: the arguments of `alloc_any_at`, to which it adds the record.
    unsafe { alloc_any(kmem, size, align, key) }
}

extern "C" fn alloc_any_at<P: Platform + 'static>(
    kmem: &'static Instance<P>,
    size: usize,
    align: usize,
    key: usize,
    frame: usize,
) -> *mut u8 {
    // SAFETY: the key of a caller.
    let caller = unsafe { Caller::in_frame(key, frame) };
    if align <= 16 { kmem.alloc_any(size, caller) } else { kmem.alloc_aligned(size, align, caller) }
}

extern "C" fn zeroed_at<P: Platform + 'static>(
    kmem: &'static Instance<P>,
    size: usize,
    align: usize,
    ret: usize,
) -> *mut u8 {
    let key = key(ret);
    let at = take(kmem, size, align, key);
    if !at.is_null() {
        // SAFETY: this call allocated the memory, of that length.
        unsafe { at.write_bytes(0, size) };
        return at;
    }
    // SAFETY: the arguments of `zeroed_any_at`, to which it adds the record.
    unsafe { zeroed_any(kmem, size, align, key) }
}

extern "C" fn zeroed_any_at<P: Platform + 'static>(
    kmem: &'static Instance<P>,
    size: usize,
    align: usize,
    key: usize,
    frame: usize,
) -> *mut u8 {
    // SAFETY: the key of a caller.
    let caller = unsafe { Caller::in_frame(key, frame) };
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
unsafe extern "C" fn resize_at<P: Platform + 'static>(
    kmem: &'static Instance<P>,
    at: *mut u8,
    align: usize,
    size: usize,
    record: &[usize; 2],
) -> *mut u8 {
    // SAFETY: the key of a caller, and the record of its frame.
    let caller = unsafe { Caller::in_frame(key(record[1]), &raw const *record as usize) };
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
unsafe impl<P: Platform + 'static> GlobalAlloc for Instance<P> {
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
