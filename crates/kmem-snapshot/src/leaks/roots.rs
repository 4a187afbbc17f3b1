//! Memory outside of the heap that may hold pointers: writable data of all objects, stacks, memory
//! that the program mapped itself, thread-local memory.

use std::ops::Range;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::books::Snapshot;
use crate::maps::{Mapping, Maps, PAGE};
use crate::memory::{LiveMemory, PageMap, PageState};
use crate::process::Process;
use crate::program::base_name;

/// Bytes below the stack pointer that a function may use without moving it (System V ABI).
const RED_ZONE: u64 = 128;
/// The kernel's name of the mapping that holds the first thread's stack, and nothing else.
const STACK: &str = "[stack]";

/// Parts of the memory that may hold pointers, in order of address. Pages that are neither in
/// memory nor in swap hold none. Of the first thread's stack it is the part in use. The kernel
/// merges the stacks of other threads with their neighbours, so all of those counts.
pub(super) fn parts(
    process: &Process,
    snapshot: &Snapshot,
    stacks: &[u64],
    touched: Option<&PageMap>,
) -> Vec<Range<u64>> {
    // Variables of the allocator itself are no roots.
    let mut own = variables(&process.memory(), &snapshot.maps);
    own.extend(snapshot.books.iter().flat_map(|books| books.noted.own().iter().cloned()));
    own.sort_by_key(|range| range.start);
    let is_root =
        |mapping: &&Mapping| mapping.readable && mapping.writable && !is_allocator(mapping);
    let mut parts = Vec::new();
    for mapping in snapshot.maps.all().iter().filter(is_root) {
        let mut range = mapping.start..mapping.end;
        if mapping.path == STACK
            && let Some(low) = stacks.iter().filter(|sp| range.contains(*sp)).min()
        {
            range.start = range.start.max(low.saturating_sub(RED_ZONE) / 8 * 8);
        }
        for part in without(range, &own) {
            present(touched, part, &mut parts);
        }
    }
    for copies in snapshot.books.iter().flat_map(|books| books.noted.per_cpu()) {
        present(touched, copies.clone(), &mut parts);
    }
    parts
}

/// Segments of the preloaded library. The kernel may split the memory behind its file's end, and
/// merge the last part of that with the program's.
fn variables(memory: &LiveMemory, maps: &Maps) -> Vec<Range<u64>> {
    let mut all = Vec::new();
    for mapping in maps.all().iter().filter(|of| is_allocator(of) && of.offset == 0) {
        let mut page = [0; PAGE as usize];
        if memory.read(mapping.start, &mut page).is_ok() {
            all.extend(segments(&page, mapping.start).unwrap_or_default());
        }
    }
    all
}

/// Segments of an ELF file, of which the first page lies at `base`.
fn segments(page: &[u8], base: u64) -> Option<Vec<Range<u64>>> {
    let header = FileHeader64::<Endianness>::parse(page).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, page).ok()?;
    let segments = headers.iter().filter(|of| of.p_type(endian) == object::elf::PT_LOAD);
    let range =
        |of: &<FileHeader64<Endianness> as object::read::elf::FileHeader>::ProgramHeader| {
            let start = base.checked_add(of.p_vaddr(endian))?;
            let end = start.checked_add(of.p_memsz(endian))?.checked_next_multiple_of(PAGE)?;
            Some(start / PAGE * PAGE..end)
        };
    Some(segments.filter_map(range).collect())
}

/// True for a mapping of the preloaded library.
fn is_allocator(mapping: &Mapping) -> bool {
    base_name(&mapping.path).starts_with("libkmem.so")
}

/// Adds the pages of a part that are in memory or in swap; all of it where that is not known.
pub(super) fn present(touched: Option<&PageMap>, part: Range<u64>, parts: &mut Vec<Range<u64>>) {
    let before = parts.len();
    let known = touched.and_then(|map| {
        for state in [PageState::Present, PageState::Swapped] {
            map.regions(part.start, part.end - part.start, state, |found| {
                let found = found.start.max(part.start)..found.end.min(part.end);
                if found.start < found.end {
                    parts.push(found);
                }
            })?;
        }
        Some(())
    });
    if known.is_none() {
        parts.truncate(before);
        parts.push(part);
    }
}

/// The parts of a range that are in none of the others, which are sorted by start.
fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut at = range.start;
    for other in others {
        if other.end <= at || other.start >= range.end {
            continue;
        }
        if at < other.start {
            rest.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        rest.push(at..range.end);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn the_allocators_own_memory_is_cut_out() {
        let own = [0..5, 10..12, 11..14, 30..40];
        assert_eq!(without(3..35, &own), [5..10, 14..30]);
        assert_eq!(without(10..12, &own), []);
        assert_eq!(without(28..50, &own), [28..30, 40..50]);
    }
}
