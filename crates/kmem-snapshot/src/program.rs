//! The kind of a program file, before it is run: its ELF header, or the interpreter of a script.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use object::elf;

use crate::maps::unmarked;
use crate::process::open_regular;

/// Longest `#!` line (`BINPRM_BUF_SIZE` in Linux).
const MAX_SCRIPT_LINE: usize = 256;
/// Longest interpreter path accepted.
const MAX_INTERPRETER: u64 = 4096;

/// Base name of a program, by its path as the kernel shows it: that of a file that was removed has
/// a mark.
#[must_use]
pub fn base_name(path: &str) -> &str {
    let path = unmarked(path).0;
    path.rsplit('/').next().unwrap_or(path)
}

/// Kind of a program file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// An ELF file.
    Elf(ElfProgram),
    /// A script whose `#!` line names this interpreter.
    Script(PathBuf),
    /// Another file; `execvp` gives it to `/bin/sh`.
    Other,
}

/// The header of an ELF program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElfProgram {
    /// True for a 64-bit file.
    pub is_64: bool,
    /// True for a little-endian file.
    pub is_little: bool,
    /// `e_machine`.
    pub machine: u16,
    /// Path of its dynamic loader (PT_INTERP); none in a static program. Not read from a file of
    /// another class or byte order.
    pub interpreter: Option<PathBuf>,
}

impl ElfProgram {
    /// Name of the machine.
    #[must_use]
    pub fn machine_name(&self) -> String {
        let name = match self.machine {
            elf::EM_X86_64 if !self.is_64 => "x32",
            elf::EM_X86_64 => "x86-64",
            elf::EM_386 => "32-bit x86",
            elf::EM_AARCH64 => "AArch64",
            elf::EM_ARM => "32-bit ARM",
            elf::EM_RISCV => "RISC-V",
            elf::EM_PPC64 => "PowerPC64",
            elf::EM_S390 => "S/390",
            elf::EM_LOONGARCH => "LoongArch",
            elf::EM_MIPS => "MIPS",
            other => return format!("ELF machine {other}"),
        };
        name.to_owned()
    }
}

impl Program {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    ///
    /// Fails when the file cannot be read, is not a regular one, or is a broken ELF file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let (mut file, _) = open_regular(path, 0)?;
        let mut head = Vec::new();
        (&mut file).take(MAX_SCRIPT_LINE as u64).read_to_end(&mut head)?;
        if let Some(line) = head.strip_prefix(b"#!") {
            return Ok(script_interpreter(line).map_or(Self::Other, Self::Script));
        }
        if head.starts_with(&elf::ELFMAG) {
            let broken = || io::Error::new(io::ErrorKind::InvalidData, "broken ELF header");
            return Ok(Self::Elf(read_elf(&file, &head).ok_or_else(broken)?));
        }
        Ok(Self::Other)
    }
}

fn script_interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&b| b == b'\n').next()?.trim_ascii_start();
    let name = line.split(|b| b" \t\0".contains(b)).next()?;
    (!name.is_empty()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(name)))
}

/// Reads the ELF header; of a 64-bit little-endian file also the program headers.
fn read_elf(file: &File, head: &[u8]) -> Option<ElfProgram> {
    let is_64 = *head.get(4)? == elf::ELFCLASS64;
    let is_little = *head.get(5)? == elf::ELFDATA2LSB;
    let u16_at = |at: usize| {
        let bytes = head.get(at..at + 2)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let mut program = ElfProgram { is_64, is_little, machine: u16_at(18)?, interpreter: None };
    if !is_64 || !is_little {
        return Some(program);
    }
    let table = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?);
    let (entry_size, count) = (u64::from(u16_at(54)?), u64::from(u16_at(56)?));
    if entry_size < 56 {
        return None;
    }
    for i in 0..count {
        let mut entry = [0; 56];
        let at = table.checked_add(i * entry_size)?;
        file.read_exact_at(&mut entry, at).ok()?;
        let u64_at = |at: usize| entry.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b));
        if entry[..4] != elf::PT_INTERP.to_le_bytes() {
            continue;
        }
        let (offset, len) = (u64_at(8)?, u64_at(32)?);
        if len > MAX_INTERPRETER {
            return None;
        }
        let mut name = vec![0; usize::try_from(len).ok()?];
        file.read_exact_at(&mut name, offset).ok()?;
        let name = name.split(|&b| b == 0).next()?;
        program.interpreter = Some(PathBuf::from(std::ffi::OsStr::from_bytes(name)));
    }
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Program> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("program");
        std::fs::write(&path, bytes)?;
        Program::read(&path)
    }

    #[test]
    fn scripts() {
        let script = |text: &str| read(text.as_bytes()).unwrap();
        assert_eq!(script("#!/bin/sh -e\n"), Program::Script("/bin/sh".into()));
        assert_eq!(script("#! \t/usr/bin/env python3\n"), Program::Script("/usr/bin/env".into()));
        assert_eq!(script("#!\nx"), Program::Other);
        assert_eq!(script("echo hi\n"), Program::Other);
        assert_eq!(script(""), Program::Other);
    }

    #[test]
    fn this_program_is_dynamic() {
        let Program::Elf(elf) = Program::read(Path::new("/proc/self/exe")).unwrap() else {
            panic!("not ELF");
        };
        assert!(elf.is_64 && elf.is_little && elf.interpreter.is_some());
    }

    #[test]
    fn broken_files_are_errors_not_panics() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for len in 4..200 {
            let _ = read(&whole[..len]);
        }
        assert!(read(&whole[..40]).is_err());
        // Flips every byte of the header in turn.
        for at in 4..64 {
            let mut bytes = whole[..4096.min(whole.len())].to_vec();
            bytes[at] ^= 0xff;
            let _ = read(&bytes);
        }
        assert!(Program::read(Path::new("/dev/zero")).is_err());
    }
}
