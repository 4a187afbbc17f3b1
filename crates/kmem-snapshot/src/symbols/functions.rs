//! Functions of the symbol table of an ELF file, found by address.
//!
//! ```text
//! entries   address | size | name: an offset in `strings`     in order of address
//! strings   offsets in the file
//! ```
//!
//! A table may have 100,000 functions, of which a report names a hundred. So names stay in the
//! file. A lookup reads those of the functions at the nearest address.

use std::cmp::Reverse;
use std::ops::Range;

use object::ReadRef as _;
use object::elf::STT_FUNC;
use object::read::elf::{
    ElfFile, FileHeader, SectionHeader as _, Sym as _, SymbolTable as ElfSymbols,
};

use super::bytes::Bytes;
use crate::budget::{Budget, OverBudget, STEP};

/// Most functions kept of one file.
const MAX_FUNCTIONS: usize = 4 << 20;
/// Longest name that is read.
const MAX_NAME: usize = 64 << 10;

struct Entry {
    address: u64,
    size: u64,
    name: u32,
}

/// The functions of one file.
#[derive(Default)]
pub(super) struct Functions {
    /// In order of address; those of one address in the order of the table.
    entries: Vec<Entry>,
    /// Place of their names in the file.
    strings: Range<u64>,
}

impl Functions {
    /// Functions of the symbol table, or of the dynamic one where the file is stripped.
    ///
    /// # Errors
    ///
    /// They do not fit in the budget.
    pub(super) fn of<'a>(
        file: &object::File<'a, &'a Bytes>,
        budget: &Budget,
    ) -> Result<Self, OverBudget> {
        match file {
            object::File::Elf64(elf) => Self::of_elf(elf, budget),
            object::File::Elf32(elf) => Self::of_elf(elf, budget),
            _ => Ok(Self::default()),
        }
    }

    fn of_elf<'a, E: FileHeader>(
        file: &ElfFile<'a, E, &'a Bytes>,
        budget: &Budget,
    ) -> Result<Self, OverBudget> {
        let functions = Self::of_table(file, file.elf_symbol_table(), budget)?;
        if functions.len() != 0 {
            return Ok(functions);
        }
        Self::of_table(file, file.elf_dynamic_symbol_table(), budget)
    }

    fn of_table<'a, E: FileHeader>(
        file: &ElfFile<'a, E, &'a Bytes>,
        table: &ElfSymbols<'a, E, &'a Bytes>,
        budget: &Budget,
    ) -> Result<Self, OverBudget> {
        let endian = file.endian();
        let strings = file.elf_section_table().section(table.string_section()).ok();
        let Some((at, len)) = strings.and_then(|section| section.file_range(endian)) else {
            return Ok(Self::default());
        };
        let all = || {
            let functions = table.iter().filter(|symbol| {
                symbol.st_type() == STT_FUNC
                    && symbol.is_definition(endian)
                    && symbol.st_name(endian) != 0
            });
            functions.take(MAX_FUNCTIONS)
        };
        let count = all().count();
        budget.copy((count * size_of::<Entry>()) as u64)?;
        let mut entries = Vec::with_capacity(count);
        entries.extend(all().map(|symbol| Entry {
            address: symbol.st_value(endian).into(),
            size: symbol.st_size(endian).into(),
            name: symbol.st_name(endian),
        }));
        entries.sort_by_key(|entry| entry.address);
        Ok(Self { entries, strings: at..at.saturating_add(len) })
    }

    /// Number of functions.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Name of the function at `address`. `bytes` are those of the file.
    pub(super) fn find<'a>(
        &self,
        bytes: &'a Bytes,
        address: u64,
        budget: &Budget,
    ) -> Option<&'a str> {
        let mut rest = &self.entries[..self.entries.partition_point(|e| e.address <= address)];
        // Functions without a name are none: the next ones below are asked.
        while let Some(nearest) = rest.last().map(|entry| entry.address) {
            let below = rest.partition_point(|entry| entry.address < nearest);
            let (before, here) = rest.split_at(below);
            // Any number of symbols may have one address.
            budget.work(here.len() as u64 * STEP).ok()?;
            let name = |entry| {
                let name = self.name(bytes, entry)?;
                budget.work(name.len() as u64).ok().map(|()| (entry, name))
            };
            let named = here.iter().filter_map(name);
            // Of several names, one with a size is taken. Of these it is the shortest, which is the
            // least decorated.
            let rank = |(entry, name): &(&Entry, &'a str)| {
                (entry.size != 0, Reverse(name.len()), Reverse(*name))
            };
            if let Some((entry, name)) = named.max_by_key(rank) {
                // Functions written in assembler may have no size.
                let is_within = entry.size == 0 || address - entry.address < entry.size;
                return is_within.then_some(name);
            }
            rest = before;
        }
        None
    }

    fn name<'a>(&self, bytes: &'a Bytes, entry: &Entry) -> Option<&'a str> {
        let at = self.strings.start.checked_add(entry.name.into())?;
        let name = bytes.read_bytes_at_until(at..self.strings.end, 0).ok()?;
        let name = str::from_utf8(name).ok()?;
        (!name.is_empty() && name.len() <= MAX_NAME).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Functions with these addresses, sizes and names.
    fn functions(of: &[(u64, u64, &str)]) -> (Functions, Bytes) {
        let mut text = vec![0];
        let mut entries = Vec::new();
        for &(address, size, name) in of {
            entries.push(Entry { address, size, name: text.len() as u32 });
            text.extend_from_slice(name.as_bytes());
            text.push(0);
        }
        entries.sort_by_key(|entry| entry.address);
        let strings = 0..text.len() as u64;
        let bytes = Bytes::new(Box::new(Cursor::new(text)), &Budget::default());
        (Functions { entries, strings }, bytes)
    }

    #[test]
    fn a_function_is_found_by_the_addresses_of_its_code() {
        let (functions, bytes) = functions(&[(0x200, 8, "two"), (0x100, 8, "one"), (0x300, 0, "")]);
        let find = |address| functions.find(&bytes, address, &Budget::default());
        assert_eq!(find(0xff), None);
        assert_eq!([find(0x100), find(0x107), find(0x108)], [Some("one"), Some("one"), None]);
        assert_eq!(find(0x207), Some("two"));
        // The function without a name is none.
        assert_eq!(find(0x300), None);
    }

    #[test]
    fn of_several_names_the_shortest_of_those_with_a_size_is_taken() {
        let of = [(1, 0, "f"), (1, 9, "_f_b"), (1, 9, "_f_a"), (1, 9, "__f__"), (1, 9, "")];
        let (functions, bytes) = functions(&of);
        assert_eq!(functions.find(&bytes, 9, &Budget::default()), Some("_f_a"));
        assert_eq!(functions.find(&bytes, 10, &Budget::default()), None);
    }

    #[test]
    fn a_lookup_reads_the_names_at_the_nearest_address_alone() {
        let of: Vec<_> = (0..1000).map(|n| (n * 16, 16, "a_name")).collect();
        let (functions, bytes) = functions(&of);
        assert_eq!(functions.find(&bytes, 1605, &Budget::default()), Some("a_name"));
        assert_eq!(bytes.pieces(), 1);
    }

    #[test]
    fn many_functions_at_one_address_take_work() {
        let of: Vec<_> = (0..1000).map(|_| (16, 16, "a_name")).collect();
        let (functions, bytes) = functions(&of);
        let budget = Budget::new(u64::MAX, 1500 * STEP);
        assert_eq!(functions.find(&bytes, 16, &budget), Some("a_name"));
        assert_eq!(functions.find(&bytes, 16, &budget), None);
    }
}
