//! `libkmem.so`: kmem as the malloc of an unmodified Linux program.
//!
//! The library exports every allocation symbol of the C library. Memory from a symbol that it left
//! out would be unknown to its `free`.
//!
//! | modules                                             | purpose                        |
//! |-----------------------------------------------------|--------------------------------|
//! | [`malloc`], [`family`], [`mallinfo`], [`report`]    | the malloc family of C         |
//! | [`operators`], [`preemption`]                       | `new` and `delete` of C++      |
//! | [`process`]                                         | start, exit, `vfork`, `dlopen` |
//! | [`limits`]                                          | `setrlimit`                    |
//! | [`background`]                                      | a thread that gives back       |
//! | [`mapping`]                                         | `mmap` and its kin             |
//! | [`thread`], [`pthread`]                             | a group per thread, by name    |
//! | [`sandbox`]                                         | filters of system calls        |
//! | [`sanitizer`]                                       | a word on LeakSanitizer        |
//! | [`tagged`], [`tag_ranges`], [`kernel`], [`vmalloc`] | `kmem.h`: tags, memory         |
//! | [`group`], [`refusal`], [`scope`]                   | `kmem.h`: groups               |
//! | [`percpu`], [`mempool`], [`rhashtable`]             | `kmem.h`: the other interfaces |
//! | [`call_site`], [`errno`], [`weak`]                  | helpers of the modules above   |
//!
//! The path of a successful allocation takes no lock and calls no function of the C library. No
//! code here allocates through the symbols that the library exports.
//!
//! With `panic = "abort"` (the release profile) the library is `no_std`. The thread-local variables
//! of the standard library make `dlopen` of it fail in some programs.
#![cfg_attr(panic = "abort", no_std)]

mod background;
mod call_site;
mod errno;
mod family;
mod group;
mod kernel;
mod limits;
mod mallinfo;
mod malloc;
mod mapping;
mod mempool;
mod operators;
mod percpu;
mod preemption;
mod process;
mod pthread;
mod refusal;
mod report;
mod rhashtable;
mod sandbox;
mod sanitizer;
mod scope;
mod tag_ranges;
mod tagged;
mod thread;
mod vmalloc;
mod weak;

use kmem_core::Kmem;

/// The allocator of this process.
static KMEM: Kmem = Kmem::new();

/// Ends the process: no frame of a caller can be unwound.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    use kmem_core::os::Console;
    KMEM.platform().print(b"kmem: internal error\n");
    KMEM.platform().fatal()
}

// The unwind tables of the precompiled core library refer to this symbol. No code unwinds here.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality, \"ax\", @progbits",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0, 0, 0, 0",
    ".popsection",
);
