//! Pseudo-random numbers for shuffling. They are predictable, so no secret may depend on them.

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Prng;

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
