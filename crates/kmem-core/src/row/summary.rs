//! A set of numbers as a tree of bitmaps, 64 children to a word. Insert, remove and "next from
//! here" touch one word per level (up to five).
//!
//! Members are **hints**. A number may be in the set although its owner has nothing to offer, and
//! a search may miss a number that is inserted concurrently. But no member is lost: the thread
//! that clears a parent's bit reads the child again.
//!
//! Several sets, called lanes, can share one block of memory, `stride` words apart. Then the words
//! for one number lie beside each other, and a small instance touches one page for all of them.
//!
//! Context: any. Lock-free; nothing here waits.

use crate::sync::{AtomicU64, Ordering};

/// Most levels: 64^5 numbers.
const LEVELS: usize = 5;

/// A view of a block of sets; see [`words_for`].
///
/// # Invariants
/// The first `depth` levels point to arrays of atomics that are valid for as long as the view is
/// used. Level `i` has `stride` words for each 64^(i + 1) numbers below `len`.
#[derive(Clone, Copy)]
pub struct Summary {
    /// Levels from the leaves up; null above the root.
    levels: [*const AtomicU64; LEVELS],
    depth: usize,
    /// All members are below this.
    len: u32,
    /// Number of sets.
    stride: u32,
}

// SAFETY: the view points to atomics that are valid in every thread, by the invariant.
unsafe impl Send for Summary {}
// SAFETY: all access is atomic.
unsafe impl Sync for Summary {}

/// Words of memory that `stride` sets of numbers below `len` take.
pub const fn words_for(len: u32, stride: u32) -> usize {
    let mut words = len as usize;
    let mut total = 0;
    loop {
        words = words.div_ceil(64);
        total += words * stride as usize;
        if words <= 1 {
            return total;
        }
    }
}

/// Bytes of the lowest level, which comes first; see [`words_for`].
pub const fn leaf_bytes(len: u32, stride: u32) -> usize {
    len.div_ceil(64) as usize * stride as usize * 8
}

impl Summary {
    /// A set that has no members and can have none.
    pub const EMPTY: Self =
        Self { levels: [core::ptr::null(); LEVELS], depth: 0, len: 0, stride: 1 };

    /// Views zeroed memory as empty sets.
    ///
    /// # Safety
    /// `at` is valid for [`words_for`]`(len, stride)` words for as long as the view is used. The
    /// words are used only through views of this shape.
    pub unsafe fn new(at: *const AtomicU64, len: u32, stride: u32) -> Self {
        let mut set = Self { len, stride, ..Self::EMPTY };
        let mut words = len as usize;
        let mut next = at;
        loop {
            words = words.div_ceil(64);
            // INVARIANT: the level has `words * stride` words in the block, by the contract.
            set.levels[set.depth] = next;
            set.depth += 1;
            if words <= 1 {
                return set;
            }
            // SAFETY: inside the block, by the sum in `words_for`.
            next = unsafe { next.add(words * stride as usize) };
        }
    }

    /// Word `index` of a level, of the set of `lane`.
    #[inline]
    fn word(&self, level: usize, index: u32, lane: u32) -> &AtomicU64 {
        debug_assert!(lane < self.stride);
        // SAFETY: callers pass an index below the level's length.
        unsafe { &*self.levels[level].add((index * self.stride + lane) as usize) }
    }

    /// Adds `n` to the set of `lane`.
    pub fn insert(&self, lane: u32, n: u32) {
        debug_assert!(n < self.len);
        self.insert_from(0, n, lane);
    }

    /// Removes `n` from the set of `lane`.
    pub fn remove(&self, lane: u32, n: u32) {
        self.remove_many(lane, n / 64, 1 << (n % 64));
    }

    /// Adds the numbers `64 * index + i` to the set of `lane`, for each set bit `i`.
    pub fn insert_many(&self, lane: u32, index: u32, bits: u64) {
        // Sequentially consistent for the reason given in `insert_from`.
        if bits != 0 && self.word(0, index, lane).fetch_or(bits, Ordering::SeqCst) == 0 {
            self.insert_from(1, index, lane);
        }
    }

    /// Reads which of the 64 numbers from `64 * index` on are in the set of `lane`, as bits.
    pub fn word_of(&self, lane: u32, index: u32) -> u64 {
        self.word(0, index, lane).load(Ordering::Acquire)
    }

    /// Removes the numbers `64 * index + i` from the set of `lane`, for each set bit `i`.
    pub fn remove_many(&self, lane: u32, index: u32, bits: u64) {
        debug_assert!(index * 64 < self.len);
        let mut child = self.word(0, index, lane);
        if child.fetch_and(!bits, Ordering::SeqCst) & !bits != 0 {
            return;
        }
        let mut n = index;
        for level in 1..self.depth {
            // The child was empty: clear its bit in the parent, then read the child again.
            let parent = self.word(level, n / 64, lane);
            let bit = 1 << (n % 64);
            let rest = parent.fetch_and(!bit, Ordering::SeqCst) & !bit;
            if child.load(Ordering::SeqCst) != 0 {
                self.insert_from(level, n, lane);
                return;
            }
            if rest != 0 {
                return;
            }
            n /= 64;
            child = parent;
        }
    }

    /// Sets the bit of node `n` at `level`, and those of its ancestors.
    fn insert_from(&self, level: usize, n: u32, lane: u32) {
        let mut n = n;
        for level in level..self.depth {
            let bit = 1 << (n % 64);
            n /= 64;
            // Sequentially consistent with `remove_many`. Either it sees this bit when it reads
            // the child again, or this thread sees the word it cleared and goes on to the parent.
            if self.word(level, n, lane).fetch_or(bit, Ordering::SeqCst) != 0 {
                return;
            }
        }
    }

    /// Smallest member of the set of `lane` that is not below `from`.
    pub fn next(&self, lane: u32, from: u32) -> Option<u32> {
        if from >= self.len {
            return None;
        }
        let mut n = from;
        let mut level = 0;
        loop {
            // Go up to the lowest level that has a later sibling.
            let word =
                self.word(level, n / 64, lane).load(Ordering::Acquire) & (u64::MAX << (n % 64));
            if word == 0 {
                level += 1;
                n = n / 64 + 1;
                // There is no sibling beyond the last word of this level.
                if level >= self.depth || n / 64 >= self.words_at(level) {
                    return None;
                }
                continue;
            }
            n = n / 64 * 64 + word.trailing_zeros();
            if level == 0 {
                return (n < self.len).then_some(n);
            }
            // Go down into the child of the bit; it may be empty by now.
            level -= 1;
            n *= 64;
        }
    }

    /// Words of one set at a level.
    fn words_at(&self, level: usize) -> u32 {
        let mut words = self.len;
        for _ in 0..=level {
            words = words.div_ceil(64);
        }
        words
    }

    /// Returns whether `n` is in the set of `lane`.
    pub fn contains(&self, lane: u32, n: u32) -> bool {
        self.word(0, n / 64, lane).load(Ordering::Acquire) & (1 << (n % 64)) != 0
    }

    /// Removes every member of every set. All members are smaller than `below`.
    ///
    /// # Safety
    /// No other thread uses the sets.
    pub unsafe fn clear(&self, below: u32) {
        let mut words = below.min(self.len);
        for level in 0..self.depth {
            words = words.div_ceil(64);
            for index in 0..words {
                for lane in 0..self.stride {
                    let word = self.word(level, index, lane);
                    if word.load(Ordering::Relaxed) != 0 {
                        word.store(0, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn agrees_with_a_sorted_set() {
        for len in [1u32, 63, 64, 65, 4096, 4097, 300_000] {
            let memory: Vec<AtomicU64> =
                (0..words_for(len, 3)).map(|_| AtomicU64::new(0)).collect();
            // SAFETY: the vector has the right length and outlives the view.
            let set = unsafe { Summary::new(memory.as_ptr(), len, 3) };
            let mut model = BTreeSet::new();
            let mut x = 12345u32;
            for _ in 0..20_000 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let n = (x >> 8) % len;
                match x & 3 {
                    0 | 1 => {
                        set.insert(1, n);
                        model.insert(n);
                    }
                    2 => {
                        set.remove(1, n);
                        model.remove(&n);
                    }
                    _ => assert_eq!(set.next(1, n), model.range(n..).next().copied()),
                }
            }
            assert_eq!(set.next(0, 0), None);
            assert_eq!(set.next(2, 0), None);
        }
    }
}
