//! A module's memory: filled and relocated while it is writable, then sealed.
//!
//! The address that it is linked for is the address of the memory, except for a module that is
//! linked without being run.

use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::layout::{Layout, Part};
use crate::os::{Account, Mapped, Protection};

/// The memory of a module, and its layout.
pub struct Image {
    mapped: Mapped,
    base: u64,
    /// Offsets of sections and parts.
    pub layout: Layout,
}

impl Image {
    /// Maps memory for a layout. `base` is the address to link for; `None`: that of the memory.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn map(account: &Account, layout: Layout, base: Option<u64>) -> Result<Self> {
        let mapped = account.map(layout.total)?;
        let base = base.unwrap_or(mapped.at().as_ptr() as u64);
        Ok(Self { mapped, base, layout })
    }

    /// The address that it is linked for.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes that are mapped.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.mapped.len() as u64
    }

    /// Returns whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mapped.is_empty()
    }

    /// All its bytes, for writing. For use before [`Image::seal`] only.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, writable until it is sealed, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.mapped.at().as_ptr(), self.mapped.len()) }
    }

    /// All its bytes. For use before the module's code runs only.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and readable; no code of the module runs that could write to it.
        unsafe { std::slice::from_raw_parts(self.mapped.at().as_ptr(), self.mapped.len()) }
    }

    /// The offset of an address that the module is linked for. `None`: it is outside.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.base).filter(|&offset| offset < self.len())
    }

    /// The address of an offset in memory.
    ///
    /// # Panics
    /// The offset is behind the end.
    #[must_use]
    pub fn at(&self, offset: u64) -> NonNull<u8> {
        assert!(offset <= self.len());
        // SAFETY: an offset in the mapping, or its end.
        unsafe { self.mapped.at().add(offset as usize) }
    }

    /// The string at an address that the module is linked for. `None`: none that ends in the image.
    #[must_use]
    pub fn string(&self, address: u64) -> Option<&[u8]> {
        let rest = &self.bytes()[self.offset(address)? as usize..];
        rest.iter().position(|&b| b == 0).map(|end| &rest[..end])
    }

    /// Makes text executable, and text and read-only data unwritable.
    ///
    /// # Errors
    /// `ENOMEM`: the system refused.
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
        // SAFETY: no reference into it exists, as `self` is borrowed mutably; the module's code
        // needs no more than `to`.
        unsafe { self.mapped.protect(range.start as usize, range.end as usize, to) }
            .map_err(|e| Error::new(e.errno, format_args!("sealing {part:?}: {}", e.what)))
    }

    /// Seals the data that init initialised, and unmaps the parts that only init needed. False: the
    /// system refused to seal, and the data stays writable.
    ///
    /// # Safety
    /// Init has returned, and no thread uses its parts any more.
    #[must_use]
    pub unsafe fn finish_init(&mut self) -> bool {
        let sealed = self.protect(Part::RoAfterInit, Protection::Read).is_ok();
        // SAFETY: the same contract.
        unsafe { self.mapped.truncate(self.layout.kept() as usize) };
        sealed
    }
}
