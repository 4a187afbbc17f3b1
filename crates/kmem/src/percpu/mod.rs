//! Per-CPU memory: objects of which every CPU has a copy (the kernel's `alloc_percpu`).
//!
//! ```text
//! handle space   | slab: objects, rows, extension words | slab | ..    a zone of its own
//!                    ^ handle
//! unit of CPU 0      | copy |          .. at the handle + table[0]
//! unit of CPU 1      | copy |          .. at the handle + table[1]
//! ```
//!
//! A handle is the address of an object in the handle space, which is cut into slabs like the heap: so the books, the
//! repair after a fork, and readers outside know per-CPU objects as they know all others. What lies there itself is
//! the **shared copy**, for threads that have no CPU number. The copy of a CPU lies at the same place in the CPU's
//! unit, which is address space of the same length. A unit is reserved when its CPU is first met, and of its pages
//! those are populated that are written to.
//!
//! Slabs of the handle space are committed in all units before an object of them is handed out, and a new unit is
//! committed as far as there are slabs (`end`) before it is ready. Whoever makes a slab moves `end` before it looks for units;
//! whoever makes a unit shows it before it looks at `end`: one of the two commits.
//!
//! | word of a unit | meaning                                           |
//! |----------------|---------------------------------------------------|
//! | 0              | not met                                           |
//! | distance       | reserved; not committed as far as `end` yet       |
//! | distance, READY| in use                                            |
//!
//! An operation (`this_cpu_add` and its like) finds its CPU and does its work in one critical section (see
//! [`crate::cpu`]), so it cannot be torn by a migration, a preemption or a signal. Where there are no sections, all
//! threads use atomics, on the copy of a slot that spreads them. Where a thread has no CPU among threads that
//! have one, or its unit cannot be had, it uses atomics on the shared copy, which no section writes to.
//!
//! Context: any, signal handlers included. No operation waits.

use core::ptr::NonNull;

use crate::cpu::MAX_CPUS;
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{CpuId, FRAME_SIZE, PAGE_SIZE};

mod word;
pub use word::Word;

#[cfg(all(kmem_rseq, not(miri)))]
mod rseq;

/// Units that are ready: a bit that no distance has.
const READY: u64 = 1;
/// Times a unit is not asked for after it was refused.
const RETRY_AFTER: u32 = 1024;

/// The units of all CPUs. Zeroed memory is a valid value without a handle space.
#[repr(C, align(64))]
pub struct Units {
    /// Always zero: where the CPU numbers -1 and -2 lead, which a thread without rseq shows.
    no_cpu: [AtomicU64; 8],
    /// Distance from the handle space to the unit of a CPU whose threads use critical sections; 0: they take the slow
    /// path.
    table: [AtomicU64; MAX_CPUS],
    /// Distance of every unit there is, and [`READY`].
    kept: [AtomicU64; MAX_CPUS],
    base: AtomicUsize,
    bytes: AtomicUsize,
    /// Bytes of the handle space that lie in slabs, or before one.
    end: AtomicUsize,
    /// No CPU from this one on has a unit.
    count: AtomicU32,
    rseq: AtomicU32,
    /// How many want the sections out of use.
    paused: AtomicU32,
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

    /// Gives the units their handle space: `bytes` from `base` on, a multiple of 2 MiB both. `sections`: threads use
    /// critical sections. Called once, before any other method.
    pub fn start(&self, base: usize, bytes: usize, sections: bool) {
        self.base.store(base, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.rseq.store(u32::from(sections), Ordering::Relaxed);
    }

    /// Whether threads use critical sections.
    pub fn has_sections(&self) -> bool {
        self.rseq.load(Ordering::Relaxed) != 0
    }

    /// CPUs from this number on have no unit.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// The copy of an object in a unit that is ready.
    #[inline]
    pub fn copy(&self, handle: usize, cpu: CpuId) -> Option<NonNull<u8>> {
        // Acquire pairs with the release in `ready`.
        let word = self.kept.get(cpu.0 as usize)?.load(Ordering::Acquire);
        if word & READY == 0 {
            return None;
        }
        NonNull::new(handle.wrapping_add((word & !READY) as usize) as *mut u8)
    }

    /// The copies of an object: the shared one, then those in units that are ready.
    pub fn copies(&self, handle: usize) -> impl Iterator<Item = *mut u8> {
        let units = (0..self.count()).filter_map(move |cpu| self.copy(handle, CpuId(cpu)));
        core::iter::once(handle as *mut u8).chain(units.map(NonNull::as_ptr))
    }

    /// Makes sure that a CPU has a unit that is ready. False: there is no memory for it, or no such CPU.
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
            let Some(unit) = platform.reserve(bytes, FRAME_SIZE) else {
                self.refused.store(RETRY_AFTER, Ordering::Relaxed);
                return false;
            };
            let base = self.base.load(Ordering::Relaxed);
            let distance = (unit.as_ptr() as usize).wrapping_sub(base) as u64;
            self.count.fetch_max(cpu.0 + 1, Ordering::SeqCst);
            // Sequentially consistent with `populate`: one of the two sees the other.
            match kept.compare_exchange(0, distance, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => word = distance,
                Err(seen) => {
                    // SAFETY: our own fresh reservation, unused.
                    unsafe { platform.release(unit, bytes) };
                    word = seen;
                }
            }
        }
        if word & READY == 0 {
            let end = self.end.load(Ordering::SeqCst);
            if end > 0 && !self.commit(platform, word, 0, end) {
                return false;
            }
            kept.fetch_or(READY, Ordering::AcqRel);
        }
        if self.has_sections() {
            self.restart(cpu.0 as usize, word & !READY);
        }
        true
    }

    /// Commits the bytes `from..to` of the handle space in every unit, before an object there is handed out. False:
    /// there is no memory for it.
    pub fn populate(&self, platform: &impl Platform, from: usize, to: usize) -> bool {
        self.end.fetch_max(to, Ordering::SeqCst);
        self.each_unit().all(|word| self.commit(platform, word, from, to))
    }

    /// Gives the contents of the bytes `from..to` in all units back to the platform.
    ///
    /// # Safety
    /// No object there is in use.
    pub unsafe fn discard(&self, platform: &impl Platform, from: usize, to: usize) {
        for word in self.each_unit() {
            if let Some(at) = self.at(word, from) {
                // SAFETY: part of a unit whose contents are not needed. A refusal costs memory only.
                unsafe { platform.decommit(at, to - from) };
            }
        }
    }

    fn each_unit(&self) -> impl Iterator<Item = u64> {
        let words = &self.kept[..self.count() as usize];
        words.iter().map(|word| word.load(Ordering::SeqCst)).filter(|&word| word != 0)
    }

    fn at(&self, word: u64, offset: usize) -> Option<NonNull<u8>> {
        let unit = self.base.load(Ordering::Relaxed).wrapping_add((word & !READY) as usize);
        NonNull::new((unit + offset) as *mut u8)
    }

    fn commit(&self, platform: &impl Platform, word: u64, from: usize, to: usize) -> bool {
        debug_assert!(from.is_multiple_of(PAGE_SIZE) && to.is_multiple_of(PAGE_SIZE));
        // SAFETY: part of a unit's reservation.
        self.at(word, from).is_some_and(|at| unsafe { platform.commit(at, to - from) })
    }

    /// Lets sections use a unit, unless they are paused.
    fn restart(&self, cpu: usize, distance: u64) {
        let word = &self.table[cpu];
        if word.load(Ordering::Relaxed) == distance {
            return;
        }
        // Sequentially consistent with `pause`: it sees the unit in the table, or is seen here.
        word.store(distance, Ordering::SeqCst);
        if self.paused.load(Ordering::SeqCst) != 0 {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Takes the sections out of use until as many calls of [`Self::resume`]; those under way go on until the CPUs are
    /// fenced.
    pub fn pause(&self) {
        self.paused.fetch_add(1, Ordering::SeqCst);
        for word in &self.table[..self.count() as usize] {
            word.store(0, Ordering::SeqCst);
        }
    }

    /// Takes a [`Self::pause`] back.
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

#[cfg(not(all(kmem_rseq, not(miri))))]
mod rseq {
    //! No critical sections here: every operation asks for the slow path.
    use super::{Units, Word};
    pub(super) unsafe fn add<W: Word>(_: &Units, _: *mut W, _: W) -> bool {
        false
    }
    pub(super) unsafe fn swap<W: Word>(_: &Units, _: *mut W, _: W) -> Option<W> {
        None
    }
    pub(super) unsafe fn add_return<W: Word>(_: &Units, _: *mut W, _: W) -> Option<W> {
        None
    }
    pub(super) unsafe fn read<W: Word>(_: &Units, _: *mut W) -> Option<W> {
        None
    }
    pub(super) unsafe fn replace<W: Word>(_: &Units, _: *mut W, _: W, _: W) -> Option<W> {
        None
    }
}

/// Operations on the copy of the CPU that the thread runs on, without a lock and safe against migration. Each has a
/// fast half here and a slow one by atomics on the copy that `slow` names.
///
/// Fast paths: ten instructions, no atomics.
impl Units {
    /// Adds.
    ///
    /// # Safety
    /// `handle` is an aligned word in a live per-CPU object; so for all methods here.
    #[inline(always)]
    pub unsafe fn add<W: Word>(&self, handle: *mut W, by: W, slow: impl Slow) {
        // SAFETY: the caller's promise; so below.
        unsafe {
            if rseq::add(self, handle, by) {
                return;
            }
            if slow.retry() && rseq::add(self, handle, by) {
                return;
            }
            W::fetch_add(slow.copy(handle.cast()).cast(), by);
        }
    }

    /// Adds; the value after.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn add_return<W: Word>(&self, handle: *mut W, by: W, slow: impl Slow) -> W {
        // SAFETY: as above.
        let run = || unsafe { rseq::add_return(self, handle, by) };
        // SAFETY: as above.
        slow.or(run, || unsafe { W::fetch_add(slow.copy(handle.cast()).cast(), by) }.plus(by))
    }

    /// Writes; the value before.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn swap<W: Word>(&self, handle: *mut W, new: W, slow: impl Slow) -> W {
        // SAFETY: as above.
        let run = || unsafe { rseq::swap(self, handle, new) };
        // SAFETY: as above.
        slow.or(run, || unsafe { W::fetch_swap(slow.copy(handle.cast()).cast(), new) })
    }

    /// The value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn read<W: Word>(&self, handle: *mut W, slow: impl Slow) -> W {
        // SAFETY: as above.
        let run = || unsafe { rseq::read(self, handle) };
        // SAFETY: as above.
        slow.or(run, || unsafe { W::load(slow.copy(handle.cast()).cast()) })
    }

    /// Writes `new` if the value is `old`; the value before.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn replace<W: Word>(&self, handle: *mut W, old: W, new: W, slow: impl Slow) -> W {
        // SAFETY: as above.
        let run = || unsafe { rseq::replace(self, handle, old, new) };
        // SAFETY: as above.
        slow.or(run, || unsafe { W::fetch_replace(slow.copy(handle.cast()).cast(), old, new) })
    }
}

/// How an operation goes on where its CPU has no unit in use.
pub trait Slow {
    /// Tries to give the CPU a unit; whether a section is worth another try.
    fn retry(&self) -> bool;

    /// The copy on which the thread is to use atomics instead.
    fn copy(&self, handle: *mut u8) -> *mut u8;

    /// What `section` gives, now or after a retry; else what `atomic` gives.
    #[inline(always)]
    fn or<T>(&self, section: impl Fn() -> Option<T>, atomic: impl FnOnce() -> T) -> T {
        if let Some(done) = section() {
            return done;
        }
        if self.retry()
            && let Some(done) = section()
        {
            done
        } else {
            atomic()
        }
    }
}
