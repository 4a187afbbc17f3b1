//! The ELF file, checked in the kernel's order (`elf_validity_*`) before it is used.
//!
//! A file is not mapped: its records are read field by field, and each field is checked. An error
//! names the field, its place and its value.

mod section;
mod symtab;

pub use object::elf as constants;
pub use section::Section;
pub use symtab::{Symbol, Symtab};

use crate::error::{Errno, Error, Result};
use crate::os::Account;
use crate::source::{Part, Source};
use constants as elf;
use std::fmt;

/// Bytes of the ELF header.
pub const HEADER: u64 = 64;
/// Bytes of an entry of the section table.
pub const SECTION: u64 = 64;
/// Most bytes of a table of names or symbols.
const MAX_TABLE: u64 = 64 << 20;

/// A processor that modules are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// AArch64.
    Aarch64,
}

impl Machine {
    /// The processor of this process.
    pub const HERE: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::X86_64 => elf::EM_X86_64,
            Self::Aarch64 => elf::EM_AARCH64,
        }
    }

    /// Its name, as in `vermagic`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_le_bytes(*b))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

/// Fields of the ELF header about sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Offset of the section table in the file.
    pub shoff: u64,
    /// Number of its entries.
    pub shnum: u16,
    /// Number of the section with the names of sections.
    pub shstrndx: u16,
}

impl Header {
    /// Reads and checks the header of a file of `len` bytes. Without `machine` any processor is
    /// accepted.
    ///
    /// # Errors
    /// `ENOEXEC`: a field is wrong.
    pub fn parse(bytes: &[u8], len: u64, machine: Option<Machine>) -> Result<Self> {
        let bad = |what: fmt::Arguments<'_>| Err(Error::noexec(format_args!("ELF header: {what}")));
        if len < HEADER || bytes.len() < HEADER as usize {
            return bad(format_args!("the file has {len} bytes, a header {HEADER}"));
        }
        if bytes[..4] != elf::ELFMAG {
            return bad(format_args!("no ELF magic"));
        }
        for (at, name, found, expected) in [
            (4, "class", bytes[4], elf::ELFCLASS64),
            (5, "byte order", bytes[5], elf::ELFDATA2LSB),
            (6, "version", bytes[6], elf::EV_CURRENT),
        ] {
            if found != expected {
                return bad(format_args!("{name} (byte {at}) is {found}, not {expected}"));
            }
        }
        let kind = u16_at(bytes, 16);
        if kind != elf::ET_REL {
            return bad(format_args!("e_type is {kind}, not relocatable ({})", elf::ET_REL));
        }
        let number = u16_at(bytes, 18);
        if let Some(machine) = machine
            && number != machine.number()
        {
            let (ours, name) = (machine.number(), machine.name());
            return bad(format_args!("e_machine is {number}, not {ours} ({name})"));
        }
        let version = u32_at(bytes, 20);
        if version != u32::from(elf::EV_CURRENT) {
            return bad(format_args!("e_version is {version}, not 1"));
        }
        let size = u16_at(bytes, 58);
        if u64::from(size) != SECTION {
            return bad(format_args!("e_shentsize is {size}, not {SECTION}"));
        }
        let header = Self {
            shoff: u64_at(bytes, 40),
            shnum: u16_at(bytes, 60),
            shstrndx: u16_at(bytes, 62),
        };
        let Self { shoff, shnum, shstrndx } = header;
        if shnum == 0 {
            return bad(format_args!("e_shnum is 0: no sections, or more than 65,279"));
        }
        if shoff < HEADER || shoff % 8 != 0 || header.table().is_none_or(|table| table.1 > len) {
            return bad(format_args!(
                "section table of {shnum} entries at e_shoff {shoff:#x}, in a file of {len:#x} \
                 bytes"
            ));
        }
        if shstrndx == elf::SHN_UNDEF || shstrndx >= shnum {
            return bad(format_args!("e_shstrndx is {shstrndx}, of {shnum} sections"));
        }
        Ok(header)
    }

    /// Start and end of the section table in the file.
    fn table(&self) -> Option<(u64, u64)> {
        let end = self.shoff.checked_add(u64::from(self.shnum) * SECTION)?;
        Some((self.shoff, end))
    }

    /// Offset in the file of entry `number` of the section table.
    #[must_use]
    pub fn entry(&self, number: u16) -> u64 {
        self.shoff + u64::from(number) * SECTION
    }
}

/// A checked file.
pub struct Elf<'a> {
    /// The bytes of the file.
    pub source: Source<'a>,
    table: Part<'a>,
    names: Part<'a>,
    count: u16,
}

impl<'a> Elf<'a> {
    /// Reads and checks header, section table and names. Without `machine` any processor is
    /// accepted.
    ///
    /// # Errors
    /// `ENOEXEC`: names the first field that is wrong; those of [`Source::part`].
    pub fn read(source: Source<'a>, account: &Account, machine: Option<Machine>) -> Result<Self> {
        let len = source.len();
        let mut bytes = [0; HEADER as usize];
        source.read(account, 0, &mut bytes[..len.min(HEADER) as usize], "the ELF header")?;
        let header = Header::parse(&bytes, len, machine)?;
        let span = u64::from(header.shnum) * SECTION;
        let table = source.part(account, header.shoff, span, "the section table")?;
        let section = |number: u16| Section::parse(&table, number);

        section(0).check_null()?;
        for number in 1..header.shnum {
            section(number).check_bounds(number, len, (header.shoff, header.shoff + span))?;
        }
        let strings = section(header.shstrndx);
        strings.check_strings("section names", header.shstrndx)?;
        if strings.size > MAX_TABLE {
            return Err(too_big("section names", strings.size));
        }
        let names = source.part(account, strings.offset, strings.size, "section names")?;
        check_ends("section names", &names)?;
        let this = Self { source, table, names, count: header.shnum };
        this.check_sections()?;
        Ok(this)
    }

    fn check_sections(&self) -> Result<()> {
        let mut once = [
            (".modinfo", 0_u16),
            (".gnu.linkonce.this_module", 0),
            ("kmem_alloc_tags", 0),
            (crate::layout::PERCPU, 0),
        ];
        for (number, section) in self.sections() {
            if section.name as usize >= self.names.len() {
                let size = self.names.len();
                return Err(Error::noexec(format_args!(
                    "section {number}: sh_name {:#x} is past the {size:#x} bytes of names",
                    section.name
                )));
            }
            let name = self.name_bytes(&section);
            for (unique, seen) in &mut once {
                if name == unique.as_bytes() {
                    if *seen != 0 {
                        return Err(Error::noexec(format_args!(
                            "sections {seen} and {number} are both called {unique}"
                        )));
                    }
                    *seen = number;
                }
            }
            section.check_kind(number, self.name(&section))?;
        }
        Ok(())
    }

    /// All sections with their numbers, without section 0.
    pub fn sections(&self) -> impl Iterator<Item = (u16, Section)> + '_ {
        (1..self.count).map(|number| (number, Section::parse(&self.table, number)))
    }

    /// Number of sections, section 0 included.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Section `number`, which must exist.
    #[must_use]
    pub fn section(&self, number: u16) -> Section {
        Section::parse(&self.table, number)
    }

    fn name_bytes(&self, section: &Section) -> &[u8] {
        let rest = self.names.get(section.name as usize..).unwrap_or_default();
        rest.split(|&b| b == 0).next().unwrap_or_default()
    }

    /// Name of a section, or "" if it is not UTF-8.
    #[must_use]
    pub fn name(&self, section: &Section) -> &str {
        std::str::from_utf8(self.name_bytes(section)).unwrap_or_default()
    }

    /// Finds the first section of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(u16, Section)> {
        self.sections().find(|(_, section)| self.name_bytes(section) == name.as_bytes())
    }

    /// Reads the bytes of a section. `of` names it in an error.
    ///
    /// # Errors
    /// `ENOEXEC`: it has none in the file; `E2BIG`: it has more than 64 MiB; those of
    /// [`Source::part`].
    pub fn contents(&self, account: &Account, section: &Section, of: &str) -> Result<Part<'a>> {
        if section.kind == elf::SHT_NOBITS {
            return Err(Error::noexec(format_args!("{of} has no contents (SHT_NOBITS)")));
        }
        if section.size > MAX_TABLE {
            return Err(too_big(of, section.size));
        }
        self.source.part(account, section.offset, section.size, of)
    }
}

fn too_big(of: &str, size: u64) -> Error {
    Error::new(Errno::E2BIG, format_args!("{of}: {size} bytes are more than {MAX_TABLE}"))
}

/// Checks that a table of strings begins with an empty string and that its last string ends.
fn check_ends(of: &str, strings: &[u8]) -> Result<()> {
    match (strings.first(), strings.last()) {
        (Some(0), Some(0)) => Ok(()),
        (None, _) | (_, None) => {
            Err(Error::noexec(format_args!("{of}: the string table is empty")))
        }
        (Some(0), _) => Err(Error::noexec(format_args!("{of}: the last string is not terminated"))),
        _ => Err(Error::noexec(format_args!("{of}: the first string is not empty"))),
    }
}
