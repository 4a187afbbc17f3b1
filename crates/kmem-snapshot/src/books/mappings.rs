//! Memory outside of the heap: mappings of the program by caller, stacks, code and files.
//!
//! ```text
//! /proc/PID/smaps      -> what is mapped, and how much of it is in memory
//! MappingTable         -> which call of the program mapped it
//! zones, OwnRange[]    -> what is kmem's, and in other terms of the equation
//! robust lists         -> which memory is the stack of a thread
//! ```
//!
//! The kernel merges neighbours, so one of its mappings may be of several owners. Each range of
//! addresses gets one owner: owners are painted one over the other, and the last one holds. The
//! page map then divides the memory of a mapping. The parts of a mapping always add up to the bytes
//! that the kernel counts for it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter;
use std::ops::Range;

use kmem_layout::blackbox;
use kmem_layout::mapping::{
    FIRST_ADDRESS, MAX_OWN, MAX_RECORDS, MappingRecord, MappingTable, OwnRange, record_state,
};
use kmem_layout::root::zone_purpose;
use serde::Serialize;

use super::root::Root;
use super::source::Source;
use super::tables::Key;
use super::zone::Zone;
use crate::error::ReadError;
use crate::maps::{Mapping, PAGE, Resident};
use crate::memory::{PageState, Pages, field};

/// Bytes of the table in front of its records.
const TABLE_HEAD: u64 = std::mem::offset_of!(MappingTable, records) as u64;

/// Resident memory outside of the heap, in bytes: the parts of `unaccounted` that have a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Anonymous mappings of the program.
    pub mappings: u64,
    /// Stacks of threads.
    pub stacks: u64,
    /// Programs and libraries: their code and their variables.
    pub code: u64,
    /// Other mapped files, and shared memory with a name.
    pub files: u64,
}

impl Parts {
    /// The sum of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            mappings: self.mappings.saturating_add(other.mappings),
            stacks: self.stacks.saturating_add(other.stacks),
            code: self.code.saturating_add(other.code),
            files: self.files.saturating_add(other.files),
        }
    }

    /// Sum of all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.mappings, self.stacks, self.code, self.files].into_iter().fold(0, u64::saturating_add)
    }
}

/// Owner of memory outside of the heap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MappingOwner {
    /// The call of the program that mapped it, by tag.
    Tag(u32),
    /// The call of the program that mapped it, by return address.
    Address(u64),
    /// Anonymous memory that no record explains.
    Anonymous,
    /// The stack of the first thread.
    Stack,
    /// The stack of another thread.
    ThreadStack,
    /// A program or a library, by path.
    Code(String),
    /// Another file, by path.
    File(String),
}

impl MappingOwner {
    /// The call of the program that mapped it: its tag, or its return address; none for others.
    #[must_use]
    pub fn site(&self) -> Option<u64> {
        match self {
            Self::Tag(tag) => Some(u64::from(*tag)),
            Self::Address(address) => Some(*address),
            _ => None,
        }
    }
}

/// Memory of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingRow {
    /// The owner.
    pub owner: MappingOwner,
    /// Meaning of its tag or its address.
    pub key: Key,
    /// Bytes of address space.
    pub mapped: u64,
    /// Bytes in memory.
    pub resident: u64,
    /// Count of contiguous ranges.
    pub count: u64,
}

/// Memory outside of the heap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mappings {
    /// One row for each owner, in order of address.
    pub rows: Vec<MappingRow>,
    /// Sums of the rows.
    pub parts: Parts,
    /// Count of mappings that have no name because the table of records was full.
    pub lost: u64,
    /// Why the records of a root block could not be read.
    pub faults: Vec<String>,
}

impl Mappings {
    /// Bytes in memory that calls of the program mapped.
    #[must_use]
    pub fn of_calls(&self) -> u64 {
        let rows = self.rows.iter().filter(|row| row.owner.site().is_some());
        rows.map(|row| row.resident).fold(0, u64::saturating_add)
    }
}

/// The part of one root block: its records, and the memory that is its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Noted {
    records: Vec<Record>,
    own: Vec<Range<u64>>,
    /// Reservations that are neither zones nor tables that the root block names.
    pub(super) spare: Vec<Range<u64>>,
    /// Copies of all per-CPU objects: the shared ones, and those of each CPU.
    per_cpu: Vec<Range<u64>>,
    lost: u64,
    fault: Option<String>,
}

#[derive(Debug, Clone)]
struct Record {
    seq: u64,
    range: Range<u64>,
    owner: MappingOwner,
    key: Key,
}

impl Noted {
    /// Reads the records and the own ranges of a root block. Damage to them is noted, and hides
    /// nothing else.
    pub(super) fn read(source: &Source<'_>, root: &Root, zones: &[Zone], sites: &[Key]) -> Self {
        let mut this = Self::default();
        if let Err(error) = this.add_own(source, root) {
            this.fault = Some(format!("kmem's own mappings are not known: {error}"));
        }
        let places = zones.iter().flat_map(|zone| {
            let (meta, len) = zone.meta;
            [zone.range(), meta..meta.saturating_add(len)]
        });
        let (meta, len) = root.meta;
        let places: Vec<_> = places.chain(iter::once(meta..meta.saturating_add(len))).collect();
        // One file of the process, which the first of several root blocks counts.
        if !zones.is_empty() && source.zones.borrow().values().all(|&(_, of)| of == root.at) {
            this.own.extend(black_box(source));
        }
        this.spare = without(&this.own, &places);
        this.own.extend(places);
        this.per_cpu = per_cpu(&this.own, zones);
        this.own.push(root.at..root.at.saturating_add(PAGE));
        if let Err(error) = this.add_records(source, root, sites) {
            this.fault = Some(format!("the callers of mappings are not known: {error}"));
        }
        this
    }

    fn add_own(&mut self, source: &Source<'_>, root: &Root) -> Result<(), ReadError> {
        let count = if root.own == 0 { 0 } else { root.own_capacity };
        if count > MAX_OWN {
            let what = format!("own_capacity is {count}, above {MAX_OWN}");
            return Err(super::root::bad(root.at, what));
        }
        let size = size_of::<OwnRange>() as u32;
        let bytes = root.records(source, "own", root.own, count, size)?;
        let ranges = bytes
            .chunks_exact(size as usize)
            .map(|record| field!(record, OwnRange.start: u64)..field!(record, OwnRange.end: u64));
        self.own.extend(ranges.filter(|range| range.start < range.end));
        Ok(())
    }

    /// Reads the records in use. One that differs between two copies is being changed, and is left
    /// out.
    fn add_records(
        &mut self,
        source: &Source<'_>,
        root: &Root,
        sites: &[Key],
    ) -> Result<(), ReadError> {
        let (table, count) = (root.mappings, root.mapping_capacity);
        if table == 0 {
            return Ok(());
        }
        let at = table.checked_add(TABLE_HEAD).filter(|_| count <= MAX_RECORDS);
        let Some(at) = at else {
            let what = format!("{count} records of mappings at {table:#x}");
            return Err(super::root::bad(root.at, what));
        };
        let head = root.records(source, "mappings", table, 1, TABLE_HEAD as u32)?;
        self.lost = field!(&head, MappingTable.lost: u64);
        let size = size_of::<MappingRecord>() as u32;
        let copy = || root.records(source, "mappings", at, count, size);
        let (before, after) = (copy()?, copy()?);
        let size = size as usize;
        for (one, other) in before.chunks_exact(size).zip(after.chunks_exact(size)) {
            let seq = field!(one, MappingRecord.seq: u64);
            if one != other || seq < record_state::FIRST {
                continue;
            }
            let start = field!(one, MappingRecord.start: u64).checked_next_multiple_of(PAGE);
            let end = field!(one, MappingRecord.end: u64).checked_next_multiple_of(PAGE);
            let site = field!(one, MappingRecord.site: u64);
            let (owner, key) = if site < FIRST_ADDRESS {
                let key = usize::try_from(site).ok().and_then(|tag| sites.get(tag)).cloned();
                (MappingOwner::Tag(site as u32), key.unwrap_or_default())
            } else {
                (MappingOwner::Address(site), Key::Caller(site))
            };
            if let (Some(start), Some(end)) = (start, end)
                && start < end
            {
                self.records.push(Record { seq, range: start..end, owner, key });
            }
        }
        Ok(())
    }

    /// Address ranges that are the allocator's own: zones, tables, the black box.
    pub(crate) fn own(&self) -> &[Range<u64>] {
        &self.own
    }

    /// Address ranges that hold the copies of all per-CPU objects, and that may be read.
    pub(crate) fn per_cpu(&self) -> &[Range<u64>] {
        &self.per_cpu
    }

    /// Return addresses in the records.
    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.records.iter().flat_map(|record| record.key.addresses()).copied()
    }
}

/// Copies of all per-CPU objects. The shared ones lie in a zone. Those of a CPU lie in a
/// reservation of the zone's length, which has no other zone.
fn per_cpu(own: &[Range<u64>], zones: &[Zone]) -> Vec<Range<u64>> {
    let mut copies = Vec::new();
    for zone in zones.iter().filter(|zone| zone.purpose == zone_purpose::PERCPU) {
        let (shared, used) = (zone.range(), zone.committed.saturating_mul(PAGE));
        let is_unit = |range: &&Range<u64>| {
            let is_apart =
                |of: &Zone| of.range().end <= range.start || of.range().start >= range.end;
            range.end - range.start == shared.end - shared.start && zones.iter().all(is_apart)
        };
        let starts = own.iter().filter(is_unit).map(|range| range.start);
        let starts = iter::once(shared.start).chain(starts);
        copies.extend(starts.map(|start| start..start.saturating_add(used)));
    }
    copies.retain(|range| !range.is_empty());
    copies
}

/// Mappings of the black box that the process writes. A file that it maps by itself does not begin
/// like one.
fn black_box(source: &Source<'_>) -> Vec<Range<u64>> {
    let all = source.maps.all();
    let is_box = |mapping: &&Mapping| {
        let mut magic = [0; 8];
        mapping.is_file()
            && (mapping.offset, mapping.writable, mapping.executable) == (0, true, false)
            && source.memory.read(mapping.start, &mut magic).is_ok()
            && u64::from_le_bytes(magic) == blackbox::MAGIC
    };
    let file = |mapping: &Mapping| (mapping.device, mapping.inode);
    let files: HashSet<_> = all.iter().filter(is_box).map(file).collect();
    let parts = all.iter().filter(|mapping| mapping.is_file() && files.contains(&file(mapping)));
    parts.map(|mapping| mapping.start..mapping.end).collect()
}

/// Number of an owner in the list of painted ones.
type Number = usize;

/// Ranges of addresses with their owners. They do not overlap.
#[derive(Default)]
struct Canvas {
    ranges: BTreeMap<u64, (u64, Number)>,
}

impl Canvas {
    /// Gives a range to an owner, and takes it from all others.
    fn paint(&mut self, range: Range<u64>, owner: Number) {
        if range.is_empty() {
            return;
        }
        let before = self.ranges.range(..range.start).next_back().map(|(&at, &of)| (at, of));
        if let Some((start, (end, other))) = before
            && end > range.start
        {
            self.ranges.insert(start, (range.start, other));
            if end > range.end {
                self.ranges.insert(range.end, (end, other));
            }
        }
        while let Some((&start, &(end, other))) = self.ranges.range(range.clone()).next() {
            self.ranges.remove(&start);
            if end > range.end {
                self.ranges.insert(range.end, (end, other));
            }
        }
        self.ranges.insert(range.start, (range.end, owner));
    }

    /// The parts of a range with their owners, in order; none where no owner was painted.
    fn parts(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<Number>)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let before = self.ranges.range(..range.start).next_back();
        for (&start, &(end, owner)) in before.into_iter().chain(self.ranges.range(range.clone())) {
            let (from, to) = (start.max(at), end.min(range.end));
            if from >= to {
                continue;
            }
            if at < from {
                parts.push((at..from, None));
            }
            parts.push((from..to, Some(owner)));
            at = to;
        }
        if at < range.end {
            parts.push((at..range.end, None));
        }
        parts
    }
}

/// Parts of some ranges that are not in others.
fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut canvas = Canvas::default();
    ranges.iter().for_each(|range| canvas.paint(range.clone(), 1));
    others.iter().for_each(|range| canvas.paint(range.clone(), 0));
    let kept = canvas.ranges.into_iter().filter(|&(_, (_, number))| number == 1);
    kept.map(|(start, (end, _))| start..end).collect()
}

/// The owner of kmem's memory, which is no row.
const OWN: Number = 0;

impl Mappings {
    /// Divides the mappings of a process among their owners. `stacks` are addresses near the upper
    /// end of the stacks of threads.
    pub(super) fn of<'a>(
        all: &[Resident],
        noted: impl Iterator<Item = &'a Noted> + Clone,
        stacks: &[u64],
        pages: Option<&Pages>,
    ) -> Self {
        let mut this = Self::default();
        // Owners by number; number 0 is kmem.
        let mut owners: Vec<Option<(MappingOwner, Key)>> = vec![None];
        let mut canvas = Canvas::default();
        let thread = owners.len();
        owners.push(Some((MappingOwner::ThreadStack, Key::None)));
        paint_stacks(&mut canvas, all, stacks, thread);
        let mut records: Vec<&Record> = noted.clone().flat_map(|one| &one.records).collect();
        records.sort_by_key(|record| record.seq);
        let mut numbers = HashMap::new();
        for record in records {
            // A tag has another meaning in each of the books.
            let name = (record.owner.clone(), record.key.addresses().to_vec());
            let number = *numbers.entry(name).or_insert_with(|| {
                owners.push(Some((record.owner.clone(), record.key.clone())));
                owners.len() - 1
            });
            canvas.paint(record.range.clone(), number);
        }
        for one in noted {
            one.own.iter().for_each(|range| canvas.paint(range.clone(), OWN));
            this.lost = this.lost.saturating_add(one.lost);
            this.faults.extend(one.fault.clone());
        }
        let code = code_paths(all);
        let mut rows: HashMap<(Option<Number>, MappingOwner), usize> = HashMap::new();
        let mut before = None;
        for Resident { mapping, resident } in all {
            let own = default_owner(mapping, before.take(), &code);
            let mut parts = canvas.parts(mapping.start..mapping.end);
            if !is_anonymous(mapping) {
                // The path of a file says more than a record, which may be an old one.
                parts = file_parts(parts);
            } else if is_segment(mapping) {
                let first = parts.first().and_then(|part| part.1);
                parts = vec![(mapping.start..mapping.end, first)];
            }
            if parts.last().is_some_and(|part| part.1.is_none())
                && let MappingOwner::Code(_) = own
            {
                before = Some((mapping.end, own.clone()));
            }
            let sizes = divide(&parts, *resident, pages);
            for (nth, ((range, number), bytes)) in parts.into_iter().zip(sizes).enumerate() {
                let (owner, key) = match number {
                    Some(number) => match &owners[number] {
                        Some((owner, key)) => (owner.clone(), key.clone()),
                        None => continue,
                    },
                    None if nth > 0 && is_anonymous(mapping) => {
                        (MappingOwner::Anonymous, Key::None)
                    }
                    None => (own.clone(), Key::None),
                };
                let at = *rows.entry((number, owner.clone())).or_insert_with(|| {
                    let empty = MappingRow { owner, key, mapped: 0, resident: 0, count: 0 };
                    this.rows.push(empty);
                    this.rows.len() - 1
                });
                let row = &mut this.rows[at];
                row.mapped = row.mapped.saturating_add(range.end - range.start);
                row.resident = row.resident.saturating_add(bytes);
                row.count += 1;
            }
        }
        for row in &this.rows {
            let part = match row.owner {
                MappingOwner::Tag(_) | MappingOwner::Address(_) | MappingOwner::Anonymous => {
                    &mut this.parts.mappings
                }
                MappingOwner::Stack | MappingOwner::ThreadStack => &mut this.parts.stacks,
                MappingOwner::Code(_) => &mut this.parts.code,
                MappingOwner::File(_) => &mut this.parts.files,
            };
            *part = part.saturating_add(row.resident);
        }
        this
    }
}

/// Paints the stacks of threads. The C library puts a thread's descriptor on the last page of its
/// stack. The stack reaches down to the next one, or to the end of the mapping.
fn paint_stacks(canvas: &mut Canvas, all: &[Resident], stacks: &[u64], owner: Number) {
    let mut stacks = stacks.to_vec();
    stacks.sort_unstable();
    let mut low = 0;
    for at in stacks {
        let after = all.partition_point(|one| one.mapping.start <= at);
        let Some(Resident { mapping, .. }) = all[..after].last() else { continue };
        let end = (at / PAGE + 1).saturating_mul(PAGE);
        if at < mapping.end && is_anonymous(mapping) {
            canvas.paint(mapping.start.max(low)..end.min(mapping.end), owner);
            low = end;
        }
    }
}

/// True for memory without a file, shared memory of System V included.
fn is_anonymous(mapping: &Mapping) -> bool {
    let path = mapping.path.as_str();
    path.is_empty()
        || path.starts_with("[anon")
        || path == "[heap]"
        || (mapping.deleted && path == "/dev/zero")
        || is_segment(mapping)
}

/// True for a mapping that has one owner as a whole, although its record may be shorter.
fn is_segment(mapping: &Mapping) -> bool {
    let path = mapping.path.as_str();
    mapping.deleted && (path.starts_with("/SYSV") || path == "/anon_hugepage")
}

/// Takes the records out of the parts of a mapped file.
fn file_parts(parts: Vec<(Range<u64>, Option<Number>)>) -> Vec<(Range<u64>, Option<Number>)> {
    let mut kept: Vec<(Range<u64>, Option<Number>)> = Vec::new();
    for (range, number) in parts {
        let number = number.filter(|&number| number == OWN);
        match kept.last_mut() {
            Some((last, same)) if *same == number => last.end = range.end,
            _ => kept.push((range, number)),
        }
    }
    kept
}

/// Paths of which a mapping can be executed.
fn code_paths(all: &[Resident]) -> HashSet<&str> {
    let mapped = all.iter().map(|one| &one.mapping);
    mapped.filter(|m| m.executable && m.is_file()).map(|m| m.path.as_str()).collect()
}

/// Owner of the memory of a mapping where no owner was painted. `before` is the end of the mapping
/// below it, and its owner, where that is a program or a library.
fn default_owner(
    mapping: &Mapping,
    before: Option<(u64, MappingOwner)>,
    code: &HashSet<&str>,
) -> MappingOwner {
    let path = mapping.path.as_str();
    match before {
        _ if path.starts_with("[stack") => MappingOwner::Stack,
        _ if path.starts_with("[v") => MappingOwner::Code(path.to_owned()),
        // Variables without a value in the file follow the file's last mapping.
        Some((end, owner)) if path.is_empty() && end == mapping.start => owner,
        _ if is_anonymous(mapping) => MappingOwner::Anonymous,
        _ => {
            let name = crate::memory::bounded(path).into_owned();
            if code.contains(path) { MappingOwner::Code(name) } else { MappingOwner::File(name) }
        }
    }
}

/// Divides the resident bytes of a mapping among its parts.
fn divide<T>(parts: &[(Range<u64>, T)], resident: u64, pages: Option<&Pages>) -> Vec<u64> {
    let mut left = resident;
    let mut sizes = Vec::new();
    for (nth, (range, _)) in parts.iter().enumerate() {
        let bytes = if nth + 1 == parts.len() {
            left
        } else {
            let mut bytes = 0_u64;
            let len = range.end - range.start;
            let known = pages.and_then(|pages| {
                pages.regions(range.start, len, PageState::Present, |region| {
                    let (from, to) = (region.start.max(range.start), region.end.min(range.end));
                    bytes = bytes.saturating_add(to.saturating_sub(from));
                })
            });
            // Without a page map, the first parts are taken to be in memory.
            if known.is_none() { len } else { bytes }
        };
        let bytes = bytes.min(left);
        left -= bytes;
        sizes.push(bytes);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_owner_of_a_range_holds_it() {
        let mut canvas = Canvas::default();
        canvas.paint(10..50, 1);
        canvas.paint(20..30, 2);
        canvas.paint(25..26, 3);
        canvas.paint(0..12, 4);
        canvas.paint(45..60, 5);
        canvas.paint(60..60, 6);
        let parts = canvas.parts(5..70);
        let expected = [
            (5..12, Some(4)),
            (12..20, Some(1)),
            (20..25, Some(2)),
            (25..26, Some(3)),
            (26..30, Some(2)),
            (30..45, Some(1)),
            (45..60, Some(5)),
            (60..70, None),
        ];
        assert_eq!(parts, expected);
        canvas.paint(0..100, 7);
        assert_eq!(canvas.parts(5..70), [(5..70, Some(7))]);
        assert_eq!(canvas.parts(99..101), [(99..100, Some(7)), (100..101, None)]);
    }

    #[test]
    fn the_parts_of_a_mapping_add_up_to_its_resident_bytes() {
        let parts = [(0..8192, ()), (8192..12288, ()), (12288..16384, ())];
        for resident in [0, 4096, 8192, 12288, 16384, 1 << 30] {
            assert_eq!(divide(&parts, resident, None).iter().sum::<u64>(), resident);
        }
    }
}
