//! System calls without the C library. They set no `errno`, are no cancellation points, and need
//! no symbol, for the dynamic loader allocates before it has relocated symbols.
//!
//! Context: any, signal handlers included.

/// Makes a system call with six arguments. Returns the kernel's value: an error is the negated
/// errno.
///
/// # Safety
/// The arguments are valid for that system call, and its effects break no other code.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn syscall(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel changes no registers but rax, rcx and r11. The call's effects are allowed
    // by the contract.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// Makes a system call with six arguments. Returns the kernel's value: an error is the negated
/// errno.
///
/// # Safety
/// The arguments are valid for that system call, and its effects break no other code.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn syscall(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel changes no register but x0. The call's effects are allowed by the
    // contract.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") nr,
            inlateout("x0") a[0] as isize => ret,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    ret
}

/// Makes a system call with up to six arguments of any integer or pointer type; see [`syscall`].
macro_rules! sys {
    ($nr:expr $(, $arg:expr)* $(,)?) => {{
        let given = [$($arg as usize),*];
        let mut all = [0usize; 6];
        all[..given.len()].copy_from_slice(&given);
        $crate::os::linux::syscall::syscall($nr, all)
    }};
}
pub(crate) use sys;
