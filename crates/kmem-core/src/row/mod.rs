//! The row: an `AtomicU64` in which a 1 bit is a free thing.
//!
//! Taking a thing clears its bit, returning it sets the bit. The second of two returns of a thing
//! finds the bit set: this alone catches double frees.
//!
//! Context: any. Lock-free; nothing here waits.

use crate::sync::{AtomicU64, Ordering};

pub mod maxima;
pub mod summary;

/// 64 things, each free or taken.
#[repr(transparent)]
pub struct Row(pub AtomicU64);

/// Mask of the bits `start..start + len` of a row; `len` is from 1 to 64.
#[inline]
pub const fn span(start: u32, len: u32) -> u64 {
    (u64::MAX >> (64 - len)) << start
}

/// Runs of set bits, lowest first, as (start, length).
#[inline]
pub fn runs(bits: u64) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = bits;
    core::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let start = rest.trailing_zeros();
        let len = (!(rest >> start)).trailing_zeros().min(64 - start);
        rest &= !span(start, len);
        Some((start, len))
    })
}

/// Start of the lowest run of `len` free things that begins at a multiple of `align` (a power of
/// two). `None`: there is no such run.
#[inline]
pub const fn find_run(bits: u64, len: u32, align: u32) -> Option<u32> {
    let starts = starts(bits, len, align);
    if starts == 0 { None } else { Some(starts.trailing_zeros()) }
}

/// Starts, as bits, of all runs of `len` free things that begin at a multiple of `align` (a power
/// of two).
#[inline]
pub const fn starts(bits: u64, len: u32, align: u32) -> u64 {
    // Bit i of `starts`: a run of `have` things begins at i.
    let mut starts = bits;
    let mut have = 1;
    while have < len {
        let step = if len - have < have { len - have } else { have };
        starts &= starts >> step;
        have += step;
    }
    let order = align.trailing_zeros();
    starts & ALIGNED[if order < 6 { order as usize } else { 6 }]
}

/// For each order up to that of a row, one bit set at every multiple of 2^order.
const ALIGNED: [u64; 7] = {
    let mut aligned = [u64::MAX; 7];
    let mut order = 1;
    while order < 7 {
        aligned[order] = if order == 6 { 1 } else { u64::MAX / ((1 << (1 << order)) - 1) };
        order += 1;
    }
    aligned
};

impl Row {
    /// Reads the bits of the free things.
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes up to `limit` of the lowest free things. Returns their bits.
    ///
    /// Takes no thing that it does not keep, not even for a moment: other threads, which hold
    /// credit for the rest, always find it.
    #[inline]
    pub fn take(&self, limit: u32) -> u64 {
        let mut seen = self.load();
        while seen != 0 {
            let mut want = seen;
            while want.count_ones() > limit {
                want = lowest(want, limit);
            }
            // Acquire pairs with the release in `give`: the last owner's writes are visible.
            let got = self.0.fetch_and(!want, Ordering::Acquire) & want;
            if got != 0 {
                return got;
            }
            seen = self.load();
        }
        0
    }

    /// Takes all things of `mask`. False: one of them is not free, and none is taken.
    #[inline]
    pub fn take_exact(&self, mask: u64) -> bool {
        let mut seen = self.load();
        while seen & mask == mask {
            match self.0.compare_exchange_weak(
                seen,
                seen & !mask,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes the lowest run of `len` things that begins at a multiple of `align` (a power of two).
    /// Returns its start; `None`: there is no such run.
    #[inline]
    pub fn take_run(&self, len: u32, align: u32) -> Option<u32> {
        let mut seen = self.load();
        loop {
            let start = find_run(seen, len, align)?;
            let rest = seen & !span(start, len);
            match self.0.compare_exchange_weak(seen, rest, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(start),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes up to `limit` of the lowest blocks of `len` things (a power of two up to 32) that
    /// begin at a multiple of `len`. Returns the bit of the first thing of each.
    #[inline]
    pub fn take_blocks(&self, len: u32, limit: u32) -> u64 {
        let mut seen = self.load();
        loop {
            let found = starts(seen, len, len);
            if found == 0 {
                return 0;
            }
            let found = if found.count_ones() > limit { lowest(found, limit) } else { found };
            // Blocks do not overlap, so the product has no carries.
            let rest = seen & !(found * span(0, len));
            match self.0.compare_exchange_weak(seen, rest, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return found,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives the things of `mask` back. Returns the bits of those that were free already.
    #[inline]
    #[must_use]
    pub fn give(&self, mask: u64) -> u64 {
        self.0.fetch_or(mask, Ordering::Release) & mask
    }

    /// Gives the things of `mask` back, sequentially consistent for a thread that then looks for
    /// hints about the row. Returns the row as it was.
    #[inline]
    #[must_use]
    pub fn put(&self, mask: u64) -> u64 {
        self.0.fetch_or(mask, Ordering::SeqCst)
    }
}

/// The `count` lowest set bits of `bits`, which has at least that many.
const fn lowest(bits: u64, count: u32) -> u64 {
    // Binary search for the shortest prefix with `count` bits.
    let (mut low, mut high) = (0, 64);
    while low < high {
        let mid = (low + high) / 2;
        let prefix = if mid == 64 { bits } else { bits & ((1u64 << mid) - 1) };
        if prefix.count_ones() >= count {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    if low == 64 { bits } else { bits & ((1u64 << low) - 1) }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn find_run_agrees_with_a_plain_search() {
        let mut bits = 0x9E37_79B9_7F4A_7C15u64;
        for round in 0..2000 {
            bits = bits.rotate_left(7).wrapping_mul(0xD129_0B27) | bits >> 3;
            let bits = if round % 3 == 0 { bits | bits << 1 | bits >> 5 } else { bits };
            for align in [1, 2, 4, 8, 16, 32, 64] {
                for len in 1..=64 {
                    let plain = (0..64)
                        .step_by(align as usize)
                        .find(|&s| s + len <= 64 && bits & span(s, len) == span(s, len));
                    assert_eq!(find_run(bits, len, align), plain, "{bits:x} {len} {align}");
                }
            }
        }
    }

    #[test]
    fn lowest_takes_the_low_bits() {
        assert_eq!(lowest(0b1011, 2), 0b0011);
        assert_eq!(lowest(u64::MAX, 64), u64::MAX);
        assert_eq!(lowest(1 << 63 | 1, 2), 1 << 63 | 1);
        assert_eq!(lowest(0xF0, 0), 0);
    }

    #[test]
    fn runs_are_whole_and_in_order() {
        let found = |bits| runs(bits).collect::<std::vec::Vec<_>>();
        assert_eq!(found(0), []);
        assert_eq!(found(u64::MAX), [(0, 64)]);
        assert_eq!(found(1 << 63 | 0b1110_0101), [(0, 1), (2, 1), (5, 3), (63, 1)]);
    }

    #[test]
    fn a_second_return_is_seen() {
        let row = Row(AtomicU64::new(u64::MAX));
        assert_eq!(row.take(3), 0b111);
        assert_eq!(row.give(0b101), 0);
        assert_eq!(row.give(0b110), 0b100);
    }

    #[test]
    fn blocks_are_taken_whole_and_aligned() {
        let row = Row(AtomicU64::new(0xFF << 56 | 0b1111_0110_1100));
        assert_eq!(row.take_blocks(2, 2), 0b1_0000_0100);
        assert_eq!(row.load(), 0xFF << 56 | 0b1100_0110_0000);
        assert_eq!(row.take_blocks(4, 9), 1 << 60 | 1 << 56);
        assert_eq!(row.take_blocks(2, 9), 1 << 10);
        assert_eq!(row.take_blocks(2, 9), 0);
        assert_eq!(row.load(), 0b110_0000);
    }

    #[test]
    fn take_exact_is_all_or_nothing() {
        let row = Row(AtomicU64::new(0b1110));
        assert!(!row.take_exact(0b0011));
        assert_eq!(row.load(), 0b1110);
        assert!(row.take_exact(0b0110));
        assert_eq!(row.load(), 0b1000);
    }
}
