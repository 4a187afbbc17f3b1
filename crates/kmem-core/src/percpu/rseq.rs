//! Per-CPU operations as restartable sequences, by the rules of `cpu/rseq.rs`. Each section finds
//! the copy in the unit of its CPU. If the CPU has no unit, or the kernel aborts the section, the
//! operation takes the slow path.
//!
//! Context: any, signal handlers included.

use core::arch::asm;
use core::mem::offset_of;

use super::{Units, Word};

/// Offset of the table in units.
const TABLE: usize = offset_of!(Units, table);

// The table words of CPU numbers -1 and -2, those of threads without rseq, lie in `no_cpu`.
const _: () = assert!(offset_of!(Units, table) >= offset_of!(Units, no_cpu) + 2 * 8);

/// One section: `$body` uses `{at}`, the address of the CPU's copy, and its own operands. If there
/// is no copy, `{at}` is zero, and the section jumps by `$leave`. An abort does the same.
macro_rules! section {
    ($units:expr, $handle:expr, $leave:literal, [$($body:literal),*], $($operands:tt)*) => {
        asm!(
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "77: .long 0, 0",
            ".quad 3f, 4f - 3f, 78f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "78: xor {at:e}, {at:e}",
            $leave,
            ".popsection",
            "mov {rseq}, [rip + kmem_rseq_offset]",
            "lea {at}, [rip + 77b]",
            "mov fs:[{rseq} + 8], {at}",
            "3: movsxd {at}, dword ptr fs:[{rseq} + 4]",
            "mov {at}, [{units} + {at} * 8 + {table}]",
            "test {at}, {at}",
            $leave,
            "add {at}, {handle}",
            $($body,)*
            "4:",
            rseq = out(reg) _,
            units = in(reg) $units,
            handle = in(reg) $handle,
            table = const TABLE,
            $($operands)*
            options(nostack),
        )
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
        if size_of::<W>() == 8 {
            section!(units, handle, "jz {slow}", ["add qword ptr [{at}], {by}"],
                at = out(reg) _, by = in(reg) by.bits(), slow = label { return false },);
        } else {
            section!(units, handle, "jz {slow}", ["add dword ptr [{at}], {by:e}"],
                at = out(reg) _, by = in(reg) by.bits(), slow = label { return false },);
        }
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
        if size_of::<W>() == 8 {
            section!(units, handle, "jz 4f", ["mov {old}, [{at}]", "mov [{at}], {new}"],
                at = out(reg) at, old = out(reg) old, new = in(reg) new.bits(),);
        } else {
            section!(units, handle, "jz 4f", ["mov {old:e}, [{at}]", "mov [{at}], {new:e}"],
                at = out(reg) at, old = out(reg) old, new = in(reg) new.bits(),);
        }
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
        if size_of::<W>() == 8 {
            section!(units, handle, "jz 4f",
                ["mov {new}, [{at}]", "add {new}, {by}", "mov [{at}], {new}"],
                at = out(reg) at, new = out(reg) new, by = in(reg) by.bits(),);
        } else {
            section!(units, handle, "jz 4f",
                ["mov {new:e}, [{at}]", "add {new:e}, {by:e}", "mov [{at}], {new:e}"],
                at = out(reg) at, new = out(reg) new, by = in(reg) by.bits(),);
        }
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
        if size_of::<W>() == 8 {
            section!(units, handle, "jz 4f", ["mov {value}, [{at}]"], at = out(reg) at,
                value = out(reg) value,);
        } else {
            section!(units, handle, "jz 4f", ["mov {value:e}, [{at}]"], at = out(reg) at,
                value = out(reg) value,);
        }
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
        if size_of::<W>() == 8 {
            section!(units, handle, "jz 4f",
                ["mov {seen}, [{at}]", "cmp {seen}, {old}", "jne 4f", "mov [{at}], {new}"],
                at = out(reg) at, seen = out(reg) seen, old = in(reg) old.bits(),
                new = in(reg) new.bits(),);
        } else {
            section!(units, handle, "jz 4f",
                ["mov {seen:e}, [{at}]", "cmp {seen:e}, {old:e}", "jne 4f", "mov [{at}], {new:e}"],
                at = out(reg) at, seen = out(reg) seen, old = in(reg) old.bits(),
                new = in(reg) new.bits(),);
        }
    }
    (at != 0).then(|| W::from_bits(seen))
}
