//! Fields of `repr(C)` records in copied bytes, by the offsets of their definition.

/// A `u16` at `offset`, or 0 past the end (callers check the record's size first).
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    let field = bytes.get(offset..).and_then(|b| b.first_chunk());
    field.map_or(0, |b| u16::from_le_bytes(*b))
}

/// A `u32` at `offset`, or 0 past the end (callers check the record's size first).
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let field = bytes.get(offset..).and_then(|b| b.first_chunk());
    field.map_or(0, |b| u32::from_le_bytes(*b))
}

/// A `u64` at `offset`, or 0 past the end (callers check the record's size first).
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let field = bytes.get(offset..).and_then(|b| b.first_chunk());
    field.map_or(0, |b| u64::from_le_bytes(*b))
}
