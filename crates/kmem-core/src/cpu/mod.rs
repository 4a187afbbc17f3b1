//! Slots: bounded arrays of free things, one set of arrays per CPU.
//!
//! ```text
//! Slots.table[cpu] --> Area: | head[array] = stock:32 | top:32 | .. | block 1 | block 2 | ..
//!
//! block of an array, 1 KiB: | .. unused .. | null | item | item | free room .. |
//!                                                 ^bottom       ^top          ^end
//! ```
//!
//! Offsets count from the area's start. A pop from an empty array reads the null below the bottom.
//! A push finds the array full when its top is a multiple of the block's size. A zero in the table
//! leads to the empty area, whose heads are zero: its arrays are empty and full at once.
//!
//! Beside its top, a head has the `stock` of one group: a count of items of that array that are
//! paid for already. So one store takes an item and pays for it.
//!
//! A pop or a push is one critical section with one committing store, to the head. There are two
//! kinds:
//!
//! - **rseq** (Linux, glibc >= 2.35): the kernel aborts a section that was preempted, migrated or
//!   interrupted by a signal. The operation then fails. It needs no atomics. Another CPU stops an
//!   area by zeroing its table word and then fencing all CPUs (membarrier).
//! - **locked**: a try-lock in each area. If it is taken, the operation fails, and the heap serves
//!   the request without an array. No thread waits.
//!
//! The table is zero at first, and again in a forked child if the platform can wipe it. Every
//! operation then fails, and the slow path finds out why.
//!
//! Context: any, signal handlers included. No operation waits.

use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::class::{ARRAY_COUNT, ArrayId};
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{CpuId, Item};

mod locked;
#[cfg(not(all(kmem_rseq, not(miri))))]
mod no_rseq;
#[cfg(all(kmem_rseq, not(miri)))]
mod rseq;
mod stock;
mod validate;

use locked::Owned;
#[cfg(not(all(kmem_rseq, not(miri))))]
use no_rseq as rseq;
#[cfg(all(kmem_rseq, not(miri)))]
pub(crate) use rseq::begin_section;
use stock::CELLS;
pub use stock::{Cell, Cleared, Stock};
pub use validate::AreaFault;

/// Most CPUs with a slot of their own: the most that Linux can be built for on x86-64.
pub const MAX_CPUS: usize = 8192;
/// Bytes of one array in an area.
const BLOCK: usize = 1024;
/// Most items of an array: a block less the null below the bottom.
pub const MAX_CAP: usize = BLOCK / 8 - 1;
/// Number of calls of [`Slots::ensure`] that do not ask the platform after it refused an area.
const RETRY_AFTER: u32 = 4096;

/// The arrays of one CPU.
///
/// # Invariants
/// For each array, the words from bottom to top are free things of that array, which nothing else
/// refers to. The word below the bottom is null. Only the owner of the area changes them: a
/// critical section on its CPU, or an `Owned`.
#[repr(C, align(4096))]
pub struct Area {
    front: Front,
    /// Blocks of array 1 and up.
    blocks: UnsafeCell<[[Item; BLOCK / 8]; ARRAY_COUNT - 1]>,
}

/// The part of an area in front of its items. The empty area has only this part.
#[repr(C, align(4096))]
struct Front {
    /// `stock << 32 | top` of each array; the stock counts items.
    head: [AtomicU64; ARRAY_COUNT],
    /// Stocks of groups, in bytes; see [`Cell::of_group`].
    stocks: [AtomicU32; CELLS],
    /// Bottom of each array; constant.
    bottom: [AtomicU32; ARRAY_COUNT],
    /// Try-lock: taken by all operations of the locked kind, by stopping in the rseq kind.
    lock: AtomicU32,
    /// `period << 8 | array`: progress of [`Area::next_search`].
    searched: AtomicU32,
}

/// The kind of critical sections, and how they find their CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Critical sections that the kernel aborts. The thread's rseq area is this number of bytes
    /// from its thread pointer.
    Rseq(isize),
    /// A try-lock in each area.
    Locked,
}

/// The slots of all CPUs of one instance. Zeroed memory is a valid, stopped value.
///
/// # Invariants
/// Distances in `kept` and in the table are 0 or lead to an [`Area`] that is never freed.
#[repr(C, align(4096))]
pub struct Slots {
    wiped: Wiped,
    empty: Front,
    /// Distances in bytes from `empty` to the areas, in memory that a forked child keeps. The
    /// locked kind uses these.
    kept: [AtomicU64; MAX_CPUS],
    /// 1 for the rseq kind.
    rseq: AtomicU32,
    /// Calls of [`Slots::pause`] without a [`Slots::resume`] so far.
    paused: AtomicU32,
    /// Slots from this number on never had an area.
    end: AtomicU32,
    /// Number of calls of [`Slots::ensure`] until one asks the platform again.
    refused: AtomicU32,
}

/// The part of slots that the platform wipes in a forked child, if it can.
#[repr(C, align(4096))]
struct Wiped {
    /// 1 from the start of this process on.
    alive: AtomicU64,
    /// Always zero: the table words of CPU numbers -1 and -2, those of a thread without rseq.
    no_cpu: [AtomicU64; 7],
    /// Distance in bytes from `empty` to the CPU's area; 0 while it has none. Rseq kind only.
    table: [AtomicU64; MAX_CPUS],
}

// SAFETY: the items of areas are reached only through critical sections and `Owned`.
unsafe impl Sync for Slots {}

#[expect(clippy::declare_interior_mutable_const, reason = "a template for array elements")]
const ZERO: AtomicU64 = AtomicU64::new(0);

impl Slots {
    /// Stopped slots: every operation fails.
    pub const fn new() -> Self {
        Self {
            wiped: Wiped { alive: ZERO, no_cpu: [ZERO; 7], table: [ZERO; MAX_CPUS] },
            empty: Front {
                head: [ZERO; ARRAY_COUNT],
                stocks: [const { AtomicU32::new(0) }; CELLS],
                bottom: [const { AtomicU32::new(0) }; ARRAY_COUNT],
                lock: AtomicU32::new(0),
                searched: AtomicU32::new(0),
            },
            kept: [ZERO; MAX_CPUS],
            rseq: AtomicU32::new(0),
            paused: AtomicU32::new(0),
            end: AtomicU32::new(0),
            refused: AtomicU32::new(0),
        }
    }

    /// Chooses the kind, and has the platform wipe the table in forked children. Called once,
    /// before any area is added. If the platform refuses (the memory is not anonymous), a forked
    /// child is not repaired.
    pub fn start(&self, platform: &impl Platform, kind: Kind) {
        let wiped = (&raw const self.wiped).cast_mut().cast::<u8>();
        if let Some(wiped) = NonNull::new(wiped) {
            // SAFETY: page aligned by its type, and part of memory that the caller gave this value.
            unsafe { platform.wipe_on_fork(wiped, size_of_val(&self.wiped)) };
        }
        match kind {
            Kind::Rseq(offset) => {
                rseq::start(Some(offset));
                self.rseq.store(1, Ordering::Release);
            }
            Kind::Locked => rseq::start(None),
        }
        self.wiped.alive.store(1, Ordering::Release);
    }

    /// Returns whether the slots are of the rseq kind.
    #[inline]
    pub fn uses_rseq(&self) -> bool {
        self.rseq.load(Ordering::Relaxed) != 0
    }

    /// Kind of these slots.
    pub fn kind(&self, platform: &impl Platform) -> Kind {
        match platform.rseq_offset() {
            Some(offset) if self.uses_rseq() => Kind::Rseq(offset),
            _ => Kind::Locked,
        }
    }

    /// Returns whether the slots are started. False in a forked child, if the platform wiped the
    /// table, until [`Self::restart_empty`].
    #[inline]
    pub fn alive(&self) -> bool {
        self.wiped.alive.load(Ordering::Acquire) != 0
    }

    /// Slot for the calling thread's operations of the locked kind; 0 for the rseq kind, which
    /// ignores it.
    #[inline]
    pub fn hint(&self, platform: &impl Platform) -> u32 {
        if self.uses_rseq() { 0 } else { platform.slot_hint() }
    }

    /// Takes up to `out.len()` items off this CPU's array, the newest ones. Returns the count.
    /// `slot` comes from [`Self::hint`].
    pub fn pop_many(&self, array: ArrayId, slot: u32, out: &mut [Item]) -> usize {
        let room = out.len().min(MAX_CAP) as u32;
        if self.uses_rseq() {
            // SAFETY: `out` has room for `room` items.
            return unsafe { rseq::pop_many(self, array, out.as_mut_ptr(), room) as usize };
        }
        self.owned(slot).map_or(0, |mut area| area.take(array, out))
    }

    /// Puts items on this CPU's array, in order, as many as fit. Returns the count. `slot` comes
    /// from [`Self::hint`].
    ///
    /// # Safety
    /// The items are free things of `array`, and nothing else refers to them.
    pub unsafe fn push_many(&self, array: ArrayId, slot: u32, items: &[Item]) -> usize {
        let count = items.len().min(MAX_CAP) as u32;
        if self.uses_rseq() {
            // SAFETY: `items` has `count` items; they are free and unused, by the contract.
            return unsafe { rseq::push_many(self, array, items.as_ptr(), count) as usize };
        }
        // SAFETY: the items are free and unused, by the contract.
        self.owned(slot).map_or(0, |mut area| unsafe { area.put(array, items) })
    }

    /// Locks the area of a slot of the locked kind. `None`: it has none, or the lock is taken.
    fn owned(&self, slot: u32) -> Option<Owned<'_>> {
        Owned::try_lock(self.area(CpuId(slot))?)
    }

    /// Slot of the calling thread at this moment: the CPU it runs on, or `hint` for the locked
    /// kind. `None`: the kind is rseq, but this thread is not registered for it.
    pub fn current(&self, hint: u32) -> Option<CpuId> {
        let cpu = if self.uses_rseq() { rseq::current() } else { hint };
        ((cpu as usize) < MAX_CPUS).then_some(CpuId(cpu))
    }

    /// Word by which operations of this kind find a slot's area.
    fn word(&self, cpu: CpuId) -> Option<&AtomicU64> {
        let words = if self.uses_rseq() { &self.wiped.table } else { &self.kept };
        words.get(cpu.0 as usize)
    }

    /// Area of a slot. `None`: it has none, or its area is stopped.
    pub fn area(&self, cpu: CpuId) -> Option<&Area> {
        // Acquire pairs with the release in `add`.
        self.at(self.word(cpu)?.load(Ordering::Acquire))
    }

    /// Returns whether the slot has an area, in use or stopped.
    pub fn has_area(&self, cpu: CpuId) -> bool {
        self.kept[cpu.0 as usize].load(Ordering::Relaxed) != 0
    }

    /// All areas, those that are stopped included.
    pub fn areas(&self) -> impl Iterator<Item = (CpuId, &Area)> {
        (0..self.end.load(Ordering::SeqCst)).filter_map(|cpu| {
            let area = self.at(self.kept[cpu as usize].load(Ordering::Acquire))?;
            Some((CpuId(cpu), area))
        })
    }

    /// Area at a distance from the table; `None` for 0.
    fn at(&self, distance: u64) -> Option<&Area> {
        if distance == 0 {
            return None;
        }
        let base = (&raw const self.empty) as u64;
        // SAFETY: distances lead to areas that are never freed, by the type's invariant.
        Some(unsafe { &*(base.wrapping_add(distance) as *const Area) })
    }

    /// Gives a CPU its area if it has none yet. `cap` returns the most items of an array. After
    /// the platform refused, it is asked again once in `RETRY_AFTER` calls.
    #[inline]
    pub fn ensure(&self, platform: &impl Platform, cpu: CpuId, cap: impl Fn(ArrayId) -> u16) {
        if !self.has_area(cpu) {
            self.ensure_slow(platform, cpu, cap);
        }
    }

    #[cold]
    fn ensure_slow(&self, platform: &impl Platform, cpu: CpuId, cap: impl Fn(ArrayId) -> u16) {
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            self.refused.store(refused - 1, Ordering::Relaxed);
            return;
        }
        let bytes = size_of::<Area>();
        let Some(area) = platform.allocate(bytes, align_of::<Area>()) else {
            self.refused.store(RETRY_AFTER, Ordering::Relaxed);
            return;
        };
        // SAFETY: fresh zeroes of an area's size and alignment.
        if !unsafe { self.add(cpu, area.cast().as_ptr(), cap) } {
            // SAFETY: fresh memory whose address no other thread has.
            unsafe { platform.release(area, bytes) };
        }
    }

    /// Gives a slot its area. `cap` returns the most items of an array, at most [`MAX_CAP`].
    /// False: the slot has one already.
    ///
    /// # Safety
    /// `area` is zeroed memory of the size and alignment of an [`Area`], used only by these slots
    /// and never freed.
    pub unsafe fn add(&self, cpu: CpuId, area: *mut Area, cap: impl Fn(ArrayId) -> u16) -> bool {
        // SAFETY: zeroed memory is a valid `Area`, and only these slots use it, by the contract.
        let new = unsafe { &*area };
        for array in ArrayId::all() {
            let end = size_of::<Front>() + array.0 as usize * BLOCK;
            let bottom = (end - cap(array) as usize * 8) as u32;
            new.front.head[array.0 as usize].store(bottom.into(), Ordering::Relaxed);
            new.front.bottom[array.0 as usize].store(bottom, Ordering::Relaxed);
        }
        let distance = (area as u64).wrapping_sub((&raw const self.empty) as u64);
        let slot = cpu.0 as usize;
        // INVARIANT: the distance leads to an area that is never freed, by the contract.
        if self.kept[slot]
            .compare_exchange(0, distance, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        self.end.fetch_max(cpu.0 + 1, Ordering::SeqCst);
        if self.uses_rseq() {
            self.restart(slot, distance);
        }
        true
    }

    /// Puts a slot's area to use, unless all areas are paused.
    fn restart(&self, slot: usize, distance: u64) {
        // Sequentially consistent with `pause`: either it sees the area in the table, or this
        // thread sees the pause.
        self.wiped.table[slot].store(distance, Ordering::SeqCst);
        if self.paused.load(Ordering::SeqCst) != 0 {
            self.wiped.table[slot].store(0, Ordering::SeqCst);
        }
    }

    /// Stops the arrays of all CPUs until [`Self::resume`], while a thread runs for which critical
    /// sections do not work. Pauses nest. False: `fence` failed to end the sections of other
    /// threads, and nothing is paused. Arrays of the locked kind work for every thread and stay in
    /// use.
    pub fn pause(&self, fence: impl FnOnce() -> bool) -> bool {
        if !self.uses_rseq() {
            return true;
        }
        self.paused.fetch_add(1, Ordering::SeqCst);
        for word in &self.wiped.table {
            if word.load(Ordering::SeqCst) != 0 {
                word.store(0, Ordering::SeqCst);
            }
        }
        let stopped = fence();
        if !stopped {
            self.resume();
        }
        stopped
    }

    /// Ends a [`Self::pause`] that returned true.
    pub fn resume(&self) {
        if !self.uses_rseq() || self.paused.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        for (slot, kept) in self.kept.iter().enumerate() {
            let distance = kept.load(Ordering::Relaxed);
            // A thread that stopped the area and has its lock restarts it.
            if let Some(_owned) = self.at(distance).and_then(Owned::try_lock) {
                self.restart(slot, distance);
            }
        }
    }

    /// Stops a slot: once `fence` has returned true, the caller alone uses its area. `None`: the
    /// slot has no area, another thread owns it, or `fence` failed.
    pub fn stop(&self, cpu: CpuId, fence: impl FnOnce() -> bool) -> Option<Stopped<'_>> {
        let area = self.at(self.kept[cpu.0 as usize].load(Ordering::Acquire))?;
        let stopped = Stopped { slots: self, area: Owned::try_lock(area)?, cpu };
        if !self.uses_rseq() {
            return Some(stopped);
        }
        self.wiped.table[cpu.0 as usize].store(0, Ordering::SeqCst);
        fence().then_some(stopped)
    }

    /// In a forked child: empties all areas of items and stocks, and puts them back to use. The
    /// caller finds the items by other means.
    ///
    /// # Safety
    /// No other thread exists that could use the slots.
    pub unsafe fn restart_empty(&self) {
        for (word, kept) in self.wiped.table.iter().zip(&self.kept) {
            let distance = kept.load(Ordering::Relaxed);
            if let Some(area) = self.at(distance) {
                area.front.forget();
                if self.uses_rseq() {
                    word.store(distance, Ordering::Release);
                }
            }
        }
        self.paused.store(0, Ordering::Relaxed);
        self.wiped.alive.store(1, Ordering::Release);
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self::new()
    }
}

/// A stopped area. Its drop puts it back to use.
pub struct Stopped<'a> {
    slots: &'a Slots,
    area: Owned<'a>,
    cpu: CpuId,
}

impl Stopped<'_> {
    /// Takes up to `out.len()` items of an array. Returns the count.
    pub fn take(&mut self, array: ArrayId, out: &mut [Item]) -> usize {
        self.area.take(array, out)
    }

    /// Reads the stock in a place.
    pub fn stock(&self, cell: Cell) -> Stock {
        self.area.area().stock(cell)
    }

    /// Removes the stock from a place.
    pub fn clear_stock(&mut self, cell: Cell) {
        self.area.set_stock(cell, Stock::NONE);
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // `area` is dropped after this: the lock opens once the area is in use again.
        let slot = self.cpu.0 as usize;
        if self.slots.uses_rseq() {
            let distance = self.slots.kept[slot].load(Ordering::Relaxed);
            self.slots.restart(slot, distance);
        }
    }
}

impl Area {
    /// Number of items on an array, at this moment.
    pub fn len(&self, array: ArrayId) -> usize {
        let head = self.front.head[array.0 as usize].load(Ordering::Relaxed);
        let bottom = self.front.bottom[array.0 as usize].load(Ordering::Relaxed);
        (head as u32).wrapping_sub(bottom) as usize / 8
    }

    /// The next array with items that this function did not return in this period. Two threads on
    /// the CPU may get the same one. The lowest 24 bits of the period count.
    pub fn next_search(&self, period: u32) -> Option<ArrayId> {
        let searched = self.front.searched.load(Ordering::Relaxed);
        let last = if searched >> 8 == period & 0xFF_FFFF { searched as u8 } else { 0 };
        if usize::from(last) == ARRAY_COUNT {
            return None;
        }
        let next = ArrayId::all().find(|&array| array.0 > last && self.len(array) > 0);
        let last = next.map_or(ARRAY_COUNT as u8, |array| array.0);
        self.front.searched.store(period << 8 | u32::from(last), Ordering::Relaxed);
        next
    }
}

impl Front {
    /// In a forked child: empties the arrays and the stocks, and opens the lock.
    fn forget(&self) {
        for (head, bottom) in self.head.iter().zip(&self.bottom) {
            head.store(bottom.load(Ordering::Relaxed).into(), Ordering::Relaxed);
        }
        for stock in &self.stocks {
            stock.store(0, Ordering::Relaxed);
        }
        self.lock.store(0, Ordering::Relaxed);
    }
}

const _: () = assert!(size_of::<Front>() == 4096);
const _: () = assert!(core::mem::offset_of!(Area, blocks).is_multiple_of(BLOCK));
// A pop from the empty area reads the word before it, which is padding of `Wiped`.
const _: () = assert!(core::mem::offset_of!(Slots, empty) == size_of::<Wiped>());
const _: () = assert!(core::mem::offset_of!(Wiped, table) + MAX_CPUS * 8 + 8 <= size_of::<Wiped>());
const _: () = assert!(core::mem::offset_of!(Slots, wiped) == 0);
