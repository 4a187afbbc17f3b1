//! Giving memory back while the program makes no calls. A thread or a timer of the embedder, the
//! tender, looks at the clock instead of it. (jemalloc's `background_thread` does the same.)
//!
//! The tender does what the program's calls would do, without bounds on the work. When the program
//! made no call for a while, it empties the arrays of all CPUs, too. Then it rests until memory
//! comes back.

use super::Heap;
use crate::os::Platform;
use crate::slab::purge::Work;
use crate::sync::{AtomicU32, Ordering};
use crate::units::PageCount;

/// Milliseconds between two calls of the tender: half of the decay time within these bounds.
const EVERY_MS: (u32, u32) = (50, 1000);
/// Least milliseconds without calls of the program after which CPUs keep nothing.
const QUIET_MS: u32 = 1000;
/// Least use of pages in a window for which the tender is called: 4 MiB.
const LEAST: PageCount = PageCount(1024);

/// State of the tender. Zeroed memory is a valid value: there is none.
pub(super) struct Tended {
    /// 1 while the tender rests: the next thread that gives memory back calls it.
    rests: AtomicU32,
    /// Number of looks at the clock by the program.
    looks: AtomicU32,
    /// That number at the tender's last call.
    seen: AtomicU32,
    /// Number of the tender's calls since the program looked.
    quiet: AtomicU32,
}

impl Tended {
    pub(super) const fn new() -> Self {
        let zero = AtomicU32::new;
        Self { rests: zero(0), looks: zero(0), seen: zero(0), quiet: zero(0) }
    }

    /// Counts calls of the tender without a look by the program in between.
    fn count_quiet(&self) -> u32 {
        let looks = self.looks.load(Ordering::Relaxed);
        if self.seen.swap(looks, Ordering::Relaxed) != looks {
            self.quiet.store(0, Ordering::Relaxed);
            return 0;
        }
        self.quiet.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl<P: Platform> Heap<P> {
    /// The program gave memory back: calls a tender that rests, if the heap is not small. `looked`:
    /// the program looked at the clock.
    #[inline]
    pub(super) fn call_tender(&'static self, looked: bool) {
        let tended = &self.tended;
        if looked {
            tended.looks.fetch_add(1, Ordering::Relaxed);
        }
        if tended.rests.load(Ordering::SeqCst) != 0
            && self.demand.pages() >= LEAST
            && tended.rests.swap(0, Ordering::Relaxed) != 0
        {
            self.platform.call_tender();
        }
    }

    /// Gives back what is due. Returns the milliseconds until the next call. `None`: the tender
    /// rests until the platform calls it.
    pub fn tend(&'static self) -> Option<u32> {
        let (decay_ms, demand_ms) =
            (self.decay_ms.load(Ordering::Relaxed), self.demand_ms.load(Ordering::Relaxed));
        if decay_ms == 0 {
            return None;
        }
        let quiet = self.tended.count_quiet();
        for set in self.zones.all() {
            self.decay(set, Work::ALL);
        }
        let every = (decay_ms / 2).clamp(EVERY_MS.0, EVERY_MS.1);
        if u64::from(quiet) * u64::from(every) < u64::from(QUIET_MS.max(decay_ms).max(demand_ms)) {
            return Some(every);
        }
        if let Some(owner) = self.owner() {
            owner.age();
        }
        self.drain_cpus();
        self.purge_all();
        self.tended.quiet.store(0, Ordering::Relaxed);
        if self.let_tender_rest() { None } else { Some(every) }
    }

    /// From here on the platform is called when memory comes back.
    pub fn await_tender(&self) {
        // Sequentially consistent with `call_tender`: a thread that gives pages back sees this, or
        // a look at the zones from here on sees them.
        self.tended.rests.store(1, Ordering::SeqCst);
    }

    /// The same, for a tender that rests. False: memory came back that it did not see.
    fn let_tender_rest(&'static self) -> bool {
        self.await_tender();
        !self.zones.all().any(|set| set.zone.may_purge())
            || self.tended.rests.swap(0, Ordering::Relaxed) == 0
    }
}
