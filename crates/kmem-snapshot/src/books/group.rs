//! Groups: who pays. The table of groups, checked and joined with what the census counted.
//!
//! An extension word names the group that was charged. When that group is deleted, its nearest
//! living ancestor pays, so what the census finds is handed on to that one. The process goes on
//! meanwhile: an entry counts as it is only when its state, its parent and its name are the same in
//! two copies of the table, one taken after the other; else it is looked at again.
//!
//! What makes no sense is survived: a group whose way up does not end at the root counts as one
//! below the root, an id without an entry as the root's.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use kmem::root::{
    GroupBlock, MAX_GROUP_DEPTH, MAX_GROUP_NAME, NO_LIMIT, RootBlock, group_event, group_state,
};

use super::Source;
use super::charges::{Charges, Usage};
use super::record::{u32_at, u64_at};
use super::root::{Root, bad};
use super::zone::Class;
use crate::error::ReadError;

/// Times the table is copied while entries of it keep changing.
const ROUNDS: u32 = 4;

/// A group that is not deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Its id, which its objects are marked with; another group may have had it before.
    pub objcg: u32,
    /// Which of them this is.
    pub generation: u32,
    /// Its name, decoded, not yet safe to print; that of the root is empty.
    pub name: String,
    /// Its place below its parents; the root's is 0.
    pub depth: usize,
    /// Where its parent is in [`Groups::all`]; the root's is itself.
    pub parent: usize,
    /// What it pays for itself, also for what it inherited from deleted groups.
    pub own: Usage,
    /// The same with all groups below it.
    pub usage: Usage,
    /// Charged beyond that: ready on CPUs for the next allocations of it and those below it.
    pub cached: u64,
    /// The highest that its charge, what is cached included, has been; not kept for the root.
    pub peak: u64,
    /// Most that may be charged; none where there is no limit.
    pub max: Option<u64>,
    /// Above this its shrinkers are called.
    pub high: Option<u64>,
    /// Up to this it is spared when others need memory back.
    pub low: Option<u64>,
    /// See [`group_event`].
    pub events: [u64; group_event::COUNT],
    /// Whether a request that could not be refused went above a limit.
    pub over_limit: bool,
    /// One past the last group below it, in [`Groups::all`].
    end: usize,
}

impl Group {
    /// Whether it is the root, which has no limits.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.objcg == 0
    }
}

/// The groups of one root block.
#[derive(Debug, Clone)]
pub struct Groups {
    /// The root first, each group before those below it, and these by name.
    all: Vec<Group>,
    /// By id: where in `all` is who pays.
    payers: Vec<usize>,
    /// Entries that kept changing, or made no sense.
    pub torn: u64,
}

impl Default for Groups {
    /// The root alone.
    fn default() -> Self {
        let root = Group { end: 1, ..Group::default() };
        Self { all: vec![root], payers: vec![0], torn: 0 }
    }
}

impl Groups {
    /// All groups that are not deleted: the root first, each before those below it, and these by
    /// name.
    #[must_use]
    pub fn all(&self) -> &[Group] {
        &self.all
    }

    /// A group and those below it, in [`Groups::all`].
    #[must_use]
    pub fn below(&self, at: usize) -> Range<usize> {
        at..self.all.get(at).map_or(at, |group| group.end)
    }

    /// The group at a path as `/tenants/a`; `/` is the root.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<usize> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(0, |at, name| {
            self.below(at).skip(1).find(|&below| {
                let group = &self.all[below];
                group.parent == at && group.name == name
            })
        })
    }

    /// The path of a group, not yet safe to print.
    #[must_use]
    pub fn path(&self, at: usize) -> String {
        let mut names = Vec::new();
        let mut at = at;
        while let Some(group) = self.all.get(at).filter(|group| !group.is_root()) {
            names.push(group.name.as_str());
            at = group.parent;
        }
        names.iter().rev().fold(String::new(), |path, name| path + "/" + name)
            + if names.is_empty() { "/" } else { "" }
    }

    /// Where in [`Groups::all`] is who pays for what is marked with this id.
    pub(super) fn payer(&self, objcg: usize) -> usize {
        self.payers.get(objcg).copied().unwrap_or(0)
    }

    /// Reads the table. Nobody holds anything yet.
    pub(crate) fn read(source: &Source<'_>, root: &Root) -> Result<Self, ReadError> {
        let (entries, torn) = entries(source, root)?;
        Ok(Self::of(&entries, torn))
    }

    /// The groups of entries that do not change any more, by id, each with what it held itself.
    pub(crate) fn of_records<'a>(records: impl Iterator<Item = (&'a [u8], Usage)>) -> Self {
        let (entries, held): (Vec<Entry>, Vec<Usage>) = records
            .enumerate()
            .map(|(objcg, (record, held))| (Entry::parse(objcg, record), held))
            .unzip();
        let mut this = Self::of(&entries, 0);
        for (objcg, held) in held.iter().enumerate() {
            let payer = this.payer(objcg);
            this.all[payer].own.add(held);
        }
        this.sum_up();
        this
    }

    /// The tree of the entries, by id.
    fn of(entries: &[Entry], torn: u64) -> Self {
        let mut this = Self { torn, ..Self::default() };
        let ways: Vec<Way> = (0..entries.len()).map(|objcg| Way::up(entries, objcg)).collect();
        let mut children = vec![Vec::new(); entries.len()];
        for (objcg, way) in ways.iter().enumerate().skip(1) {
            if entries[objcg].is_live() {
                this.torn += u64::from(!way.ends);
                children[way.payer].push(objcg);
            }
        }
        for of in &mut children {
            of.sort_by(|&a, &b| (&entries[a].group.name, a).cmp(&(&entries[b].group.name, b)));
        }
        this.payers = vec![0; entries.len().max(1)];
        // A living group's way up ends at the root or is cut to it, so each is met once.
        let push = |pending: &mut Vec<(usize, usize)>, of: usize, parent: usize| {
            let below = children.get(of).into_iter().flatten().rev();
            pending.extend(below.map(|&objcg| (objcg, parent)));
        };
        let mut pending = Vec::new();
        if let Some(root) = entries.first() {
            let (generation, events) = (root.group.generation, root.group.events);
            this.all[0] = Group { generation, events, end: 1, ..Group::default() };
        }
        push(&mut pending, 0, 0);
        while let Some((objcg, parent)) = pending.pop() {
            let at = this.all.len();
            let depth = this.all[parent].depth + 1;
            this.payers[objcg] = at;
            this.all.push(Group { depth, parent, end: at + 1, ..entries[objcg].group.clone() });
            push(&mut pending, objcg, at);
        }
        for at in (1..this.all.len()).rev() {
            let (parent, end) = (this.all[at].parent, this.all[at].end);
            this.all[parent].end = this.all[parent].end.max(end);
        }
        for (objcg, way) in ways.iter().enumerate().skip(1) {
            if !entries[objcg].is_live() {
                this.payers[objcg] = this.payers[way.payer];
                // What was reserved by who is deleted is charged all the same.
                let reserved = entries[objcg].group.own.reserved;
                let own = &mut this.all[this.payers[objcg]].own;
                own.reserved = own.reserved.saturating_add(reserved);
            }
        }
        this
    }

    /// Hands out what the census counted.
    pub(super) fn bill(&mut self, charges: &Charges, classes: &[Option<Class>]) {
        for objcg in 0..charges.groups() {
            let payer = self.payer(objcg);
            self.all[payer].own.add(&charges.usage(objcg, classes));
        }
        self.sum_up();
    }

    /// From what each holds itself to what it holds with those below it.
    fn sum_up(&mut self) {
        for group in &mut self.all {
            group.usage = group.own;
        }
        for at in (1..self.all.len()).rev() {
            let (parent, usage) = (self.all[at].parent, self.all[at].usage);
            self.all[parent].usage.add(&usage);
            // Until here it is all that is charged.
            self.all[at].cached = self.all[at].cached.saturating_sub(usage.current());
            if parent == 0 {
                self.all[0].cached = self.all[0].cached.saturating_add(self.all[at].cached);
            }
        }
    }
}

/// Who pays for a group that is deleted, or its parent if it is not.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// The nearest living ancestor.
    payer: usize,
    /// Whether the way up ends at the root.
    ends: bool,
}

impl Way {
    fn up(entries: &[Entry], from: usize) -> Self {
        let (mut at, mut payer) = (from, None);
        for _ in 0..MAX_GROUP_DEPTH {
            at = entries[at].parent;
            if at == 0 {
                return Self { payer: payer.unwrap_or(0), ends: true };
            }
            let Some(entry) = entries.get(at) else { break };
            if entry.is_live() && payer.is_none() {
                payer = Some(at);
            }
        }
        Self { payer: 0, ends: false }
    }
}

/// An entry of the table.
#[derive(Debug, Clone, Default)]
struct Entry {
    state: u32,
    parent: usize,
    /// `cached` is all that is charged, and of `own` it is known what is reserved.
    group: Group,
}

impl Entry {
    fn is_live(&self) -> bool {
        self.state == group_state::LIVE
    }

    fn parse(objcg: usize, record: &[u8]) -> Self {
        macro_rules! u32_of {
            ($field:ident) => {
                u32_at(record, offset_of!(GroupBlock, $field))
            };
        }
        macro_rules! u64_of {
            ($field:ident) => {
                u64_at(record, offset_of!(GroupBlock, $field))
            };
        }
        let limit = |bytes: u64| (bytes != NO_LIMIT).then_some(bytes);
        let event = |event| u64_at(record, offset_of!(GroupBlock, events) + 8 * event);
        let charged = u64_of!(charged);
        let len = record.get(offset_of!(GroupBlock, name_len)).copied().map_or(0, usize::from);
        let name = record.get(offset_of!(GroupBlock, name)..).unwrap_or_default();
        let name = &name[..len.min(MAX_GROUP_NAME).min(name.len())];
        let group = Group {
            objcg: u32::try_from(objcg).unwrap_or(u32::MAX),
            generation: u32_of!(state) >> group_state::BITS,
            name: String::from_utf8_lossy(name).into_owned(),
            own: Usage { reserved: u64_of!(reserved), ..Usage::default() },
            cached: charged,
            peak: u64_of!(peak).max(charged),
            max: limit(u64_of!(max)),
            high: limit(u64_of!(high)),
            low: limit(u64_of!(low)),
            events: std::array::from_fn(event),
            over_limit: u32_of!(over) != 0,
            ..Group::default()
        };
        let state = u32_of!(state) & group_state::MASK;
        if state == group_state::FREE {
            // Whatever it says of itself is somebody else's past.
            let group = Group { objcg: group.objcg, ..Group::default() };
            return Self { state, parent: u32_of!(parent) as usize, group };
        }
        Self { state, parent: u32_of!(parent) as usize, group }
    }
}

/// The entries in use, by id, and how many kept changing: these count as free.
fn entries(source: &Source<'_>, root: &Root) -> Result<(Vec<Entry>, u64), ReadError> {
    if root.group_capacity == 0 {
        return Ok((Vec::new(), 0));
    }
    let mut count = [0; 4];
    source.memory.read(root.at + offset_of!(RootBlock, group_count) as u64, &mut count)?;
    let count = u32::from_le_bytes(count);
    if count > root.group_capacity {
        let what = format!("group_count is {count}, above group_capacity {}", root.group_capacity);
        return Err(bad(root.at, what));
    }
    let copy = || root.records(source, "groups", root.groups, count, root.group_size);
    let size = root.group_size as usize;
    let mut before = copy()?;
    let mut entries = vec![None; count as usize];
    for _ in 0..ROUNDS {
        let now = copy()?;
        let pairs = before.chunks_exact(size).zip(now.chunks_exact(size));
        for (objcg, (before, now)) in pairs.enumerate() {
            if entries[objcg].is_none() && identity(before) == identity(now) {
                entries[objcg] = Some(Entry::parse(objcg, now));
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

/// What stays while a group is there: its state, its parent and its name.
fn identity(record: &[u8]) -> (u32, u32, &[u8]) {
    let name = record.get(offset_of!(GroupBlock, name_len)..size_of::<GroupBlock>());
    (
        u32_at(record, offset_of!(GroupBlock, state)),
        u32_at(record, offset_of!(GroupBlock, parent)),
        name.unwrap_or_default(),
    )
}
