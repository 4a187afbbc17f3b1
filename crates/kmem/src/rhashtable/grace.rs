//! Grace periods: when nobody reads any more what was there at some moment. Sleepable RCU (McKenney, 2006), with the
//! barriers of readers moved to the writers (membarrier), and without anybody who waits.
//!
//! ```text
//! reader:  count entered[side]  ..reads..  count left[side]        side = the present one
//! writer:  retire -> pending --begin--> waiting --(both sides were quiet once)--> gone
//! ```
//!
//! | phase    | what is awaited                                                          |
//! |----------|--------------------------------------------------------------------------|
//! | IDLE     | nothing is waiting                                                       |
//! | OTHER    | readers on the other side, who looked at the side long ago; then it flips |
//! | THIS     | readers on what was the present side                                     |
//!
//! Whoever retires looks how far things are, one at a time, and goes on: nobody waits for a reader, or for another who
//! looks. A reader that never leaves keeps all that is retired after it entered.
//!
//! Context: any.

use crate::source::{Caller, Counters, Source};
use crate::sync::{AtomicUsize, Ordering, fence};

const IDLE: usize = 0;
const OTHER: usize = 1;
const THIS: usize = 2;

/// What was retired: a list, linked by a word of each.
pub(super) struct Batch(pub(super) usize);

/// The grace periods of one structure.
pub(super) struct Grace {
    counters: Counters,
    /// Whether writers make the barriers for readers.
    asymmetric: bool,
    side: AtomicUsize,
    list: Retired,
}

/// What readers do not look at, on a cache line of its own.
#[repr(C, align(64))]
struct Retired {
    phase: AtomicUsize,
    /// 1 while somebody looks.
    busy: AtomicUsize,
    pending: AtomicUsize,
    waiting: AtomicUsize,
    /// Things retired since somebody looked.
    count: AtomicUsize,
}

impl Grace {
    /// `None`: there is no memory for the counters.
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

    /// Gives the counters back; nobody reads any more.
    pub(super) fn close(&self, source: &impl Source) {
        // SAFETY: ours, used no more.
        unsafe { source.drop_counters(self.counters) };
    }

    /// The cheap half of the pair of barriers.
    #[inline(always)]
    fn light(&self) {
        if self.asymmetric {
            core::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The dear half. False: not now.
    fn heavy(&self, source: &impl Source) -> bool {
        if self.asymmetric {
            source.barrier()
        } else {
            fence(Ordering::SeqCst);
            true
        }
    }

    /// Begins to read; the side, for [`Self::leave`].
    #[inline(always)]
    pub(super) fn enter(&self, source: &impl Source) -> usize {
        let side = self.side.load(Ordering::Relaxed);
        // SAFETY: our counters.
        unsafe { source.count(self.counters, side) };
        self.light();
        side
    }

    /// Ends it.
    #[inline(always)]
    pub(super) fn leave(&self, source: &impl Source, side: usize) {
        self.light();
        // SAFETY: our counters.
        unsafe { source.count(self.counters, 2 + side) };
    }

    /// Retires a thing that new readers do not find; `link` is a word of it that nobody else uses, and that becomes its
    /// place in the list.
    ///
    /// # Safety
    /// `link` stays valid until the thing comes back from [`Self::look`].
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
        // Two that meet here may count as one: it is a measure of when to look.
        let count = &self.list.count;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Whether so many things were retired since somebody looked.
    #[inline]
    pub(super) fn waiting_for(&self, count: usize) -> bool {
        self.list.count.load(Ordering::Relaxed) >= count
    }

    /// Whether nobody reads on a side who entered before this call.
    fn is_quiet(&self, source: &impl Source, side: usize) -> bool {
        // SAFETY: our counters. Who left is counted first: whoever is counted as left was counted as entered.
        let left = unsafe { source.counted(self.counters, 2 + side) };
        // SAFETY: as above.
        self.heavy(source) && unsafe { source.counted(self.counters, side) } == left
    }

    /// Looks how far things are; what nobody reads any more, if that is something.
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
            // Here, too, the barrier comes before new readers are told from old ones.
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
        Some(Batch(self.list.waiting.swap(0, Ordering::Relaxed)))
    }

    /// All that is retired, when nobody reads any more.
    pub(super) fn take_all(&mut self) -> [Batch; 2] {
        [&self.list.pending, &self.list.waiting].map(|list| Batch(list.swap(0, Ordering::Relaxed)))
    }
}
