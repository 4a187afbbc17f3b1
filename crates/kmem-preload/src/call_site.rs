//! Call sites of exported functions: the [`Caller`] behind a call, and macros that pass it on.
//!
//! | macro            | passes on as further arguments                                          |
//! |------------------|-------------------------------------------------------------------------|
//! | `with_call_site` | the return address                                                      |
//! | `with_caller`    | the return address, and the address of the call's record                |
//! | `with_frame`     | the address of the record alone, from a fast path to a slow one         |
//! | `twins`          | a static tag, or in a second function without a tag the return address  |
//!
//! The register of a further argument is the next one of the platform's calling convention.
//!
//! The record of a call is two words on the stack: the caller's frame pointer and the return
//! address. It begins an ordinary frame, which ends when the function that was called returns. From
//! there the callers of the call are found: see [`kmem_core::codetag`].

use kmem_core::codetag::StaticTag;
use kmem_core::request::Caller;
use kmem_core::task;

use crate::thread;

/// The caller of a function of the C library: the thread's scope, else the call that returns to
/// `ret`. `frame` is the address of the call's record.
pub(crate) fn at(ret: usize, frame: usize) -> Caller {
    // SAFETY: the key of a return address.
    unsafe { Caller::in_frame(thread::key(ret), frame) }
}

/// The caller of a malloc function with a tag: the thread's scope, else the tag.
///
/// # Safety
/// `tag` is valid as long as its object is loaded.
#[inline(always)]
pub(crate) unsafe fn scoped(tag: *const StaticTag) -> Caller {
    // SAFETY: the same contract; the thread's scope, if there is one, has a tag that is loaded.
    unsafe { Caller::of_key(task::caller(Caller::tagged_by(tag).key())) }
}

/// The last argument of a kernel function: a static tag; null for none; or a return address with
/// [`NO_TAG`] set.
pub(crate) type Tag = *const StaticTag;

/// Set in the return address that a `_noprof` function passes in place of a tag.
const NO_TAG: usize = 1 << 63;

/// The caller of a kernel function, in the thread's group: the tag, or in a `_noprof` function the
/// thread's scope, else the call.
///
/// # Safety
/// `tag` is null, or has [`NO_TAG`] set, or is valid as long as its object is loaded.
#[inline(always)]
pub(crate) unsafe fn tagged(tag: Tag) -> Caller {
    // SAFETY: the same contract.
    unsafe { ungrouped(tag) }.here()
}

/// [`tagged`] without the thread's group.
///
/// # Safety
/// See [`tagged`].
#[inline(always)]
pub(crate) unsafe fn ungrouped(tag: Tag) -> Caller {
    if tag.is_null() {
        Caller::NOBODY
    } else if (tag as isize) < 0 {
        // A `_noprof` function: its return address.
        match task::tag() {
            0 => Caller::nobody_at(tag as usize & !NO_TAG),
            // SAFETY: the tag of a scope is loaded.
            scope => unsafe { Caller::of_key(scope) },
        }
    } else {
        // SAFETY: the same contract.
        unsafe { Caller::tagged_by(tag) }
    }
}

/// Exports `$name`, which jumps to `$inner` with its return address as a further argument, in
/// register `$x86` or `$arm`.
macro_rules! with_call_site {
    ($($name:ident ($($arg:ident: $ty:ty),*) => $inner:ident, $x86:literal, $arm:literal;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                $crate::preemption::own!($name),
                concat!("mov ", $x86, ", [rsp]"),
                "jmp {}", sym $inner
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                $crate::preemption::own!($name),
                concat!("mov ", $arm, ", x30"),
                "b {}", sym $inner
            );
        }
    )*};
}

/// Exports `$name`, which calls `$inner` with two further arguments. They are its return address
/// (in `$x86` or `$arm`) and the address of the call's record (in `$xf` or `$af`). A function with
/// a fast path uses [`with_frame`] instead, when it leaves that path.
macro_rules! with_caller {
    ($(
        $name:ident ($($arg:ident: $ty:ty),*)
            => $inner:ident, $x86:literal, $xf:literal, $arm:literal, $af:literal;
    )*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            kmem_core::call_with_record!(
                $inner, $xf, $af,
                [concat!("mov ", $x86, ", [rbp + 8]")],
                [concat!("mov ", $arm, ", x30")],
                before $crate::preemption::own!($name)
            );
        }
    )*};
}

/// Defines `$name`, which calls `$inner` with the address of the call's record as a further
/// argument, in `$x86` or `$arm`. A function without a frame of its own reaches `$name` by a jump,
/// so the record is that of the program's call.
macro_rules! with_frame {
    ($($name:ident ($($arg:ident: $ty:ty),*) => $inner:ident, $x86:literal, $arm:literal;)*) => {$(
        #[unsafe(naked)]
        extern "C" fn $name($($arg: $ty),*) -> *mut u8 {
            kmem_core::call_with_record!($inner, $x86, $arm, [], []);
        }
    )*};
}

/// The register of a function's last argument.
macro_rules! last_register {
    (x86_64: $($arg:ident)+) => {
        $crate::call_site::last_register!($($arg)+; "rdi" "rsi" "rdx" "rcx" "r8" "r9")
    };
    (aarch64: $($arg:ident)+) => {
        $crate::call_site::last_register!($($arg)+; "x0" "x1" "x2" "x3" "x4" "x5")
    };
    ($_last:ident; $register:literal $($_unused:literal)*) => {
        $register
    };
    ($_first:ident $($arg:ident)+; $_register:literal $($register:literal)+) => {
        $crate::call_site::last_register!($($arg)+; $($register)+)
    };
}

/// Exports each function `name`, whose last argument is a [`Tag`], as `kmem_name_tag`. Its twin
/// without that argument is exported as `kmem_name_noprof`. The twin sets [`NO_TAG`] in its return
/// address, and jumps to the function with it as the tag.
macro_rules! twins {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block
    )*) => {$(
        $(#[$doc])*
        #[unsafe(export_name = concat!("kmem_", stringify!($name), "_tag"))]
        unsafe extern "C" fn $name($($arg: $ty),*) -> $ret $body

        const _: () = {
            #[unsafe(export_name = concat!("kmem_", stringify!($name), "_noprof"))]
            #[unsafe(naked)]
            unsafe extern "C" fn noprof() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    concat!("mov ", $crate::call_site::last_register!(x86_64: $($arg)*), ", [rsp]"),
                    concat!("bts ", $crate::call_site::last_register!(x86_64: $($arg)*), ", 63"),
                    "jmp {}", sym $name
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    concat!(
                        "orr ", $crate::call_site::last_register!(aarch64: $($arg)*),
                        ", x30, #0x8000000000000000"
                    ),
                    "b {}", sym $name
                );
            }
        };
    )*};
}

pub(crate) use {last_register, twins, with_call_site, with_caller, with_frame};
