//! Sources of a module's bytes: memory, or a file that is read piece by piece.
//!
//! Each piece of a file is copied once, and the copy is checked. So a file that changes during the
//! load gives another module or an error, never unchecked bytes. Memory of the caller is not
//! copied.

use std::ops::Deref;
use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::os::{Account, Buffer};

/// Bytes that can be read from any offset.
pub trait ReadAt {
    /// Number of bytes.
    fn len(&self) -> u64;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on. The caller has checked that they exist.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read(&self, account: &Account, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// A module's bytes.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// A regular file, and its length in bytes.
    File(BorrowedFd<'a>, u64),
    /// A compressed source.
    Packed(&'a (dyn ReadAt + 'a)),
}

/// A piece of a source.
pub enum Part<'a> {
    /// Bytes in memory.
    Borrowed(&'a [u8]),
    /// A copy, read from a file.
    Read(Buffer),
}

impl Deref for Part<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Read(buffer) => buffer,
        }
    }
}

impl<'a> Source<'a> {
    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, len) => *len,
            Self::Packed(packed) => packed.len(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on. `of` names them in an error.
    ///
    /// # Errors
    /// `ENOEXEC`: they are behind the end; the error of a read.
    pub fn read(&self, account: &Account, offset: u64, into: &mut [u8], of: &str) -> Result<()> {
        let len = into.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(past_end(offset, len, self.len(), of));
        }
        match self {
            Self::Bytes(bytes) => {
                let from = offset as usize;
                into.copy_from_slice(&bytes[from..from + into.len()]);
                Ok(())
            }
            Self::File(file, _) => {
                let mut done = 0;
                while done < into.len() {
                    let at = offset + done as u64;
                    let got = account
                        .os()
                        .read_at(*file, &mut into[done..], at)
                        .map_err(|e| Error::io(format_args!("reading {of} at {at:#x}"), &e))?;
                    if got == 0 {
                        return Err(past_end(at, (into.len() - done) as u64, at, of));
                    }
                    done += got;
                }
                Ok(())
            }
            Self::Packed(packed) => packed.read(account, offset, into),
        }
    }

    /// Borrows or reads `len` bytes at `offset`. `of` names them in an error.
    ///
    /// # Errors
    /// Those of [`Source::read`]; `ENOMEM`.
    pub fn part(&self, account: &Account, offset: u64, len: u64, of: &str) -> Result<Part<'a>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(past_end(offset, len, self.len(), of));
        }
        match self {
            Self::Bytes(bytes) => {
                Ok(Part::Borrowed(&bytes[offset as usize..(offset + len) as usize]))
            }
            Self::File(..) | Self::Packed(_) => {
                let mut buffer = account.buffer(len, of)?;
                self.read(account, offset, &mut buffer, of)?;
                Ok(Part::Read(buffer))
            }
        }
    }
}

fn past_end(offset: u64, len: u64, end: u64, of: &str) -> Error {
    Error::noexec(format_args!(
        "{of}: {len} bytes at {offset:#x} are past the end of the file at {end:#x}"
    ))
}

/// Bytes of a window: memory for a file before the module's name is known to be new.
pub const WINDOW: u64 = 64 << 10;

/// A source that is read through a buffer of at most [`WINDOW`] bytes.
pub struct Window<'a> {
    source: Source<'a>,
    buffer: Option<Buffer>,
    start: u64,
    filled: u64,
}

impl<'a> Window<'a> {
    /// Makes a window over a source. Bytes in memory need no buffer.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(source: Source<'a>, account: &Account) -> Result<Self> {
        let buffer = match source {
            Source::Bytes(_) => None,
            _ => Some(account.buffer(source.len().min(WINDOW), "the window")?),
        };
        Ok(Self { source, buffer, start: 0, filled: 0 })
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> Source<'a> {
        self.source
    }

    /// Returns `len` bytes at `offset`. `of` names them in an error.
    ///
    /// # Errors
    /// Those of [`Source::read`]; `E2BIG`: they are more than a window.
    pub fn bytes(&mut self, account: &Account, offset: u64, len: u64, of: &str) -> Result<&[u8]> {
        let source = self.source;
        let end = offset.checked_add(len).filter(|&end| end <= source.len());
        let Some(end) = end else {
            return Err(past_end(offset, len, source.len(), of));
        };
        let Some(buffer) = &mut self.buffer else {
            let Source::Bytes(bytes) = source else {
                return Err(past_end(offset, len, 0, of));
            };
            return Ok(&bytes[offset as usize..end as usize]);
        };
        if len > buffer.len() as u64 {
            return Err(Error::new(
                crate::error::Errno::E2BIG,
                format_args!("{of}: {len} bytes are more than the window of {}", buffer.len()),
            ));
        }
        if offset < self.start || end > self.start + self.filled {
            self.filled = 0;
            let fill = (source.len() - offset).min(buffer.len() as u64);
            source.read(account, offset, &mut buffer[..fill as usize], of)?;
            (self.start, self.filled) = (offset, fill);
        }
        let from = (offset - self.start) as usize;
        Ok(&buffer[from..from + len as usize])
    }

    /// Returns up to `most` bytes at `offset`, limited by the window.
    ///
    /// # Errors
    /// Those of [`Source::read`].
    pub fn some(&mut self, account: &Account, offset: u64, most: u64, of: &str) -> Result<&[u8]> {
        let room = self.buffer.as_ref().map_or(WINDOW, |buffer| buffer.len() as u64);
        self.bytes(account, offset, most.min(room), of)
    }
}
