//! LeakSanitizer, alone or in AddressSanitizer. It looks for leaks in memory of its own `malloc`
//! only, so it finds none in a program whose `malloc` is that of this library.

use kmem_core::os::Console;

use crate::{KMEM, preemption};

// A weak symbol, which is null in a program without the sanitizer.
core::arch::global_asm!(
    ".weak __lsan_do_leak_check",
    ".pushsection .data.rel.ro.kmem_leak_check, \"aw\", %progbits",
    ".balign 8",
    ".hidden kmem_leak_check",
    ".globl kmem_leak_check",
    ".type kmem_leak_check, %object",
    ".size kmem_leak_check, 8",
    "kmem_leak_check: .quad __lsan_do_leak_check",
    ".popsection",
);

unsafe extern "C" {
    /// Address of the sanitizer's check for leaks, 0 for none.
    safe static kmem_leak_check: usize;
}

/// Says that the sanitizer finds no leaks, if the program has it. Called once, at the start.
pub(crate) fn tell() {
    if kmem_leak_check != 0 && !preemption::program_has_malloc() {
        KMEM.platform().print(
            b"kmem: LeakSanitizer finds no leaks, because malloc is that of kmem; \
              see what is left at exit with kmem run, or run without kmem\n",
        );
    }
}
