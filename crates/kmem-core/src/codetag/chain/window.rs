//! Words of another stack than the thread's own, which may be gone at any time.

use crate::os::Platform;

/// Bytes that are read at once.
const WINDOW: usize = 512;

/// Words of a stack that may be gone at any time, copied in parts.
pub(super) struct Window<'a, P> {
    platform: &'a P,
    bytes: [u8; WINDOW],
    /// Address of the copy.
    at: usize,
    /// Bytes that could be read.
    len: usize,
}

impl<'a, P: Platform> Window<'a, P> {
    pub(super) fn new(platform: &'a P) -> Self {
        Self { platform, bytes: [0; WINDOW], at: 0, len: 0 }
    }

    pub(super) fn word(&mut self, at: usize) -> Option<usize> {
        if !at.is_multiple_of(8) {
            return None;
        }
        let is_in = |window: &Self| at >= window.at && at - window.at + 8 <= window.len;
        if !is_in(self) {
            self.at = at;
            self.len = self.platform.peek(at, &mut self.bytes);
            if !is_in(self) {
                return None;
            }
        }
        let bytes = self.bytes.get(at - self.at..)?.first_chunk()?;
        Some(usize::from_ne_bytes(*bytes))
    }
}
