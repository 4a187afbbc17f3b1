//! Probes of user space (USDT) for tracers: bpftrace, perf, gdb, OpenTelemetry's profiler.
//!
//! - `otel_memory:alloc(address, bytes, weight)`: an allocation that is a sample
//! - `otel_memory:free(address)`: the free of one
//!
//! A probe is an instruction that does nothing, and a note in `.note.stapsdt` that says where it is
//! and which registers have its arguments. A tracer puts a breakpoint there, and adds one to the
//! probe's semaphore, which the note names, too. The format is that of SystemTap's `sys/sdt.h`. The
//! names, the arguments and the sampling are those of the memory profiling of OpenTelemetry's eBPF
//! profiler.

use crate::sync::{AtomicU16, Ordering};

/// A counter of the tracers that wait for a probe. Only they write it.
struct Semaphore(#[cfg_attr(miri, allow(dead_code))] AtomicU16);

#[unsafe(link_section = ".probes")]
static ALLOC: Semaphore = Semaphore(AtomicU16::new(0));
#[unsafe(link_section = ".probes")]
static FREE: Semaphore = Semaphore(AtomicU16::new(0));

/// Returns whether a tracer waits for [`alloc`].
#[inline]
pub(super) fn is_traced() -> bool {
    ALLOC.0.load(Ordering::Relaxed) != 0
}

/// An instruction that does nothing, with its note: name, semaphore, registers of the arguments.
#[cfg(not(miri))]
macro_rules! probe {
    ($name:literal, $semaphore:ident, $registers:literal, $($operands:tt)*) => {
        // SAFETY: the instruction does nothing. The rest goes into a section that is not loaded. A
        // byte goes into one by which a tracer learns that prelink(8) moved the object.
        unsafe {
            core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"\",\"note\"",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte {semaphore}",
                ".asciz \"otel_memory\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $registers, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                semaphore = sym $semaphore,
                $($operands)*
                options(nostack, preserves_flags),
            )
        }
    };
}

/// The probe of an allocation of `bytes` at `at`, which stands for `weight` bytes.
#[inline(never)]
pub(super) fn alloc(at: usize, bytes: u64, weight: u64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    probe!("alloc", ALLOC, "8@%rdi 8@%rsi 8@%rdx",
        in("rdi") at, in("rsi") bytes, in("rdx") weight,);
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    probe!("alloc", ALLOC, "8@x0 8@x1 8@x2", in("x0") at, in("x1") bytes, in("x2") weight,);
    #[cfg(miri)]
    let _ = (at, bytes, weight);
}

/// The probe of the free of a sample at `at`.
#[inline(never)]
pub(super) fn free(at: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    probe!("free", FREE, "8@%rdi", in("rdi") at,);
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    probe!("free", FREE, "8@x0", in("x0") at,);
    #[cfg(miri)]
    let _ = (at, &FREE);
}
