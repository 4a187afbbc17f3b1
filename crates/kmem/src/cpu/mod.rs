//! Per-CPU slots: for every size class a bounded array of free objects.
//!
//! ```text
//! Slots.table[cpu] --> Area: | head[class] = stock:32 | top:32 | .. | block 1 | block 2 | ..
//!
//! block of a class, 1 KiB: | .. unused .. | null | object | object | free room .. |
//!                                                ^bottom           ^top            ^end
//! ```
//!
//! Offsets are from the area's start. The null below the bottom makes a pop from an empty array
//! see null; the end at a multiple of the block's size makes a push see that it is full. The
//! table's zero leads to an area whose heads are zero: empty and full at once.
//!
//! Beside its top, a head has the [`stock`] of one group: so many objects of that class are paid for
//! already, so that one store takes an object and pays for it.
//!
//! A pop or a push is one critical section with one committing store, to the head. Two kinds:
//!
//! - **rseq** (Linux, glibc >= 2.35): the kernel restarts a section that was preempted,
//!   migrated or interrupted by a signal. No atomics. An area is stopped from another CPU by
//!   zeroing its table word and then fencing all CPUs (membarrier).
//! - **locked**: a try-lock in each area. Whoever does not get it at once goes without: the
//!   slabs below serve single objects. Nothing ever waits.
//!
//! The table is all zeroes at first, and again in a forked child where the platform can
//! wipe it: every operation then fails over to the slow path, which sees why.
//!
//! Context: any, signal handlers included. No operation waits.

use core::cell::UnsafeCell;

use crate::class::{ARRAY_COUNT, CLASS_COUNT, ClassGeometry, PageClass, RunClass, SizeClass};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{CpuId, Item, ObjcgId};

#[cfg(all(kmem_rseq, not(miri)))]
mod rseq;
#[cfg(not(all(kmem_rseq, not(miri))))]
mod rseq {
    //! No critical sections here: every operation reports "empty" or "full".
    use super::{Cell, Slots, Stock};
    use crate::class::SizeClass;
    use crate::units::{Item, ObjcgId};
    pub(super) fn start(_: Option<isize>) {}
    pub(super) unsafe fn pop(_: &Slots, _: SizeClass) -> Item {
        Item::NONE
    }
    pub(super) unsafe fn push(_: &Slots, _: SizeClass, _: Item) -> bool {
        false
    }
    pub(super) unsafe fn pop_paid(_: &Slots, _: SizeClass, _: ObjcgId) -> Item {
        Item::NONE
    }
    pub(super) unsafe fn push_paid(_: &Slots, _: SizeClass, _: Item, _: ObjcgId, _: u32) -> bool {
        false
    }
    pub(super) fn adjust(_: &Slots, _: Cell, _: ObjcgId, _: i32, _: u32) -> bool {
        false
    }
    pub(super) fn swap(_: &Slots, _: Cell, _: Stock) -> Option<Stock> {
        None
    }
    pub(super) unsafe fn pop_many(_: &Slots, _: SizeClass, _: *mut Item, _: u32) -> u32 {
        0
    }
    pub(super) unsafe fn push_many(_: &Slots, _: SizeClass, _: *const Item, _: u32) -> u32 {
        0
    }
    pub(super) fn current() -> u32 {
        u32::MAX
    }
}
mod locked;
mod stock;

use stock::CELLS;
pub use stock::{Cell, Stock};

/// Most CPUs with a slot of their own; more than Linux can be built for on x86-64.
pub const MAX_CPUS: usize = 8192;
/// Bytes of one class's array in an area.
const BLOCK: usize = 1024;
/// Most objects of a class on a CPU: a block less the null below the bottom.
pub const MAX_CAP: usize = BLOCK / 8 - 1;

/// The free objects of one CPU.
///
/// # Invariants
/// For each class, the words from bottom to top are free objects of that class that nothing
/// else refers to, and the word below the bottom is null. Only the owner of the CPU (a
/// critical section, or the holder of `lock`) changes them.
#[repr(C, align(4096))]
pub struct Area {
    front: Front,
    /// Blocks of class 1 and up.
    blocks: UnsafeCell<[[Item; BLOCK / 8]; ARRAY_COUNT - 1]>,
}

/// What is in front of an area's objects: all there is of the empty one.
#[repr(C, align(4096))]
struct Front {
    /// `stock << 32 | top` per class; the stock counts objects.
    head: [AtomicU64; ARRAY_COUNT],
    /// Stocks of groups, in bytes; see [`Cell::of_group`].
    stocks: [AtomicU32; CELLS],
    /// Per class; constant.
    bottom: [AtomicU32; ARRAY_COUNT],
    /// Try-lock: of all operations of the locked kind, of stopping in the rseq kind.
    lock: AtomicU32,
}

/// How operations find their CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Critical sections restarted by the kernel; the thread's rseq area is at this offset
    /// from its thread pointer.
    Rseq(isize),
    /// A try-lock in each area.
    Locked,
}

/// The slots of all CPUs of one instance. Zeroed memory is a valid, stopped value.
#[repr(C, align(4096))]
pub struct Slots {
    wiped: Wiped,
    empty: Front,
    /// Distances from `empty` to the areas, in memory that a forked child keeps. The locked
    /// kind uses these.
    kept: [AtomicU64; MAX_CPUS],
    /// 1 for the rseq kind.
    rseq: AtomicU32,
    /// How many want all arrays out of use, see [`Slots::pause`].
    paused: AtomicU32,
    /// Slots from here on were never given an area.
    end: AtomicU32,
}

/// What a platform that can do so wipes in a forked child.
#[repr(C, align(4096))]
struct Wiped {
    /// 1 since the start of this process.
    alive: AtomicU64,
    /// Always zero: where the CPU numbers -1 and -2 lead, which a thread without rseq shows.
    no_cpu: [AtomicU64; 7],
    /// Distance from `empty` to the CPU's area, 0 while it has none; rseq kind only.
    table: [AtomicU64; MAX_CPUS],
}

// SAFETY: areas are reached only through the critical sections or their locks.
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
            },
            kept: [ZERO; MAX_CPUS],
            rseq: AtomicU32::new(0),
            paused: AtomicU32::new(0),
            end: AtomicU32::new(0),
        }
    }

    /// Chooses the kind. Called once, before any area is added.
    pub fn start(&self, kind: Kind) {
        match kind {
            Kind::Rseq(offset) => {
                rseq::start(Some(offset));
                self.rseq.store(1, Ordering::Release);
            }
            Kind::Locked => rseq::start(None),
        }
        self.wiped.alive.store(1, Ordering::Release);
    }

    /// Whether critical sections are in use, rather than locks.
    #[inline]
    pub fn uses_rseq(&self) -> bool {
        self.rseq.load(Ordering::Relaxed) != 0
    }

    /// The part that a platform should wipe in a forked child.
    pub fn wiped_part(&self) -> (*mut u8, usize) {
        ((&raw const self.wiped) as *mut u8, size_of_val(&self.wiped))
    }

    /// False in a forked child (whose platform wiped the table) until [`Self::restart_empty`].
    #[inline]
    pub fn alive(&self) -> bool {
        self.wiped.alive.load(Ordering::Acquire) != 0
    }

    /// Takes an item off this CPU's array; none when it is empty. Fast path: about ten
    /// instructions, no atomics. Not before [`Self::start`].
    #[inline(always)]
    pub fn pop(&self, class: SizeClass) -> Item {
        // SAFETY: `class` indexes `head`; a stopped table leads to the empty area.
        unsafe { rseq::pop(self, class) }
    }

    /// Puts a free object on this CPU's array; false when it is full. Fast path.
    ///
    /// # Safety
    /// `item` is a free object of `class` that nothing else refers to.
    #[inline(always)]
    pub unsafe fn push(&self, class: SizeClass, item: Item) -> bool {
        // SAFETY: the caller's promise.
        unsafe { rseq::push(self, class, item) }
    }

    /// [`Self::pop`] for a group whose stock is on the class's head, and pays for the item; none when
    /// there is no item or no such stock. Fast path.
    #[inline(always)]
    pub fn pop_paid(&self, class: SizeClass, objcg: ObjcgId) -> Item {
        // SAFETY: as for `pop`.
        unsafe { rseq::pop_paid(self, class, objcg) }
    }

    /// [`Self::push`] for a group whose stock is on the class's head, and credits the item to it;
    /// false also when there is no such stock, or one of `bound` objects already. Fast path.
    ///
    /// # Safety
    /// As for [`Self::push`].
    #[inline(always)]
    pub unsafe fn push_paid(
        &self,
        class: SizeClass,
        item: Item,
        objcg: ObjcgId,
        bound: u32,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { rseq::push_paid(self, class, item, objcg, bound) }
    }

    /// Takes up to `out.len()` objects off this CPU's array, the newest ones. `slot` is what
    /// the locked kind uses.
    pub fn pop_many(&self, class: SizeClass, slot: u32, out: &mut [Item]) -> usize {
        let room = out.len().min(MAX_CAP) as u32;
        if self.uses_rseq() {
            // SAFETY: `out` has room for that many.
            return unsafe { rseq::pop_many(self, class, out.as_mut_ptr(), room) as usize };
        }
        self.area(CpuId(slot)).map_or(0, |area| locked::pop_many(area, class, out))
    }

    /// Puts objects on this CPU's array, in order, as many as fit; how many.
    ///
    /// # Safety
    /// As for [`Self::push`], for each of them.
    pub unsafe fn push_many(&self, class: SizeClass, slot: u32, items: &[Item]) -> usize {
        let count = items.len().min(MAX_CAP) as u32;
        if self.uses_rseq() {
            // SAFETY: the caller's promise; `items` has that many.
            return unsafe { rseq::push_many(self, class, items.as_ptr(), count) as usize };
        }
        self.area(CpuId(slot)).map_or(0, |area| locked::push_many(area, class, items))
    }

    /// The slot of the calling thread at this moment: the CPU it runs on, or `hint`.
    /// `None`: a thread without rseq among threads that have it.
    pub fn current(&self, hint: u32) -> Option<CpuId> {
        let cpu = if self.uses_rseq() { rseq::current() } else { hint };
        ((cpu as usize) < MAX_CPUS).then_some(CpuId(cpu))
    }

    /// The word that leads the operations of this kind to a slot's area.
    fn word(&self, cpu: CpuId) -> Option<&AtomicU64> {
        let words = if self.uses_rseq() { &self.wiped.table } else { &self.kept };
        words.get(cpu.0 as usize)
    }

    /// The area of a slot, if it has one that is in use.
    pub fn area(&self, cpu: CpuId) -> Option<&Area> {
        // Acquire pairs with the release in `add`.
        self.at(self.word(cpu)?.load(Ordering::Acquire))
    }

    /// Whether the slot was ever given an area, in use or stopped.
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

    fn at(&self, distance: u64) -> Option<&Area> {
        if distance == 0 {
            return None;
        }
        let base = (&raw const self.empty) as u64;
        // SAFETY: distances in the table lead to areas, which are never freed.
        Some(unsafe { &*(base.wrapping_add(distance) as *const Area) })
    }

    /// Gives a slot its area. False: it already has one.
    ///
    /// # Safety
    /// `area` is zeroed memory of the size and alignment of an [`Area`], for this alone, for
    /// as long as the instance lives.
    pub unsafe fn add(&self, cpu: CpuId, area: *mut Area, classes: &[ClassGeometry]) -> bool {
        // SAFETY: zeroed memory is a valid `Area`; the caller gave it to us.
        let new = unsafe { &*area };
        let caps = classes[1..CLASS_COUNT].iter().map(|class| class.cap);
        let caps = caps.chain(RunClass::all().map(RunClass::cap));
        let caps = caps.chain(PageClass::all().map(PageClass::cap));
        for (number, cap) in (1..).zip(caps) {
            let end = size_of::<Front>() + number * BLOCK;
            let bottom = (end - cap as usize * 8) as u32;
            new.front.head[number].store(bottom.into(), Ordering::Relaxed);
            new.front.bottom[number].store(bottom, Ordering::Relaxed);
        }
        let distance = (area as u64).wrapping_sub((&raw const self.empty) as u64);
        let slot = cpu.0 as usize;
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

    /// Puts a slot's area to use, unless all are paused.
    fn restart(&self, slot: usize, distance: u64) {
        // Sequentially consistent with `pause`: it sees the area in the table, or is seen here.
        self.wiped.table[slot].store(distance, Ordering::SeqCst);
        if self.paused.load(Ordering::SeqCst) != 0 {
            self.wiped.table[slot].store(0, Ordering::SeqCst);
        }
    }

    /// Takes the arrays of all CPUs out of use until as many calls of [`Self::resume`]: for a
    /// time in which a thread runs that critical sections do not work for. False: `fence`
    /// cannot stop sections under way. Locked arrays work for every thread and stay in use.
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

    /// Takes a [`Self::pause`] back.
    pub fn resume(&self) {
        if !self.uses_rseq() || self.paused.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        for (slot, kept) in self.kept.iter().enumerate() {
            let distance = kept.load(Ordering::Relaxed);
            // Whoever has stopped the area restarts it.
            if let Some(area) = self.at(distance)
                && locked::try_lock(area)
            {
                self.restart(slot, distance);
                locked::unlock(area);
            }
        }
    }

    /// Stops a slot: from the return of `fence` on, nobody but the caller uses its area.
    /// `None`: it has no area, or somebody else has it.
    pub fn stop(&self, cpu: CpuId, fence: impl FnOnce() -> bool) -> Option<Stopped<'_>> {
        let area = self.at(self.kept[cpu.0 as usize].load(Ordering::Acquire))?;
        if !locked::try_lock(area) {
            return None;
        }
        let stopped = Stopped { slots: self, area, cpu };
        if !self.uses_rseq() {
            return Some(stopped);
        }
        self.wiped.table[cpu.0 as usize].store(0, Ordering::SeqCst);
        fence().then_some(stopped)
    }

    /// In a forked child: empties all areas, of items and of stocks, and puts them back to use. What
    /// was in them is left to the caller to find.
    ///
    /// # Safety
    /// No other thread exists that could use the slots.
    pub unsafe fn restart_empty(&self) {
        for (word, kept) in self.wiped.table.iter().zip(&self.kept) {
            let distance = kept.load(Ordering::Relaxed);
            if let Some(area) = self.at(distance) {
                for (head, bottom) in area.front.head.iter().zip(&area.front.bottom) {
                    head.store(bottom.load(Ordering::Relaxed).into(), Ordering::Relaxed);
                }
                for stock in &area.front.stocks {
                    stock.store(0, Ordering::Relaxed);
                }
                area.front.lock.store(0, Ordering::Relaxed);
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

/// A stopped area, locked; it goes back to use when this is dropped.
pub struct Stopped<'a> {
    slots: &'a Slots,
    area: &'a Area,
    cpu: CpuId,
}

impl Stopped<'_> {
    /// Takes up to `out.len()` objects of a class.
    pub fn take(&mut self, class: SizeClass, out: &mut [Item]) -> usize {
        locked::take(self.area, class, out)
    }

    /// The stock in a place.
    pub fn stock(&self, cell: Cell) -> Stock {
        self.area.stock(cell)
    }

    /// Leaves nothing there.
    pub fn clear_stock(&self, cell: Cell) {
        self.area.set_stock(cell, Stock::NONE);
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let slot = self.cpu.0 as usize;
        if self.slots.uses_rseq() {
            let distance = self.slots.kept[slot].load(Ordering::Relaxed);
            self.slots.restart(slot, distance);
        }
        locked::unlock(self.area);
    }
}

impl Area {
    /// Objects of a class on this CPU.
    pub fn len(&self, class: SizeClass) -> usize {
        let head = self.front.head[class.0 as usize].load(Ordering::Relaxed);
        let bottom = self.front.bottom[class.0 as usize].load(Ordering::Relaxed);
        (head as u32).wrapping_sub(bottom) as usize / 8
    }
}

const _: () = assert!(CLASS_COUNT <= ARRAY_COUNT && size_of::<Front>() == 4096);
const _: () = assert!(core::mem::offset_of!(Area, blocks).is_multiple_of(BLOCK));
// A pop from the empty area reads the word before it, which is padding of `Wiped`.
const _: () = assert!(core::mem::offset_of!(Slots, empty) == size_of::<Wiped>());
const _: () = assert!(core::mem::offset_of!(Wiped, table) + MAX_CPUS * 8 + 8 <= size_of::<Wiped>());
const _: () = assert!(core::mem::offset_of!(Slots, wiped) == 0);
