//! Symbols of a live module, in its own memory (the kernel's `mod->kallsyms`). They have the form
//! of an ELF file, which readers of the process and debuggers know.
//!
//! ```text
//! header | symbols | names of symbols | names of sections | section table
//! ```
//!
//! Addresses are absolute. Sections are the parts of the module's memory, without contents. The
//! section table is last, so the header tells the length of the file. The parts for init are among
//! them: call sites in init keep their names when its memory is given back.

use crate::elf::constants as elf;
use crate::elf::{Elf, HEADER, Machine, SECTION, Symbol, Symtab, u32_at, u64_at};
use crate::image::Image;
use crate::layout::{PERCPU, Part};

/// Bytes of a symbol.
const SYMBOL: u64 = 24;
/// Names of sections: the empty one, those of parts in their order, and those of the tables.
const NAMES: &[u8] = b"\0.text\0.rodata\0.data..ro_after_init\0.data\0.init.text\0.init.rodata\0\
.init.data\0.symtab\0.strtab\0.shstrtab\0";
/// Number of sections: the empty one, the parts, and three tables.
const SECTIONS: u64 = 1 + Part::ALL.len() as u64 + 3;
/// Number of the section of symbols. The next one has their names.
const SYMTAB: u64 = 1 + Part::ALL.len() as u64;

/// The symbols of a module that are kept, and their place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kallsyms {
    symbols: u64,
    strings: u64,
    /// Symbols that are binding in their file, and come first.
    local: u64,
}

impl Kallsyms {
    /// Counts the symbols to keep.
    pub(crate) fn count(file: &Elf<'_>, symtab: &Symtab<'_>) -> Self {
        let (mut symbols, mut local) = (1, 1);
        for (_, symbol) in symtab.iter().filter(|(_, symbol)| is_kept(file, symbol)) {
            symbols += 1;
            local += u64::from(symbol.is_local());
        }
        Self { symbols, strings: symtab.names().len() as u64, local }
    }

    fn section_table(self) -> u64 {
        let end = HEADER + self.symbols * SYMBOL + self.strings + NAMES.len() as u64;
        end.next_multiple_of(8)
    }

    /// Bytes of all.
    pub(crate) fn size(self) -> u64 {
        self.section_table() + SECTIONS * SECTION
    }

    /// Writes the file to its place in the image. `values` are those of all symbols.
    pub(crate) fn write(
        self,
        file: &Elf<'_>,
        symtab: &Symtab<'_>,
        values: &[u8],
        machine: Machine,
        image: &mut Image,
    ) {
        let (base, parts) = (image.base(), Part::ALL.map(|part| image.layout.part(part)));
        let at = image.layout.symbols as usize;
        let out = &mut image.bytes_mut()[at..][..self.size() as usize];
        let (table, symbols) = (self.section_table(), HEADER + self.symbols * SYMBOL);
        write_header(out, table, machine);
        let names = symbols + self.strings;
        out[symbols as usize..names as usize].copy_from_slice(symtab.names());
        out[names as usize..][..NAMES.len()].copy_from_slice(NAMES);
        // Local symbols come first, as the format demands.
        let mut next = [HEADER + SYMBOL, HEADER + self.local * SYMBOL];
        for (number, symbol) in symtab.iter().filter(|(_, symbol)| is_kept(file, symbol)) {
            let value = u64_at(values, number as usize * 8);
            let offset = value.wrapping_sub(base);
            let part = parts.iter().position(|part| part.contains(&offset));
            let at = &mut next[usize::from(!symbol.is_local())];
            let Some(entry) = out.get_mut(*at as usize..(*at + SYMBOL) as usize) else { return };
            *at += SYMBOL;
            entry[..4].copy_from_slice(&symbol.name.to_le_bytes());
            entry[4] = symbol.info;
            // A symbol at the end of the memory is in no part.
            let section = part.map_or(elf::SHN_ABS, |part| part as u16 + 1);
            entry[6..8].copy_from_slice(&section.to_le_bytes());
            entry[8..16].copy_from_slice(&value.to_le_bytes());
            entry[16..24].copy_from_slice(&symbol.size.to_le_bytes());
        }
        self.write_sections(out, base, &parts);
    }

    fn write_sections(self, out: &mut [u8], base: u64, parts: &[std::ops::Range<u64>]) {
        let (table, symbols) = (self.section_table(), HEADER + self.symbols * SYMBOL);
        let mut put = |number: u64, fields: [u64; 9]| {
            let [kind, flags, addr, offset, size, link, info, align, entsize] = fields;
            let name = NAMES.split(|&b| b == 0).take(number as usize);
            let name: usize = name.map(|name| name.len() + 1).sum();
            let entry = &mut out[(table + number * SECTION) as usize..][..SECTION as usize];
            let words = [name as u64 | kind << 32, flags, addr, offset, size, link | info << 32];
            for (at, word) in words.into_iter().chain([align, entsize]).enumerate() {
                entry[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
            }
        };
        for (part, (range, number)) in Part::ALL.into_iter().zip(parts.iter().zip(1..)) {
            let flags = elf::SHF_ALLOC
                | match part {
                    Part::Text | Part::InitText => elf::SHF_EXECINSTR,
                    Part::RoData | Part::InitRoData => 0,
                    Part::RoAfterInit | Part::Data | Part::InitData => elf::SHF_WRITE,
                };
            let (addr, size) = (base.wrapping_add(range.start), range.end - range.start);
            let kind = elf::SHT_NOBITS.into();
            put(number, [kind, flags.into(), addr, HEADER, size, 0, 0, 4096, 0]);
        }
        let (kind, size) = (elf::SHT_SYMTAB.into(), self.symbols * SYMBOL);
        put(SYMTAB, [kind, 0, 0, HEADER, size, SYMTAB + 1, self.local, 8, SYMBOL]);
        let kind = elf::SHT_STRTAB.into();
        put(SYMTAB + 1, [kind, 0, 0, symbols, self.strings, 0, 0, 1, 0]);
        let names = symbols + self.strings;
        put(SYMTAB + 2, [kind, 0, 0, names, NAMES.len() as u64, 0, 0, 1, 0]);
    }
}

/// The functions of an image that has its symbols: address, bytes and name of each. For use before
/// the module's code runs only.
pub(crate) fn functions(image: &Image) -> impl Iterator<Item = (u64, u64, &[u8])> {
    let file = &image.bytes()[image.layout.symbols as usize..];
    let table = u64_at(file, 40) as usize;
    let section = |number: u64| {
        let entry = &file[table + (number * SECTION) as usize..];
        &file[u64_at(entry, 24) as usize..][..u64_at(entry, 32) as usize]
    };
    let (symbols, strings) = (section(SYMTAB), section(SYMTAB + 1));
    let symbols = symbols.chunks_exact(SYMBOL as usize);
    let functions = symbols.filter(|entry| entry[4] & 0xf == elf::STT_FUNC);
    functions.map(move |entry| {
        let name = strings.get(u32_at(entry, 0) as usize..).unwrap_or_default();
        let name = name.split(|&b| b == 0).next().unwrap_or_default();
        (u64_at(entry, 8), u64_at(entry, 16), name)
    })
}

/// Returns whether a symbol is the name of code or data in the module's memory.
fn is_kept(file: &Elf<'_>, symbol: &Symbol) -> bool {
    let is_named = symbol.name != 0 && matches!(symbol.kind(), 0..=2);
    let number = symbol.section;
    is_named && number != elf::SHN_UNDEF && number < file.count() && {
        let section = file.section(number);
        let name = file.name(&section);
        name != PERCPU && Part::of(&section, name).is_some()
    }
}

fn write_header(out: &mut [u8], table: u64, machine: Machine) {
    out[..4].copy_from_slice(&elf::ELFMAG);
    out[4..7].copy_from_slice(&[elf::ELFCLASS64, elf::ELFDATA2LSB, elf::EV_CURRENT]);
    let mut short = |at: usize, value: u16| out[at..at + 2].copy_from_slice(&value.to_le_bytes());
    short(16, elf::ET_EXEC);
    short(18, machine.number());
    short(20, elf::EV_CURRENT.into());
    short(52, HEADER as u16);
    short(58, SECTION as u16);
    short(60, SECTIONS as u16);
    short(62, (SECTIONS - 1) as u16);
    out[40..48].copy_from_slice(&table.to_le_bytes());
}
