//! The rseq kind of slots: restartable sequences (Linux `rseq(2)`, Desnoyers; first described by
//! Turner, 2013).
//!
//! Every section keeps these rules:
//!
//! - It first stores its descriptor's address into the thread's rseq area.
//! - It reads the CPU number after that.
//! - One store commits, and it is the section's last instruction.
//! - An abort lands behind the signature that glibc registered.
//! - No other thread reads memory that it writes before the commit, and a restart overwrites it. A
//!   section that frees a live item also clears the item's extension word. An abort after that
//!   tells so, and does not start over.
//! - It writes no field of the rseq area but `rseq_cs`.
//!
//! The kernel aborts a section after every trap. So no section commits while a debugger steps
//! through the program. An abort of a fast path therefore ends it as if the array were empty or
//! full, and the slow path serves the request. Sections of slow paths start over, but only
//! [`RESTARTS`] times.
//!
//! The offset of the rseq area from the thread pointer is the same for all threads of the process.
//! If there is no such area, sections use an unused thread-local area instead, and write only
//! there. No section runs before [`start`] has chosen one of the two.
//!
//! The `cpu_id` of a thread that is not registered is -1 or -2. The table words of these numbers
//! are always zero.
//!
//! A fast section computes the address of the head first, and uses it without an
//! index. For such an address alone, an Intel core forwards a store to a later load at no cost. In
//! a pair of `malloc` and `free`, each waits for the head that the other one wrote. The pair takes
//! 5.1 ns instead of 8.5 on an Intel server core. Calls of mixed classes gain nothing.
//!
//! Context: any, signal handlers included.

use core::arch::asm;
use core::mem::offset_of;

use kmem_layout::word::{EXT_LIVE, OBJCG_SHIFT, TAG_MASK};

use super::{Area, BLOCK, Cell, Cleared, Front, Slots, Stock, Wiped};
use crate::class::ArrayId;
use crate::sync::AtomicU32;
use crate::units::{Item, ObjcgId};

/// Offset of the bottoms in an area.
const BOTTOM: usize = offset_of!(Area, front) + offset_of!(Front, bottom);

/// Offset of the empty area in slots.
const EMPTY: usize = offset_of!(Slots, empty);

/// Offset of the table in slots.
const TABLE: usize = offset_of!(Slots, wiped) + offset_of!(Wiped, table);

// The table words of CPU numbers -1 and -2 lie in `no_cpu`.
const _: () = assert!(offset_of!(Wiped, table) >= offset_of!(Wiped, no_cpu) + 2 * 8);

/// The group's bits in an extension word. They are those of an empty stock of the group.
const GROUP: u32 = !0 << OBJCG_SHIFT;
const _: () = assert!(Stock::new(ObjcgId(1), 0).0 == 1 << OBJCG_SHIFT);

/// Times that a section of a slow path starts over. Another thread or a signal aborts it once.
const RESTARTS: u32 = 16;

/// Opens a section: `2:` is the restart point, `3:` its first instruction, and `4:` (which the
/// section must define) its end. An abort runs `$abort`. Leaves the CPU's area in `{area}`.
macro_rules! enter {
    ($abort:expr) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\", @progbits\n",
            ".balign 32\n",
            "77: .long 0, 0\n",
            ".quad 3f, 4f - 3f, 78f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax\", @progbits\n",
            // ud1 with glibc's RSEQ_SIG as its displacement.
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "78: ",
            $abort,
            "\n.popsection\n",
            "2: mov {rseq}, [rip + kmem_rseq_offset]\n",
            "lea {area}, [rip + 77b]\n",
            "mov fs:[{rseq} + 8], {area}\n",
            "3: movsxd {area}, dword ptr fs:[{rseq} + 4]\n",
            "mov {area}, [{slots} + {area} * 8 + {table}]\n",
            "lea {area}, [{slots} + {area} + {empty}]\n",
        )
    };
}

/// The code at which an abort of a slow path lands. It starts over while `{tries}` lasts, then runs
/// `$fail`.
macro_rules! restart_or {
    ($fail:literal) => {
        concat!("dec {tries:e}\njnz 2f\n", $fail)
    };
}

/// Puts the stock in `{cell}`, changed by `{by}`, into `{stock}`. Jumps to `{no}` if it is not one
/// of the group `{objcg}`, or would not be below `{bound}`.
macro_rules! changed_stock {
    () => {
        concat!(
            "mov {stock:e}, [{area} + {cell}]\n",
            "xor {stock:e}, {objcg:e}\n",
            "add {stock:e}, {by:e}\n",
            "cmp {stock:e}, {bound:e}\n",
            "jae {no}\n",
            "xor {stock:e}, {objcg:e}",
        )
    };
}

/// Copies `{bytes}` bytes, a multiple of 8, from `{from}` to `{to}`, and advances both. For the
/// half kilobyte that is copied here a loop is faster than `rep movsq`.
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

/// Exit of a section without a commit, by a jump to `79:`, which sets another result. (`asm!`
/// allows no label operand beside an output.)
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

impl Slots {
    /// Takes an item off this CPU's array; [`Item::NONE`] if it is empty. Fast path: about ten
    /// instructions, no atomics.
    ///
    /// # Safety
    /// [`Slots::start`] was called in this process, on these slots or on others. `array` is one of
    /// [`ArrayId::all`].
    #[inline(always)]
    pub unsafe fn pop(&self, array: ArrayId) -> Item {
        let object: u64;
        // SAFETY: reads the top of the CPU's array, or the null below an empty one. Commits one
        // store to the low half of its head, by the module's rules.
        unsafe {
            asm!(
                enter!("xor {object:e}, {object:e}\njmp 4f"),
                "lea {rseq}, [{area} + {array} * 8]",
                "mov {top:e}, [{rseq}]",
                "mov {object}, [{area} + {top} - 8]",
                "test {object}, {object}",
                "jz 4f",
                "sub {top:e}, 8",
                "mov [{rseq}], {top:e}",
                "4:",
                area = out(reg) _,
                top = out(reg) _,
                object = out(reg) object,
                slots = in(reg) self,
                rseq = out(reg) _,
                array = in(reg) u64::from(array.0),
                table = const TABLE,
                empty = const EMPTY,
                options(nostack),
            );
        }
        Item(object)
    }

    /// Puts an item on this CPU's array; false if it is full. Fast path.
    ///
    /// # Safety
    /// See [`Self::pop`]. `item` is a free thing of `array`, and nothing else refers to it.
    #[inline(always)]
    pub unsafe fn push(&self, array: ArrayId, item: Item) -> bool {
        // SAFETY: writes above the top of the CPU's array, then commits the low half of its head.
        unsafe {
            asm!(
                enter!("jmp {full}"),
                "lea {rseq}, [{area} + {array} * 8]",
                "mov {top:e}, [{rseq}]",
                "test {top:e}, {block} - 1",
                "jz {full}",
                "mov [{area} + {top}], {object}",
                "add {top:e}, 8",
                "mov [{rseq}], {top:e}",
                "4:",
                area = out(reg) _,
                top = out(reg) _,
                object = in(reg) item.0,
                slots = in(reg) self,
                rseq = out(reg) _,
                array = in(reg) u64::from(array.0),
                table = const TABLE,
                empty = const EMPTY,
                block = const BLOCK,
                full = label { return false },
                options(nostack),
            );
        }
        true
    }

    /// Takes an item off this CPU's array, and pays for it from the group's stock on the array's
    /// head. [`Item::NONE`]: there is no item, or no stock of this group. Fast path.
    ///
    /// # Safety
    /// See [`Self::pop`].
    #[inline(always)]
    pub unsafe fn pop_paid(&self, array: ArrayId, objcg: ObjcgId) -> Item {
        let object: u64;
        // The head's upper half without the group's bits is the amount, if the stock is the
        // group's. Then it is from 1 to `Stock::MAX - 1`.
        // SAFETY: reads the top of the CPU's array, or the null below an empty one. Commits one
        // store to its head, by the module's rules.
        unsafe {
            asm!(
                enter!("jmp 79f"),
                "lea {array}, [{area} + {array} * 8]",
                "mov {head}, [{array}]",
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
                "mov [{array}], {head}",
                "4:",
                otherwise!("xor {object:e}, {object:e}"),
                area = out(reg) _,
                head = out(reg) _,
                object = out(reg) object,
                slots = in(reg) self,
                rseq = out(reg) _,
                array = inout(reg) u64::from(array.0) => _,
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

    /// Frees a live item of a group. Clears its extension word, and puts it on this CPU's array.
    /// Adds it to the group's stock on the array's head. Fast path.
    ///
    /// # Safety
    /// See [`Self::push`]. `item` is a live thing of `array`, which the caller gives up. `ext` is
    /// its extension word, and `word` the value of it that the caller read.
    #[inline(always)]
    pub unsafe fn push_freed(
        &self,
        array: ArrayId,
        item: Item,
        (ext, word): (&AtomicU32, u32),
        bound: u32,
    ) -> Cleared {
        // SAFETY: writes above the top of the CPU's array, and clears the word of an item that the
        // caller gives up, by the contract. Then commits the array's head.
        unsafe {
            asm!(
                enter!("test dword ptr [{ext}], {live}\njz {unpaid}\njmp {no}"),
                "lea {array}, [{area} + {array} * 8]",
                "mov {top:e}, [{array}]",
                "test {top:e}, {block} - 1",
                "jz {no}",
                "mov {rseq:e}, {word:e}",
                "and {rseq:e}, {group}",
                "xor {rseq:e}, [{array} + 4]",
                "cmp {rseq:e}, {bound:e}",
                "jae {no}",
                "cmp [{ext}], {word:e}",
                "jne {no}",
                "and dword ptr [{ext}], {tag}",
                "mov [{area} + {top}], {object}",
                "mov {rseq}, [rip + kmem_item_and_stock]",
                "add [{array}], {rseq}",
                "4:",
                area = out(reg) _,
                top = out(reg) _,
                object = in(reg) item.0,
                slots = in(reg) self,
                rseq = out(reg) _,
                array = inout(reg) u64::from(array.0) => _,
                ext = in(reg) ext,
                word = in(reg) word,
                bound = in(reg) bound,
                group = const GROUP as i32,
                live = const EXT_LIVE,
                tag = const TAG_MASK,
                table = const TABLE,
                empty = const EMPTY,
                block = const BLOCK,
                unpaid = label { return Cleared::Unpaid },
                no = label { return Cleared::Not },
                options(nostack),
            );
        }
        Cleared::Paid
    }
}

/// See [`Slots::refund_freed`].
#[inline]
pub(super) fn refund_freed(
    slots: &Slots,
    cell: Cell,
    by: i32,
    (ext, word): (&AtomicU32, u32),
    bound: u32,
) -> Cleared {
    // SAFETY: clears a word that the caller gives up, then commits one store to a place for a
    // stock. Those of the empty area stay zero: they are the root's, and `word` is not of the root.
    unsafe {
        asm!(
            enter!("test dword ptr [{ext}], {live}\njz {unpaid}\njmp {no}"),
            changed_stock!(),
            "cmp [{ext}], {word:e}",
            "jne {no}",
            "and dword ptr [{ext}], {tag}",
            "mov [{area} + {cell}], {stock:e}",
            "4:",
            area = out(reg) _,
            stock = out(reg) _,
            cell = in(reg) u64::from(cell.0),
            ext = in(reg) ext,
            word = in(reg) word,
            objcg = in(reg) word & GROUP,
            live = const EXT_LIVE,
            tag = const TAG_MASK,
            by = in(reg) by,
            bound = in(reg) bound,
            slots = in(reg) slots,
            rseq = out(reg) _,
            table = const TABLE,
            empty = const EMPTY,
            unpaid = label { return Cleared::Unpaid },
            no = label { return Cleared::Not },
            options(nostack),
        );
    }
    Cleared::Paid
}

/// One item on an array and one item of stock, as a head counts them.
const TAKEN: u64 = 1 << 32 | 8;

/// Bits of a group in a head.
#[inline(always)]
fn on_head(objcg: ObjcgId) -> u64 {
    u64::from(Stock::new(objcg, 0).0) << 32
}

/// See [`Slots::adjust`].
#[inline]
pub(super) fn adjust(slots: &Slots, cell: Cell, objcg: ObjcgId, by: i32, bound: u32) -> bool {
    // SAFETY: commits one store to a place for a stock. Those of the empty area stay zero: they are
    // the root's, and `objcg` is not the root.
    unsafe {
        asm!(
            enter!(restart_or!("jmp {no}")),
            changed_stock!(),
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
            tries = inout(reg) RESTARTS => _,
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
    // SAFETY: commits one store to a place for a stock, but not in the empty area.
    unsafe {
        asm!(
            enter!(restart_or!("jmp 79f")),
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
            tries = inout(reg) RESTARTS => _,
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
/// `out` is valid for writes of `room` items, at most [`super::MAX_CAP`].
#[inline(never)]
pub(super) unsafe fn pop_many(slots: &Slots, array: ArrayId, out: *mut Item, room: u32) -> u32 {
    let bytes: u64;
    // SAFETY: copies the newest items to `out`, which has room by the contract, then commits the
    // head. A restart overwrites the copies.
    unsafe {
        asm!(
            enter!(restart_or!("xor {bytes:e}, {bytes:e}\njmp 4f")),
            "mov {top:e}, [{area} + {array} * 8]",
            "mov {bytes:e}, {top:e}",
            "sub {bytes:e}, [{area} + {array} * 4 + {bottom}]",
            "cmp {bytes:e}, {room:e}",
            "cmova {bytes:e}, {room:e}",
            "sub {top:e}, {bytes:e}",
            "lea {from}, [{area} + {top}]",
            "mov {to}, {out}",
            copy!(),
            "mov [{area} + {array} * 8], {top:e}",
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
            tries = inout(reg) RESTARTS => _,
            array = in(reg) u64::from(array.0),
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
/// `items` is valid for reads of `room` items, at most [`super::MAX_CAP`]. They are free things of
/// `array`, and nothing else refers to them.
#[inline(never)]
pub(super) unsafe fn push_many(
    slots: &Slots,
    array: ArrayId,
    items: *const Item,
    room: u32,
) -> u32 {
    let bytes: u64;
    // SAFETY: writes above the top of the CPU's array, then commits the head. A restart overwrites
    // the copies.
    unsafe {
        asm!(
            enter!(restart_or!("xor {bytes:e}, {bytes:e}\njmp 4f")),
            "mov {top:e}, [{area} + {array} * 8]",
            "xor {bytes:e}, {bytes:e}",
            "sub {bytes:e}, {top:e}",
            "and {bytes:e}, {block} - 1",
            "cmp {bytes:e}, {room:e}",
            "cmova {bytes:e}, {room:e}",
            "lea {to}, [{area} + {top}]",
            "mov {from}, {items}",
            "add {top:e}, {bytes:e}",
            copy!(),
            "mov [{area} + {array} * 8], {top:e}",
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
            tries = inout(reg) RESTARTS => _,
            array = in(reg) u64::from(array.0),
            table = const TABLE,
            empty = const EMPTY,
            block = const BLOCK,
            options(nostack),
        );
    }
    bytes as u32 / 8
}

/// CPU that the thread runs on, at this moment; `u32::MAX` or one less for a thread without rseq.
pub(super) fn current() -> u32 {
    let cpu: u32;
    // SAFETY: reads a word of the thread's rseq area, or of the unused one.
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

/// Makes sections use the rseq area at `offset` bytes from the thread pointer. For `None` they use
/// the unused one, unless an earlier call chose an area. Every `Some` in a process is the same.
pub(super) fn start(offset: Option<isize>) {
    let offset = match offset {
        Some(offset) => offset,
        None => {
            let known: isize;
            let unused: isize;
            // SAFETY: reads this module's word and a thread-pointer offset.
            unsafe {
                asm!(
                    "mov {0}, [rip + kmem_rseq_offset]",
                    "mov {1}, [rip + kmem_no_rseq@GOTTPOFF]",
                    out(reg) known,
                    out(reg) unused,
                    options(nostack, readonly, preserves_flags)
                );
            }
            if known != 0 { known } else { unused }
        }
    };
    // SAFETY: writes an aligned word of this module. A thread that still reads the old value uses
    // the unused area.
    unsafe {
        asm!(
            "mov [rip + kmem_rseq_offset], {0}",
            in(reg) offset,
            options(nostack, preserves_flags)
        );
    }
}

// The kernel does not know the unused area. So it has only the fields that sections use, up to
// `rseq_cs`, and need not be aligned as a registered one is. Then the library's thread-local
// storage has no gaps, in any order that the linker gives it.
core::arch::global_asm!(
    ".pushsection .tbss.kmem_no_rseq, \"awT\", @nobits",
    ".balign 8",
    ".hidden kmem_no_rseq",
    ".globl kmem_no_rseq",
    ".type kmem_no_rseq, @object",
    ".size kmem_no_rseq, 16",
    "kmem_no_rseq: .zero 16",
    ".popsection",
    ".pushsection .bss.kmem_rseq_offset, \"aw\", @nobits",
    ".balign 8",
    ".hidden kmem_rseq_offset",
    ".globl kmem_rseq_offset",
    ".type kmem_rseq_offset, @object",
    ".size kmem_rseq_offset, 8",
    "kmem_rseq_offset: .zero 8",
    ".popsection",
    // Read by `push_freed`, which has no register left for it.
    ".pushsection .rodata.kmem_item_and_stock, \"a\", @progbits",
    ".balign 8",
    ".hidden kmem_item_and_stock",
    ".globl kmem_item_and_stock",
    ".type kmem_item_and_stock, @object",
    ".size kmem_item_and_stock, 8",
    "kmem_item_and_stock: .quad {taken}",
    ".popsection",
    taken = const TAKEN,
);
