//! A fast, seeded hash for keys that the program makes itself. An attacker who sees hashes can find
//! keys that collide.

use core::hash::{BuildHasher, Hasher};

/// Makes hashers from a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seeded(pub u64);

/// A hasher that multiplies each word into its state and folds the product.
#[derive(Clone, Copy, Debug)]
pub struct Folding(u64);

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

impl Folding {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(MULTIPLIER);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Folding {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        let mut word = [0; 8];
        let rest = chunks.remainder();
        word[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(word) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut last = *self;
        last.mix(MULTIPLIER);
        last.0
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;

    #[inline]
    fn build_hasher(&self) -> Folding {
        Folding(self.0 ^ 0x2545_F491_4F6C_DD1D)
    }
}
