//! Functions of a loaded object, by the symbol table of its file (ELF, System V ABI, chapter 4).
//!
//! A file is not trusted: all of it is read within its bounds, and may be nonsense.

use core::ops::Range;

/// Length of the header of an ELF file.
pub const ELF_HEADER: usize = 64;
/// Length of the header of a section.
const SECTION: usize = 64;
/// Length of a symbol.
const SYMBOL: usize = 24;
/// Most sections that are looked at.
const MAX_SECTIONS: usize = 1 << 14;
/// Most bytes of symbols, and of names. Larger tables are not read.
const MAX_TABLE: usize = 16 << 20;
/// Most bytes of a name that is looked at, with its end.
const MAX_NAME: usize = 512;
/// Types of sections: the symbols of the linker, and those for dynamic linking.
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
/// Types of a symbol in the low bits of its information: a variable, and a function.
const VARIABLE: u8 = 1;
const FUNCTION: u8 = 2;

/// The symbols of an object, and their names.
#[derive(Clone, Copy, Debug)]
pub struct Functions<'a> {
    /// Bytes of the symbols.
    pub symbols: &'a [u8],
    /// Bytes of the names.
    pub names: &'a [u8],
    /// Distance from the addresses in the file to those in memory.
    pub bias: usize,
}

/// A function of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its linkage name.
    pub name: &'a [u8],
    /// Its code.
    pub code: Range<usize>,
}

impl<'a> Functions<'a> {
    /// The functions that are defined in the object and have a length. A name for which `may_be` is
    /// false is left out; it is asked with what lies behind the name in memory, too.
    pub fn all(self, may_be: impl Fn(&[u8]) -> bool) -> impl Iterator<Item = Function<'a>> {
        self.symbols.as_chunks::<SYMBOL>().0.iter().filter_map(move |symbol| {
            let kind = symbol[4] & 15;
            let is_defined = half(symbol, 6)? != 0;
            let (start, len) = (word(symbol, 8)?, word(symbol, 16)?);
            if kind != FUNCTION || !is_defined || len == 0 {
                return None;
            }
            let name = self.names.get(quarter(symbol, 0)?..)?;
            if !may_be(name) {
                return None;
            }
            // The name of a wrapper is no longer, and a hostile file may have one name without end.
            let name = &name[..name.len().min(MAX_NAME)];
            let name = &name[..name.iter().position(|&byte| byte == 0)?];
            let start = start.wrapping_add(self.bias);
            Some(Function { name, code: start..start.checked_add(len)? })
        })
    }

    /// Addresses of the functions and variables with these names that the object defines; 0 for
    /// others. No name is longer than 64 bytes.
    pub fn places<const N: usize>(&self, names: &[&[u8]; N]) -> [usize; N] {
        let mut places = [0; N];
        for symbol in self.symbols.as_chunks::<SYMBOL>().0 {
            let is_defined = half(symbol, 6).is_some_and(|section| section != 0);
            if !matches!(symbol[4] & 15, VARIABLE | FUNCTION) || !is_defined {
                continue;
            }
            let Some(rest) = quarter(symbol, 0).and_then(|at| self.names.get(at..)) else {
                continue;
            };
            let is_named =
                |name: &&[u8]| rest.starts_with(name) && rest.get(name.len()) == Some(&0);
            if let Some(number) = names.iter().position(is_named)
                && let Some(start) = word(symbol, 8)
            {
                places[number] = start.wrapping_add(self.bias);
            }
        }
        places
    }
}

/// Place of the section headers in a file, by its ELF header. `None`: it has none, or it is no file
/// for this machine.
pub fn sections(header: &[u8; ELF_HEADER]) -> Option<Range<usize>> {
    // 64 bits, in the order of bytes of this machine.
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if !header.starts_with(&[0x7f, b'E', b'L', b'F', 2, order]) {
        return None;
    }
    let (start, size, count) = (word(header, 40)?, half(header, 58)?, half(header, 60)?);
    if size != SECTION || count > MAX_SECTIONS {
        return None;
    }
    Some(start..start.checked_add(count * SECTION)?)
}

/// Places of the symbols of an object, and of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tables {
    /// All symbols, in the file. Most programs that are installed have them no more.
    File(Range<usize>, Range<usize>),
    /// Those for dynamic linking, in memory: addresses without the bias.
    Memory(Range<usize>, Range<usize>),
}

/// Places of the symbols and of their names, by the section headers of a file. `None`: there are
/// none.
pub fn tables(sections: &[u8]) -> Option<Tables> {
    let all = || sections.chunks_exact(SECTION);
    let of_type = |kind| all().find(|section| quarter(section, 4) == Some(kind as usize));
    let names_of = |symbols| all().nth(quarter(symbols, 40)?);
    if let Some(symbols) = of_type(SYMTAB) {
        return Some(Tables::File(place(symbols, 24)?, place(names_of(symbols)?, 24)?));
    }
    let symbols = of_type(DYNSYM)?;
    Some(Tables::Memory(place(symbols, 16)?, place(names_of(symbols)?, 16)?))
}

/// Place of a section, whose start is at an offset of its header.
fn place(section: &[u8], start: usize) -> Option<Range<usize>> {
    let (start, len) = (word(section, start)?, word(section, 32)?);
    if len > MAX_TABLE { None } else { Some(start..start.checked_add(len)?) }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}

fn quarter(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: u32, info: u8, section: u16, start: u64, len: u64) -> Vec<u8> {
        let mut symbol = name.to_ne_bytes().to_vec();
        symbol.extend([info, 0]);
        symbol.extend(section.to_ne_bytes());
        symbol.extend(start.to_ne_bytes());
        symbol.extend(len.to_ne_bytes());
        symbol
    }

    #[test]
    fn functions_are_symbols_with_code() {
        let symbols = [
            symbol(1, 0x12, 1, 0x100, 16),
            symbol(1, 0x11, 1, 0x200, 16),
            symbol(1, 0x12, 0, 0x300, 16),
            symbol(1, 0x12, 1, 0x400, 0),
            symbol(99, 0x12, 1, 0x500, 16),
            symbol(5, 0x02, 1, u64::MAX, 16),
            symbol(5, 0x02, 1, 0x600, 1),
        ]
        .concat();
        let of = |names| Functions { symbols: &symbols, names, bias: 0x1000 };
        let (one, two) = (b"one".as_slice(), b"two".as_slice());
        let found: Vec<_> = of(b"\0one\0two\0").all(|_| true).collect();
        let expected = [(one, 0x1100..0x1110), (two, 0xfff..0x100f), (two, 0x1600..0x1601)];
        assert_eq!(found, expected.map(|(name, code)| Function { name, code }));
        let begins_with_t = |name: &[u8]| name.starts_with(b"t");
        assert_eq!(of(b"\0one\0two\0").all(begins_with_t).count(), 2);
        // A name without an end.
        assert_eq!(of(b"\0one").all(|_| true).count(), 0);
    }

    #[test]
    fn places_are_those_of_functions_and_variables_with_a_whole_name() {
        let symbols = [
            symbol(1, 0x12, 1, 0x100, 16),
            symbol(5, 0x11, 1, 0x200, 8),
            symbol(5, 0x16, 1, 0x300, 8),
            symbol(1, 0x12, 0, 0x400, 16),
            symbol(99, 0x12, 1, 0x500, 16),
        ]
        .concat();
        let functions = Functions { symbols: &symbols, names: b"\0one\0two\0", bias: 0x1000 };
        assert_eq!(functions.places(&[b"two", b"tw", b"one", b"x"]), [0x1200, 0, 0x1100, 0]);
    }

    #[test]
    fn the_symbols_of_the_linker_come_first() {
        let section = |kind: u32, start: u64, len: u64, link: u32| {
            let mut section = [0u8; SECTION];
            section[4..8].copy_from_slice(&kind.to_ne_bytes());
            section[16..24].copy_from_slice(&(start + 1).to_ne_bytes());
            section[24..32].copy_from_slice(&start.to_ne_bytes());
            section[32..40].copy_from_slice(&len.to_ne_bytes());
            section[40..44].copy_from_slice(&link.to_ne_bytes());
            section
        };
        let (dynamic, all) = (section(DYNSYM, 100, 10, 1), section(SYMTAB, 200, 20, 1));
        let names = section(3, 300, 30, 0);
        assert_eq!(tables(&[dynamic, names, all].concat()), Some(Tables::File(200..220, 300..330)));
        assert_eq!(tables(&[dynamic, names].concat()), Some(Tables::Memory(101..111, 301..331)));
        assert_eq!(tables(&[names, names].concat()), None);
        assert_eq!(tables(&[section(SYMTAB, 0, 10, 7)].concat()), None, "no section of names");
        assert_eq!(tables(&[section(SYMTAB, 0, u64::MAX, 0)].concat()), None);
        assert_eq!(tables(&[section(SYMTAB, u64::MAX - 1, 10, 0)].concat()), None);
    }

    #[test]
    fn only_files_for_this_machine_have_sections() {
        let mut header = [0u8; ELF_HEADER];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[40] = 80;
        header[58] = 64;
        header[60] = 2;
        assert_eq!(sections(&header), Some(80..80 + 128));
        header[4] = 1;
        assert_eq!(sections(&header), None);
        header[4] = 2;
        header[58] = 32;
        assert_eq!(sections(&header), None);
        header[58] = 64;
        header[60..62].fill(0xff);
        assert_eq!(sections(&header), None);
        header[60..62].fill(1);
        header[40..48].fill(0xff);
        assert_eq!(sections(&header), None);
    }
}
