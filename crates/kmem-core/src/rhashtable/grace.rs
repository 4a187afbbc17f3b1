//! Grace periods: a grace period is over when all readers that were there at its start have left.
//! Sleepable RCU (McKenney, 2006) with two changes: writers execute the barriers of readers
//! (membarrier), and no thread waits.
//!
//! ```text
//! reader:  count entered[side]  ..reads..  count left[side]        side = the present one
//! writer:  retire -> pending --begin--> waiting --(both sides were quiet once)--> gone
//! ```
//!
//! | phase    | `waiting` waits for                                                      |
//! |----------|--------------------------------------------------------------------------|
//! | IDLE     | nothing: it is empty                                                     |
//! | OTHER    | readers on the other side, which read `side` long ago; then it flips     |
//! | THIS     | readers on the side that was the present one before the flip             |
//!
//! A thread that retires something checks how far the grace period is, and goes on. One thread at a
//! time checks. No thread waits for a reader, or for the thread that checks. A reader that never
//! leaves keeps everything that is retired after it entered.
//!
//! Context: any, signal handlers included.

use crate::source::{Caller, Counters, Source};
use crate::sync::{AtomicUsize, Ordering, fence};

const IDLE: usize = 0;
const OTHER: usize = 1;
const THIS: usize = 2;

/// Retired things: a list, linked by a word of each thing.
///
/// # Invariants
/// For each thing, a grace period is over, or no other thread uses the structure. So a thread that
/// found it before it was retired no longer refers to it.
pub(super) struct Batch(pub(super) usize);

/// The grace periods of one structure.
///
/// # Invariants
/// `counters` are live. `side` is 0 or 1.
pub(super) struct Grace {
    counters: Counters,
    /// True if writers execute the barriers of readers.
    asymmetric: bool,
    /// The present side.
    side: AtomicUsize,
    list: Retired,
}

/// Fields that readers do not use, on a cache line of their own.
#[repr(C, align(64))]
struct Retired {
    phase: AtomicUsize,
    /// 1 while a thread is in [`Grace::look`].
    busy: AtomicUsize,
    pending: AtomicUsize,
    waiting: AtomicUsize,
    /// Things retired since the last [`Grace::look`].
    count: AtomicUsize,
}

impl Grace {
    /// Grace periods with counters of `source`, billed to `owner`. `None`: there is no memory.
    pub(super) fn new(source: &impl Source, owner: Caller) -> Option<Self> {
        Some(Self {
            counters: source.counters(owner)?,
            asymmetric: source.barrier(),
            side: AtomicUsize::new(0),
            list: Retired {
                phase: AtomicUsize::new(IDLE),
                busy: AtomicUsize::new(0),
                pending: AtomicUsize::new(0),
                waiting: AtomicUsize::new(0),
                count: AtomicUsize::new(0),
            },
        })
    }

    /// Gives the counters back.
    ///
    /// # Safety
    /// They are from this source. No thread reads any more, and this is not used after this call.
    pub(super) unsafe fn close(&self, source: &impl Source) {
        // SAFETY: counters of this source that are used no more (contract).
        unsafe { source.drop_counters(self.counters) };
    }

    /// The reader's half of the pair of barriers, which is cheap.
    #[inline(always)]
    fn light(&self) {
        if self.asymmetric {
            core::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The writer's half, which is expensive. False: the platform refused it.
    fn heavy(&self, source: &impl Source) -> bool {
        if self.asymmetric {
            source.barrier()
        } else {
            fence(Ordering::SeqCst);
            true
        }
    }

    /// Begins to read. Returns the side for [`Self::leave`].
    #[inline(always)]
    pub(super) fn enter(&self, source: &impl Source) -> usize {
        let side = self.side.load(Ordering::Relaxed);
        // SAFETY: live counters, and a side below 2 (invariant).
        unsafe { source.count(self.counters, side) };
        self.light();
        side
    }

    /// Ends a read.
    ///
    /// # Safety
    /// `side` is from a call of [`Self::enter`], for which this is the only call.
    #[inline(always)]
    pub(super) unsafe fn leave(&self, source: &impl Source, side: usize) {
        self.light();
        // SAFETY: live counters (invariant), and a side that `enter` returned (contract).
        unsafe { source.count(self.counters, 2 + side) };
    }

    /// Retires the thing at `at`, which new readers cannot find. `link` is a word of it that no
    /// other thread uses; it becomes the link to the next retired thing.
    ///
    /// # Safety
    /// `link` stays valid until the thing comes back in a [`Batch`].
    pub(super) unsafe fn retire(&self, at: usize, link: &AtomicUsize) {
        let mut first = self.list.pending.load(Ordering::Relaxed);
        loop {
            link.store(first, Ordering::Relaxed);
            match self.list.pending.compare_exchange_weak(
                first,
                at,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(seen) => first = seen,
            }
        }
        // Two threads that meet here may count once: the number only tells when to look.
        let count = &self.list.count;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns whether at least `count` things were retired since the last [`Self::look`].
    #[inline]
    pub(super) fn waiting_for(&self, count: usize) -> bool {
        self.list.count.load(Ordering::Relaxed) >= count
    }

    /// Returns whether all readers that entered a side, 0 or 1, before this call have left.
    fn is_quiet(&self, source: &impl Source, side: usize) -> bool {
        // Readers that left are summed first, so the later sum of those that entered has them all.
        // SAFETY: live counters (invariant), and a side below 2.
        let left = unsafe { source.counted(self.counters, 2 + side) };
        // SAFETY: live counters (invariant), and a side below 2.
        self.heavy(source) && unsafe { source.counted(self.counters, side) } == left
    }

    /// Advances the grace period as far as readers allow, without waiting for them. Returns the
    /// things for which it is over, if any. They were retired with [`Self::retire`].
    pub(super) fn look(&self, source: &impl Source) -> Option<Batch> {
        if self.list.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        self.list.count.store(0, Ordering::Relaxed);
        let done = self.step(source);
        self.list.busy.store(0, Ordering::Release);
        done
    }

    fn step(&self, source: &impl Source) -> Option<Batch> {
        if self.list.phase.load(Ordering::Relaxed) == IDLE {
            // Acquire pairs with the release in `retire`.
            let batch = self.list.pending.swap(0, Ordering::AcqRel);
            if batch == 0 {
                return None;
            }
            self.list.waiting.store(batch, Ordering::Relaxed);
            self.list.phase.store(OTHER, Ordering::Relaxed);
        }
        let side = self.side.load(Ordering::Relaxed);
        if self.list.phase.load(Ordering::Relaxed) == OTHER {
            // The barrier comes first: it separates the readers before it from those after it.
            if !self.heavy(source) || !self.is_quiet(source, side ^ 1) {
                return None;
            }
            self.side.store(side ^ 1, Ordering::Relaxed);
            self.list.phase.store(THIS, Ordering::Relaxed);
        }
        let old = self.side.load(Ordering::Relaxed) ^ 1;
        if !self.heavy(source) || !self.is_quiet(source, old) || !self.heavy(source) {
            return None;
        }
        self.list.phase.store(IDLE, Ordering::Relaxed);
        // INVARIANT: all readers that were there when these things were retired have left.
        Some(Batch(self.list.waiting.swap(0, Ordering::Relaxed)))
    }

    /// Everything that is retired, when no thread reads any more.
    pub(super) fn take_all(&mut self) -> [Batch; 2] {
        // INVARIANT: the caller has the structure for itself.
        [&self.list.pending, &self.list.waiting].map(|list| Batch(list.swap(0, Ordering::Relaxed)))
    }
}
