//! Units: for each CPU, address space of the length of the handle space.

use core::ptr::NonNull;

use crate::cpu::MAX_CPUS;
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{CpuId, PAGE_SIZE, PAGEBLOCK_SIZE};

/// Bit of a word whose unit is ready. No distance has it.
const READY: u64 = 1;
/// Number of calls of [`Units::ensure`] that do not ask the platform after it refused a unit.
const RETRY_AFTER: u32 = 1024;

/// The units of all CPUs. Zeroed memory is a valid value without a handle space.
///
/// # Invariants
/// Each distance is that of a reservation as long as the handle space, which is never released. One
/// in `table`, or with `READY`, is committed up to `end`. `end` does not exceed the handle space.
#[repr(C, align(64))]
pub struct Units {
    /// Always zero: the table words of CPU numbers -1 and -2, those of a thread without rseq.
    pub(super) no_cpu: [AtomicU64; 8],
    /// Distance in bytes from the handle space to a CPU's unit, for critical sections; 0: take the
    /// slow path.
    pub(super) table: [AtomicU64; MAX_CPUS],
    /// Distance in bytes from the handle space to each unit, and [`READY`]; 0: no unit.
    kept: [AtomicU64; MAX_CPUS],
    /// Address of the handle space.
    base: AtomicUsize,
    /// Bytes of the handle space.
    bytes: AtomicUsize,
    /// Offset in bytes of the end of the last slab in the handle space.
    end: AtomicUsize,
    /// CPUs from this number on have no unit.
    count: AtomicU32,
    /// 1 if threads use critical sections.
    rseq: AtomicU32,
    /// Calls of [`Units::pause`] without a [`Units::resume`] so far.
    paused: AtomicU32,
    /// Number of calls of [`Units::ensure`] until one asks the platform again.
    refused: AtomicU32,
}

#[expect(clippy::declare_interior_mutable_const, reason = "a template for array elements")]
const ZERO: AtomicU64 = AtomicU64::new(0);

impl Units {
    /// No handle space and no units.
    pub const fn new() -> Self {
        Self {
            no_cpu: [ZERO; 8],
            table: [ZERO; MAX_CPUS],
            kept: [ZERO; MAX_CPUS],
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            count: AtomicU32::new(0),
            rseq: AtomicU32::new(0),
            paused: AtomicU32::new(0),
            refused: AtomicU32::new(0),
        }
    }

    /// Gives the units their handle space: `bytes` from `base` on, both multiples of 2 MiB.
    /// `sections`: threads use critical sections. Called once, before any other method.
    pub fn start(&self, base: usize, bytes: usize, sections: bool) {
        self.base.store(base, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.rseq.store(u32::from(sections), Ordering::Relaxed);
    }

    /// Returns whether threads use critical sections.
    pub fn has_sections(&self) -> bool {
        self.rseq.load(Ordering::Relaxed) != 0
    }

    /// Number of the last CPU with a unit, plus one.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Copy of an object in a CPU's unit. `None`: the CPU has no unit that is ready.
    #[inline]
    pub fn copy(&self, handle: usize, cpu: CpuId) -> Option<NonNull<u8>> {
        // Acquire pairs with the release in `ensure`.
        let word = self.kept.get(cpu.0 as usize)?.load(Ordering::Acquire);
        if word & READY == 0 {
            return None;
        }
        NonNull::new(handle.wrapping_add((word & !READY) as usize) as *mut u8)
    }

    /// Copies of an object: the shared one, then those in units that are ready.
    pub fn copies(&self, handle: usize) -> impl Iterator<Item = *mut u8> {
        let units = (0..self.count()).filter_map(move |cpu| self.copy(handle, CpuId(cpu)));
        core::iter::once(handle as *mut u8).chain(units.map(NonNull::as_ptr))
    }

    /// Gives a CPU a unit that is ready, if it has none. False: there is no memory for it, or no
    /// such CPU. After the platform refused, it is asked again once in `RETRY_AFTER` calls.
    pub fn ensure(&self, platform: &impl Platform, cpu: CpuId) -> bool {
        let Some(kept) = self.kept.get(cpu.0 as usize) else { return false };
        let mut word = kept.load(Ordering::Acquire);
        if word == 0 {
            let refused = self.refused.load(Ordering::Relaxed);
            if refused > 0 {
                self.refused.store(refused - 1, Ordering::Relaxed);
                return false;
            }
            let bytes = self.bytes.load(Ordering::Relaxed);
            let Some(unit) = platform.reserve(bytes, PAGEBLOCK_SIZE) else {
                self.refused.store(RETRY_AFTER, Ordering::Relaxed);
                return false;
            };
            let base = self.base.load(Ordering::Relaxed);
            let distance = (unit.as_ptr() as usize).wrapping_sub(base) as u64;
            self.count.fetch_max(cpu.0 + 1, Ordering::SeqCst);
            // Sequentially consistent with `populate`: it sees this unit, or this thread sees its
            // `end`.
            // INVARIANT: a reservation of the handle space's length, which is kept.
            match kept.compare_exchange(0, distance, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => word = distance,
                Err(seen) => {
                    // SAFETY: a fresh reservation whose address no other thread has.
                    unsafe { platform.release(unit, bytes) };
                    word = seen;
                }
            }
        }
        if word & READY == 0 {
            let end = self.end.load(Ordering::SeqCst);
            // SAFETY: `end` does not exceed the handle space, by the invariant.
            if end > 0 && !unsafe { self.commit(platform, word, 0, end) } {
                return false;
            }
            // INVARIANT: the unit is committed up to `end`.
            kept.fetch_or(READY, Ordering::AcqRel);
        }
        if self.has_sections() {
            self.restart(cpu.0 as usize, word & !READY);
        }
        true
    }

    /// Commits the bytes `from..to` of the handle space in every unit. The caller does so before it
    /// hands out an object there. False: there is no memory for it.
    ///
    /// # Safety
    /// They are whole pages of the handle space.
    pub unsafe fn populate(&self, platform: &impl Platform, from: usize, to: usize) -> bool {
        // INVARIANT: `end` does not exceed the handle space, by the contract.
        self.end.fetch_max(to, Ordering::SeqCst);
        // SAFETY: the same contract.
        self.each_unit().all(|word| unsafe { self.commit(platform, word, from, to) })
    }

    /// Gives the memory of the bytes `from..to` in every unit back to the platform.
    ///
    /// # Safety
    /// They are whole pages of the handle space without a live object.
    pub unsafe fn discard(&self, platform: &impl Platform, from: usize, to: usize) {
        for word in self.each_unit() {
            if let Some(at) = self.at(word, from) {
                // A refusal only costs memory.
                // SAFETY: whole pages of a unit, whose contents are not needed, by the contract.
                unsafe { platform.decommit(at, to - from) };
            }
        }
    }

    /// Words of all units, ready or not.
    fn each_unit(&self) -> impl Iterator<Item = u64> {
        let words = &self.kept[..self.count() as usize];
        words.iter().map(|word| word.load(Ordering::SeqCst)).filter(|&word| word != 0)
    }

    /// Address of an offset in the unit of a word.
    fn at(&self, word: u64, offset: usize) -> Option<NonNull<u8>> {
        let unit = self.base.load(Ordering::Relaxed).wrapping_add((word & !READY) as usize);
        NonNull::new((unit + offset) as *mut u8)
    }

    /// Commits the bytes `from..to` of the unit of a word. False: there is no memory for them.
    ///
    /// # Safety
    /// They are whole pages of the handle space.
    unsafe fn commit(&self, platform: &impl Platform, word: u64, from: usize, to: usize) -> bool {
        debug_assert!(from.is_multiple_of(PAGE_SIZE) && to.is_multiple_of(PAGE_SIZE));
        // SAFETY: whole pages of a unit's reservation, which is as long as the handle space.
        self.at(word, from).is_some_and(|at| unsafe { platform.commit(at, to - from) })
    }

    /// Lets sections use a unit that is ready, unless they are paused.
    fn restart(&self, cpu: usize, distance: u64) {
        let word = &self.table[cpu];
        if word.load(Ordering::Relaxed) == distance {
            return;
        }
        // Sequentially consistent with `pause`: either it sees the unit in the table, or this
        // thread sees the pause.
        word.store(distance, Ordering::SeqCst);
        if self.paused.load(Ordering::SeqCst) != 0 {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Closes the sections until [`Self::resume`]. Pauses nest. Sections that have begun go on
    /// until the caller fences the CPUs.
    pub fn pause(&self) {
        self.paused.fetch_add(1, Ordering::SeqCst);
        for word in &self.table[..self.count() as usize] {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Ends a [`Self::pause`].
    pub fn resume(&self) {
        if self.paused.fetch_sub(1, Ordering::SeqCst) != 1 || !self.has_sections() {
            return;
        }
        for (cpu, kept) in self.kept[..self.count() as usize].iter().enumerate() {
            let word = kept.load(Ordering::Acquire);
            if word & READY != 0 {
                self.restart(cpu, word & !READY);
            }
        }
    }
}

impl Default for Units {
    fn default() -> Self {
        Self::new()
    }
}
