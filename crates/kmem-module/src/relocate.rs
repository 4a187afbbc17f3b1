//! Relocations, read from the file twice: first to count veneers and far addresses, then to apply
//! them.
//!
//! A call of a symbol that is out of reach goes through a veneer. A load of its address goes
//! through the table of far addresses (GOT). Both are counted before memory is allocated. A
//! relocation that the second pass sees and the first did not is an error: the file was changed in
//! between.
//!
//! Per-CPU variables are out of reach, although they are the module's own. For a static variable
//! the compiler computes the address relative to the instruction. Such an instruction is rewritten
//! into a load from the table of far addresses. Linkers do the reverse (`R_X86_64_REX_GOTPCRELX`).
//! No other instruction may have the address of a per-CPU variable.

mod aarch64;
mod x86_64;

use std::fmt;

use crate::elf::constants as elf;
use crate::elf::{Elf, Machine, Section, Symtab, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::{Part, PerCpu, VENEER};
use crate::os::{Account, Buffer};
use crate::source::Window;

/// Bytes of a relocation.
const RELA: u64 = 24;

/// One relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rela {
    /// Offset of its place in the target section.
    pub offset: u64,
    /// Type of the relocation.
    pub kind: u32,
    /// Number of the symbol.
    pub symbol: u32,
    /// Constant to add.
    pub addend: i64,
}

/// The needs of a type of relocation beside the symbol's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// None.
    Nothing,
    /// An entry in the table of far addresses.
    Got,
    /// A veneer, if the symbol is out of reach.
    Veneer,
    /// An entry in the table of far addresses, if the symbol is a per-CPU variable out of reach.
    /// The number is the distance from S + A to the address that the instruction computes.
    Near(i64),
}

/// Per-CPU variables, as the code of their module reaches them.
#[derive(Clone, Copy, Debug)]
pub enum Far {
    /// They are in reach.
    InReach,
    /// They are out of reach, if there are any.
    Is(Option<PerCpu>),
}

impl Far {
    /// The section of per-CPU variables out of reach, and its bytes.
    fn section(self) -> Option<(u16, u64)> {
        match self {
            Self::Is(Some(PerCpu { section, size, .. })) => Some((section, size)),
            Self::Is(None) | Self::InReach => None,
        }
    }
}

/// The place and operands of a relocation, with the letters of the ABI.
struct Site<'a> {
    /// The bytes from the section's start to the place.
    before: &'a mut [u8],
    /// The bytes from the place to the section's end.
    bytes: &'a mut [u8],
    /// Address of the place (P).
    place: u64,
    /// Value of the symbol (S).
    symbol: u64,
    /// Addend (A).
    addend: i64,
    /// Address of the symbol's entry in the table of far addresses (G), if it has one.
    got: Option<u64>,
    /// Address of the symbol's veneer, if it has one.
    veneer: Option<u64>,
    /// Address of the entry in the table of far addresses that the instruction must load. Only for
    /// code, where S is a per-CPU variable out of reach.
    far: Option<u64>,
}

/// Why a relocation cannot be applied.
enum Refusal {
    /// Modules cannot have its type, which has this name.
    Kind(&'static str),
    /// A part of the place is outside the section.
    Outside,
    /// This value does not fit the place.
    Overflow(i64),
    /// The place is not zero: a relocation was applied to it before.
    NotZero,
    /// It needs a far address that the first pass did not count.
    Changed,
    /// This value is not aligned as the instruction requires.
    Misaligned(i64),
    /// An instruction accesses a per-CPU variable without a copy of it.
    Direct,
}

/// An instruction set.
struct Arch {
    need: fn(u32) -> Need,
    apply: fn(u32, &mut Site<'_>) -> std::result::Result<(), Refusal>,
    veneer: fn(u64) -> [u8; VENEER as usize],
}

fn arch(machine: Machine) -> &'static Arch {
    match machine {
        Machine::X86_64 => &x86_64::ARCH,
        Machine::Aarch64 => &aarch64::ARCH,
    }
}

/// The relocations of one section in memory.
struct Table {
    rela: Section,
    number: u16,
    target: u16,
}

/// The checked tables of relocations whose target sections are loaded.
fn tables<'e>(
    file: &'e Elf<'_>,
    symtab: &'e Symtab<'_>,
) -> impl Iterator<Item = Result<Table>> + 'e {
    let check = |number: u16, rela: Section| -> Result<Option<Table>> {
        let bad = |what: fmt::Arguments<'_>| {
            Err(Error::noexec(format_args!("relocations (section {number}): {what}")))
        };
        let target = u16::try_from(rela.info).ok().filter(|&target| target < file.count());
        let Some(target) = target.filter(|&target| target != 0 && target != number) else {
            return bad(format_args!("sh_info {} is no other section", rela.info));
        };
        let section = file.section(target);
        if Part::of(&section, file.name(&section)).is_none() {
            return Ok(None);
        }
        if rela.kind == elf::SHT_REL {
            return bad(format_args!("SHT_REL, without addends, is not supported"));
        }
        if section.kind == elf::SHT_NOBITS {
            return bad(format_args!("their target, section {target}, has no contents"));
        }
        if rela.link != u32::from(symtab.section) {
            return bad(format_args!("sh_link {} is not the symbol table", rela.link));
        }
        if rela.entsize != RELA || !rela.size.is_multiple_of(RELA) {
            return bad(format_args!(
                "{:#x} bytes in entries of {}, not {RELA}",
                rela.size, rela.entsize
            ));
        }
        Ok(Some(Table { rela, number, target }))
    };
    file.sections()
        .filter(|(_, section)| matches!(section.kind, elf::SHT_RELA | elf::SHT_REL))
        .filter_map(move |(number, section)| check(number, section).transpose())
}

/// Calls `each` with the relocations of a table and their numbers.
fn stream(
    window: &mut Window<'_>,
    account: &Account,
    table: &Table,
    mut each: impl FnMut(u64, Rela) -> Result<()>,
) -> Result<()> {
    for index in 0..table.rela.size / RELA {
        let at = table.rela.offset + index * RELA;
        let entry = window.bytes(account, at, RELA, "relocations")?;
        let rela = Rela {
            offset: u64_at(entry, 0),
            kind: u32_at(entry, 8),
            symbol: u32_at(entry, 12),
            addend: u64_at(entry, 16).cast_signed(),
        };
        each(index, rela)?;
    }
    Ok(())
}

/// Far addresses and veneers that the relocations of a file need.
pub struct Needs {
    /// For each symbol the numbers of its far address and its veneer, from 1 on; 0 for none.
    slots: Buffer,
    /// Numbers of far addresses for per-CPU variables out of reach, from 1 on; 0 for none. There
    /// is a number for each of their bytes, and for their end.
    places: Buffer,
    far: Far,
    /// Number of far addresses.
    pub got: u64,
    /// Number of veneers.
    pub veneers: u64,
    machine: Machine,
}

impl Needs {
    /// Reads all relocations and counts their needs.
    ///
    /// # Errors
    /// `ENOEXEC`: a table is wrong; `ENOMEM`; those of [`Window::bytes`].
    pub fn count(
        file: &Elf<'_>,
        symtab: &Symtab<'_>,
        window: &mut Window<'_>,
        account: &Account,
        machine: Machine,
        far: Far,
    ) -> Result<Self> {
        let bytes = u64::from(symtab.len()) * 8;
        let slots = account.buffer(bytes, "the numbers of far symbols")?;
        let bytes = far.section().map_or(0, |(_, size)| (size + 1) * 4);
        let places = account.buffer(bytes, "the numbers of far variables")?;
        let mut this = Self { slots, places, far, got: 0, veneers: 0, machine };
        for table in tables(file, symtab) {
            let table = table?;
            stream(window, account, &table, |index, rela| {
                if rela.symbol >= symtab.len() {
                    return Err(refuse(
                        &table,
                        index,
                        &rela,
                        format_args!("symbol {} of {}", rela.symbol, symtab.len()),
                    ));
                }
                match (arch(machine).need)(rela.kind) {
                    Need::Got if this.slot(rela.symbol, 0) == 0 => {
                        this.got += 1;
                        this.set(rela.symbol, 0, this.got as u32);
                    }
                    // A symbol of the module itself is in reach.
                    Need::Veneer
                        if symtab.get(rela.symbol).section == elf::SHN_UNDEF
                            && this.slot(rela.symbol, 4) == 0 =>
                    {
                        this.veneers += 1;
                        this.set(rela.symbol, 4, this.veneers as u32);
                    }
                    Need::Near(bias) if is_code(file, &table) => {
                        if let Some(place) = this.place(symtab, &rela, bias) {
                            let place = place.map_err(|_| refuse(&table, index, &rela, DIRECT))?;
                            if u32_at(&this.places, place) == 0 {
                                this.got += 1;
                                let number = this.got as u32;
                                this.places[place..place + 4]
                                    .copy_from_slice(&number.to_le_bytes());
                            }
                        }
                    }
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(this)
    }

    /// The entry in `places` of a relocation whose symbol is a per-CPU variable out of reach.
    /// `None`: it is another symbol. An error: it lies outside of the variables.
    fn place(
        &self,
        symtab: &Symtab<'_>,
        rela: &Rela,
        bias: i64,
    ) -> Option<std::result::Result<usize, Refusal>> {
        let symbol = symtab.get(rela.symbol);
        let (_, size) = self.far.section().filter(|&(section, _)| section == symbol.section)?;
        let offset = symbol.value.wrapping_add_signed(rela.addend.wrapping_add(bias));
        Some(if offset <= size { Ok(offset as usize * 4) } else { Err(Refusal::Direct) })
    }

    /// Address of the far address that an instruction loads in place of a per-CPU variable's.
    fn far(
        &self,
        symtab: &Symtab<'_>,
        rela: &Rela,
        image: &Image,
    ) -> std::result::Result<Option<u64>, Refusal> {
        let Need::Near(bias) = (arch(self.machine).need)(rela.kind) else { return Ok(None) };
        let Some(place) = self.place(symtab, rela, bias).transpose()? else { return Ok(None) };
        let slot = u64::from(u32_at(&self.places, place)).checked_sub(1);
        let slot = slot.ok_or(Refusal::Changed)?;
        Ok(Some(image.base().wrapping_add(image.layout.got + slot * 8)))
    }

    fn slot(&self, symbol: u32, part: usize) -> u32 {
        u32_at(&self.slots, symbol as usize * 8 + part)
    }

    fn set(&mut self, symbol: u32, part: usize, to: u32) {
        let at = symbol as usize * 8 + part;
        self.slots[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }

    fn got(&self, symbol: u32, image: &Image) -> Option<u64> {
        let slot = u64::from(self.slot(symbol, 0)).checked_sub(1)?;
        Some(image.layout.got + slot * 8)
    }

    fn veneer(&self, symbol: u32, image: &Image) -> Option<u64> {
        let slot = u64::from(self.slot(symbol, 4)).checked_sub(1)?;
        Some(image.layout.veneers + slot * VENEER)
    }

    /// Applies all relocations. [`Needs::write_tables`] comes before it.
    ///
    /// # Errors
    /// `ENOEXEC`: names the first relocation that cannot be applied; those of [`Window::bytes`].
    pub fn apply(
        &self,
        file: &Elf<'_>,
        symtab: &Symtab<'_>,
        values: &[u8],
        image: &mut Image,
        window: &mut Window<'_>,
        account: &Account,
    ) -> Result<()> {
        let arch = arch(self.machine);
        let value = |symbol: u32| u64_at(values, symbol as usize * 8);
        let base = image.base();
        for table in tables(file, symtab) {
            let table = table?;
            let start = image.layout.section(table.target);
            let start = start.ok_or_else(|| Error::noexec("a section that is not laid out"))?;
            let size = file.section(table.target).size;
            let code = is_code(file, &table);
            stream(window, account, &table, |index, rela| {
                if rela.symbol >= symtab.len() {
                    return Err(refuse(&table, index, &rela, CHANGED));
                }
                let at = rela.offset.min(size);
                let say = |refusal| explain(symtab, &table, (index, &rela), size, &refusal);
                let far = if code { self.far(symtab, &rela, image).map_err(say)? } else { None };
                let got = self.got(rela.symbol, image).map(|at| base.wrapping_add(at));
                let veneer = self.veneer(rela.symbol, image).map(|at| base.wrapping_add(at));
                let section = &mut image.bytes_mut()[start as usize..(start + size) as usize];
                let (before, bytes) = section.split_at_mut(at as usize);
                let mut site = Site {
                    before,
                    bytes,
                    place: base.wrapping_add(start + at),
                    symbol: value(rela.symbol),
                    addend: rela.addend,
                    got,
                    veneer,
                    far,
                };
                (arch.apply)(rela.kind, &mut site).map_err(say)
            })?;
        }
        Ok(())
    }

    /// Writes far addresses and veneers. `percpu` is the address of the per-CPU variables.
    pub fn write_tables(&self, values: &[u8], percpu: u64, image: &mut Image) {
        let arch = arch(self.machine);
        for symbol in 0..(values.len() / 8) as u32 {
            let value = u64_at(values, symbol as usize * 8);
            if let Some(at) = self.got(symbol, image) {
                image.bytes_mut()[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
            }
            if let Some(at) = self.veneer(symbol, image) {
                let bytes = (arch.veneer)(value);
                image.bytes_mut()[at as usize..][..VENEER as usize].copy_from_slice(&bytes);
            }
        }
        for (offset, number) in self.places.chunks_exact(4).zip(0_u64..).map(|(n, at)| (at, n)) {
            if let Some(slot) = u64::from(u32_at(number, 0)).checked_sub(1) {
                let at = (image.layout.got + slot * 8) as usize;
                let value = percpu.wrapping_add(offset);
                image.bytes_mut()[at..][..8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

/// Returns whether the relocations of a table are applied to code.
fn is_code(file: &Elf<'_>, table: &Table) -> bool {
    file.section(table.target).is_executable()
}

/// Text for a relocation that only the second pass sees.
const CHANGED: &str = "changed while it was loaded";
/// Text for code that does not go through a copy of a per-CPU variable.
const DIRECT: &str = "a per-CPU variable is used without this_cpu_..() or per_cpu()";

/// The error of a relocation, by its number, of a section of `size` bytes.
fn explain(
    symtab: &Symtab<'_>,
    table: &Table,
    (index, rela): (u64, &Rela),
    size: u64,
    refusal: &Refusal,
) -> Error {
    let symbol = symtab.get(rela.symbol);
    let name = symtab.name(&symbol);
    let say = |what: fmt::Arguments<'_>| refuse(table, index, rela, what);
    match *refusal {
        Refusal::Kind(name) => say(format_args!("{name} is not supported in modules")),
        Refusal::Outside => say(format_args!("outside its section of {size:#x} bytes")),
        Refusal::Overflow(value) => {
            say(format_args!("overflow: {value:#x} for {name:?} does not fit; compile with -fPIC"))
        }
        Refusal::NotZero => say(format_args!("the place is not zero: applied before?")),
        Refusal::Changed => refuse(table, index, rela, CHANGED),
        Refusal::Direct => refuse(table, index, rela, DIRECT),
        Refusal::Misaligned(value) => say(format_args!("{value:#x} for {name:?} is not aligned")),
    }
}

fn refuse(table: &Table, index: u64, rela: &Rela, what: impl fmt::Display) -> Error {
    Error::noexec(format_args!(
        "relocation {index} of section {} (type {}, at {:#x} of section {}): {what}",
        table.number, rela.kind, rela.offset, table.target
    ))
}

impl Site<'_> {
    /// Writes a value to the place, whose bytes must be zero.
    fn write(&mut self, value: &[u8]) -> std::result::Result<(), Refusal> {
        let place = self.bytes.get_mut(..value.len()).ok_or(Refusal::Outside)?;
        if place.iter().any(|&b| b != 0) {
            return Err(Refusal::NotZero);
        }
        place.copy_from_slice(value);
        Ok(())
    }

    /// S + A.
    fn absolute(&self) -> i64 {
        self.symbol.cast_signed().wrapping_add(self.addend)
    }

    /// S + A - P, with `symbol` for S.
    fn relative_to(&self, symbol: u64) -> i64 {
        symbol.cast_signed().wrapping_add(self.addend).wrapping_sub(self.place.cast_signed())
    }
}
