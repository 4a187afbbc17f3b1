//! The symbol table and its strings.

use std::ffi::CStr;
use std::fmt;

use super::{Elf, check_ends, elf, u16_at, u32_at, u64_at};
use crate::alloc::Lossy;
use crate::error::{Error, Result};
use crate::os::Account;
use crate::source::Part;

/// Bytes of a symbol.
const SYMBOL: u64 = 24;

/// A symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Offset of its name in the table of names.
    pub name: u32,
    /// Binding and type.
    pub info: u8,
    /// Number of its section, or a reserved number.
    pub section: u16,
    /// Offset in its section.
    pub value: u64,
    /// Size in bytes.
    pub size: u64,
}

impl Symbol {
    fn of(entry: &[u8]) -> Self {
        Self {
            name: u32_at(entry, 0),
            info: entry.get(4).copied().unwrap_or(0),
            section: u16_at(entry, 6),
            value: u64_at(entry, 8),
            size: u64_at(entry, 16),
        }
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.info & 0xf
    }

    /// Returns whether it is weak: it may be undefined.
    #[must_use]
    pub fn is_weak(&self) -> bool {
        self.info >> 4 == elf::STB_WEAK
    }

    /// Returns whether it is local: not visible outside its file.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.info >> 4 == elf::STB_LOCAL
    }
}

/// The checked symbols of a file.
pub struct Symtab<'a> {
    symbols: Part<'a>,
    names: Part<'a>,
    /// Number of the symbol table's section.
    pub section: u16,
}

impl<'a> Symtab<'a> {
    /// Reads and checks the symbol table.
    ///
    /// # Errors
    /// `ENOEXEC`: names the first field that is wrong; those of [`Elf::contents`].
    pub fn read(elf: &Elf<'a>, account: &Account) -> Result<Self> {
        let mut tables = elf.sections().filter(|(_, section)| section.kind == elf::SHT_SYMTAB);
        let Some((number, table)) = tables.next() else {
            return Err(Error::noexec("no symbol table (SHT_SYMTAB)"));
        };
        if let Some((other, _)) = tables.next() {
            return Err(Error::noexec(format_args!(
                "sections {number} and {other} are symbol tables"
            )));
        }
        let bad = |what: fmt::Arguments<'_>| {
            Err(Error::noexec(format_args!("symbol table (section {number}): {what}")))
        };
        if table.entsize != SYMBOL || table.size % SYMBOL != 0 || table.size == 0 {
            let (size, entsize) = (table.size, table.entsize);
            return bad(format_args!("{size:#x} bytes in entries of {entsize}, not {SYMBOL}"));
        }
        let link = u16::try_from(table.link).ok().filter(|&link| link != 0 && link < elf.count());
        let Some(link) = link.filter(|&link| link != number) else {
            return bad(format_args!("sh_link {} is no other section", table.link));
        };
        let strings = elf.section(link);
        strings.check_strings("symbol names", link)?;
        let names = elf.contents(account, &strings, "symbol names")?;
        check_ends("symbol names", &names)?;
        let symbols = elf.contents(account, &table, "the symbol table")?;
        let this = Self { symbols, names, section: number };
        for number in 1..this.len() {
            this.check(elf, number)?;
        }
        Ok(this)
    }

    fn check(&self, elf: &Elf<'_>, number: u32) -> Result<()> {
        let symbol = self.get(number);
        if symbol.name as usize >= self.names.len() {
            let size = self.names.len();
            return Err(Error::noexec(format_args!(
                "symbol {number}: st_name {:#x} is past the {size:#x} bytes of names",
                symbol.name
            )));
        }
        let bad = |what: fmt::Arguments<'_>| {
            Err(Error::noexec(format_args!("symbol {number} ({}): {what}", self.name(&symbol))))
        };
        match symbol.section {
            elf::SHN_UNDEF | elf::SHN_ABS => Ok(()),
            elf::SHN_COMMON => bad(format_args!("common; compile with -fno-common")),
            elf::SHN_XINDEX => bad(format_args!("SHN_XINDEX without a table of section numbers")),
            section if section >= elf.count() => {
                bad(format_args!("st_shndx {section:#x} is none of {} sections", elf.count()))
            }
            section => {
                let size = elf.section(section).size;
                let within = symbol.value.checked_add(symbol.size).is_some_and(|end| end <= size);
                if within || symbol.kind() == elf::STT_FILE {
                    return Ok(());
                }
                bad(format_args!(
                    "{:#x} bytes at {:#x} are not in section {section} of {size:#x}",
                    symbol.size, symbol.value
                ))
            }
        }
    }

    /// All names, as they are in the file.
    pub(crate) fn names(&self) -> &[u8] {
        &self.names
    }

    /// Number of symbols, symbol 0 included.
    #[must_use]
    pub fn len(&self) -> u32 {
        (self.symbols.len() / SYMBOL as usize) as u32
    }

    /// Returns whether there are no symbols.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Symbol `number`, which must exist.
    #[must_use]
    pub fn get(&self, number: u32) -> Symbol {
        Symbol::of(self.symbols.get(number as usize * SYMBOL as usize..).unwrap_or_default())
    }

    /// All symbols with their numbers, without symbol 0.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Symbol)> + '_ {
        (1..self.len()).map(|number| (number, self.get(number)))
    }

    /// A symbol's name.
    #[must_use]
    pub fn name_c(&self, symbol: &Symbol) -> &CStr {
        let rest = self.names.get(symbol.name as usize..).unwrap_or_default();
        // The table was checked to end with a zero.
        CStr::from_bytes_until_nul(rest).unwrap_or_default()
    }

    /// The bytes of a symbol's name.
    #[must_use]
    pub fn name_bytes(&self, symbol: &Symbol) -> &[u8] {
        self.name_c(symbol).to_bytes()
    }

    /// A symbol's name, for messages.
    pub(crate) fn name(&self, symbol: &Symbol) -> Lossy<'_> {
        Lossy(self.name_bytes(symbol))
    }
}
