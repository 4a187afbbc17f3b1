//! Per-CPU operations as restartable sequences, by the rules of `cpu/rseq`. Each section finds
//! the copy in the unit of its CPU. If the CPU has no unit, or the kernel aborts the section, the
//! operation takes the slow path.
//!
//! Context: any, signal handlers included.

#[cfg(target_arch = "aarch64")]
#[macro_use]
mod aarch64;
#[cfg(target_arch = "x86_64")]
#[macro_use]
mod x86_64;

use core::arch::asm;
use core::mem::offset_of;

use super::{Units, Word};
use crate::cpu::begin_section;

/// Offset of the table in units.
const TABLE: usize = offset_of!(Units, table);

// The table words of CPU numbers -1 and -2, those of threads without rseq, lie in `no_cpu`.
const _: () = assert!(offset_of!(Units, table) >= offset_of!(Units, no_cpu) + 2 * 8);

/// The section of an operation for words of the size of a type.
macro_rules! sized {
    ($word:ty, $operation:ident, $($argument:expr),*) => {
        if size_of::<$word>() == 8 {
            $operation!(8, $($argument),*)
        } else {
            $operation!(4, $($argument),*)
        }
    };
}

/// Adds to the CPU's copy. False, without a change: the CPU has no copy, or the section was
/// aborted.
///
/// # Safety
/// `handle` is an aligned word in a live per-CPU object. The process's rseq area is known.
#[inline(always)]
pub(super) unsafe fn add<W: Word>(units: &Units, handle: *mut W, by: W) -> bool {
    // SAFETY: commits one store, to the CPU's copy of a live object's word.
    unsafe {
        sized!(W, add, units, handle, by.bits());
    }
    true
}

/// Writes the CPU's copy. Returns the old value; `None`: the CPU has no copy, or
/// the section was aborted.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn swap<W: Word>(units: &Units, handle: *mut W, new: W) -> Option<W> {
    let (at, old): (usize, u64);
    // SAFETY: reads, then commits one store, to the CPU's copy of a live object's word.
    unsafe {
        sized!(W, swap, units, handle, new.bits(), at, old);
    }
    (at != 0).then(|| W::from_bits(old))
}

/// Adds to the CPU's copy. Returns the new value; `None`: the CPU has no copy, or
/// the section was aborted.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn add_return<W: Word>(units: &Units, handle: *mut W, by: W) -> Option<W> {
    let (at, new): (usize, u64);
    // SAFETY: reads, then commits one store, to the CPU's copy of a live object's word.
    unsafe {
        sized!(W, add_return, units, handle, by.bits(), at, new);
    }
    (at != 0).then(|| W::from_bits(new))
}

/// Reads the CPU's copy. `None`: the CPU has no copy, or
/// the section was aborted.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn read<W: Word>(units: &Units, handle: *mut W) -> Option<W> {
    let (at, value): (usize, u64);
    // SAFETY: only reads the CPU's copy of a live object's word.
    unsafe {
        sized!(W, read, units, handle, at, value);
    }
    (at != 0).then(|| W::from_bits(value))
}

/// Writes `new` to the CPU's copy if that is `old`. Returns the old value; `None`: the CPU has no
/// copy, or the section was aborted.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn replace<W: Word>(units: &Units, handle: *mut W, old: W, new: W) -> Option<W> {
    let (at, seen): (usize, u64);
    // SAFETY: reads the CPU's copy of a live object's word. Then commits one store to it, or leaves
    // the section.
    unsafe {
        sized!(W, replace, units, handle, old.bits(), new.bits(), at, seen);
    }
    (at != 0).then(|| W::from_bits(seen))
}
