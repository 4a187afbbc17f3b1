//! A table of small numbers with a tree of maxima over it: one byte per index, eight to a word. It
//! finds the first index whose number is at least a given one, in one step per level.
//!
//! ```text
//! level 2 |  63  0  0  0  0  0  0  0                    maxima of the words below
//! level 1 |  12 63  0  7  0  0  0  0 | ..
//! level 0 |   0 12  3  0  0  0  0  0 | 63  1  .. | ..   the numbers
//! ```
//!
//! All eight bytes of a word are compared at once. A tree with summaries of free runs is also what
//! Go's page allocator searches (Knyszek and Clements, *Scaling the Go page allocator*, 2019). The
//! comparison of bytes in a word is that of Lamport (*Multiple byte processing with full-word
//! instructions*, 1975).
//!
//! Numbers are **hints**. A maximum may be too high for a while, and a search lowers it when it
//! finds out. But no number is lost: a thread that lowered a maximum reads the word below again.
//!
//! Several trees, called lanes, share one block of memory, so that the words for one index lie
//! beside each other. Words of the lowest three levels lie together for 512 numbers, the first
//! ones at the end of the block. So a small instance touches one page for all of it:
//!
//! ```text
//! | numbers 512 .. 1023, levels 2, 1, 0 | numbers 0 .. 511 | root | level 4 | level 3 |
//! ```
//!
//! Context: any. Lock-free; nothing here waits.

use crate::sync::{AtomicU64, Ordering, loom_fence};

/// Most levels: 8^11 numbers are more than a `u32` counts.
const LEVELS: usize = 11;
/// Levels of a section.
const LOW: usize = 3;
/// log2 of the numbers in a section.
const SECTION_SHIFT: u32 = 9;
/// Words of a section: one of level 2, eight of level 1, 64 of level 0.
const SECTION_WORDS: usize = 1 + 8 + 64;
/// First word of each level in a section.
const STARTS: [usize; LOW] = [9, 1, 0];

/// One in every byte.
const ONES: u64 = u64::MAX / 0xFF;
/// The highest bit of every byte.
const HIGH: u64 = ONES << 7;

/// The highest bit of each byte of `word` that is at least `least`.
const fn at_least(word: u64, least: u8) -> u64 {
    let least = ONES * least as u64;
    // The lower seven bits cannot borrow from the next byte.
    let low = (word | HIGH) - (least & !HIGH);
    (word & !least | !(word ^ least) & low) & HIGH
}

/// The largest byte of a word.
fn largest(word: u64) -> u8 {
    word.to_le_bytes().into_iter().fold(0, u8::max)
}

/// Byte `index % 8` of a word.
const fn byte(word: u64, index: u32) -> u8 {
    (word >> (index % 8 * 8)) as u8
}

/// The word with another byte `index % 8`.
const fn with_byte(word: u64, index: u32, value: u8) -> u64 {
    let shift = index % 8 * 8;
    word & !(0xFF << shift) | (value as u64) << shift
}

/// Words of one lane at a level of a tree of `len` numbers.
const fn words_at(len: u32, level: usize) -> usize {
    let (mut words, mut at) = (len.div_ceil(8) as usize, 0);
    while at < level {
        words = words.div_ceil(8);
        at += 1;
    }
    words
}

/// Levels of a tree of `len` numbers.
const fn depth_for(len: u32) -> usize {
    let mut depth = 1;
    while words_at(len, depth - 1) > 1 {
        depth += 1;
    }
    depth
}

/// Words of memory that `lanes` trees of `len` numbers take.
pub const fn words_for(len: u32, lanes: u32) -> usize {
    let mut words = len.div_ceil(1 << SECTION_SHIFT) as usize * SECTION_WORDS;
    let mut level = LOW;
    while level < depth_for(len) {
        words += words_at(len, level);
        level += 1;
    }
    words * lanes as usize
}

/// A view of a block of trees, see [`words_for`].
///
/// # Invariants
/// The block is valid for as long as the view is used. `sections` is the end of the sections in it;
/// from level [`LOW`] up to `depth`, `upper` has the start of each level.
#[derive(Clone, Copy)]
pub struct Maxima {
    sections: *const AtomicU64,
    upper: [*const AtomicU64; LEVELS - LOW],
    depth: usize,
    len: u32,
    lanes: u32,
}

// SAFETY: the view points to atomics that are valid in every thread, by the invariant.
unsafe impl Send for Maxima {}
// SAFETY: all access is atomic.
unsafe impl Sync for Maxima {}

impl Maxima {
    /// Views zeroed memory as trees of zeroes.
    ///
    /// # Safety
    /// `at` is valid for [`words_for`]`(len, lanes)` words for as long as the view is used. The
    /// words are used only through views of this shape.
    pub unsafe fn new(at: *const AtomicU64, len: u32, lanes: u32) -> Self {
        let sections = len.div_ceil(1 << SECTION_SHIFT) as usize * SECTION_WORDS * lanes as usize;
        // The parts lie inside the block, by the sum in `words_for`.
        let mut next = at.wrapping_add(sections);
        let depth = depth_for(len);
        let mut upper = [core::ptr::null(); LEVELS - LOW];
        for level in (LOW..depth).rev() {
            upper[level - LOW] = next;
            next = next.wrapping_add(words_at(len, level) * lanes as usize);
        }
        // INVARIANT: the block has these parts, by the contract.
        Self { sections: at.wrapping_add(sections), upper, depth, len, lanes }
    }

    /// Word `index` of a level, of the tree of `lane`.
    #[inline]
    fn word(&self, level: usize, index: u32, lane: u32) -> &AtomicU64 {
        debug_assert!(lane < self.lanes && (index as usize) < words_at(self.len, level));
        let at = if level < LOW {
            let shift = 3 * (LOW - 1 - level) as u32;
            let section = ((index >> shift) * self.lanes + lane + 1) as usize;
            let inside = STARTS[level] + (index & ((1 << shift) - 1)) as usize;
            self.sections.wrapping_sub(section * SECTION_WORDS).wrapping_add(inside)
        } else {
            self.upper[level - LOW].wrapping_add((index * self.lanes + lane) as usize)
        };
        // SAFETY: a word of the block, by the invariant: callers pass an index below the level's
        // length.
        unsafe { &*at }
    }

    /// The number at `n`.
    #[inline]
    pub fn get(&self, lane: u32, n: u32) -> u8 {
        loom_fence();
        // Sequentially consistent: see `lower`.
        byte(self.word(0, n / 8, lane).load(Ordering::SeqCst), n)
    }

    /// Makes the number at `n` at least `value`.
    pub fn raise(&self, lane: u32, n: u32, value: u8) {
        debug_assert!(n < self.len);
        self.raise_from(0, n, lane, value);
    }

    /// Makes node `n` below `level` and its ancestors at least `value`.
    fn raise_from(&self, level: usize, n: u32, lane: u32, value: u8) {
        let mut n = n;
        for level in level..self.depth {
            let word = self.word(level, n / 8, lane);
            loom_fence();
            let mut seen = word.load(Ordering::SeqCst);
            loop {
                if byte(seen, n) >= value {
                    return;
                }
                // Sequentially consistent with `settle`. Either it sees this byte when it reads the
                // word again, or this thread sees the maximum that it lowered.
                let next = with_byte(seen, n, value);
                match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => break,
                    Err(now) => seen = now,
                }
            }
            n /= 8;
        }
    }

    /// Makes the number at `n` at most `value`. Returns whether it was larger.
    ///
    /// The caller computed `value` from its own data a moment ago. It must look at the data again
    /// afterwards, and raise the number if that asks for more. A thread that changes the data and
    /// then finds the number large enough relies on this. Both sides are sequentially consistent.
    pub fn lower(&self, lane: u32, n: u32, value: u8) -> bool {
        let word = self.word(0, n / 8, lane);
        let mut seen = word.load(Ordering::SeqCst);
        loop {
            if byte(seen, n) <= value {
                return false;
            }
            let next = with_byte(seen, n, value);
            match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        self.settle(1, n / 8, lane);
        true
    }

    /// Lowers the maximum of word `n` below `level` and those above to what they should be.
    fn settle(&self, level: usize, n: u32, lane: u32) {
        let mut n = n;
        for level in level..self.depth {
            let (below, word) = (self.word(level - 1, n, lane), self.word(level, n / 8, lane));
            loop {
                let most = largest(below.load(Ordering::SeqCst));
                let seen = word.load(Ordering::SeqCst);
                if byte(seen, n) <= most {
                    return;
                }
                let next = with_byte(seen, n, most);
                if word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    continue;
                }
                loom_fence();
                let now = largest(below.load(Ordering::SeqCst));
                if now > most {
                    self.raise_from(level, n, lane, now);
                    return;
                }
                break;
            }
            n /= 8;
        }
    }

    /// The smallest index, not below `from`, with a number of at least `least` (not 0).
    pub fn next(&self, lane: u32, from: u32, least: u8) -> Option<u32> {
        debug_assert!(least > 0);
        if from >= self.len {
            return None;
        }
        let (mut n, mut level, mut came_down) = (from, 0, false);
        loop {
            let word = self.word(level, n / 8, lane).load(Ordering::Acquire);
            let found = at_least(word, least) & (u64::MAX << (n % 8 * 8));
            if found == 0 {
                if came_down {
                    // The maximum above was too high.
                    self.settle(level + 1, n / 8, lane);
                }
                // Go up to the lowest level that has a later sibling.
                level += 1;
                n = n / 8 + 1;
                came_down = false;
                if level >= self.depth || n as usize >= words_at(self.len, level - 1) {
                    return None;
                }
                continue;
            }
            n = n / 8 * 8 + found.trailing_zeros() / 8;
            if level == 0 {
                return (n < self.len).then_some(n);
            }
            level -= 1;
            n *= 8;
            came_down = true;
        }
    }

    /// Returns whether all maxima above `n` are at least the number at `n`, so that searches find
    /// it. For a tree that no thread changes.
    pub fn is_found(&self, lane: u32, n: u32) -> bool {
        let (value, mut n) = (self.get(lane, n), n);
        (1..self.depth).all(|level| {
            n /= 8;
            byte(self.word(level, n / 8, lane).load(Ordering::Relaxed), n) >= value
        })
    }

    /// Computes the maxima over the first `below` numbers again, in a tree that no other thread
    /// uses. Writes only what changes.
    pub fn mend(&self, below: u32) {
        for level in 1..self.depth {
            for n in 0..words_at(below.min(self.len), level - 1) as u32 {
                for lane in 0..self.lanes {
                    let most = largest(self.word(level - 1, n, lane).load(Ordering::Relaxed));
                    let word = self.word(level, n / 8, lane);
                    let seen = word.load(Ordering::Relaxed);
                    if byte(seen, n) != most {
                        word.store(with_byte(seen, n, most), Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn bytes_are_compared_without_regard_to_their_neighbours() {
        for x in 0..=255u8 {
            for y in 0..=255u8 {
                for neighbour in [0, 1, 0x7F, 0x80, 0xFF] {
                    let word = u64::from_le_bytes([neighbour, x, neighbour, x, x, neighbour, x, x]);
                    let expected: u64 = word
                        .to_le_bytes()
                        .iter()
                        .enumerate()
                        .map(|(i, &byte)| u64::from(byte >= y) << (i * 8 + 7))
                        .sum();
                    assert_eq!(at_least(word, y), expected, "{x} {y} {neighbour}");
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Raise(u32, u32, u8),
        Lower(u32, u32, u8),
        Next(u32, u32, u8),
        /// Puts a wrong maximum in place, and mends the tree.
        Mend(u32, u32, u8),
    }

    fn step(len: u32) -> impl Strategy<Value = Step> {
        // Some of them at one end, where words have neighbours.
        let n = move || prop_oneof![0..len, 0..len.min(9), len.saturating_sub(9)..len];
        prop_oneof![
            8 => (0..2u32, n(), any::<u8>()).prop_map(|(lane, n, v)| Step::Raise(lane, n, v)),
            6 => (0..2u32, n(), any::<u8>()).prop_map(|(lane, n, v)| Step::Lower(lane, n, v / 2)),
            8 => (0..2u32, n(), 1..=255u8).prop_map(|(lane, n, v)| Step::Next(lane, n, v)),
            1 => (0..2u32, n(), any::<u8>()).prop_map(|(lane, n, v)| Step::Mend(lane, n, v)),
        ]
    }

    fn steps() -> impl Strategy<Value = (u32, Vec<Step>)> {
        let len = prop_oneof![1..20u32, 500..520u32, 4090..4100u32, 30_000..40_000u32];
        len.prop_flat_map(|len| (Just(len), prop::collection::vec(step(len), 1..200)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn agrees_with_a_plain_table((len, steps) in steps()) {
            // Words on both sides, which no step may write to.
            let words = words_for(len, 2);
            let memory: Vec<AtomicU64> =
                (0..words + 2).map(|_| AtomicU64::new(0)).collect();
            // SAFETY: the vector has the right length and outlives the view.
            let tree = unsafe { Maxima::new(memory[1..].as_ptr(), len, 2) };
            let mut model = [std::vec![0u8; len as usize], std::vec![0u8; len as usize]];
            for step in steps {
                match step {
                    Step::Raise(lane, n, value) => {
                        tree.raise(lane, n, value);
                        let number = &mut model[lane as usize][n as usize];
                        *number = value.max(*number);
                    }
                    Step::Lower(lane, n, value) => {
                        let number = &mut model[lane as usize][n as usize];
                        prop_assert_eq!(tree.lower(lane, n, value), *number > value);
                        *number = value.min(*number);
                    }
                    Step::Next(lane, from, least) => {
                        let found = model[lane as usize][from as usize..].iter();
                        let found = found.zip(from..).find(|(number, _)| **number >= least);
                        prop_assert_eq!(tree.next(lane, from, least), found.map(|(_, n)| n));
                    }
                    Step::Mend(lane, n, value) => {
                        if tree.depth > 1 {
                            let (word, n) = (tree.word(1, n / 64, lane), n / 8);
                            let wrong = with_byte(word.load(Ordering::Relaxed), n, value);
                            word.store(wrong, Ordering::Relaxed);
                        }
                        tree.mend(len);
                    }
                }
            }
            for (lane, numbers) in model.iter().enumerate() {
                for (n, &number) in (0..).zip(numbers) {
                    prop_assert_eq!(tree.get(lane as u32, n), number);
                    prop_assert!(tree.is_found(lane as u32, n));
                }
            }
            prop_assert_eq!(memory[0].load(Ordering::Relaxed), 0);
            prop_assert_eq!(memory[words + 1].load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_maximum_that_is_too_high_is_lowered_by_a_search() {
        let memory: Vec<AtomicU64> = (0..words_for(64, 1)).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the vector has the right length and outlives the view.
        let tree = unsafe { Maxima::new(memory.as_ptr(), 64, 1) };
        tree.raise(0, 63, 5);
        // A thread that raised a number late, which another one has lowered since.
        tree.raise_from(1, 2, 0, 9);
        assert_eq!(tree.next(0, 0, 7), None);
        assert_eq!(tree.word(1, 0, 0).load(Ordering::Relaxed), 5 << 56);
        assert_eq!(tree.next(0, 0, 5), Some(63));
    }
}
