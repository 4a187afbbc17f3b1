//! Compressed modules: gzip, xz and zstd.
//!
//! A packed source is expanded at least twice. The first pass finds its length, checks it, and
//! keeps nothing; later passes read bytes of it. So a compressed duplicate needs only the memory of
//! the decoder (at most [`MAX_DICTIONARY`]) beyond that of an uncompressed one.

mod gzip;
mod xz;
mod zstd;

use std::cell::RefCell;
use std::ops::Range;

use self::gzip::Gzip;
use self::xz::Xz;
use self::zstd::Zstd;
use crate::alloc;
use crate::error::{Errno, Error, Result};
use crate::os::{Account, Buffer};
use crate::source::{ReadAt, Source};

/// Most bytes of history that a file may require of a decoder.
pub const MAX_DICTIONARY: u64 = 8 << 20;
/// Most bytes of one read.
const CHUNK: usize = 16 << 10;

/// A format of compressed modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// gzip.
    Gzip,
    /// xz.
    Xz,
    /// Zstandard.
    Zstd,
}

impl Format {
    /// The format of a file by its first bytes. `None`: it is not compressed.
    #[must_use]
    pub fn of(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A source as a stream, with a buffer.
struct Input<'a> {
    source: Source<'a>,
    account: Account,
    at: u64,
    buffer: Vec<u8>,
    /// Bytes in the buffer that are not consumed yet.
    ready: Range<usize>,
}

impl<'a> Input<'a> {
    fn new(source: Source<'a>, account: &Account) -> Result<Self> {
        let mut buffer = alloc::list(CHUNK)?;
        buffer.resize(CHUNK, 0);
        Ok(Self { source, account: account.clone(), at: 0, buffer, ready: 0..0 })
    }
}

/// The failure of a decoder.
enum Failure {
    /// The data is invalid.
    Damaged(&'static str),
    /// The data ends too early.
    CutOff,
    /// There is no memory for the decoder.
    NoMemory,
    /// The source cannot be read.
    Read(Error),
}

type Decoded<T> = std::result::Result<T, Failure>;

impl Input<'_> {
    /// Returns bytes that are not consumed yet; none at the end.
    fn fill(&mut self) -> Decoded<&[u8]> {
        if self.ready.is_empty() {
            let len = (self.source.len() - self.at).min(CHUNK as u64) as usize;
            let to = &mut self.buffer[..len];
            let read = self.source.read(&self.account, self.at, to, "the compressed file");
            read.map_err(Failure::Read)?;
            self.at += len as u64;
            self.ready = 0..len;
        }
        Ok(&self.buffer[self.ready.clone()])
    }

    fn consume(&mut self, bytes: usize) {
        self.ready.start += bytes;
    }

    /// Consumes the next `N` bytes.
    fn take<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = *self.fill()?.first().ok_or(Failure::CutOff)?;
            self.consume(1);
        }
        Ok(bytes)
    }
}

/// A decoder. Each reports a lack of memory as an error.
enum Decoder<'a> {
    Gzip(Gzip<'a>),
    Xz(Xz<'a>),
    Zstd(Zstd<'a>),
}

impl<'a> Decoder<'a> {
    fn new(format: Format, source: Source<'a>, account: &Account) -> Result<Self> {
        let input = Input::new(source, account)?;
        let failed = |failure| error(format, failure);
        Ok(match format {
            Format::Gzip => Self::Gzip(Gzip::new(input)?),
            Format::Xz => Self::Xz(Xz::new(input).map_err(failed)?),
            Format::Zstd => Self::Zstd(Zstd::new(input).map_err(failed)?),
        })
    }

    /// Returns whether the input ends behind the compressed data.
    fn is_at_end(&mut self) -> Decoded<bool> {
        let input = match self {
            Self::Gzip(decoder) => &mut decoder.input,
            Self::Xz(decoder) => &mut decoder.input,
            Self::Zstd(decoder) => &mut decoder.input,
        };
        Ok(input.fill()?.is_empty())
    }

    /// Fills a part of `into` with the next bytes, and returns their number; 0 at the end.
    fn read(&mut self, into: &mut [u8]) -> Decoded<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(into),
            Self::Xz(decoder) => decoder.read(into),
            Self::Zstd(decoder) => decoder.read(into),
        }
    }

    /// Fills all of `into`.
    fn read_exact(&mut self, into: &mut [u8]) -> Decoded<()> {
        let mut done = 0;
        while done < into.len() {
            match self.read(&mut into[done..])? {
                0 => return Err(Failure::CutOff),
                got => done += got,
            }
        }
        Ok(())
    }
}

/// A compressed source.
pub struct Packed<'a> {
    format: Format,
    source: Source<'a>,
    len: u64,
    /// A decoder and its offset in the expanded bytes, kept for the next read.
    open: RefCell<Option<(Decoder<'a>, u64)>>,
}

impl<'a> Packed<'a> {
    /// Expands a source once, to check it and find its length.
    ///
    /// # Errors
    /// `EIO`: it is damaged, cut off, or followed by other bytes; `E2BIG`: it expands to more than
    /// `most` bytes; `EOPNOTSUPP`: it has another format; `ENOMEM`; those of [`Source::read`].
    pub fn open(source: Source<'a>, account: &Account, most: u64) -> Result<Self> {
        let mut start = [0; 6];
        let len = source.len().min(6) as usize;
        source.read(account, 0, &mut start[..len], "the compressed file")?;
        let format = Format::of(&start[..len])
            .ok_or_else(|| Error::new(Errno::EOPNOTSUPP, "not compressed with gzip, xz or zstd"))?;
        let mut decoder = Decoder::new(format, source, account)?;
        let mut len = 0;
        let mut chunk = [0; CHUNK];
        loop {
            let got = decoder.read(&mut chunk).map_err(|e| error(format, e))?;
            if got == 0 {
                break;
            }
            len += got as u64;
            if len > most {
                return Err(Error::new(
                    Errno::E2BIG,
                    format_args!("{format:?}: expands to more than {most} bytes"),
                ));
            }
        }
        if !decoder.is_at_end().map_err(|e| error(format, e))? {
            let what = format_args!("{format:?}: something follows the compressed data");
            return Err(Error::new(Errno::EIO, what));
        }
        Ok(Self { format, source, len, open: RefCell::new(None) })
    }

    /// Expands the whole source.
    ///
    /// # Errors
    /// Those of [`Packed::open`], because the file may have changed.
    pub fn expand(&self, account: &Account) -> Result<Buffer> {
        let mut buffer = account.buffer(self.len, "the decompressed module")?;
        self.read(account, 0, &mut buffer)?;
        self.open.take();
        Ok(buffer)
    }
}

/// Reading at an offset before the last one expands the source from its start.
impl ReadAt for Packed<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, account: &Account, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut open = self.open.borrow_mut();
        let (mut decoder, mut at) = match open.take() {
            Some((decoder, at)) if at <= offset => (decoder, at),
            _ => (Decoder::new(self.format, self.source, account)?, 0),
        };
        let mut chunk = [0; CHUNK];
        while at < offset {
            let most = (offset - at).min(CHUNK as u64) as usize;
            let got = decoder.read(&mut chunk[..most]).map_err(|e| error(self.format, e))?;
            if got == 0 {
                return Err(error(self.format, Failure::CutOff));
            }
            at += got as u64;
        }
        decoder.read_exact(into).map_err(|e| error(self.format, e))?;
        *open = Some((decoder, at + into.len() as u64));
        Ok(())
    }
}

fn error(format: Format, failure: Failure) -> Error {
    let say = |errno, what: &str| Error::new(errno, format_args!("{format:?}: {what}"));
    match failure {
        Failure::Damaged(what) => say(Errno::EIO, what),
        Failure::CutOff => say(Errno::EIO, "it is cut off"),
        Failure::NoMemory => say(Errno::ENOMEM, "no memory for the decoder"),
        Failure::Read(error) => say(error.errno, &error.what),
    }
}
