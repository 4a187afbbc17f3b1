//! Functions of which the program may have a definition of its own.
//!
//! In the order of symbol search a program comes before a preloaded library. So its definition of
//! `operator new(size_t)` wins, while the forms that it does not define are those of this library.
//! By the C++ standard they call the form that it does define. `reallocarray` and `free_sized` call
//! its `realloc` and its `free` in the same way.
//!
//! | function                                    | goes through                              |
//! |---------------------------------------------|-------------------------------------------|
//! | `new[]`, aligned `new[]`                    | `new`, aligned `new`                      |
//! | nothrow `new`, if a plain form is not ours  | the C++ runtime, which catches exceptions |
//! | nothrow `delete`                            | `delete`                                  |
//! | sized `delete`, if a plain form is not ours | `delete`                                  |
//! | `delete[]` and its forms                    | `delete[]`, then `delete`                 |
//! | aligned forms of `delete`                   | aligned `delete`, aligned `delete[]`      |
//! | `delete`, `free_sized` of foreign memory    | `free` of a program with its own `malloc` |
//! | `reallocarray`, `cfree`                     | `realloc`, `free`                         |
//!
//! A jump through the dynamic symbol needs no decision: in a program without a definition it leads
//! back to this library. `new[]` and `delete[]` decide, since this library knows their memory from
//! that of `new`.

use crate::KMEM;

/// Exports each `$name`, which jumps to the function that the dynamic symbol `$to` is bound to. The
/// arguments and the return address stay, so that function has the same call site. If `$to` is that
/// of this library, it jumps to `$inner` instead, where that is given. Register `$x86` or `$arm`
/// then has its return address, where these are given.
macro_rules! goes_through {
    ($(
        $name:ident => $to:ident
            $(, else $inner:ident $(with $x86:literal, $arm:literal)?)?;
    )*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                $crate::preemption::own!($name),
                $(
                    $crate::preemption::addresses!($to, "rax", "rcx"),
                    "cmp rax, rcx",
                    "jne 2f",
                    $(concat!("mov ", $x86, ", [rsp]"),)?
                    "jmp {inner}",
                    "2:",
                )?
                $crate::preemption::jump!($to),
                $(inner = sym $inner,)?
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                $crate::preemption::own!($name),
                $(
                    $crate::preemption::addresses!($to, "x16", "x17"),
                    "cmp x16, x17",
                    "b.ne 2f",
                    $(concat!("mov ", $arm, ", x30"),)?
                    "b {inner}",
                    "2:",
                )?
                $crate::preemption::jump!($to),
                $(inner = sym $inner,)?
            );
        }
    )*};
}

/// Assembly: a jump to the function that a dynamic symbol is bound to.
macro_rules! jump {
    ($to:ident) => {
        $crate::preemption::jump_text!(stringify!($to))
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump_text {
    ($to:expr) => {
        concat!("jmp qword ptr [rip + ", $to, "@GOTPCREL]")
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump_text {
    ($to:expr) => {
        concat!("adrp x16, :got:", $to, "\nldr x16, [x16, :got_lo12:", $to, "]\nbr x16")
    };
}

/// Assembly: a name for the start of an exported function that no other definition can take. The
/// exported name itself may mean the program's function.
macro_rules! own {
    ($name:ident) => {
        concat!(
            ".globl kmem_own_",
            stringify!($name),
            "\n",
            ".hidden kmem_own_",
            stringify!($name),
            "\n",
            "kmem_own_",
            stringify!($name),
            ":\n",
        )
    };
}

/// Assembly: loads the address that a dynamic symbol is bound to, and that of the function of this
/// library, into two registers.
#[cfg(target_arch = "x86_64")]
macro_rules! addresses {
    ($name:ident, $bound:literal, $own:literal) => {
        concat!(
            "mov ",
            $bound,
            ", [rip + ",
            stringify!($name),
            "@GOTPCREL]\n",
            "lea ",
            $own,
            ", [rip + kmem_own_",
            stringify!($name),
            "]"
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! addresses {
    ($name:ident, $bound:literal, $own:literal) => {
        concat!(
            "adrp ",
            $bound,
            ", :got:",
            stringify!($name),
            "\n",
            "ldr ",
            $bound,
            ", [",
            $bound,
            ", :got_lo12:",
            stringify!($name),
            "]\n",
            "adrp ",
            $own,
            ", kmem_own_",
            stringify!($name),
            "\n",
            "add ",
            $own,
            ", ",
            $own,
            ", :lo12:kmem_own_",
            stringify!($name)
        )
    };
}

/// Returns whether a dynamic symbol is bound to another function than that of this library.
macro_rules! is_replaced {
    ($name:ident) => {{
        let bound: usize;
        let own: usize;
        // SAFETY: reads one slot of the global offset table.
        unsafe {
            core::arch::asm!(
                $crate::preemption::addresses!($name, "{0}", "{1}"),
                out(reg) bound, out(reg) own, options(nostack, pure, readonly, preserves_flags)
            );
        }
        bound != own
    }};
}

pub(crate) use {addresses, goes_through, is_replaced, jump, jump_text, own};

/// Returns whether the program has a `malloc` of its own.
pub(crate) fn program_has_malloc() -> bool {
    is_replaced!(malloc)
}

/// Frees memory that is not kmem's. It may be that of a program with its own `malloc`, as in the
/// C++ runtime, where `delete` calls `free`. Elsewhere this is a misuse.
///
/// # Safety
/// As for `free(3)`.
pub(crate) unsafe fn free_foreign(at: *mut u8) {
    // SAFETY: the same contract.
    unsafe { if program_has_malloc() { bound_free(at) } else { KMEM.free(at) } }
}

/// Calls the `free` that the dynamic symbol is bound to.
///
/// # Safety
/// As for `free(3)`.
#[unsafe(naked)]
unsafe extern "C" fn bound_free(at: *mut u8) {
    core::arch::naked_asm!(jump!(free));
}
