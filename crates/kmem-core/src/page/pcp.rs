//! Per-CPU pages: a CPU's share of the page layer beside its arrays of free blocks.
//!
//! Use decides how many blocks are moved at once. A refill after a refill moves twice as many as
//! the last one, up to a bound. A refill after a flush starts small again. So do flushes. A CPU
//! that did neither for a generation of the decay loses its blocks.

use super::Reserve;
use crate::class::PageClass;
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics, const_fn};
use crate::units::{PageCount, Pageblock};

/// The share of a CPU, or of several CPUs. Zeroed memory is a valid value: nothing kept.
#[repr(C, align(64))]
pub struct Pcp {
    /// `zone:8 | pageblock:32 | credit:16`; 0: none. One is for single pages, one for larger
    /// blocks: single pages would break up pageblocks that larger blocks need.
    reserves: [AtomicU64; 2],
    /// For each order that has an array: `blocks moved last << 1 | way`.
    batch: [AtomicU32; PageClass::COUNT],
    /// Number of refills and flushes so far.
    moves: AtomicU32,
    /// `moves` at the last look for idle CPUs.
    looked: AtomicU32,
}

/// The direction in which blocks are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a zone to the CPU.
    Refill,
    /// From the CPU to a zone.
    Flush,
}

impl Pcp {
    const_fn! {
        /// A share without reserves.
        pub const fn new() -> Self {
            Self {
                reserves: atomics![AtomicU64::new(0); 2],
                batch: atomics![AtomicU32::new(0); PageClass::COUNT],
                moves: AtomicU32::new(0),
                looked: AtomicU32::new(0),
            }
        }
    }

    /// Takes the reserve for a class, with the number of its zone. Until it is put back, other
    /// threads on the CPU find none.
    pub fn take_reserve(&self, class: PageClass) -> (u32, Reserve) {
        Self::take(self.reserve(class))
    }

    /// Takes all reserves, each with the number of its zone.
    pub fn take_reserves(&self) -> impl Iterator<Item = (u32, Reserve)> {
        self.reserves.iter().map(Self::take)
    }

    fn reserve(&self, class: PageClass) -> &AtomicU64 {
        &self.reserves[usize::from(class.pages() > PageCount::ONE)]
    }

    fn take(reserve: &AtomicU64) -> (u32, Reserve) {
        // Acquire pairs with the release in `put_reserve`: the bits of the credit are visible.
        let word = reserve.swap(0, Ordering::Acquire);
        let pageblock = Pageblock((word >> 16) as u32);
        ((word >> 48) as u32, Reserve { pageblock, credit: word as u16 })
    }

    /// Puts a reserve back. False: the CPU has another one by now, and the caller must give this
    /// one to its zone.
    pub fn put_reserve(&self, class: PageClass, zone: u32, reserve: Reserve) -> bool {
        if reserve.credit == 0 {
            return true;
        }
        let Reserve { pageblock, credit } = reserve;
        let word = u64::from(zone) << 48 | u64::from(pageblock.0) << 16 | u64::from(credit);
        let at = self.reserve(class);
        at.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Number of blocks to move in this direction now.
    pub fn batch(&self, class: PageClass, way: Way) -> usize {
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let word = &self.batch[class.number()];
        let old = word.load(Ordering::Relaxed);
        let same = old & 1 == way as u32;
        let count = if same { (old >> 1) * 2 } else { 0 };
        let count = count.clamp(class.least_batch(), class.most_batch());
        word.store(count << 1 | way as u32, Ordering::Relaxed);
        count as usize
    }

    /// Returns whether no block was moved since the last call: the CPU's blocks are not needed.
    pub fn is_idle(&self) -> bool {
        let moves = self.moves.load(Ordering::Relaxed);
        let idle = self.looked.swap(moves, Ordering::Relaxed) == moves;
        if idle {
            for word in &self.batch {
                word.store(0, Ordering::Relaxed);
            }
        }
        idle
    }

    /// Returns whether no block was moved since [`Self::is_idle`] returned true.
    pub fn was_idle(&self) -> bool {
        self.batch.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// In a forked child: forgets the reserves. The repair of the zones has found their pages.
    pub fn forget(&self) {
        self.reserves.iter().for_each(|reserve| reserve.store(0, Ordering::Relaxed));
    }
}

impl Default for Pcp {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::Order;

    #[test]
    fn batches_grow_one_way_and_start_small_the_other() {
        let pcp = Pcp::new();
        let class = PageClass::of(Order(0)).expect("single pages");
        let first = pcp.batch(class, Way::Refill);
        assert_eq!(first, class.least_batch() as usize);
        assert_eq!(pcp.batch(class, Way::Refill), 2 * first);
        for _ in 0..10 {
            pcp.batch(class, Way::Refill);
        }
        assert_eq!(pcp.batch(class, Way::Refill), class.most_batch() as usize);
        assert_eq!(pcp.batch(class, Way::Flush), first);
        assert!(!pcp.is_idle());
        assert!(pcp.is_idle());
        assert_eq!(pcp.batch(class, Way::Flush), first, "what is idle starts small again");
    }

    #[test]
    fn a_reserve_comes_back_whole_and_only_one_is_kept() {
        let pcp = Pcp::new();
        let [single, pair, four] =
            [0, 1, 2].map(|order| PageClass::of(Order(order)).expect("kept"));
        let reserve = Reserve { pageblock: Pageblock(0xFFFF_FFFF), credit: 511 };
        assert!(pcp.put_reserve(single, 255, reserve));
        assert!(!pcp.put_reserve(single, 1, Reserve { pageblock: Pageblock(1), credit: 1 }));
        let blocks = Reserve { pageblock: Pageblock(2), credit: 2 };
        assert!(pcp.put_reserve(pair, 1, blocks), "blocks have a reserve of their own");
        assert_eq!(pcp.take_reserve(single), (255, reserve));
        assert_eq!(pcp.take_reserve(single).1.credit, 0);
        assert_eq!(pcp.take_reserve(four), (1, blocks));
    }
}
