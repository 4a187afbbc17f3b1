//! Where a module's bytes come from: memory, or a file that is read piece by piece.
//!
//! Each piece is copied once, and what was checked is the copy: a file that changes meanwhile gives another
//! module or an error, never an unchecked one. Memory belongs to the caller and is not copied.

use std::ops::Deref;
use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::os::{Account, Buffer};

/// What can be read anywhere.
pub trait ReadAt {
    /// Bytes in all.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` from `offset` on; the caller has checked that so much is there.
    ///
    /// # Errors
    /// Whatever keeps it from being read.
    fn read(&self, account: &Account, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// A module's bytes.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// In memory.
    Bytes(&'a [u8]),
    /// In a regular file of so many bytes.
    File(BorrowedFd<'a>, u64),
    /// Compressed.
    Packed(&'a (dyn ReadAt + 'a)),
}

/// A piece of a source.
pub enum Part<'a> {
    /// Of memory.
    Borrowed(&'a [u8]),
    /// Read from a file.
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
    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, len) => *len,
            Self::Packed(packed) => packed.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes at `offset`.
    ///
    /// # Errors
    /// `ENOEXEC` past the end; what a read of the file says.
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

    /// The bytes at `offset`, borrowed or read.
    ///
    /// # Errors
    /// As [`Source::read`]; `ENOMEM`.
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

/// Most bytes of a file that are looked at before a module's name is known to be new.
pub const WINDOW: u64 = 64 << 10;

/// A source seen through a window of at most [`WINDOW`] bytes.
pub struct Window<'a> {
    source: Source<'a>,
    buffer: Option<Buffer>,
    start: u64,
    filled: u64,
}

impl<'a> Window<'a> {
    /// A window over a source; memory is looked at where it is.
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

    /// `len` bytes at `offset`, at most a window.
    ///
    /// # Errors
    /// As [`Source::read`]; `E2BIG` for more than a window.
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

    /// As many bytes at `offset` as a window shows, up to `most`.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn some(&mut self, account: &Account, offset: u64, most: u64, of: &str) -> Result<&[u8]> {
        let room = self.buffer.as_ref().map_or(WINDOW, |buffer| buffer.len() as u64);
        self.bytes(account, offset, most.min(room), of)
    }
}
