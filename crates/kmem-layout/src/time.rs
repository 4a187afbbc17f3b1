//! The word that says when an allocation was made, with `age:1`: the time since the start in units
//! of [`UNIT_MS`], plus one. 0: it is not known.

/// Milliseconds of one unit. The words reach for two years.
pub const UNIT_MS: u64 = 16;

/// The word of a moment, by the milliseconds since the start.
#[must_use]
pub const fn word(ms: u64) -> u32 {
    let units = ms / UNIT_MS + 1;
    if units > u32::MAX as u64 { u32::MAX } else { units as u32 }
}
