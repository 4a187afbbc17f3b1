//! Compressed modules: gzip, xz and zstd.
//!
//! A packed source is expanded twice at least: once to learn its length and that it is whole, with nothing kept,
//! and again for what is read of it. So a file whose module turns out to be there already costs no more memory
//! than one that is not compressed, beside the decoder's own (at most [`MAX_DICTIONARY`]).

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Read};

use crate::error::{Errno, Error, Result};
use crate::os::{Account, Buffer};
use crate::source::{ReadAt, Source};

/// Most bytes of history that a file may ask a decoder to keep.
pub const MAX_DICTIONARY: u64 = 8 << 20;
/// A decoder for xz takes a little more than its dictionary.
const XZ_MEMORY: u64 = MAX_DICTIONARY + (1 << 20);
/// Bytes that are read at once.
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
    /// The format of a file that begins like this.
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

/// A source as a stream.
struct Stream<'a> {
    source: Source<'a>,
    account: Account,
    at: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = (self.source.len() - self.at).min(into.len() as u64) as usize;
        self.source
            .read(&self.account, self.at, &mut into[..len], "the compressed file")
            .map_err(|e| io::Error::from_raw_os_error(e.errno.0))?;
        self.at += len as u64;
        Ok(len)
    }
}

type Input<'a> = BufReader<Stream<'a>>;

enum Decoder<'a> {
    Gzip(flate2::bufread::GzDecoder<Input<'a>>),
    Xz(liblzma::bufread::XzDecoder<Input<'a>>),
    Zstd(zstd::stream::read::Decoder<'a, Input<'a>>),
}

impl<'a> Decoder<'a> {
    fn new(format: Format, source: Source<'a>, account: &Account) -> io::Result<Self> {
        let stream = Stream { source, account: account.clone(), at: 0 };
        let input = BufReader::with_capacity(CHUNK, stream);
        Ok(match format {
            Format::Gzip => Self::Gzip(flate2::bufread::GzDecoder::new(input)),
            Format::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, 0)?;
                Self::Xz(liblzma::bufread::XzDecoder::new_stream(input, stream))
            }
            Format::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?.single_frame();
                decoder.window_log_max(MAX_DICTIONARY.ilog2())?;
                Self::Zstd(decoder)
            }
        })
    }

    /// Whether nothing follows what was decompressed.
    fn is_at_end(&mut self) -> io::Result<bool> {
        let input = match self {
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Xz(decoder) => decoder.get_mut(),
            Self::Zstd(decoder) => decoder.get_mut(),
        };
        Ok(input.fill_buf()?.is_empty())
    }
}

impl Read for Decoder<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(into),
            Self::Xz(decoder) => decoder.read(into),
            Self::Zstd(decoder) => decoder.read(into),
        }
    }
}

/// A compressed source.
pub struct Packed<'a> {
    format: Format,
    source: Source<'a>,
    len: u64,
    /// Where a decoder stands that has begun.
    open: RefCell<Option<(Decoder<'a>, u64)>>,
}

impl<'a> Packed<'a> {
    /// Expands a source once, to see that it is whole.
    ///
    /// # Errors
    /// `EIO` for one that is damaged, cut off, or followed by something; `E2BIG` for more than `most` bytes;
    /// `EOPNOTSUPP` for a format there is no decoder for; `ENOMEM`.
    pub fn open(source: Source<'a>, account: &Account, most: u64) -> Result<Self> {
        let mut start = [0; 6];
        let len = source.len().min(6) as usize;
        source.read(account, 0, &mut start[..len], "the compressed file")?;
        let format = Format::of(&start[..len])
            .ok_or_else(|| Error::new(Errno::EOPNOTSUPP, "not compressed with gzip, xz or zstd"))?;
        let mut decoder = Decoder::new(format, source, account).map_err(|e| error(format, &e))?;
        let mut len = 0;
        let mut chunk = [0; CHUNK];
        loop {
            let got = decoder.read(&mut chunk).map_err(|e| error(format, &e))?;
            if got == 0 {
                break;
            }
            len += got as u64;
            if len > most {
                return Err(Error::new(
                    Errno::E2BIG,
                    format!("{format:?}: expands to more than {most} bytes"),
                ));
            }
        }
        if !decoder.is_at_end().map_err(|e| error(format, &e))? {
            let what = format!("{format:?}: something follows the compressed data");
            return Err(Error::new(Errno::EIO, what));
        }
        Ok(Self { format, source, len, open: RefCell::new(None) })
    }

    /// All that it expands to.
    ///
    /// # Errors
    /// As for [`Packed::open`], for the file may have changed; `ENOMEM`.
    pub fn expand(&self, account: &Account) -> Result<Buffer> {
        let mut buffer = account.buffer(self.len, "the decompressed module")?;
        self.read(account, 0, &mut buffer)?;
        self.open.take();
        Ok(buffer)
    }
}

/// Going back starts over.
impl ReadAt for Packed<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, account: &Account, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut open = self.open.borrow_mut();
        let (mut decoder, mut at) = match open.take() {
            Some((decoder, at)) if at <= offset => (decoder, at),
            _ => {
                let decoder = Decoder::new(self.format, self.source, account);
                (decoder.map_err(|e| error(self.format, &e))?, 0)
            }
        };
        let mut chunk = [0; CHUNK];
        while at < offset {
            let most = (offset - at).min(CHUNK as u64) as usize;
            let got = decoder.read(&mut chunk[..most]).map_err(|e| error(self.format, &e))?;
            if got == 0 {
                return Err(error(self.format, &io::ErrorKind::UnexpectedEof.into()));
            }
            at += got as u64;
        }
        decoder.read_exact(into).map_err(|e| error(self.format, &e))?;
        *open = Some((decoder, at + into.len() as u64));
        Ok(())
    }
}

fn error(format: Format, error: &io::Error) -> Error {
    let errno = match error.raw_os_error() {
        Some(errno) => Errno(errno),
        None if error.kind() == io::ErrorKind::OutOfMemory => Errno::ENOMEM,
        None => Errno::EIO,
    };
    Error::new(errno, format!("{format:?}: {error}"))
}
