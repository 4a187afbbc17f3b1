//! A module's memory: filled and relocated while it is writable, then sealed.
//!
//! It has two addresses: where it is, and the one it is linked for. They are the same but for modules that are
//! only tried out.

use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::layout::{Layout, Part};
use crate::os::{Account, Mapped, Protection};

/// The memory of a module, and how it is laid out.
pub struct Image {
    mapped: Mapped,
    base: u64,
    /// Where everything lies.
    pub layout: Layout,
}

impl Image {
    /// Maps memory for a layout. `base` is the address it is linked for; none: where it is.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn map(account: &Account, layout: Layout, base: Option<u64>) -> Result<Self> {
        let mapped = account.map(layout.total)?;
        let base = base.unwrap_or(mapped.at().as_ptr() as u64);
        Ok(Self { mapped, base, layout })
    }

    /// The address it is linked for.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes that are mapped now.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.mapped.len() as u64
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mapped.is_empty()
    }

    /// All of it, to be filled. Only before it is sealed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, writable until it is sealed, and borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.mapped.at().as_ptr(), self.mapped.len()) }
    }

    /// All of it. Only before code runs that writes to it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, readable; nobody writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.mapped.at().as_ptr(), self.mapped.len()) }
    }

    /// Offset of an address it is linked for.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.base).filter(|&offset| offset < self.len())
    }

    /// Where an offset is.
    ///
    /// # Panics
    /// When it is not in the image.
    #[must_use]
    pub fn at(&self, offset: u64) -> NonNull<u8> {
        assert!(offset <= self.len());
        // SAFETY: in the mapping, or its end.
        unsafe { self.mapped.at().add(offset as usize) }
    }

    /// The string at an address it is linked for, if it is one and ends within the image.
    #[must_use]
    pub fn string(&self, address: u64) -> Option<&[u8]> {
        let rest = &self.bytes()[self.offset(address)? as usize..];
        rest.iter().position(|&b| b == 0).map(|end| &rest[..end])
    }

    /// Takes the right to write from everything but data.
    ///
    /// # Errors
    /// The system refused.
    pub fn seal(&mut self) -> Result<()> {
        for part in Part::ALL {
            let to = match part {
                Part::Text | Part::InitText => Protection::ReadExecute,
                Part::RoData | Part::InitRoData => Protection::Read,
                Part::RoAfterInit | Part::Data | Part::InitData => continue,
            };
            self.protect(part, to)?;
        }
        Ok(())
    }

    fn protect(&mut self, part: Part, to: Protection) -> Result<()> {
        let range = self.layout.part(part);
        // SAFETY: nobody holds a reference into it: `self` is borrowed mutably.
        unsafe { self.mapped.protect(range.start as usize, range.end as usize, to) }
            .map_err(|e| Error::new(e.errno, format_args!("sealing {part:?}: {}", e.what)))
    }

    /// After init: what it initialised is sealed, what only it needed is given back. It is too late to fail: what the
    /// system refuses to seal stays writable. Whether it was sealed.
    ///
    /// # Safety
    /// Init has returned, and nothing of it is used any more.
    #[must_use]
    pub unsafe fn finish_init(&mut self) -> bool {
        let sealed = self.protect(Part::RoAfterInit, Protection::Read).is_ok();
        // SAFETY: the caller's promise.
        unsafe { self.mapped.truncate(self.layout.kept() as usize) };
        sealed
    }
}
