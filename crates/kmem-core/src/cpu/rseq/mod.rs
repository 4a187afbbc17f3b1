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
//! Context: any, signal handlers included.

/// A section of slots for [`enter`]: `$body` uses `{area}`, the CPU's area, and its own operands.
macro_rules! section {
    ($slots:expr, $abort:expr, [$($body:expr),* $(,)?], $($operands:tt)*) => {
        asm!(
            enter!($abort),
            $($body,)*
            area = out(reg) _,
            $($operands)*
            slots = in(reg) $slots,
            rseq = out(reg) _,
            table = const TABLE,
            empty = const EMPTY,
            options(nostack),
        )
    };
}

#[cfg(target_arch = "aarch64")]
#[macro_use]
mod aarch64;
#[cfg(target_arch = "x86_64")]
#[macro_use]
mod x86_64;

use core::arch::asm;
use core::mem::offset_of;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::begin_section;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::begin_section;

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

/// One item on an array and one item of stock, as a head counts them.
const TAKEN: u64 = 1 << 32 | 8;

/// Bits of a group in a head.
#[inline(always)]
fn on_head(objcg: ObjcgId) -> u64 {
    u64::from(Stock::new(objcg, 0).0) << 32
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
            pop!(self, array, object);
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
            push!(self, array, item);
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
            pop_paid!(self, array, objcg, object);
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
            push_freed!(self, array, item, ext, word, bound);
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
        refund_freed!(slots, cell, by, ext, word, bound);
    }
    Cleared::Paid
}

/// See [`Slots::adjust`].
#[inline]
pub(super) fn adjust(slots: &Slots, cell: Cell, objcg: ObjcgId, by: i32, bound: u32) -> bool {
    // SAFETY: commits one store to a place for a stock. Those of the empty area stay zero: they are
    // the root's, and `objcg` is not the root.
    unsafe {
        adjust!(slots, cell, objcg, by, bound);
    }
    true
}

/// See [`Slots::swap_stock`].
pub(super) fn swap(slots: &Slots, cell: Cell, stock: Stock) -> Option<Stock> {
    let before: u64;
    // SAFETY: commits one store to a place for a stock, but not in the empty area.
    unsafe {
        swap!(slots, cell, stock, before);
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
        pop_many!(slots, array, out, room, bytes);
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
        push_many!(slots, array, items, room, bytes);
    }
    bytes as u32 / 8
}

/// CPU that the thread runs on, at this moment; `u32::MAX` or one less for a thread without rseq.
pub(super) fn current() -> u32 {
    let cpu: u32;
    // SAFETY: reads a word of the thread's rseq area, or of the unused one.
    unsafe {
        current!(cpu);
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
                areas!(known, unused);
            }
            if known != 0 { known } else { unused }
        }
    };
    // SAFETY: writes an aligned word of this module. A thread that still reads the old value uses
    // the unused area.
    unsafe {
        choose!(offset);
    }
}

// The kernel does not know the unused area. So it has only the fields that sections use, up to
// `rseq_cs`, and need not be aligned as a registered one is. Then the library's thread-local
// storage has no gaps, in any order that the linker gives it.
core::arch::global_asm!(
    ".pushsection .tbss.kmem_no_rseq, \"awT\", %nobits",
    ".balign 8",
    ".hidden kmem_no_rseq",
    ".globl kmem_no_rseq",
    ".type kmem_no_rseq, %object",
    ".size kmem_no_rseq, 16",
    "kmem_no_rseq: .zero 16",
    ".popsection",
    ".pushsection .bss.kmem_rseq_offset, \"aw\", %nobits",
    ".balign 8",
    ".hidden kmem_rseq_offset",
    ".globl kmem_rseq_offset",
    ".type kmem_rseq_offset, %object",
    ".size kmem_rseq_offset, 8",
    "kmem_rseq_offset: .zero 8",
    ".popsection",
);
