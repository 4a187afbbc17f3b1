//! LeakSanitizer, alone or in AddressSanitizer. It looks for leaks in memory of its own `malloc`
//! only, so it finds none in a program whose `malloc` is that of this library.

use kmem_core::os::Console;

use crate::weak::weak_address;
use crate::{KMEM, preemption};

weak_address! {
    /// Address of the sanitizer's check for leaks, 0 for none.
    kmem_leak_check = "__lsan_do_leak_check"
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
