//! Random numbers for the workloads: reproducible, and equal for all allocators.

/// A xorshift64* generator: fast, and random enough to choose sizes and slots.
#[derive(Debug, Clone)]
pub(crate) struct Prng(u64);

impl Prng {
    /// Begins the sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        let span = (high - low + 1) as u128;
        low + ((u128::from(self.next()) * span) >> 64) as usize
    }

    /// Uniform on a logarithmic scale in `low..=high`: each doubling is equally likely.
    pub(crate) fn log_between(&mut self, low: usize, high: usize) -> usize {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let size = low as f64 * (high as f64 / low as f64).powf(unit);
        (size as usize).clamp(low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::Prng;

    #[test]
    fn stays_inside_its_bounds_and_reaches_them() {
        let mut prng = Prng::new(1);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[prng.between(3, 7) - 3] = true;
            assert!((64..=4096).contains(&prng.log_between(64, 4096)));
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let (mut a, mut b) = (Prng::new(9), Prng::new(9));
        assert!((0..100).all(|_| a.next() == b.next()));
    }
}
