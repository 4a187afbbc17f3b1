//! C++ `operator new` and `operator delete`, by their mangled names (Itanium C++ ABI; `m` is
//! `size_t`).
//!
//! A `new` that cannot be served calls the program's new-handler as long as there is one, then
//! throws `std::bad_alloc`. Both are the C++ runtime's business: its own `operator new` does
//! just that, with `malloc` for the memory, so it is called for the last attempt. A program
//! without that runtime has nobody to throw to, and ends.

use core::ffi::{c_char, c_void};

use crate::KMEM;
use crate::malloc::with_call_site;

with_call_site! {
    _Znwm (size: usize) => new_at, "rsi", "x1";
    _Znam (size: usize) => new_at, "rsi", "x1";
    _ZnwmRKSt9nothrow_t (size: usize, tag: *const c_void) => new_nothrow_at, "rdx", "x2";
    _ZnamRKSt9nothrow_t (size: usize, tag: *const c_void) => new_nothrow_at, "rdx", "x2";
    _ZnwmSt11align_val_t (size: usize, align: usize) => new_aligned_at, "rdx", "x2";
    _ZnamSt11align_val_t (size: usize, align: usize) => new_aligned_at, "rdx", "x2";
    _ZnwmSt11align_val_tRKSt9nothrow_t (size: usize, align: usize, tag: *const c_void) => new_aligned_nothrow_at, "rcx", "x3";
    _ZnamSt11align_val_tRKSt9nothrow_t (size: usize, align: usize, tag: *const c_void) => new_aligned_nothrow_at, "rcx", "x3";
}

extern "C-unwind" fn new_at(size: usize, ret: usize) -> *mut u8 {
    let at = KMEM.alloc_fast(size, ret);
    if at.is_null() { new_any(size, ret) } else { at }
}

/// Apart, so that the fast path has no frame.
#[inline(never)]
fn new_any(size: usize, ret: usize) -> *mut u8 {
    let at = KMEM.alloc_any(size, ret);
    if at.is_null() { new_handler(size, 1) } else { at }
}

extern "C-unwind" fn new_aligned_at(size: usize, align: usize, ret: usize) -> *mut u8 {
    let at = aligned(size, align, ret);
    if at.is_null() { new_handler(size, align) } else { at }
}

extern "C-unwind" fn new_nothrow_at(size: usize, _tag: *const c_void, ret: usize) -> *mut u8 {
    let at = KMEM.alloc(size, ret);
    if at.is_null() { handler_then(|| KMEM.alloc(size, ret)) } else { at }
}

extern "C-unwind" fn new_aligned_nothrow_at(
    size: usize,
    align: usize,
    _tag: *const c_void,
    ret: usize,
) -> *mut u8 {
    let at = aligned(size, align, ret);
    if at.is_null() { handler_then(|| aligned(size, align, ret)) } else { at }
}

fn aligned(size: usize, align: usize, ret: usize) -> *mut u8 {
    if align.is_power_of_two() {
        KMEM.alloc_aligned(size, align, ret)
    } else {
        core::ptr::null_mut()
    }
}

type NewHandler = extern "C-unwind" fn();

/// A symbol of the C++ runtime that comes after this library, if the program has one.
fn runtime(name: &core::ffi::CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name. On this path the program is out of memory and may end up
    // in the runtime anyway; dlsym's own allocation can fail, and then it returns null.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr() as *const c_char) }
}

/// The program's new-handler, if it has one.
fn handler() -> Option<NewHandler> {
    let get = runtime(c"_ZSt15get_new_handlerv");
    if get.is_null() {
        return None;
    }
    // SAFETY: `std::new_handler std::get_new_handler()`.
    let get: extern "C" fn() -> Option<NewHandler> = unsafe { core::mem::transmute(get) };
    get()
}

/// Calls the new-handler and tries again until there is memory or no handler. A handler that
/// throws makes a nothrow `new` return null in the runtime's version; here the exception
/// passes through, as there is no way to catch it.
#[cold]
fn handler_then(again: impl Fn() -> *mut u8) -> *mut u8 {
    while let Some(handler) = handler() {
        handler();
        let at = again();
        if !at.is_null() {
            return at;
        }
    }
    core::ptr::null_mut()
}

/// Lets the C++ runtime call the handler and throw.
#[cold]
#[inline(never)]
fn new_handler(size: usize, align: usize) -> *mut u8 {
    if align <= 16 {
        let new = runtime(c"_Znwm");
        if !new.is_null() {
            // SAFETY: `void* operator new(std::size_t)`.
            let new: extern "C-unwind" fn(usize) -> *mut u8 = unsafe { core::mem::transmute(new) };
            return new(size);
        }
    } else {
        let new = runtime(c"_ZnwmSt11align_val_t");
        if !new.is_null() {
            // SAFETY: `void* operator new(std::size_t, std::align_val_t)`.
            let new: extern "C-unwind" fn(usize, usize) -> *mut u8 =
                unsafe { core::mem::transmute(new) };
            return new(size, align);
        }
    }
    use kmem_core::os::Platform;
    KMEM.platform()
        .print(b"kmem: operator new: out of memory, and no C++ runtime to throw std::bad_alloc\n");
    KMEM.platform().fatal()
}

/// Exports forms of `operator delete`.
macro_rules! deletes {
    ($($name:ident($($ignored:ident),*);)*) => {$(
        /// # Safety
        /// As for `operator delete`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(at: *mut c_void $(, $ignored: usize)*) {
            $(let _ = $ignored;)*
            // SAFETY: the caller's promise.
            unsafe { KMEM.free(at.cast()) }
        }
    )*};
}

deletes! {
    _ZdlPv();
    _ZdaPv();
    _ZdlPvm(_size);
    _ZdaPvm(_size);
    _ZdlPvRKSt9nothrow_t(_tag);
    _ZdaPvRKSt9nothrow_t(_tag);
    _ZdlPvSt11align_val_t(_align);
    _ZdaPvSt11align_val_t(_align);
    _ZdlPvmSt11align_val_t(_size, _align);
    _ZdaPvmSt11align_val_t(_size, _align);
    _ZdlPvSt11align_val_tRKSt9nothrow_t(_align, _tag);
    _ZdaPvSt11align_val_tRKSt9nothrow_t(_align, _tag);
}
