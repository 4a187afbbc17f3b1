//! The ELF header and the program headers of a core file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64};
use object::{LittleEndian as LE, pod};

use crate::program::ElfProgram;

/// Most program headers read: sixteen times the mappings that Linux allows a process.
const MAX_HEADERS: u64 = 1 << 20;

/// Machine whose notes this reader knows.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };

/// Beginnings of other files that users mistake for core files.
const OTHER_FILES: &[(&[u8], &str)] = &[
    (b"\x1f\x8b", "compressed by gzip: decompress it first (gunzip)"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it first (unzstd)"),
    (b"\xfd7zXZ\0", "compressed by xz: decompress it first (unxz)"),
    (b"\x04\x22\x4d\x18", "compressed by lz4: decompress it first (unlz4)"),
    (b"BZh", "compressed by bzip2: decompress it first (bunzip2)"),
    (b"KDUMP   ", "a dump of a kernel, not the core file of a process"),
    (b"MDMP", "a minidump, not an ELF core file"),
    (b"kmem box", "a black box of kmem, not a core file: read it with --blackbox"),
];

/// A program header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) flags: u32,
    /// Offset in the file.
    pub(super) offset: u64,
    /// First address.
    pub(super) start: u64,
    /// One past the last address.
    pub(super) end: u64,
    /// Bytes in the file.
    pub(super) file_size: u64,
    pub(super) align: u64,
}

/// Program headers of a core file.
pub(super) struct Headers {
    /// Kind PT_NOTE.
    pub(super) notes: Vec<Segment>,
    /// Kind PT_LOAD, in order of address, without overlap.
    pub(super) loads: Vec<Segment>,
    /// True when there is a table of sections. gdb writes one. Linux writes one section header at
    /// most, for the count of program headers.
    pub(super) has_sections: bool,
}

/// Reads `bytes.len()` bytes at `offset` of a file of `len` bytes; `what` names them in errors.
fn read_at(file: &File, len: u64, offset: u64, bytes: &mut [u8], what: &str) -> Result<(), String> {
    let end = offset.checked_add(bytes.len() as u64);
    if end.is_none_or(|end| end > len) {
        let end = end.map_or_else(|| "beyond any file".to_owned(), |end| format!("at {end}"));
        return Err(format!(
            "truncated: {what} at offset {offset} end {end}, the file has {len} bytes"
        ));
    }
    file.read_exact_at(bytes, offset).map_err(|e| format!("{what} at offset {offset}: {e}"))
}

/// The kind of a file that users mistake for a core file, by its first bytes.
pub(crate) fn other_file(head: &[u8]) -> Option<&'static str> {
    OTHER_FILES.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what)
}

/// Reads the headers of a core file of `len` bytes.
///
/// # Errors
///
/// Says which kind of file it is, or what is wrong with it.
pub(super) fn read(file: &File, len: u64) -> Result<Headers, String> {
    if len == 0 {
        return Err("empty file: the core was never written".to_owned());
    }
    let mut head = [0; 64];
    let there = usize::try_from(len).unwrap_or(64).min(64);
    let first = head.get_mut(..there).unwrap_or_default();
    read_at(file, len, 0, first, "the first bytes")?;
    if let Some(what) = other_file(first) {
        return Err(what.to_owned());
    }
    if !head.starts_with(&elf::ELFMAG) {
        return Err("not an ELF core file".to_owned());
    }
    if there < 64 {
        return Err(format!("truncated: the ELF header has 64 bytes, the file {len}"));
    }
    let (header, _) =
        pod::from_bytes::<FileHeader64<LE>>(&head).map_err(|()| "broken ELF header".to_owned())?;
    check(header)?;
    let (size, count) = (header.e_phentsize.get(LE), count(file, len, header)?);
    if usize::from(size) != size_of::<ProgramHeader64<LE>>() {
        return Err(format!("program headers of {size} bytes, expected 56"));
    }
    let has_sections = header.e_shnum.get(LE) > 1;
    let mut headers = Headers { notes: Vec::new(), loads: Vec::new(), has_sections };
    let mut table = vec![0; count * usize::from(size)];
    read_at(file, len, header.e_phoff.get(LE), &mut table, "the program headers")?;
    for (number, record) in table.chunks_exact(usize::from(size)).enumerate() {
        let (record, _) = pod::from_bytes::<ProgramHeader64<LE>>(record)
            .map_err(|()| "broken program header".to_owned())?;
        match record.p_type.get(LE) {
            elf::PT_NOTE => headers.notes.push(segment(number, record)?),
            elf::PT_LOAD => headers.loads.push(segment(number, record)?),
            _ => {}
        }
    }
    headers.loads.retain(|s| s.start < s.end);
    headers.loads.sort_by_key(|s| s.start);
    for (before, after) in headers.loads.iter().zip(headers.loads.iter().skip(1)) {
        if after.start < before.end {
            return Err(format!(
                "two PT_LOAD segments overlap: {:#x}-{:#x} and {:#x}-{:#x}",
                before.start, before.end, after.start, after.end
            ));
        }
    }
    Ok(headers)
}

/// Checks class, byte order, type and machine.
fn check(header: &FileHeader64<LE>) -> Result<(), String> {
    let program = ElfProgram {
        is_64: header.e_ident.class == elf::ELFCLASS64,
        is_little: header.e_ident.data == elf::ELFDATA2LSB,
        machine: header.e_machine.get(LE),
        interpreter: None,
    };
    if !program.is_little {
        return Err("an ELF file of big-endian byte order".to_owned());
    }
    // Files of both classes have type and machine at one place.
    match header.e_type.get(LE) {
        elf::ET_CORE => {}
        elf::ET_EXEC | elf::ET_DYN => {
            return Err("an executable or shared library, not a core file".to_owned());
        }
        elf::ET_REL => return Err("an object file, not a core file".to_owned()),
        other => return Err(format!("an ELF file of type {other}, not a core file")),
    }
    if !program.is_64 || program.machine != MACHINE {
        let machine = program.machine_name();
        return Err(format!("core of another architecture: {machine}"));
    }
    Ok(())
}

/// Count of program headers. A count above 65,534 is in the first section header (`PN_XNUM`).
fn count(file: &File, len: u64, header: &FileHeader64<LE>) -> Result<usize, String> {
    let mut count = u64::from(header.e_phnum.get(LE));
    if count == u64::from(elf::PN_XNUM) {
        let mut section = [0; size_of::<SectionHeader64<LE>>()];
        let offset = header.e_shoff.get(LE);
        read_at(file, len, offset, &mut section, "the number of program headers")?;
        let (section, _) = pod::from_bytes::<SectionHeader64<LE>>(&section)
            .map_err(|()| "broken section header".to_owned())?;
        count = u64::from(section.sh_info.get(LE));
    }
    if count == 0 || count > MAX_HEADERS {
        return Err(format!("{count} program headers"));
    }
    usize::try_from(count).map_err(|_| format!("{count} program headers"))
}

fn segment(number: usize, record: &ProgramHeader64<LE>) -> Result<Segment, String> {
    let (start, size) = (record.p_vaddr.get(LE), record.p_memsz.get(LE));
    let end = start.checked_add(size);
    let end =
        end.ok_or_else(|| format!("program header {number}: {size:#x} bytes at {start:#x}"))?;
    let (offset, file_size) = (record.p_offset.get(LE), record.p_filesz.get(LE));
    if offset.checked_add(file_size).is_none() {
        return Err(format!("program header {number}: {file_size:#x} bytes at offset {offset:#x}"));
    }
    Ok(Segment {
        flags: record.p_flags.get(LE),
        offset,
        start,
        end,
        file_size,
        align: record.p_align.get(LE),
    })
}
