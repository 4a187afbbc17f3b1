//! ELF files made by hand, whose debug information is hostile.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Units, and ranges in the list that all of them share.
pub(crate) const RANGES: u32 = 20_000;

/// Sections that DWARF is read from.
const DWARF: [&str; 8] = [
    ".debug_info",
    ".debug_abbrev",
    ".debug_line",
    ".debug_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_addr",
    ".debug_aranges",
];

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHF_COMPRESSED: u64 = 1 << 11;

struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    offset: u64,
    size: u64,
    link: u32,
    entry: u64,
}

/// A file: sections, which may share bytes, over contents that may be followed by a hole.
pub(crate) struct Elf {
    sections: Vec<Section>,
    contents: Vec<u8>,
    len: u64,
}

/// Offset of the contents, behind header and program header.
const CONTENTS: u64 = 64 + 56;

impl Elf {
    fn new(contents: Vec<u8>, len: u64) -> Self {
        let none = Section { name: "", kind: 0, flags: 0, offset: 0, size: 0, link: 0, entry: 0 };
        Self { sections: vec![none], contents, len }
    }

    fn dwarf(mut self, flags: u64, size: u64) -> Self {
        self.sections.extend(DWARF.map(|name| Section {
            name,
            kind: SHT_PROGBITS,
            flags,
            offset: CONTENTS,
            size,
            link: 0,
            entry: 0,
        }));
        self
    }

    /// Sections that share the same compressed bytes, and expand to `size` zeroes each.
    pub(crate) fn bombs(size: u64) -> Self {
        let level = flate2::Compression::best();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
        let zeroes = vec![0; 1 << 20];
        (0..size >> 20).for_each(|_| encoder.write_all(&zeroes).unwrap());
        // ELFCOMPRESS_ZLIB, the size and the alignment of what is compressed.
        let words = [1, size, 1];
        let mut contents: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        contents.extend(encoder.finish().unwrap());
        let len = contents.len() as u64;
        Self::new(contents, CONTENTS + len).dwarf(SHF_COMPRESSED, len)
    }

    /// Sections of `size` bytes each over one hole.
    pub(crate) fn sparse(size: u64) -> Self {
        Self::new(Vec::new(), CONTENTS + size).dwarf(0, size)
    }

    /// `count` functions with one name of 4,000 bytes.
    pub(crate) fn symbols(count: u64) -> Self {
        let mut contents = vec![b'f'; 4000];
        contents[0] = 0;
        contents.push(0);
        let names = contents.len() as u64;
        for number in 0..count {
            // Name, type, section; address; size.
            let words = [1 | 0x12 << 32 | 1 << 48, number, 1];
            contents.extend(words.iter().flat_map(|w: &u64| w.to_le_bytes()));
        }
        let len = contents.len() as u64;
        let mut this = Self::new(contents, CONTENTS + len);
        let section = |name, kind, offset, size, link, entry| Section {
            name,
            kind,
            flags: 0,
            offset,
            size,
            link,
            entry,
        };
        this.sections.push(section(".text", SHT_PROGBITS, CONTENTS, 1, 0, 0));
        this.sections.push(section(".strtab", SHT_STRTAB, CONTENTS, names, 0, 0));
        let table = CONTENTS + names;
        this.sections.push(section(".symtab", SHT_SYMTAB, table, count * 24, 2, 24));
        this
    }

    /// Writes the file, the section table behind all else.
    pub(crate) fn write(mut self, path: &Path) {
        let file = File::create(path).unwrap();
        let mut names = vec![0];
        let mut offsets = Vec::new();
        self.sections.push(Section {
            name: ".shstrtab",
            kind: SHT_STRTAB,
            flags: 0,
            offset: self.len,
            size: 0,
            link: 0,
            entry: 0,
        });
        for section in &self.sections {
            offsets.push(names.len() as u32);
            names.extend(section.name.bytes().chain([0]));
        }
        self.sections.last_mut().unwrap().size = names.len() as u64;
        let table_at = (self.len + names.len() as u64).next_multiple_of(8);
        let mut table = Vec::new();
        for (section, name) in self.sections.iter().zip(offsets) {
            table.extend([name, section.kind].iter().flat_map(|w| w.to_le_bytes()));
            let words = [section.flags, 0, section.offset, section.size];
            table.extend(words.iter().flat_map(|w| w.to_le_bytes()));
            table.extend([section.link, 0].iter().flat_map(|w: &u32| w.to_le_bytes()));
            table.extend([1, section.entry].iter().flat_map(|w| w.to_le_bytes()));
        }
        let count = self.sections.len() as u16;
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(16, 0);
        // ET_DYN, x86-64, version.
        head.extend([3, 0, 62, 0, 1, 0, 0, 0]);
        head.extend([0, 64, table_at].iter().flat_map(|w: &u64| w.to_le_bytes()));
        head.extend(0_u32.to_le_bytes());
        let halves = [64, 56, 1, 64, count, count - 1];
        head.extend(halves.iter().flat_map(|w: &u16| w.to_le_bytes()));
        // PT_LOAD, executable, of the whole address space of an executable.
        head.extend([1_u32, 5].iter().flat_map(|w| w.to_le_bytes()));
        let words = [0, 0, 0, 1 << 40, 1 << 40, 4096_u64];
        head.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        assert_eq!(head.len() as u64, CONTENTS);
        for (at, bytes) in
            [(0, &head), (CONTENTS, &self.contents), (self.len, &names), (table_at, &table)]
        {
            file.write_all_at(bytes, at).unwrap();
        }
    }
}

/// DWARF of `count` units, all of which have one list of `count` ranges.
pub(crate) fn shared_ranges(count: u32) -> [(&'static str, Vec<u8>); 3] {
    // DW_TAG_compile_unit without children: DW_AT_ranges, DW_FORM_sec_offset.
    let abbrev = vec![1, 0x11, 0, 0x55, 0x17, 0, 0, 0];
    let mut info = Vec::new();
    for _ in 0..count {
        // Length, version 4, offset of the abbreviation, bytes of an address; its code, the list.
        info.extend([12, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0]);
    }
    let mut ranges = Vec::new();
    for number in 0..u64::from(count) {
        ranges.extend([number * 16 + 1, number * 16 + 9].iter().flat_map(|w| w.to_le_bytes()));
    }
    ranges.extend([0; 16]);
    [(".debug_abbrev", abbrev), (".debug_info", info), (".debug_ranges", ranges)]
}
