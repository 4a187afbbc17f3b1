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
//! A thread without a registration shows a `cpu_id` of -1 or -2. The words in front of the
//! table are always zero.

use core::arch::asm;
use core::mem::offset_of;

use super::{Area, BLOCK, Cell, Front, Slots, Stock, Wiped};
use crate::class::SizeClass;
use crate::units::{Item, ObjcgId};

/// Where an area has the bottoms of its arrays.
const BOTTOM: usize = offset_of!(Area, front) + offset_of!(Front, bottom);

const EMPTY: usize = offset_of!(Slots, empty);

const TABLE: usize = offset_of!(Slots, wiped) + offset_of!(Wiped, table);

// Where the CPU numbers of threads without rseq lead.
const _: () = assert!(offset_of!(Wiped, table) >= offset_of!(Wiped, no_cpu) + 2 * 8);

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
            "2: mov {rseq}, [rip + kmem_rseq_offset]\n",
            "lea {area}, [rip + 77b]\n",
            "mov fs:[{rseq} + 8], {area}\n",
            "3: movsxd {area}, dword ptr fs:[{rseq} + 4]\n",
            "mov {area}, [{slots} + {area} * 8 + {table}]\n",
            "lea {area}, [{slots} + {area} + {empty}]\n",
        )
    };
}

/// Copies `{bytes}` bytes, a multiple of 8, from `{from}` to `{to}`; both move. (A loop beats
/// `rep movsq` at the half kilobyte that is moved here.)
macro_rules! copy {
    () => {
        concat!(
            "mov {left:e}, {bytes:e}\n",
            "sub {left:e}, 16\n",
            "jb 6f\n",
            "5: movups {pair}, [{from}]\n",
            "movups [{to}], {pair}\n",
            "add {from}, 16\n",
            "add {to}, 16\n",
            "sub {left:e}, 16\n",
            "jae 5b\n",
            "6: test {left:e}, 8\n",
            "jz 7f\n",
            "mov {left}, [{from}]\n",
            "mov [{to}], {left}\n",
            "7:\n",
        )
    };
}

/// Where a section is left without a commit, by a jump to `79:`, with something else for a result.
/// (An operand that is a label cannot be beside one that is a result.)
macro_rules! otherwise {
    ($set:literal) => {
        concat!(
            ".pushsection .text.rseq_abort, \"ax\", @progbits\n",
            "79: ",
            $set,
            "\njmp 4b\n",
            ".popsection\n",
        )
    };
}

/// See [`Slots::pop`].
///
/// # Safety
/// `class` is a class number.
#[inline(always)]
pub(super) unsafe fn pop(slots: &Slots, class: SizeClass) -> Item {
    let object: u64;
    // SAFETY: reads the top of the CPU's array (or the null below an empty one) and commits
    // one store to the low half of its head; see the module's rules.
    unsafe {
        asm!(
            enter!(),
            "mov {top:e}, [{area} + {class} * 8]",
            "mov {object}, [{area} + {top} - 8]",
            "test {object}, {object}",
            "jz 4f",
            "sub {top:e}, 8",
            "mov [{area} + {class} * 8], {top:e}",
            "4:",
            area = out(reg) _,
            top = out(reg) _,
            object = out(reg) object,
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            table = const TABLE,
            empty = const EMPTY,
            options(nostack),
        );
    }
    Item(object)
}

/// See [`Slots::push`].
///
/// # Safety
/// As for [`pop`], and `item` is a free object of `class` that nothing else refers to.
#[inline(always)]
pub(super) unsafe fn push(slots: &Slots, class: SizeClass, item: Item) -> bool {
    // SAFETY: writes above the top of the CPU's array, then commits the head.
    unsafe {
        asm!(
            enter!(),
            "mov {top:e}, [{area} + {class} * 8]",
            "test {top:e}, {block} - 1",
            "jz {full}",
            "mov [{area} + {top}], {object}",
            "add {top:e}, 8",
            "mov [{area} + {class} * 8], {top:e}",
            "4:",
            area = out(reg) _,
            top = out(reg) _,
            object = in(reg) item.0,
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            table = const TABLE,
            empty = const EMPTY,
            block = const BLOCK,
            full = label { return false },
            options(nostack),
        );
    }
    true
}

/// One object less on the array, and one less in stock.
const TAKEN: u64 = 1 << 32 | 8;

/// A stock as it stands on a head.
#[inline(always)]
fn on_head(objcg: ObjcgId) -> u64 {
    u64::from(Stock::new(objcg, 0).0) << 32
}

/// See [`Slots::pop_paid`].
///
/// # Safety
/// As for [`pop`].
#[inline(always)]
pub(super) unsafe fn pop_paid(slots: &Slots, class: SizeClass, objcg: ObjcgId) -> Item {
    let object: u64;
    // SAFETY: as in `pop`; commits one store to the whole head, if the group is the one whose stock
    // it has, of 1 to `Stock::MAX - 1` objects: what is left of the head without the group.
    unsafe {
        asm!(
            enter!(),
            "mov {head}, [{area} + {class} * 8]",
            "mov {rseq:e}, {head:e}",
            "mov {object}, [{area} + {rseq} - 8]",
            "mov {rseq}, {head}",
            "xor {rseq}, {objcg}",
            "shr {rseq}, 32",
            "dec {rseq}",
            "cmp {rseq}, {most}",
            "jae 79f",
            "test {object}, {object}",
            "jz 4f",
            "sub {head}, {taken}",
            "mov [{area} + {class} * 8], {head}",
            "4:",
            otherwise!("xor {object:e}, {object:e}"),
            area = out(reg) _,
            head = out(reg) _,
            object = out(reg) object,
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            objcg = in(reg) on_head(objcg),
            taken = in(reg) TAKEN,
            most = const Stock::MAX - 1,
            table = const TABLE,
            empty = const EMPTY,
            options(nostack),
        );
    }
    Item(object)
}

/// See [`Slots::push_paid`].
///
/// # Safety
/// As for [`push`].
#[inline(always)]
pub(super) unsafe fn push_paid(
    slots: &Slots,
    class: SizeClass,
    item: Item,
    objcg: ObjcgId,
    bound: u32,
) -> bool {
    // SAFETY: writes above the top of the CPU's array, then commits the head, if the group is the one
    // whose stock it has.
    unsafe {
        asm!(
            enter!(),
            "mov {head}, [{area} + {class} * 8]",
            "test {head:e}, {block} - 1",
            "jz {no}",
            "mov {rseq}, {head}",
            "xor {rseq}, {objcg}",
            "shr {rseq}, 32",
            "cmp {rseq:e}, {bound:e}",
            "jae {no}",
            "mov {rseq:e}, {head:e}",
            "mov [{area} + {rseq}], {object}",
            "add {head}, {taken}",
            "mov [{area} + {class} * 8], {head}",
            "4:",
            area = out(reg) _,
            head = out(reg) _,
            object = in(reg) item.0,
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            objcg = in(reg) on_head(objcg),
            taken = in(reg) TAKEN,
            bound = in(reg) bound,
            table = const TABLE,
            empty = const EMPTY,
            block = const BLOCK,
            no = label { return false },
            options(nostack),
        );
    }
    true
}

/// See [`Slots::adjust`].
#[inline]
pub(super) fn adjust(slots: &Slots, cell: Cell, objcg: ObjcgId, by: i32, bound: u32) -> bool {
    // SAFETY: commits one store to a place for a stock. That of the empty area is nobody's and stays so:
    // `objcg` is not the root's.
    unsafe {
        asm!(
            enter!(),
            "mov {stock:e}, [{area} + {cell}]",
            "xor {stock:e}, {objcg:e}",
            "add {stock:e}, {by:e}",
            "cmp {stock:e}, {bound:e}",
            "jae {no}",
            "xor {stock:e}, {objcg:e}",
            "mov [{area} + {cell}], {stock:e}",
            "4:",
            area = out(reg) _,
            stock = out(reg) _,
            cell = in(reg) u64::from(cell.0),
            objcg = in(reg) Stock::new(objcg, 0).0,
            by = in(reg) by,
            bound = in(reg) bound,
            slots = in(reg) slots,
            rseq = out(reg) _,
            table = const TABLE,
            empty = const EMPTY,
            no = label { return false },
            options(nostack),
        );
    }
    true
}

/// See [`Slots::swap_stock`].
pub(super) fn swap(slots: &Slots, cell: Cell, stock: Stock) -> Option<Stock> {
    let before: u64;
    // SAFETY: commits one store to a place for a stock, but not to the empty area's.
    unsafe {
        asm!(
            enter!(),
            "lea {before}, [{slots} + {empty}]",
            "cmp {before}, {area}",
            "je 79f",
            "mov {before:e}, [{area} + {cell}]",
            "mov [{area} + {cell}], {stock:e}",
            "4:",
            otherwise!("mov {before}, -1"),
            area = out(reg) _,
            before = out(reg) before,
            cell = in(reg) u64::from(cell.0),
            stock = in(reg) stock.0,
            slots = in(reg) slots,
            rseq = out(reg) _,
            table = const TABLE,
            empty = const EMPTY,
            options(nostack),
        );
    }
    u32::try_from(before).ok().map(Stock)
}

/// See [`Slots::pop_many`].
///
/// # Safety
/// As for [`pop`], and `out` has room for `room` words.
#[inline(never)]
pub(super) unsafe fn pop_many(slots: &Slots, class: SizeClass, out: *mut Item, room: u32) -> u32 {
    let bytes: u64;
    // SAFETY: copies the newest objects out, which a restart repeats, then commits the head.
    unsafe {
        asm!(
            enter!(),
            "mov {top:e}, [{area} + {class} * 8]",
            "mov {bytes:e}, {top:e}",
            "sub {bytes:e}, [{area} + {class} * 4 + {bottom}]",
            "cmp {bytes:e}, {room:e}",
            "cmova {bytes:e}, {room:e}",
            "sub {top:e}, {bytes:e}",
            "lea {from}, [{area} + {top}]",
            "mov {to}, {out}",
            copy!(),
            "mov [{area} + {class} * 8], {top:e}",
            "4:",
            area = out(reg) _,
            top = out(reg) _,
            bytes = out(reg) bytes,
            from = out(reg) _,
            to = out(reg) _,
            left = out(reg) _,
            pair = out(xmm_reg) _,
            out = in(reg) out,
            room = in(reg) u64::from(room * 8),
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            table = const TABLE,
            empty = const EMPTY,
            bottom = const BOTTOM,
            options(nostack),
        );
    }
    bytes as u32 / 8
}

/// See [`Slots::push_many`].
///
/// # Safety
/// As for [`push`], for each of the `room` objects at `items`.
#[inline(never)]
pub(super) unsafe fn push_many(
    slots: &Slots,
    class: SizeClass,
    items: *const Item,
    room: u32,
) -> u32 {
    let bytes: u64;
    // SAFETY: writes above the top, which a restart repeats, then commits the head.
    unsafe {
        asm!(
            enter!(),
            "mov {top:e}, [{area} + {class} * 8]",
            "xor {bytes:e}, {bytes:e}",
            "sub {bytes:e}, {top:e}",
            "and {bytes:e}, {block} - 1",
            "cmp {bytes:e}, {room:e}",
            "cmova {bytes:e}, {room:e}",
            "lea {to}, [{area} + {top}]",
            "mov {from}, {items}",
            "add {top:e}, {bytes:e}",
            copy!(),
            "mov [{area} + {class} * 8], {top:e}",
            "4:",
            area = out(reg) _,
            top = out(reg) _,
            bytes = out(reg) bytes,
            from = out(reg) _,
            to = out(reg) _,
            left = out(reg) _,
            pair = out(xmm_reg) _,
            items = in(reg) items,
            room = in(reg) u64::from(room * 8),
            slots = in(reg) slots,
            rseq = out(reg) _,
            class = in(reg) u64::from(class.0),
            table = const TABLE,
            empty = const EMPTY,
            block = const BLOCK,
            options(nostack),
        );
    }
    bytes as u32 / 8
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
