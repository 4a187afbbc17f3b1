//! Per-CPU operations as restartable sequences. The rules are those of `cpu/rseq.rs`: one commit store, last. Each
//! section finds the copy in the unit of its CPU; where there is none it leaves for the slow path.

use core::arch::asm;
use core::mem::offset_of;

use super::{Units, Word};

const TABLE: usize = offset_of!(Units, table);

// Where the CPU numbers of threads without rseq lead.
const _: () = assert!(offset_of!(Units, table) >= offset_of!(Units, no_cpu) + 2 * 8);

/// One section: `$body` with `{at}`, the address of the CPU's copy, and its own operands. `$leave` is where it goes if
/// there is no such copy; `{at}` is zero then.
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
            "78: jmp 2f",
            ".popsection",
            "mov {rseq}, [rip + kmem_rseq_offset]",
            "2: lea {at}, [rip + 77b]",
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

/// Adds to the CPU's copy; false: not done.
///
/// # Safety
/// `handle` is an aligned word in a live per-CPU object; so for all functions here. The process's rseq area is known.
#[inline(always)]
pub(super) unsafe fn add<W: Word>(units: &Units, handle: *mut W, by: W) -> bool {
    // SAFETY: one store, which commits.
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

/// Writes the CPU's copy; the value before.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn swap<W: Word>(units: &Units, handle: *mut W, new: W) -> Option<W> {
    let (at, old): (usize, u64);
    // SAFETY: reads, then commits with one store.
    unsafe {
        if size_of::<W>() == 8 {
            section!(units, handle, "jz 4f", ["mov {old}, [{at}]", "mov [{at}], {new}"], at = out(reg) at,
                old = out(reg) old, new = in(reg) new.bits(),);
        } else {
            section!(units, handle, "jz 4f", ["mov {old:e}, [{at}]", "mov [{at}], {new:e}"], at = out(reg) at,
                old = out(reg) old, new = in(reg) new.bits(),);
        }
    }
    (at != 0).then(|| W::from_bits(old))
}

/// Adds to the CPU's copy; the value after.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn add_return<W: Word>(units: &Units, handle: *mut W, by: W) -> Option<W> {
    let (at, new): (usize, u64);
    // SAFETY: reads, then commits with one store.
    unsafe {
        if size_of::<W>() == 8 {
            section!(units, handle, "jz 4f",
                ["mov {new}, [{at}]", "add {new}, {by}", "mov [{at}], {new}"], at = out(reg) at,
                new = out(reg) new, by = in(reg) by.bits(),);
        } else {
            section!(units, handle, "jz 4f",
                ["mov {new:e}, [{at}]", "add {new:e}, {by:e}", "mov [{at}], {new:e}"], at = out(reg) at,
                new = out(reg) new, by = in(reg) by.bits(),);
        }
    }
    (at != 0).then(|| W::from_bits(new))
}

/// The CPU's copy.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn read<W: Word>(units: &Units, handle: *mut W) -> Option<W> {
    let (at, value): (usize, u64);
    // SAFETY: only reads.
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

/// Writes `new` to the CPU's copy if it is `old`; the value before.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn replace<W: Word>(units: &Units, handle: *mut W, old: W, new: W) -> Option<W> {
    let (at, seen): (usize, u64);
    // SAFETY: reads, then commits with one store, or leaves the section.
    unsafe {
        if size_of::<W>() == 8 {
            section!(units, handle, "jz 4f",
                ["mov {seen}, [{at}]", "cmp {seen}, {old}", "jne 4f", "mov [{at}], {new}"], at = out(reg) at,
                seen = out(reg) seen, old = in(reg) old.bits(), new = in(reg) new.bits(),);
        } else {
            section!(units, handle, "jz 4f",
                ["mov {seen:e}, [{at}]", "cmp {seen:e}, {old:e}", "jne 4f", "mov [{at}], {new:e}"], at = out(reg) at,
                seen = out(reg) seen, old = in(reg) old.bits(), new = in(reg) new.bits(),);
        }
    }
    (at != 0).then(|| W::from_bits(seen))
}
