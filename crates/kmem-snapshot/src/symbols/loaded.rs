//! Modules that kmem's loader made of memory. Each has its symbols there, as an ELF file with
//! absolute addresses, which the loader's board points to.
//!
//! The process may have written anything there. The file is taken only from the module's own
//! memory, and is read like any other file.

use std::io::Cursor;
use std::ops::Range;

use super::bytes::ReadSeek;
use crate::budget::Budget;
use crate::memory::LiveMemory;
use crate::memory::{u16_at, u32_at, u64_at};
use crate::modules::Module;
use crate::process::Process;

/// Bytes of an ELF header, and of an entry of the section table.
const RECORD: u64 = 64;
/// Most sections.
const MAX_SECTIONS: u64 = 64;
/// Most bytes of a file.
const MAX_FILE: u64 = 128 << 20;
/// Flags of a section of code in memory: `SHF_ALLOC` and `SHF_EXECINSTR`.
const CODE: u64 = 6;

/// A module with symbols.
pub(super) struct Loaded {
    /// Its name.
    pub(super) name: String,
    /// First address of its memory.
    pub(super) base: u64,
    /// Addresses of its code: that which stays, then that of init. The latter may have another
    /// owner by now.
    pub(super) code: Vec<Range<u64>>,
    /// Its symbols.
    pub(super) source: Box<dyn ReadSeek>,
}

/// Place of a module's symbols, and addresses of its code.
struct Head {
    len: u64,
    code: Vec<Range<u64>>,
}

impl Head {
    /// Reads the header and the section table with `read`. `None`: they are of no such file.
    fn read(module: &Module, read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Self> {
        let end = module.base.checked_add(module.size)?;
        let room = end.checked_sub(module.symbols).filter(|_| module.symbols >= module.base)?;
        let mut header = [0; RECORD as usize];
        read(module.symbols, &mut header)?;
        let (table, count) = (u64_at(&header, 40), u64::from(u16_at(&header, 60)));
        let len = table.checked_add(count * RECORD)?;
        if header[..4] != *b"\x7fELF" || count > MAX_SECTIONS || len > room.min(MAX_FILE) {
            return None;
        }
        let mut sections = vec![0; (count * RECORD) as usize];
        read(module.symbols + table, &mut sections)?;
        let code = sections.chunks_exact(RECORD as usize).filter_map(|entry| {
            let (flags, addr, size) = (u64_at(entry, 8), u64_at(entry, 16), u64_at(entry, 32));
            let is_code = flags & CODE == CODE && u32_at(entry, 4) != 0;
            // A module without end would have the addresses of all others.
            let end = addr.checked_add(size).filter(|_| is_code && size <= MAX_FILE)?;
            (addr >= module.base).then_some(addr..end)
        });
        let mut code: Vec<_> = code.collect();
        code.sort_by_key(|code| code.start);
        Some(Self { len, code })
    }
}

/// Finds the modules of a process whose code has one of `addresses`. At most `most` of them.
pub(super) fn find(
    process: &Process,
    addresses: &[u64],
    budget: &Budget,
    most: usize,
) -> Vec<Loaded> {
    let memory: LiveMemory = process.memory();
    let read = |at: u64, into: &mut [u8]| memory.read(at, into).ok();
    let modules = process.module_boards().unwrap_or_default();
    let modules = modules.into_iter().flat_map(|board| board.modules);
    let found = modules.filter(|module| module.symbols != 0).filter_map(|module| {
        let Head { len, code } = Head::read(&module, read)?;
        let has = |&address: &u64| code.iter().any(|code| code.contains(&address.wrapping_sub(1)));
        if !addresses.iter().any(has) || budget.copy(len).is_err() {
            return None;
        }
        let mut file = vec![0; usize::try_from(len).ok()?];
        read(module.symbols, &mut file)?;
        let source: Box<dyn ReadSeek> = Box::new(Cursor::new(file));
        Some(Loaded { name: module.name, base: module.base, code, source })
    });
    found.take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module at 0x1000, with a file of 0x800 bytes at 0x1800 and its section table at 0x400.
    fn head(change: impl FnOnce(&mut [u8])) -> Option<Vec<Range<u64>>> {
        let mut memory = vec![0; 0x1000];
        let mut put = |at: usize, bytes: &[u8]| {
            memory[0x800 + at..0x800 + at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, b"\x7fELF");
        put(40, &0x400_u64.to_le_bytes());
        put(60, &3_u16.to_le_bytes());
        for (number, addr, size) in [(1, 0x3000_u64, 0x100_u64), (2, 0x1000, 0x200)] {
            let at = 0x400 + number * 64;
            put(at + 4, &8_u32.to_le_bytes());
            put(at + 8, &CODE.to_le_bytes());
            put(at + 16, &addr.to_le_bytes());
            put(at + 32, &size.to_le_bytes());
        }
        change(&mut memory[0x800..]);
        let module = Module {
            name: String::new(),
            state: "Live",
            size: 0x1000,
            text: 0,
            refcount: 0,
            users: String::new(),
            base: 0x1000,
            symbols: 0x1800,
        };
        let read = |at: u64, into: &mut [u8]| {
            let at = usize::try_from(at.checked_sub(0x1000)?).ok()?;
            into.copy_from_slice(memory.get(at..at + into.len())?);
            Some(())
        };
        Head::read(&module, read).map(|head| head.code)
    }

    #[test]
    fn code_has_the_addresses_of_its_sections_lowest_first() {
        assert_eq!(head(|_| {}), Some(vec![0x1000..0x1200, 0x3000..0x3100]));
    }

    #[test]
    fn a_file_that_leaves_the_module_is_none() {
        assert_eq!(head(|file| file[0] = 0), None);
        for table in [0x741, u64::MAX, u64::MAX - 0xc0, 1 << 63] {
            assert_eq!(head(|file| file[40..48].copy_from_slice(&table.to_le_bytes())), None);
        }
        for count in [17_u16, 65, u16::MAX] {
            assert_eq!(head(|file| file[60..62].copy_from_slice(&count.to_le_bytes())), None);
        }
    }

    #[test]
    fn code_below_the_module_or_without_end_is_left_out() {
        for (addr, size) in [(0xfff, 1), (0x1000, u64::MAX), (u64::MAX, 2), (0x1000, MAX_FILE + 1)]
        {
            let change = |file: &mut [u8]| {
                file[0x450..0x458].copy_from_slice(&u64::to_le_bytes(addr));
                file[0x460..0x468].copy_from_slice(&u64::to_le_bytes(size));
            };
            let code = head(change).unwrap();
            assert!(code.len() == 1 && code[0] == (0x1000..0x1200), "{addr:#x} {size:#x}");
        }
    }
}
