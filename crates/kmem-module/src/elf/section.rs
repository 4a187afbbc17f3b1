//! One entry of the section table.

use super::{HEADER, SECTION, elf, u32_at, u64_at};
use std::fmt;

use crate::error::{Error, Result};

/// Largest alignment of a section, in bytes.
const MAX_ALIGN: u64 = 2 << 20;

/// An entry of the section table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields of Elf64_Shdr
pub struct Section {
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entsize: u64,
}

impl Section {
    /// Reads entry `number` of a table.
    pub(super) fn parse(table: &[u8], number: u16) -> Self {
        Self::of(table.get(usize::from(number) * SECTION as usize..).unwrap_or_default())
    }

    /// Reads one entry.
    #[must_use]
    pub fn of(entry: &[u8]) -> Self {
        Self {
            name: u32_at(entry, 0),
            kind: u32_at(entry, 4),
            flags: u64_at(entry, 8),
            addr: u64_at(entry, 16),
            offset: u64_at(entry, 24),
            size: u64_at(entry, 32),
            link: u32_at(entry, 40),
            info: u32_at(entry, 44),
            align: u64_at(entry, 48),
            entsize: u64_at(entry, 56),
        }
    }

    /// Returns whether the section is loaded into memory.
    #[must_use]
    pub fn is_allocated(&self) -> bool {
        self.flags & u64::from(elf::SHF_ALLOC) != 0
    }

    /// Returns whether the section is writable.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.flags & u64::from(elf::SHF_WRITE) != 0
    }

    /// Returns whether the section is executable.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.flags & u64::from(elf::SHF_EXECINSTR) != 0
    }

    /// Bytes of the section in the file.
    fn file_size(&self) -> u64 {
        if matches!(self.kind, elf::SHT_NULL | elf::SHT_NOBITS) { 0 } else { self.size }
    }

    pub(super) fn check_null(&self) -> Result<()> {
        if self.kind != elf::SHT_NULL || self.size != 0 || self.addr != 0 || self.offset != 0 {
            return Err(Error::noexec(format_args!(
                "section 0 is not empty: sh_type {}, sh_size {:#x}, sh_addr {:#x}, sh_offset {:#x}",
                self.kind, self.size, self.addr, self.offset
            )));
        }
        Ok(())
    }

    /// Checks that the section lies in a file of `len` bytes, and outside ELF header and section
    /// table.
    pub(super) fn check_bounds(&self, number: u16, len: u64, table: (u64, u64)) -> Result<()> {
        if self.file_size() == 0 {
            return Ok(());
        }
        let place = format_args!("section {number}: {:#x} bytes at {:#x}", self.size, self.offset);
        let Some(end) = self.offset.checked_add(self.size).filter(|&end| end <= len) else {
            return Err(Error::noexec(format_args!("{} are not in the file of {len:#x}", place)));
        };
        if self.offset < HEADER || (self.offset < table.1 && end > table.0) {
            return Err(Error::noexec(format_args!("{} overlap the ELF header or table", place)));
        }
        Ok(())
    }

    pub(super) fn check_strings(&self, of: &str, number: u16) -> Result<()> {
        if self.kind != elf::SHT_STRTAB {
            let kind = self.kind;
            return Err(Error::noexec(format_args!(
                "{of}: section {number} has sh_type {kind}, not STRTAB"
            )));
        }
        if self.size == 0 {
            return Err(Error::noexec(format_args!("{of}: section {number} is empty")));
        }
        Ok(())
    }

    /// Checks flags and alignment of a section that is loaded.
    pub(super) fn check_kind(&self, number: u16, name: &str) -> Result<()> {
        if !self.is_allocated() {
            return Ok(());
        }
        let bad = |what: fmt::Arguments<'_>| {
            Err(Error::noexec(format_args!("section {number} ({name}): {what}")))
        };
        if self.is_writable() && self.is_executable() {
            return bad(format_args!("writable and executable"));
        }
        if self.align > 1 && (!self.align.is_power_of_two() || self.align > MAX_ALIGN) {
            return bad(format_args!(
                "sh_addralign {:#x} is no power of two up to {MAX_ALIGN:#x}",
                self.align
            ));
        }
        if self.flags & u64::from(elf::SHF_TLS) != 0 {
            return bad(format_args!("thread-local storage is not supported in modules"));
        }
        if self.flags & u64::from(elf::SHF_COMPRESSED) != 0 {
            return bad(format_args!("a loaded section is compressed"));
        }
        Ok(())
    }
}
