//! Numbers that are random, but the same in each run.

/// The next number of a sequence (xorshift). `state` is not zero.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 11
}
