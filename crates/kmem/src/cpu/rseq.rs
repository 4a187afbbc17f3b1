//! Restartable sequences (Linux `rseq(2)`, Desnoyers; first described by Turner, 2013).
//!
//! Rules kept here: the descriptor's address is stored into the thread's rseq area first; the
//! CPU number is read after that; one store commits, and it is the section's last instruction;
//! an abort lands behind the signature that glibc registered and starts over; memory written
//! before the commit is overwritten by a restart and invisible to everybody else; no field of
//! the rseq area but `rseq_cs` is ever written.
//!
//! The offset of the rseq area from the thread pointer is the same for all threads of the
//! process. Where there is none, the offset of an unused thread-local area stands in its place,
//! so that a section writes nowhere else. No section runs before one of the two is known.
//!
//! A thread without a registration shows a `cpu_id` of -1 or -2. Masked, that is the last
//! table word, which never gets an area.

use core::arch::asm;
use core::mem::offset_of;

use super::{Area, MAX_CAP, MAX_CPUS, Slots, Wiped};
use crate::slab::class::SizeClass;

const EMPTY: usize = offset_of!(Slots, empty);
const OBJECTS: usize = offset_of!(Area, objects);
const CAP_SHIFT: u32 = MAX_CAP.trailing_zeros() + 3;

const _: () = assert!(offset_of!(Slots, wiped) + offset_of!(Wiped, table) == 0);
const _: () = assert!(MAX_CPUS.is_power_of_two());

/// Opens a section: `2:` is the restart point, `3:` its first instruction, and `4:` (which the
/// section must define) its end. Leaves the CPU's area in `{area}`.
macro_rules! enter {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\", @progbits\n",
            ".balign 32\n",
            "77: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 78f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax\", @progbits\n",
            // ud1 with the signature as displacement, as glibc's RSEQ_SIG asks.
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "78: jmp 2f\n",
            ".popsection\n",
            "mov {rseq}, [rip + kmem_rseq_offset]\n",
            "2: lea {area}, [rip + 77b]\n",
            "mov fs:[{rseq} + 8], {area}\n",
            "3: mov {area:e}, fs:[{rseq} + 4]\n",
            "and {area:e}, {cpu_mask}\n",
            "mov {area}, [{slots} + {area} * 8]\n",
            "lea {area}, [{slots} + {area} + {empty}]\n",
        )
    };
}

/// See [`Slots::pop`].
///
/// # Safety
/// `class` is a class number.
#[inline(always)]
pub(super) unsafe fn pop(slots: &Slots, class: SizeClass) -> *mut u8 {
    let object: *mut u8;
    // SAFETY: reads the CPU's array and commits one store to its length (the low half of the
    // head word); see the module's rules.
    unsafe {
        asm!(
            enter!(),
            "xor {object:e}, {object:e}",
            "mov {len:e}, [{area} + {class} * 8]",
            "sub {len:e}, 1",
            "jb 4f",
            "mov {object}, {class}",
            "shl {object}, {cap_shift}",
            "add {object}, {area}",
            "mov {object}, [{object} + {len} * 8 + {objects}]",
            "mov [{area} + {class} * 8], {len:e}",
            "4:",
            area = out(reg) _,
            len = out(reg) _,
            object = out(reg) object,
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            cpu_mask = const MAX_CPUS - 1,
            empty = const EMPTY,
            objects = const OBJECTS,
            cap_shift = const CAP_SHIFT,
            options(nostack),
        );
    }
    object
}

/// See [`Slots::push`].
///
/// # Safety
/// As for [`pop`], and `object` is a free object of `class` that nothing else refers to.
#[inline(always)]
pub(super) unsafe fn push(slots: &Slots, class: SizeClass, object: *mut u8) -> bool {
    let full: u64;
    // SAFETY: writes the array behind its length, then commits the length.
    unsafe {
        asm!(
            enter!(),
            "mov {len:e}, [{area} + {class} * 8]",
            "cmp {len:e}, [{area} + {class} * 8 + 4]",
            "mov {at:e}, 1",
            "jae 4f",
            "mov {at}, {class}",
            "shl {at}, {cap_shift}",
            "add {at}, {area}",
            "mov [{at} + {len} * 8 + {objects}], {object}",
            "xor {at:e}, {at:e}",
            "inc {len:e}",
            "mov [{area} + {class} * 8], {len:e}",
            "4:",
            area = out(reg) _,
            len = out(reg) _,
            at = out(reg) full,
            object = in(reg) object,
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            cpu_mask = const MAX_CPUS - 1,
            empty = const EMPTY,
            objects = const OBJECTS,
            cap_shift = const CAP_SHIFT,
            options(nostack),
        );
    }
    full == 0
}

/// See [`Slots::pop_many`].
///
/// # Safety
/// As for [`pop`], and `out` has room for `room` words.
#[inline(never)]
pub(super) unsafe fn pop_many(slots: &Slots, class: SizeClass, out: *mut u64, room: u32) -> u32 {
    let count: u64;
    // SAFETY: copies the newest objects out, which a restart repeats, then commits the length.
    unsafe {
        asm!(
            enter!(),
            "mov {len:e}, [{area} + {class} * 8]",
            "mov ecx, {room:e}",
            "cmp ecx, {len:e}",
            "cmova ecx, {len:e}",
            "mov {count:e}, ecx",
            "sub {len:e}, ecx",
            "mov rsi, {class}",
            "shl rsi, {cap_shift}",
            "add rsi, {area}",
            "lea rsi, [rsi + {len} * 8 + {objects}]",
            "mov rdi, {out}",
            "cld",
            "rep movsq",
            "mov [{area} + {class} * 8], {len:e}",
            "4:",
            area = out(reg) _,
            len = out(reg) _,
            count = out(reg) count,
            out("rcx") _, out("rsi") _, out("rdi") _,
            out = in(reg) out,
            room = in(reg) u64::from(room),
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            cpu_mask = const MAX_CPUS - 1,
            empty = const EMPTY,
            objects = const OBJECTS,
            cap_shift = const CAP_SHIFT,
            options(nostack),
        );
    }
    count as u32
}

/// See [`Slots::push_many`].
///
/// # Safety
/// As for [`push`], for each of the `room` objects at `from`.
#[inline(never)]
pub(super) unsafe fn push_many(slots: &Slots, class: SizeClass, from: *const u64, room: u32) -> u32 {
    let count: u64;
    // SAFETY: writes the array behind its length, which a restart repeats, then commits.
    unsafe {
        asm!(
            enter!(),
            "mov {len:e}, [{area} + {class} * 8]",
            "mov ecx, [{area} + {class} * 8 + 4]",
            "sub ecx, {len:e}",
            "cmp ecx, {room:e}",
            "cmova ecx, {room:e}",
            "mov {count:e}, ecx",
            "mov rdi, {class}",
            "shl rdi, {cap_shift}",
            "add rdi, {area}",
            "lea rdi, [rdi + {len} * 8 + {objects}]",
            "add {len:e}, ecx",
            "mov rsi, {from}",
            "cld",
            "rep movsq",
            "mov [{area} + {class} * 8], {len:e}",
            "4:",
            area = out(reg) _,
            len = out(reg) _,
            count = out(reg) count,
            out("rcx") _, out("rsi") _, out("rdi") _,
            from = in(reg) from,
            room = in(reg) u64::from(room),
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            cpu_mask = const MAX_CPUS - 1,
            empty = const EMPTY,
            objects = const OBJECTS,
            cap_shift = const CAP_SHIFT,
            options(nostack),
        );
    }
    count as u32
}

/// The CPU the thread runs on, at this moment; a huge number for a thread without rseq.
pub(super) fn current() -> u32 {
    let cpu: u32;
    // SAFETY: reads the thread's rseq area.
    unsafe {
        asm!(
            "mov {1}, [rip + kmem_rseq_offset]",
            "mov {0:e}, fs:[{1} + 4]",
            out(reg) cpu, out(reg) _,
            options(nostack, readonly, preserves_flags)
        );
    }
    cpu
}

/// Makes sections use the rseq area at `offset` from the thread pointer, or for `None`, unless
/// there is an area already, the unused one. Every `Some` in a process is the same.
pub(super) fn start(offset: Option<isize>) {
    let offset = match offset {
        Some(offset) => offset,
        None => {
            let known: isize;
            let unused: isize;
            // SAFETY: reads this module's word and a thread-pointer offset.
            unsafe {
                asm!("mov {0}, [rip + kmem_rseq_offset]", "mov {1}, [rip + kmem_no_rseq@GOTTPOFF]",
                    out(reg) known, out(reg) unused, options(nostack, readonly, preserves_flags));
            }
            if known != 0 { known } else { unused }
        }
    };
    // SAFETY: an aligned word of this module's; a thread that still reads the old value finds
    // an unused area there.
    unsafe {
        asm!("mov [rip + kmem_rseq_offset], {0}", in(reg) offset, options(nostack, preserves_flags));
    }
}

core::arch::global_asm!(
    ".pushsection .tbss.kmem_no_rseq, \"awT\", @nobits",
    ".balign 32",
    ".hidden kmem_no_rseq",
    ".globl kmem_no_rseq",
    ".type kmem_no_rseq, @object",
    ".size kmem_no_rseq, 32",
    "kmem_no_rseq: .zero 32",
    ".popsection",
    ".pushsection .bss.kmem_rseq_offset, \"aw\", @nobits",
    ".balign 8",
    ".hidden kmem_rseq_offset",
    ".globl kmem_rseq_offset",
    ".type kmem_rseq_offset, @object",
    ".size kmem_rseq_offset, 8",
    "kmem_rseq_offset: .zero 8",
    ".popsection",
);
