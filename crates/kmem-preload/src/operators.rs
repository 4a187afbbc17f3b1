//! C++ `operator new` and `operator delete`, by their mangled names (Itanium C++ ABI; `m` is
//! `size_t`).
//!
//! When memory runs out, `new` calls the program's new-handler as long as one is set, then throws
//! `std::bad_alloc`. The forms of `new` in the C++ runtime do this, with memory from `malloc`. So
//! the last attempt is a jump to them, which leaves no frame of this library on the stack when they
//! throw. A program without that runtime is ended.
//!
//! A program may replace some forms. The others then go through its forms: see
//! [`crate::preemption`].

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use kmem_core::os::Console;
use kmem_core::request::Caller;
use kmem_core::{Interface, SizedFree, task};

use crate::call_site::{self, with_call_site};
use crate::preemption::{free_foreign, goes_through, is_replaced, jump, own};
use crate::weak::weak_address;
use crate::{KMEM, thread};

with_call_site! {
    _Znwm (size: usize) => new_at, "rsi", "x1";
    _ZnwmRKSt9nothrow_t (size: usize, tag: *const c_void) => new_nothrow_at, "rdx", "x2";
    _ZnamRKSt9nothrow_t (size: usize, tag: *const c_void) => new_array_nothrow_at, "rdx", "x2";
    _ZnwmSt11align_val_t (size: usize, align: usize) => new_aligned_at, "rdx", "x2";
    _ZnwmSt11align_val_tRKSt9nothrow_t (size: usize, align: usize, tag: *const c_void)
        => new_aligned_nothrow_at, "rcx", "x3";
    _ZnamSt11align_val_tRKSt9nothrow_t (size: usize, align: usize, tag: *const c_void)
        => new_array_aligned_nothrow_at, "rcx", "x3";
}

goes_through! {
    _Znam => _Znwm, else new_array_at with "rsi", "x1";
    _ZnamSt11align_val_t => _ZnwmSt11align_val_t, else new_array_aligned_at with "rdx", "x2";
    _ZdaPv => _ZdlPv, else delete_array;
    _ZdaPvSt11align_val_t => _ZdlPvSt11align_val_t, else delete_aligned_array;
    _ZdlPvRKSt9nothrow_t => _ZdlPv;
    _ZdaPvRKSt9nothrow_t => _ZdaPv;
    _ZdlPvSt11align_val_tRKSt9nothrow_t => _ZdlPvSt11align_val_t;
    _ZdaPvSt11align_val_tRKSt9nothrow_t => _ZdaPvSt11align_val_t;
}

/// Defines slow paths. Each calls `$any` with its arguments and the address of the call's record,
/// which begins its own frame. If that returns null, it jumps to the runtime's form, which `$last`
/// finds, with the original arguments.
macro_rules! slow_paths {
    ($(
        $slow:ident($($arg:ident),*):
            $any:ident, $frame:literal, $arm_frame:literal, then $last:ident;
    )*) => {$(
        #[unsafe(naked)]
        unsafe extern "C" fn $slow($($arg: usize,)* key: usize) -> *mut u8 {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                kmem_core::begin_record!(),
                "push rdi", "push rsi", "push rdx", "push rdx",
                concat!("mov ", $frame, ", rbp"),
                "call {any}",
                "test rax, rax",
                "jnz 2f",
                "call {last}",
                "pop rdx", "pop rdx", "pop rsi", "pop rdi",
                ".cfi_remember_state",
                "pop rbp",
                ".cfi_def_cfa 7, 8",
                "jmp rax",
                "2:",
                ".cfi_restore_state",
                "leave",
                ".cfi_def_cfa 7, 8",
                "ret",
                ".cfi_endproc",
                any = sym $any, last = sym $last,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                kmem_core::begin_record!(),
                ".cfi_def_cfa_register 29",
                "sub sp, sp, #32",
                "stp x0, x1, [sp]", "str x2, [sp, #16]",
                concat!("mov ", $arm_frame, ", x29"),
                "bl {any}",
                "cbnz x0, 2f",
                "bl {last}",
                "mov x9, x0",
                "ldp x0, x1, [sp]", "ldr x2, [sp, #16]",
                "add sp, sp, #32",
                ".cfi_remember_state",
                "ldp x29, x30, [sp], #16",
                ".cfi_def_cfa 31, 0",
                "br x9",
                "2:",
                ".cfi_restore_state",
                "mov sp, x29",
                "ldp x29, x30, [sp], #16",
                ".cfi_def_cfa 31, 0",
                "ret",
                ".cfi_endproc",
                any = sym $any, last = sym $last,
            );
        }
    )*};
}

slow_paths! {
    new_slow(size): any, "rdx", "x2", then last_new;
    new_array_slow(size): any_array, "rdx", "x2", then last_new;
    new_nothrow_slow(size, tag): any_nothrow, "rcx", "x3", then last_nothrow;
    new_array_nothrow_slow(size, tag): any_array_nothrow, "rcx", "x3", then last_array_nothrow;
    new_aligned_at(size, align): any_aligned, "rcx", "x3", then last_aligned;
    new_array_aligned_at(size, align): any_array_aligned, "rcx", "x3", then last_aligned;
    new_aligned_nothrow_at(size, align, tag):
        any_aligned_nothrow, "r8", "x4", then last_aligned_nothrow;
    new_array_aligned_nothrow_at(size, align, tag):
        any_array_aligned_nothrow, "r8", "x4", then last_array_aligned_nothrow;
}

/// Defines the fast path of a plain `new`, and the same one for a thread with a tag or a group. It
/// is a separate function, so that other threads pay for one test only.
macro_rules! plain_news {
    ($($at:ident, $scoped:ident, $slow:ident;)*) => {$(
        extern "C" fn $at(size: usize, ret: usize) -> *mut u8 {
            if task::is_in_any() {
                return $scoped(size, ret);
            }
            // SAFETY: a return address.
            let at = unsafe { KMEM.alloc_fast_root(size, ret) };
            // SAFETY: a slow path of this file, with the arguments that it declares.
            if at.is_null() { unsafe { $slow(size, ret) } } else { at }
        }

        #[inline(never)]
        extern "C" fn $scoped(size: usize, ret: usize) -> *mut u8 {
            let key = thread::key(ret);
            // SAFETY: the key of a return address.
            let at = unsafe { KMEM.alloc_fast(size, key) };
            // SAFETY: a slow path of this file, with the arguments that it declares.
            if at.is_null() { unsafe { $slow(size, key) } } else { at }
        }
    )*};
}

plain_news! {
    new_at, new_scoped, new_slow;
    new_array_at, new_array_scoped, new_array_slow;
}

/// Defines the fast path of a nothrow `new`, unless the program has a form of its own.
macro_rules! nothrow_news {
    ($($at:ident, $is_own:ident, $slow:ident;)*) => {$(
        extern "C" fn $at(size: usize, tag: usize, ret: usize) -> *mut u8 {
            let key = thread::key(ret);
            // SAFETY: the key of a return address.
            let at = if $is_own() { null_mut() } else { unsafe { KMEM.alloc_fast(size, key) } };
            // SAFETY: a slow path of this file, with the arguments that it declares.
            if at.is_null() { unsafe { $slow(size, tag, key) } } else { at }
        }
    )*};
}

nothrow_news! {
    new_nothrow_at, has_own_new, new_nothrow_slow;
    new_array_nothrow_at, has_own_array, new_array_nothrow_slow;
}

/// Returns whether the program has a plain `new` of its own.
fn has_own_new() -> bool {
    is_replaced!(_Znwm)
}

/// Returns whether the program has a form of its own that its `new[]` goes through.
fn has_own_array() -> bool {
    has_own_new() || is_replaced!(_Znam)
}

extern "C" fn any(size: usize, key: usize, frame: usize) -> *mut u8 {
    any_of(Interface::New, size, key, frame)
}

extern "C" fn any_array(size: usize, key: usize, frame: usize) -> *mut u8 {
    any_of(Interface::NewArray, size, key, frame)
}

#[inline]
fn any_of(interface: Interface, size: usize, key: usize, frame: usize) -> *mut u8 {
    // SAFETY: the key of a return address.
    let at = KMEM.alloc_any(size, unsafe { Caller::in_frame(key, frame) });
    KMEM.of_interface(at, interface)
}

/// Null if the program has a plain form of its own: then the runtime's form calls that.
extern "C" fn any_nothrow(size: usize, _tag: usize, key: usize, frame: usize) -> *mut u8 {
    if has_own_new() { null_mut() } else { any(size, key, frame) }
}

/// Null if the program has a plain form of its own: then the runtime's form calls that.
extern "C" fn any_array_nothrow(size: usize, _tag: usize, key: usize, frame: usize) -> *mut u8 {
    if has_own_array() { null_mut() } else { any_array(size, key, frame) }
}

extern "C" fn any_aligned(size: usize, align: usize, ret: usize, frame: usize) -> *mut u8 {
    any_aligned_of(Interface::AlignedNew, size, align, ret, frame)
}

extern "C" fn any_array_aligned(size: usize, align: usize, ret: usize, frame: usize) -> *mut u8 {
    any_aligned_of(Interface::AlignedNewArray, size, align, ret, frame)
}

#[inline]
fn any_aligned_of(
    interface: Interface,
    size: usize,
    align: usize,
    ret: usize,
    frame: usize,
) -> *mut u8 {
    if !align.is_power_of_two() {
        return null_mut();
    }
    let at = KMEM.alloc_aligned(size, align, call_site::at(ret, frame));
    KMEM.of_interface(at, interface)
}

/// Null if the program has a plain form of its own: then the runtime's form calls that.
extern "C" fn any_aligned_nothrow(
    size: usize,
    align: usize,
    _tag: usize,
    ret: usize,
    frame: usize,
) -> *mut u8 {
    let replaced = is_replaced!(_ZnwmSt11align_val_t);
    if replaced { null_mut() } else { any_aligned(size, align, ret, frame) }
}

/// Null if the program has a plain form of its own: then the runtime's form calls that.
extern "C" fn any_array_aligned_nothrow(
    size: usize,
    align: usize,
    _tag: usize,
    ret: usize,
    frame: usize,
) -> *mut u8 {
    let replaced = is_replaced!(_ZnwmSt11align_val_t) || is_replaced!(_ZnamSt11align_val_t);
    if replaced { null_mut() } else { any_array_aligned(size, align, ret, frame) }
}

/// Finds a form of `new` of the C++ runtime, behind this library in the search order. Null: the
/// program has no such runtime.
fn runtime(name: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name. The program is about to run code of the runtime anyway. If
    // dlsym finds no memory, it returns null.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

weak_address! {
    /// Address of libstdc++'s `std::__throw_bad_alloc`, 0 for none.
    kmem_throw_bad_alloc = "_ZSt17__throw_bad_allocv"
}

/// Finds a form that throws, or ends the program. In a static program it is a function that only
/// throws, because the program has no other form of `new` than that of this library. So handlers
/// (`std::set_new_handler`) are not called there.
fn throwing(name: &CStr) -> *mut c_void {
    let at = runtime(name);
    if at.is_null() {
        if kmem_throw_bad_alloc != 0 {
            return kmem_throw_bad_alloc as *mut c_void;
        }
        let text =
            b"kmem: operator new: out of memory, and no C++ runtime to throw std::bad_alloc\n";
        KMEM.platform().print(text);
        KMEM.platform().fatal();
    }
    at
}

/// Finds a form that returns null: that of the runtime, else one of this file. `known` keeps the
/// runtime's: a program with operators of its own comes here with each call.
fn returning(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    extern "C" fn null() -> *mut c_void {
        null_mut()
    }
    let mut at = known.load(Ordering::Relaxed);
    if at.is_null() {
        at = runtime(name);
        known.store(at, Ordering::Relaxed);
    }
    if at.is_null() { null as *mut c_void } else { at }
}

extern "C" fn last_new() -> *mut c_void {
    throwing(c"_Znwm")
}

extern "C" fn last_aligned() -> *mut c_void {
    throwing(c"_ZnwmSt11align_val_t")
}

/// Defines functions that find the runtime's form of a nothrow `new`.
macro_rules! last_of_nothrow {
    ($($last:ident: $name:literal;)*) => {$(
        extern "C" fn $last() -> *mut c_void {
            static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            returning(&KNOWN, $name)
        }
    )*};
}

last_of_nothrow! {
    last_nothrow: c"_ZnwmRKSt9nothrow_t";
    last_array_nothrow: c"_ZnamRKSt9nothrow_t";
    last_aligned_nothrow: c"_ZnwmSt11align_val_tRKSt9nothrow_t";
    last_array_aligned_nothrow: c"_ZnamSt11align_val_tRKSt9nothrow_t";
}

/// Exports the two forms of `operator delete` that free one object, of any size.
macro_rules! deletes {
    ($($name:ident => $delete:ident;)*) => {$(
        /// # Safety
        /// As for `free(3)`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name(at: *mut u8) {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(own!($name), "jmp {}", sym $delete);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(own!($name), "b {}", sym $delete);
        }
    )*};
}

deletes! {
    _ZdlPv => delete;
    _ZdlPvSt11align_val_t => delete_aligned;
}

/// Defines functions that free memory of an interface.
macro_rules! deletes_of {
    ($($delete:ident: $interface:ident;)*) => {$(
        /// # Safety
        /// As for `free(3)`.
        unsafe extern "C" fn $delete(at: *mut u8) {
            // SAFETY: the same contract.
            unsafe { KMEM.free_or(at, Interface::$interface, Some(free_foreign)) }
        }
    )*};
}

deletes_of! {
    delete: New;
    delete_array: NewArray;
    delete_aligned: AlignedNew;
    delete_aligned_array: AlignedNewArray;
}

/// Exports the forms of `operator delete` with a size. If the program replaced the form without
/// one, or the `$last` that this goes through, they go through that.
macro_rules! sized_deletes {
    ($(
        $name:ident ($($align:ident)?): $interface:ident => $plain:ident $($last:ident)?;
    )*) => {$(
        /// # Safety
        /// As for `free(3)`, and the size and alignment are those of the request.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(at: *mut u8, size: usize $(, $align: usize)?) {
            #[unsafe(naked)]
            unsafe extern "C" fn bound(at: *mut u8) {
                core::arch::naked_asm!(jump!($plain));
            }
            if is_replaced!($plain) $(|| is_replaced!($last))? {
                // SAFETY: the same contract.
                return unsafe { bound(at) };
            }
            let align = ($($align,)? 1,).0;
            let told = SizedFree { size, align, interface: Interface::$interface };
            // SAFETY: the same contract.
            unsafe { KMEM.free_sized_or(at, told, free_foreign) }
        }
    )*};
}

sized_deletes! {
    _ZdlPvm(): New => _ZdlPv;
    _ZdaPvm(): NewArray => _ZdaPv _ZdlPv;
    _ZdlPvmSt11align_val_t(align): AlignedNew => _ZdlPvSt11align_val_t;
    _ZdaPvmSt11align_val_t(align):
        AlignedNewArray => _ZdaPvSt11align_val_t _ZdlPvSt11align_val_t;
}
