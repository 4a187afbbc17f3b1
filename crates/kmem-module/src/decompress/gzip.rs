//! The decoder of gzip: one member (RFC 1952).

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

use super::{Decoded, Failure, Input};
use crate::alloc;
use crate::error::Result;

/// Bytes of history that a stream may refer to (RFC 1951).
const HISTORY: usize = 32 << 10;
/// Most bytes of a name, a comment or an extra field.
const MAX_FIELD: usize = 64 << 10;

/// Bits of the header's flags.
mod flag {
    pub(super) const HEADER_CRC: u8 = 1 << 1;
    pub(super) const EXTRA: u8 = 1 << 2;
    pub(super) const NAME: u8 = 1 << 3;
    pub(super) const COMMENT: u8 = 1 << 4;
    pub(super) const RESERVED: u8 = 0xe0;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Body,
    Finished,
}

/// A decoder over an input.
pub(super) struct Gzip<'a> {
    pub(super) input: Input<'a>,
    state: State,
    /// One decoder, in a list because its allocation can fail.
    inflate: Vec<DecompressorOxide>,
    history: Vec<u8>,
    /// Place of the next byte in the history.
    at: usize,
    /// Bytes before that place that are not read yet.
    ready: usize,
    last: bool,
    crc: crc32fast::Hasher,
    len: u32,
}

impl<'a> Gzip<'a> {
    pub(super) fn new(input: Input<'a>) -> Result<Self> {
        let mut inflate = alloc::list(1)?;
        inflate.push(DecompressorOxide::new());
        let mut history = alloc::list(HISTORY)?;
        history.resize(HISTORY, 0);
        let (state, crc) = (State::Header, crc32fast::Hasher::new());
        Ok(Self { input, state, inflate, history, at: 0, ready: 0, last: false, crc, len: 0 })
    }

    fn header(&mut self) -> Decoded<()> {
        let mut crc = crc32fast::Hasher::new();
        let fixed = self.input.take::<10>()?;
        crc.update(&fixed);
        let [0x1f, 0x8b, 8, flags, ..] = fixed else {
            return Err(Failure::Damaged("no gzip header"));
        };
        if flags & flag::RESERVED != 0 {
            return Err(Failure::Damaged("reserved flags are set"));
        }
        let mut byte = || -> Decoded<u8> {
            let one = self.input.take::<1>()?;
            crc.update(&one);
            Ok(one[0])
        };
        if flags & flag::EXTRA != 0 {
            let len = u16::from_le_bytes([byte()?, byte()?]);
            for _ in 0..len {
                byte()?;
            }
        }
        for field in [flag::NAME, flag::COMMENT] {
            if flags & field == 0 {
                continue;
            }
            let mut len = 0;
            while byte()? != 0 {
                len += 1;
                if len > MAX_FIELD {
                    return Err(Failure::Damaged("a name or comment is too long"));
                }
            }
        }
        if flags & flag::HEADER_CRC != 0 {
            let stored = self.input.take::<2>()?;
            if u16::from_le_bytes(stored) != crc.finalize() as u16 {
                return Err(Failure::Damaged("the header's checksum is wrong"));
            }
        }
        Ok(())
    }

    /// Decompresses further bytes, after all earlier ones were read.
    fn fill(&mut self) -> Decoded<()> {
        let from = self.input.fill()?;
        let at_end = from.is_empty();
        let more = if at_end { 0 } else { inflate_flags::TINFL_FLAG_HAS_MORE_INPUT };
        let (status, used, made) =
            decompress(&mut self.inflate[0], from, &mut self.history, self.at, more);
        self.input.consume(used);
        let new = &self.history[self.at..self.at + made];
        self.crc.update(new);
        self.len = self.len.wrapping_add(made as u32);
        self.ready = made;
        self.at = (self.at + made) % HISTORY;
        match status {
            TINFLStatus::Done => self.last = true,
            TINFLStatus::HasMoreOutput => {}
            TINFLStatus::NeedsMoreInput if !at_end => {}
            TINFLStatus::NeedsMoreInput | TINFLStatus::FailedCannotMakeProgress => {
                return Err(Failure::CutOff);
            }
            _ => return Err(Failure::Damaged("the compressed data is damaged")),
        }
        Ok(())
    }

    fn trailer(&mut self) -> Decoded<()> {
        let stored = self.input.take::<8>()?;
        let expected = [self.crc.clone().finalize().to_le_bytes(), self.len.to_le_bytes()];
        if stored[..] != *expected.as_flattened() {
            return Err(Failure::Damaged("checksum or length are wrong"));
        }
        Ok(())
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Decoded<usize> {
        if self.state == State::Header {
            self.header()?;
            self.state = State::Body;
        }
        while self.state == State::Body && !into.is_empty() {
            if self.ready > 0 {
                let start = (self.at + HISTORY - self.ready) % HISTORY;
                let len = self.ready.min(into.len());
                into[..len].copy_from_slice(&self.history[start..start + len]);
                self.ready -= len;
                return Ok(len);
            }
            if self.last {
                self.trailer()?;
                self.state = State::Finished;
            } else {
                self.fill()?;
            }
        }
        Ok(0)
    }
}
