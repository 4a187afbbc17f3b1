//! `libkmem.so`: kmem as the malloc of an unmodified Linux program.
//!
//! Every allocation symbol of the C library is exported, for one that is missing would hand out
//! memory that our `free` does not know. The files are thin: [`malloc`] (C), [`operators`]
//! (C++), [`process`] (start, exit, `dlopen`), [`thread`] (groups by name), [`tagged`], [`kernel`],
//! [`group`], [`percpu`], [`mempool`], [`rhashtable`] and [`vmalloc`] (`kmem.h`), over the one static instance.
//!
//! Nothing here allocates through itself, takes a lock, or calls into the C library on the path
//! of an allocation.
//!
//! Built to abort on panic (the release profile) it does without the standard library, whose
//! thread-local variables would make `dlopen` of it fail in some programs.
#![cfg_attr(panic = "abort", no_std)]

mod errno;
mod group;
mod kernel;
mod malloc;
mod mempool;
mod operators;
mod percpu;
mod process;
mod pthread;
mod report;
mod rhashtable;
mod tagged;
mod thread;
mod vmalloc;

use kmem_core::Kmem;

/// The allocator of this process.
static KMEM: Kmem = Kmem::new();

/// Nothing of ours is meant to panic; if it does, there is nothing to unwind to.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    use kmem_core::os::Platform;
    KMEM.platform().print(b"kmem: internal error\n");
    KMEM.platform().fatal()
}

// The precompiled core library names a personality in its unwind tables; nothing unwinds here.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality, \"ax\", @progbits",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0, 0, 0, 0",
    ".popsection",
);
