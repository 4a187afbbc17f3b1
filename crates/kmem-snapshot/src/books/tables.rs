//! The tables that a root block leads to: call sites, the peak, and groups.
//!
//! A site that makes no sense becomes [`Key::None`]. Its row has an unknown tag, and its bytes
//! and objects are counted like all others.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;

use kmem_layout::group::{GroupBlock, MAX_GROUP_NAME, NO_LIMIT, group_event, group_state};
use kmem_layout::root::RootBlock;
use kmem_layout::site::{MAX_DEPTH, PeakEntry, PeakTable, Site, Text, site_kind};

use super::root::{Root, bad};
use super::source::Source;
use crate::error::ReadError;
use crate::memory::{self, field, u64_at};

#[cfg(test)]
mod tests;

/// Most bytes of texts that are copied: twice the size of the largest table with the deepest
/// chains and with names of usual length.
const MAX_TEXTS: u64 = 256 << 20;
/// Retries of a peak table that is being written, 1 ms apart: 100 ms.
const PEAK_RETRIES: u32 = 100;
/// Copies taken of a table of groups whose entries keep changing.
const GROUP_ROUNDS: u32 = 4;

/// Meaning of a tag, as the process tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Key {
    /// Unknown: a reserved tag, or a site that makes no sense.
    #[default]
    None,
    /// Return address of the call of an allocation function.
    Caller(u64),
    /// A tag compiled into the program, or a scope.
    Static(Arc<StaticTag>),
    /// A call and its callers.
    Chain {
        /// Return addresses, innermost first; never empty.
        addresses: Arc<[u64]>,
        /// Number of addresses at the start that the user chose to skip.
        skip: usize,
    },
}

/// Description of a static tag. The names come from the process: decoded, cut to 1 KiB each, and
/// not yet safe to print.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct StaticTag {
    /// Name of the module; empty for the main program.
    pub module: String,
    /// Source file.
    pub file: String,
    /// Line in the file.
    pub line: u32,
    /// Function, or name of the scope.
    pub function: String,
}

impl Key {
    /// The return addresses, innermost first; empty for a tag without any.
    #[must_use]
    pub fn addresses(&self) -> &[u64] {
        match self {
            Self::None | Self::Static(_) => &[],
            Self::Caller(addr) => std::slice::from_ref(addr),
            Self::Chain { addresses, .. } => addresses,
        }
    }

    /// Decodes a chain: addresses up to the first zero. None when there are no addresses.
    pub(crate) fn chain(words: &[u8], skip: u32) -> Option<Self> {
        let words = words.chunks_exact(size_of::<u64>()).map(|word| u64_at(word, 0));
        let addresses: Arc<[u64]> = words.take_while(|&addr| addr != 0).collect();
        (!addresses.is_empty()).then_some(Self::Chain { addresses, skip: skip as usize })
    }
}

impl StaticTag {
    /// Decodes a static tag from its [`Text`] and the bytes behind it, which hold the names.
    /// Returns the tag and the count of bytes that its names take; none when they are cut off.
    pub(crate) fn parse(text: &[u8], names: &[u8]) -> Option<(Self, usize)> {
        let module = usize::from(field!(text, Text.module_len: u16));
        let file = usize::from(field!(text, Text.file_len: u16));
        let function = usize::from(field!(text, Text.function_len: u16));
        let (module, rest) = names.split_at_checked(module)?;
        let (file, rest) = rest.split_at_checked(file)?;
        let function = rest.get(..function)?;
        let tag = Self {
            module: memory::name(module),
            file: memory::name(file),
            line: field!(text, Text.line: u32),
            function: memory::name(function),
        };
        Some((tag, module.len() + file.len() + function.len()))
    }
}

/// Reads the meaning of the tags in use, indexed by tag. Also returns the static tags of loaded
/// objects, in order.
pub(super) fn sites(source: &Source<'_>, root: &Root) -> Result<(Vec<Key>, Vec<u32>), ReadError> {
    let count = live_u32(source, root, offset_of!(RootBlock, site_count))?;
    if count > root.site_capacity {
        let what = format!("site_count is {count}, above site_capacity {}", root.site_capacity);
        return Err(bad(root.at, what));
    }
    let bytes = root.records(source, "sites", root.sites, count, root.site_size)?;
    // The texts are copied after the sites, so that they hold the texts of all of them.
    let mut texts = Texts::read(source, root)?;
    let records = bytes.chunks_exact(root.site_size as usize);
    let keys: Vec<Key> =
        records.clone().map(|record| texts.key(record).unwrap_or_default()).collect();
    // The address of an unloaded tag is 0.
    let is_loaded = |record: &[u8], key: &Key| {
        matches!(key, Key::Static(_))
            && field!(record, Site.kind: u32) == site_kind::STATIC
            && field!(record, Site.addr: u64) != 0
    };
    let tags = (0..).zip(records.zip(&keys));
    let loaded = tags.filter(|(_, (record, key))| is_loaded(record, key)).map(|(tag, _)| tag);
    let loaded = loaded.collect();
    Ok((keys, loaded))
}

/// Reads a word of the root block that changes while the process runs.
fn live_u32(source: &Source<'_>, root: &Root, offset: usize) -> Result<u32, ReadError> {
    let mut word = [0; 4];
    source.memory.read(root.at + offset as u64, &mut word)?;
    Ok(u32::from_le_bytes(word))
}

/// A copy of the memory that sites point into.
struct Texts {
    base: u64,
    bytes: Vec<u8>,
    /// Bytes that may still be made into keys. Texts do not overlap, so a sound table never uses
    /// them up. A table whose sites all point to the same bytes does.
    left: usize,
    known: HashMap<(u32, u32, u64), Key>,
}

impl Texts {
    fn read(source: &Source<'_>, root: &Root) -> Result<Self, ReadError> {
        let mut this = Self { base: root.texts, bytes: Vec::new(), left: 0, known: HashMap::new() };
        if root.texts == 0 {
            return Ok(this);
        }
        let mut len = [0; 8];
        source.memory.read(root.at + offset_of!(RootBlock, texts_len) as u64, &mut len)?;
        let len = u64::from_le_bytes(len);
        if len == 0 {
            return Ok(this);
        }
        if len > MAX_TEXTS {
            return Err(bad(root.at, format!("texts_len is {len}, above {MAX_TEXTS}")));
        }
        // Texts that were added after the mappings were read may lie beyond them. A site that
        // needs such a text is unknown in this reading.
        let readable = source.maps.readable_memory_at(root.texts, len);
        if readable == 0 {
            return Err(bad(
                root.at,
                format!("texts at {:#x}, {len} bytes, are not in the process's memory", root.texts),
            ));
        }
        // A copy, and the keys that are made of it.
        root.draw(source.budget.copy(readable))?;
        root.draw(source.budget.memory(readable))?;
        this.bytes = vec![0; usize::try_from(readable).unwrap_or(0)];
        this.left = this.bytes.len();
        source.memory.read(root.texts, &mut this.bytes)?;
        Ok(this)
    }

    /// Meaning of a site; none when it makes no sense.
    fn key(&mut self, record: &[u8]) -> Option<Key> {
        let addr = field!(record, Site.addr: u64);
        let kind = field!(record, Site.kind: u32);
        let count = field!(record, Site.count: u32);
        let data = field!(record, Site.data: u64);
        match kind {
            site_kind::CALLER if addr != 0 => return Some(Key::Caller(addr)),
            site_kind::STATIC | site_kind::LINE | site_kind::CHAIN => {}
            _ => return None,
        }
        if let Some(key) = self.known.get(&(kind, count, data)) {
            return Some(key.clone());
        }
        let (key, used) = if kind != site_kind::CHAIN {
            let (text, names) = self.from(data)?.split_at_checked(size_of::<Text>())?;
            let (tag, len) = StaticTag::parse(text, names)?;
            (Key::Static(Arc::new(tag)), text.len() + len)
        } else if count <= MAX_DEPTH {
            let words = self.from(data)?.get(..count as usize * size_of::<u64>())?;
            (Key::chain(words, field!(record, Site.skip: u32))?, words.len())
        } else {
            return None;
        };
        self.left = self.left.checked_sub(used)?;
        self.known.insert((kind, count, data), key.clone());
        Some(key)
    }

    /// All texts from `addr` on, where it lies in them.
    fn from(&self, addr: u64) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(addr.checked_sub(self.base)?).ok()?..)
    }
}

/// Live bytes and objects of one tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagTotal {
    /// Live bytes.
    pub bytes: u64,
    /// Live objects.
    pub calls: u64,
}

/// Live bytes and objects of one tag, with its meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteRow {
    /// The tag.
    pub tag: u32,
    /// Its meaning.
    pub key: Key,
    /// Live bytes. Negative only where counters of several CPUs are added while they change.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// Joins totals, indexed by tag, with the meaning of the tags. Tags without anything live are
/// left out.
pub(super) fn rows(totals: &[TagTotal], sites: &[Key]) -> Vec<SiteRow> {
    let live = totals.iter().enumerate().filter(|(_, t)| t.calls != 0 || t.bytes != 0);
    live.map(|(tag, total)| SiteRow {
        tag: u32::try_from(tag).unwrap_or(u32::MAX),
        key: sites.get(tag).cloned().unwrap_or_default(),
        bytes: i64::try_from(total.bytes).unwrap_or(i64::MAX),
        calls: total.calls,
    })
    .collect()
}

/// Rows without memory of the static tags in `loaded` that hold nothing.
pub(super) fn empty(totals: &[TagTotal], sites: &[Key], loaded: &[u32]) -> Vec<SiteRow> {
    let holds = |tag: u32| totals.get(tag as usize).is_some_and(|t| t.calls != 0 || t.bytes != 0);
    let free = loaded.iter().filter(|&&tag| !holds(tag));
    let key = |tag: u32| sites.get(tag as usize).cloned().unwrap_or_default();
    free.map(|&tag| SiteRow { tag, key: key(tag), bytes: 0, calls: 0 }).collect()
}

/// The books at the highest use so far.
#[derive(Debug, Clone)]
pub struct Peak {
    /// Pages handed out at that time.
    pub used_pages: u64,
    /// Time of the rows, in milliseconds since the start.
    pub written_ms: u64,
    /// Most pages handed out at any time, and the milliseconds from the start to then.
    pub highest: (u64, u64),
    /// Live objects at that time, by tag.
    pub rows: Vec<SiteRow>,
    /// True when the process was writing the table during every read. The rows may then be of
    /// two times.
    pub torn: bool,
}

/// Reads the peak table; none when the process recorded no peak.
///
/// The process writes the table under a sequence lock. The reader takes a copy that begins and
/// ends with one even sequence number.
pub(super) fn peak(
    source: &Source<'_>,
    root: &Root,
    sites: &[Key],
) -> Result<Option<Peak>, ReadError> {
    let header = size_of::<PeakTable>() as u64;
    if root.peak == 0 {
        return Ok(None);
    }
    // A core file need not have memory of the process's tables that was never written.
    let is_own = (root.meta.0..root.meta.0.saturating_add(root.meta.1)).contains(&root.peak);
    if is_own && !source.maps.is_readable_memory(root.peak, header) {
        return Ok(None);
    }
    let check = |len: u64| {
        let what = || format!("peak table at {:#x} is not in the process's memory", root.peak);
        let is_there = source.maps.is_readable_memory(root.peak, len);
        is_there.then_some(()).ok_or_else(|| bad(root.at, what()))
    };
    check(header)?;
    let mut copy = Vec::new();
    for attempt in 0..=PEAK_RETRIES {
        let mut head = [0; size_of::<PeakTable>()];
        source.memory.read(root.peak, &mut head)?;
        let seq = field!(&head, PeakTable.seq: u64);
        if seq == 0 {
            return Ok(None);
        }
        let len = field!(&head, PeakTable.len: u64).min(u64::from(root.site_capacity));
        let size = usize::try_from(len).unwrap_or(0) * size_of::<PeakEntry>();
        check(header + size as u64)?;
        root.draw(source.budget.work(size as u64))?;
        copy.resize(size, 0);
        source.memory.read(root.peak + header, &mut copy)?;
        let mut after = [0; 8];
        source.memory.read(root.peak + offset_of!(PeakTable, seq) as u64, &mut after)?;
        let is_whole = seq.is_multiple_of(2) && u64::from_le_bytes(after) == seq;
        if is_whole || attempt == PEAK_RETRIES {
            let entries = copy.chunks_exact(size_of::<PeakEntry>());
            let totals: Vec<TagTotal> = entries
                .map(|entry| TagTotal {
                    bytes: field!(entry, PeakEntry.bytes: u64),
                    calls: field!(entry, PeakEntry.calls: u64),
                })
                .collect();
            return Ok(Some(Peak {
                used_pages: field!(&head, PeakTable.used_pages: u64),
                written_ms: field!(&head, PeakTable.written_ms: u64),
                highest: (
                    field!(&head, PeakTable.highest_pages: u64),
                    field!(&head, PeakTable.highest_ms: u64),
                ),
                rows: rows(&totals, sites),
                torn: !is_whole,
            }));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(None)
}

/// Memory charged to one group, in bytes unless stated otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Count of live objects and page allocations.
    pub objects: u64,
    /// Objects in slabs.
    pub slab: u64,
    /// Page allocations.
    pub pages: u64,
    /// Virtually contiguous allocations.
    pub vmalloc: u64,
    /// Per-CPU objects.
    pub percpu: u64,
    /// Extension words of these objects and pages.
    pub metadata: u64,
    /// Charged without being allocated.
    pub reserved: u64,
}

impl Usage {
    /// Sum of all that is charged and in use, in bytes.
    #[must_use]
    pub fn current(&self) -> u64 {
        [self.slab, self.pages, self.vmalloc, self.percpu, self.metadata, self.reserved]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Adds the usage of another group.
    pub(super) fn add(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.objects, other.objects),
            (&mut self.slab, other.slab),
            (&mut self.pages, other.pages),
            (&mut self.vmalloc, other.vmalloc),
            (&mut self.percpu, other.percpu),
            (&mut self.metadata, other.metadata),
            (&mut self.reserved, other.reserved),
        ] {
            *to = to.saturating_add(from);
        }
    }
}

/// A living group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Id that the extension words of its objects hold. A deleted group may have had it before.
    pub objcg: u32,
    /// Generation of the id: it tells groups apart that have the id one after the other.
    pub generation: u32,
    /// Name, decoded and not yet safe to print; that of the root is empty.
    pub name: String,
    /// Count of its ancestors; 0 for the root.
    pub depth: usize,
    /// Index of its parent in [`super::Groups::all`]; the root is its own parent.
    pub parent: usize,
    /// Memory charged to the group itself, and to deleted groups whose nearest living ancestor
    /// it is.
    pub own: Usage,
    /// Memory charged to the group and to all groups below it.
    pub usage: Usage,
    /// Charged and not in use: stock on CPUs, ready for the group's next allocations. In bytes.
    pub cached: u64,
    /// Highest charge so far, stock included, in bytes; not kept for the root.
    pub peak: u64,
    /// Most bytes that may be charged; none without a limit.
    pub max: Option<u64>,
    /// Bytes above which the group's shrinkers are called; none without a limit.
    pub high: Option<u64>,
    /// Bytes up to which the group is spared when an ancestor needs memory back.
    pub low: Option<u64>,
    /// Event counts, by index; see [`group_event`].
    pub events: [u64; group_event::COUNT],
    /// True when a request that must not fail has gone above a limit.
    pub over_limit: bool,
    /// One past the index of the last group below it, in [`super::Groups::all`].
    pub(super) end: usize,
}

impl Group {
    /// True for the root, which has no limits.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.objcg == 0
    }
}

/// An entry of the table of groups.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupEntry {
    state: u32,
    /// Id of the parent.
    pub(super) parent: usize,
    /// Its `cached` is the whole charge, and its `own` has the reserved bytes alone.
    pub(super) group: Group,
}

impl GroupEntry {
    pub(super) fn is_live(&self) -> bool {
        self.state == group_state::LIVE
    }

    pub(super) fn parse(objcg: usize, record: &[u8]) -> Self {
        let objcg = u32::try_from(objcg).unwrap_or(u32::MAX);
        let state = field!(record, GroupBlock.state: u32);
        let parent = field!(record, GroupBlock.parent: u32) as usize;
        if state & group_state::MASK == group_state::FREE {
            // The other fields are those of a group that had the id before.
            let group = Group { objcg, ..Group::default() };
            return Self { state: group_state::FREE, parent, group };
        }
        let limit = |bytes: u64| (bytes != NO_LIMIT).then_some(bytes);
        let event = |event| u64_at(record, offset_of!(GroupBlock, events) + 8 * event);
        let charged = field!(record, GroupBlock.charged: u64);
        let len = record.get(offset_of!(GroupBlock, name_len)).copied().map_or(0, usize::from);
        let name = record.get(offset_of!(GroupBlock, name)..).unwrap_or_default();
        let name = &name[..len.min(MAX_GROUP_NAME).min(name.len())];
        let reserved = field!(record, GroupBlock.reserved: u64);
        let group = Group {
            objcg,
            generation: state >> group_state::BITS,
            name: String::from_utf8_lossy(name).into_owned(),
            own: Usage { reserved, ..Usage::default() },
            cached: charged,
            peak: field!(record, GroupBlock.peak: u64).max(charged),
            max: limit(field!(record, GroupBlock.max: u64)),
            high: limit(field!(record, GroupBlock.high: u64)),
            low: limit(field!(record, GroupBlock.low: u64)),
            events: std::array::from_fn(event),
            over_limit: field!(record, GroupBlock.over: u32) != 0,
            ..Group::default()
        };
        Self { state: state & group_state::MASK, parent, group }
    }
}

/// Reads the entries in use, by id. Also returns the count of entries that kept changing; these
/// are left empty.
///
/// An entry counts only when its state, its parent and its name are equal in two copies of the
/// table, taken one after the other. Other entries are copied again.
pub(super) fn groups(
    source: &Source<'_>,
    root: &Root,
) -> Result<(Vec<GroupEntry>, u64), ReadError> {
    if root.group_capacity == 0 {
        return Ok((Vec::new(), 0));
    }
    let count = live_u32(source, root, offset_of!(RootBlock, group_count))?;
    if count > root.group_capacity {
        let what = format!("group_count is {count}, above group_capacity {}", root.group_capacity);
        return Err(bad(root.at, what));
    }
    let copy = || root.records(source, "groups", root.groups, count, root.group_size);
    let size = root.group_size as usize;
    let mut before = copy()?;
    let mut entries = vec![None; count as usize];
    for _ in 0..GROUP_ROUNDS {
        let now = copy()?;
        let pairs = before.chunks_exact(size).zip(now.chunks_exact(size));
        for (objcg, (before, now)) in pairs.enumerate() {
            if entries[objcg].is_none() && identity(before) == identity(now) {
                entries[objcg] = Some(GroupEntry::parse(objcg, now));
            }
        }
        before = now;
        if entries.iter().all(Option::is_some) {
            break;
        }
    }
    let torn = entries.iter().filter(|entry| entry.is_none()).count() as u64;
    Ok((entries.into_iter().map(Option::unwrap_or_default).collect(), torn))
}

/// Fields that stay while a group exists: state, parent, and name.
fn identity(record: &[u8]) -> (u32, u32, &[u8]) {
    let name = record.get(offset_of!(GroupBlock, name_len)..size_of::<GroupBlock>());
    (
        field!(record, GroupBlock.state: u32),
        field!(record, GroupBlock.parent: u32),
        name.unwrap_or_default(),
    )
}
