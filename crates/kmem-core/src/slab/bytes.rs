//! Filling and comparing the bytes of objects. For small ones this takes a few wide instructions
//! that overlap in the middle, instead of a call of `memset`, which takes longer.

/// Up to this number of bytes no function is called.
const SMALL: usize = 128;

/// `byte` in each byte of a wide word.
const fn wide(byte: u8) -> u128 {
    u128::from_ne_bytes([byte; 16])
}

/// Writes `byte` to all of `len` bytes.
///
/// # Safety
/// The memory may be written to, and the caller alone uses it. Its contents are not needed.
#[inline(always)]
pub unsafe fn fill(at: *mut u8, len: usize, byte: u8) {
    // SAFETY: `from + 16 <= len` in each call below, since its arm is for lengths that are at least
    // as long.
    let store = |from: usize| unsafe { at.add(from).cast::<u128>().write_unaligned(wide(byte)) };
    match len {
        0 => {}
        1..16 => {
            // SAFETY: that many bytes, by the contract.
            unsafe { fill_less(at, len, byte) }
        }
        16..=SMALL => {
            store(0);
            store(len - 16);
            if len > 32 {
                store(16);
                store(len - 32);
            }
            if len > 64 {
                store(32);
                store(48);
                store(len - 64);
                store(len - 48);
            }
        }
        // SAFETY: that many bytes, by the contract.
        _ => unsafe { at.write_bytes(byte, len) },
    }
}

/// [`fill`] for 1 to 15 bytes.
///
/// # Safety
/// See [`fill`].
#[inline(always)]
unsafe fn fill_less(at: *mut u8, len: usize, byte: u8) {
    let all = wide(byte);
    // SAFETY: `len` bytes, which two stores of at least half of them cover.
    unsafe {
        match len {
            8.. => {
                at.cast::<u64>().write_unaligned(all as u64);
                at.add(len - 8).cast::<u64>().write_unaligned(all as u64);
            }
            4.. => {
                at.cast::<u32>().write_unaligned(all as u32);
                at.add(len - 4).cast::<u32>().write_unaligned(all as u32);
            }
            _ => {
                at.write(byte);
                at.add(len / 2).write(byte);
                at.add(len - 1).write(byte);
            }
        }
    }
}

/// Returns whether all bytes are `byte`.
#[inline(always)]
pub fn are_all(bytes: &[u8], byte: u8) -> bool {
    let (at, len) = (bytes.as_ptr(), bytes.len());
    // SAFETY: `from + 16 <= len` in each call below, as in `fill`.
    let load = |from: usize| unsafe { at.add(from).cast::<u128>().read_unaligned() ^ wide(byte) };
    let other = match len {
        0..4 => return bytes.iter().all(|&found| found == byte),
        4..8 => {
            // SAFETY: at least 4 bytes.
            let load = |from| unsafe { at.add(from).cast::<u32>().read_unaligned() };
            u128::from((load(0) ^ wide(byte) as u32) | (load(len - 4) ^ wide(byte) as u32))
        }
        8..16 => {
            // SAFETY: at least 8 bytes.
            let load = |from| unsafe { at.add(from).cast::<u64>().read_unaligned() };
            u128::from((load(0) ^ wide(byte) as u64) | (load(len - 8) ^ wide(byte) as u64))
        }
        _ => {
            let mut other = load(0) | load(len - 16);
            if len > 32 {
                other |= load(16) | load(len - 32);
            }
            if len > 64 {
                other |= load(32) | load(48) | load(len - 64) | load(len - 48);
            }
            for from in (64..len.saturating_sub(64)).step_by(16) {
                other |= load(from);
            }
            other
        }
    };
    other == 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    #[test]
    fn exactly_the_bytes_asked_for_are_filled() {
        for len in 0..400 {
            let mut bytes = vec![1; len + 32];
            // SAFETY: bytes of the vector.
            unsafe { fill(bytes.as_mut_ptr().add(16), len, 7) };
            let right = |(at, &byte): (usize, &u8)| {
                byte == if (16..len + 16).contains(&at) { 7 } else { 1 }
            };
            assert!(bytes.iter().enumerate().all(right), "{len}");
        }
    }

    #[test]
    fn one_other_byte_is_found_at_any_place() {
        for len in 0..400 {
            let mut bytes = vec![7; len];
            assert!(are_all(&bytes, 7), "{len}");
            for at in 0..len {
                bytes[at] = 6;
                assert!(!are_all(&bytes, 7), "{at} of {len}");
                bytes[at] = 7;
            }
        }
    }
}
