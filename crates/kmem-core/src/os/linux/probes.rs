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
#[cfg(all(target_arch = "x86_64", not(miri)))]
use kmem_layout::site::MAX_DEPTH;

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
/// The note goes into a section that is not loaded. A byte goes into one by which a tracer learns
/// that prelink(8) moved the object.
#[cfg(not(miri))]
macro_rules! probe {
    ($name:literal, $registers:literal) => {
        concat!(
            "990: nop\n",
            ".pushsection .note.stapsdt,\"\",\"note\"\n",
            ".balign 4\n",
            ".4byte 992f - 991f, 994f - 993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            "993: .8byte 990b\n",
            ".8byte _.stapsdt.base\n",
            ".8byte {semaphore}\n",
            ".asciz \"otel_memory\"\n",
            ".asciz \"",
            $name,
            "\"\n.asciz \"",
            $registers,
            "\"\n",
            "994: .balign 4\n",
            ".popsection\n",
            ".ifndef _.stapsdt.base\n",
            ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat\n",
            ".weak _.stapsdt.base\n",
            ".hidden _.stapsdt.base\n",
            "_.stapsdt.base: .space 1\n",
            ".size _.stapsdt.base, 1\n",
            ".popsection\n",
            ".endif",
        )
    };
}

/// The probe of an allocation of `bytes` at `at`, which stands for `weight` bytes. `calls` are the
/// return addresses of the calls that led to it, innermost first.
///
/// Tracers in the kernel follow frame pointers, which on x86-64 neither this library nor most
/// programs have. So at the probe the frame pointer leads to frames that are made up of `calls`.
/// Tracers that read unwind tables, as debuggers do, find the true frames.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(never)]
pub(super) fn alloc(at: usize, bytes: u64, weight: u64, calls: &[usize]) {
    /// A frame, as the kernel follows frames: the address of the next one, and a return address.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Frame {
        next: usize,
        ret: usize,
    }
    let mut frames = [Frame { next: 0, ret: 0 }; MAX_DEPTH as usize];
    let first = &raw const frames as usize;
    for ((nth, frame), &ret) in (1..).zip(&mut frames).zip(calls) {
        let next = if nth < calls.len() { first + nth * size_of::<Frame>() } else { 0 };
        *frame = Frame { next, ret };
    }
    reach_alloc(at, bytes, weight, if calls.is_empty() { 0 } else { first });
    // They are in memory until here.
    core::hint::black_box(&frames);
}

/// Reaches the probe with the frame pointer `frames`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[unsafe(naked)]
extern "C" fn reach_alloc(at: usize, bytes: u64, weight: u64, frames: usize) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset 6, -16",
        "mov rbp, rcx",
        probe!("alloc", "8@%rdi 8@%rsi 8@%rdx"),
        "pop rbp",
        ".cfi_restore 6",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        semaphore = sym ALLOC,
    )
}

/// The probe of an allocation of `bytes` at `at`, which stands for `weight` bytes. Nearly all code
/// of AArch64 has frame pointers.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(never)]
pub(super) fn alloc(at: usize, bytes: u64, weight: u64, _calls: &[usize]) {
    #[cfg(not(miri))]
    reach_alloc(at, bytes, weight);
    #[cfg(miri)]
    let _ = (at, bytes, weight);
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[unsafe(naked)]
extern "C" fn reach_alloc(at: usize, bytes: u64, weight: u64) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        probe!("alloc", "8@x0 8@x1 8@x2"),
        "ret",
        ".cfi_endproc",
        semaphore = sym ALLOC,
    )
}

/// The probe of the free of a sample at `at`.
#[inline(never)]
pub(super) fn free(at: usize) {
    #[cfg(not(miri))]
    macro_rules! reach {
        ($registers:literal, $register:tt) => {
            // SAFETY: the instruction does nothing.
            unsafe {
                core::arch::asm!(
                    probe!("free", $registers),
                    semaphore = sym FREE,
                    in($register) at,
                    options(nostack, preserves_flags),
                )
            }
        };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    reach!("8@%rdi", "rdi");
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    reach!("8@x0", "x0");
    #[cfg(miri)]
    let _ = (at, &FREE);
}
