//! Pseudo-random numbers for shuffling, and hashes of words. They are predictable, so no secret may
//! depend on them.

use crate::sync::{AtomicU64, Ordering, const_fn};

/// Xorshift (Marsaglia, 2003).
pub struct Prng(u64);

impl Prng {
    /// A generator with a seed, which may be any number.
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `bound`.
    pub const fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * bound as u64) >> 32) as u32
    }
}

/// A hash with a further word. Hashes of words that differ in one place differ.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// Seeds that differ from each other, of one number that a platform gives. Zeroed memory is a valid
/// value.
pub struct Seeds(AtomicU64);

impl Seeds {
    const_fn! {
        /// Seeds of the number 0.
        pub const fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Makes all further seeds those of `entropy`.
    pub fn start(&self, entropy: u64) {
        self.0.store(entropy, Ordering::Relaxed);
    }

    /// The next seed: SplitMix64 (Steele, Lea and Flood, 2014).
    pub fn next(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let seed = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let seed = (seed ^ seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let seed = (seed ^ seed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        seed ^ seed >> 31
    }
}

impl Default for Seeds {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Prng, Seeds};

    #[test]
    fn seeds_differ_from_each_other_and_follow_from_one_number() {
        let of = |entropy| {
            let seeds = Seeds::new();
            seeds.start(entropy);
            core::array::from_fn::<_, 100, _>(|_| seeds.next())
        };
        let mut all: Vec<u64> = (0..50).flat_map(of).collect();
        assert_eq!(of(7), of(7));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5000);
    }

    #[test]
    fn all_numbers_below_the_bound_come_up_and_no_other() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let mut seen = [0; 10];
            for _ in 0..1000 {
                seen[prng.below(10) as usize] += 1;
            }
            assert!(seen.iter().all(|&times| times > 10), "{seed}: {seen:?}");
        }
    }
}
