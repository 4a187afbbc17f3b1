//! Entries into sandboxes: `prctl` and `syscall`, by which programs install filters of system calls
//! (`seccomp(2)`). libseccomp and browsers use the one or the other.
//!
//! kmem prepares itself before the filter is in force: see [`kmem_core::os::linux`].

use core::ffi::{c_char, c_int, c_ulong};

use kmem_core::os::linux::syscall::syscall as call;

use crate::{KMEM, errno, thread};

/// # Safety
/// As for `prctl(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    let args = [option as usize, a as usize, b as usize, c as usize, d as usize, 0];
    // SAFETY: the same contract.
    let result = unsafe {
        if option == libc::PR_SET_SECCOMP {
            entering(libc::SYS_prctl, args)
        } else {
            call(libc::SYS_prctl, args)
        }
    };
    if result < 0 {
        return errno::failed(result) as c_int;
    }
    if option == libc::PR_SET_NAME {
        // SAFETY: the kernel read this C string.
        thread::renamed(unsafe { thread::name_at(a as *const c_char) });
    }
    result as c_int
}

/// `syscall(2)`. Only the calls that may install a filter are looked at; another one costs two
/// comparisons. It needs no stack: a child of `vfork` or `clone` may return from it.
///
/// # Safety
/// As for `syscall(2)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "cmp rdi, {seccomp}", "je {special}",
        "cmp rdi, {prctl}", "je {special}",
        "mov rax, rdi",
        "mov rdi, rsi", "mov rsi, rdx", "mov rdx, rcx",
        "mov r10, r8", "mov r8, r9", "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2: mov rdi, rax",
        "jmp {failed}",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        special = sym special,
        failed = sym errno::failed,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "cmp x0, {seccomp}", "b.eq 3f",
        "cmp x0, {prctl}", "b.eq 3f",
        "mov x8, x0",
        "mov x0, x1", "mov x1, x2", "mov x2, x3",
        "mov x3, x4", "mov x4, x5", "mov x5, x6",
        "svc 0",
        "cmn x0, 4095",
        "b.cs 2f",
        "ret",
        "2: b {failed}",
        "3: b {special}",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        special = sym special,
        failed = sym errno::failed,
    );
}

/// `syscall(SYS_seccomp, ..)` and `syscall(SYS_prctl, ..)`.
///
/// # Safety
/// As for `syscall(2)`.
unsafe extern "C" fn special(
    number: isize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    if number as i64 == libc::SYS_prctl {
        // SAFETY: the same contract.
        return unsafe { prctl(a as c_int, b as _, c as _, d as _, e as _) } as isize;
    }
    let installs =
        a == libc::SECCOMP_SET_MODE_STRICT as usize || a == libc::SECCOMP_SET_MODE_FILTER as usize;
    let args = [a, b, c, d, e, f];
    // SAFETY: the same contract.
    let result = unsafe {
        if installs { entering(libc::SYS_seccomp, args) } else { call(libc::SYS_seccomp, args) }
    };
    if result < 0 { errno::failed(result) } else { result }
}

/// Makes a system call that may put the process into a sandbox.
///
/// # Safety
/// As for the system call.
unsafe fn entering(number: i64, args: [usize; 6]) -> isize {
    let platform = KMEM.platform();
    platform.enter_sandbox();
    // SAFETY: the same contract.
    let result = unsafe { call(number, args) };
    if result < 0 {
        platform.stay_outside();
    }
    result
}
