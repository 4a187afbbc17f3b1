//! Groups: the tree of them, the memory charged to each, and the tags they hold.
//!
//! An extension word names the group that was charged. When that group is deleted, its nearest
//! living ancestor is charged in its place. So the census counts by id, and [`Groups`] adds each
//! sum to the group that pays now.
//!
//! Bad tables do not stop the reader. A group whose ancestors do not end at the root counts as
//! one below the root. The objects of an id without an entry count as the root's.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use kmem_layout::group::MAX_GROUP_DEPTH;
use kmem_layout::word::{CHARGED_METADATA, EXT_LIVE, OBJCG_SHIFT, TAG_MASK, TAG_OTHER};

use super::root::Root;
use super::source::Source;
use super::tables::{self, Group, GroupEntry, TagTotal, Usage};
use super::zone::Class;
use crate::error::ReadError;
use crate::maps::PAGE;

/// Most pairs of group and tag that are kept: about 50 MiB. Beyond it the sums of each group stay
/// exact, and the pairs that found no room join the tag of other sites.
const MAX_PAIRS: usize = 1 << 20;

/// The living groups of one root block, as a tree.
#[derive(Debug, Clone)]
pub struct Groups {
    /// The root first, each group before those below it, siblings by name.
    all: Vec<Group>,
    /// By id: index in `all` of the group that pays.
    payers: Vec<usize>,
    /// Count of entries that kept changing, or made no sense.
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
    /// All living groups: the root first, each group before those below it, siblings by name.
    #[must_use]
    pub fn all(&self) -> &[Group] {
        &self.all
    }

    /// Indexes in [`Groups::all`] of the group at index `at` and of those below it.
    #[must_use]
    pub fn below(&self, at: usize) -> Range<usize> {
        at..self.all.get(at).map_or(at, |group| group.end)
    }

    /// Index of the group at a path such as `/tenants/a`; `/` is the root.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<usize> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(0, |at, name| {
            self.below(at).skip(1).find(|&below| {
                let group = &self.all[below];
                group.parent == at && group.name == name
            })
        })
    }

    /// Path of the group at index `at`, not yet safe to print.
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

    /// Path of the group that pays for objects marked with this id; that of the root if it is not
    /// known.
    pub(crate) fn path_of(&self, objcg: u32) -> String {
        self.path(self.payer(objcg as usize))
    }

    /// Index of the group that pays for objects marked with this id.
    pub(super) fn payer(&self, objcg: usize) -> usize {
        self.payers.get(objcg).copied().unwrap_or(0)
    }

    /// Reads the table of groups. Nothing is charged to them until [`Groups::bill`].
    pub(crate) fn read(source: &Source<'_>, root: &Root) -> Result<Self, ReadError> {
        let (entries, torn) = tables::groups(source, root)?;
        Ok(Self::of(&entries, torn))
    }

    /// Builds the groups of entries that no longer change, in order of id. Each comes with the
    /// memory charged to the group itself.
    pub(crate) fn of_records<'a>(records: impl Iterator<Item = (&'a [u8], Usage)>) -> Self {
        let (entries, held): (Vec<GroupEntry>, Vec<Usage>) = records
            .enumerate()
            .map(|(objcg, (record, held))| (GroupEntry::parse(objcg, record), held))
            .unzip();
        let mut this = Self::of(&entries, 0);
        for (objcg, held) in held.iter().enumerate() {
            let payer = this.payer(objcg);
            this.all[payer].own.add(held);
        }
        this.sum_up();
        this
    }

    /// Builds the tree of entries, in order of id.
    fn of(entries: &[GroupEntry], torn: u64) -> Self {
        let mut this = Self { torn, ..Self::default() };
        let ancestors: Vec<_> = (0..entries.len()).map(|id| Ancestor::of(entries, id)).collect();
        let mut children = vec![Vec::new(); entries.len()];
        for (objcg, ancestor) in ancestors.iter().enumerate().skip(1) {
            if entries[objcg].is_live() {
                this.torn += u64::from(!ancestor.ends_at_root);
                children[ancestor.living].push(objcg);
            }
        }
        for of in &mut children {
            of.sort_by(|&a, &b| (&entries[a].group.name, a).cmp(&(&entries[b].group.name, b)));
        }
        this.payers = vec![0; entries.len().max(1)];
        if let Some(root) = entries.first() {
            let (generation, events) = (root.group.generation, root.group.events);
            this.all[0] = Group { generation, events, end: 1, ..Group::default() };
        }
        // The ancestors of a living group end at the root or are cut to it: each is met once.
        let push = |pending: &mut Vec<(usize, usize)>, of: usize, parent: usize| {
            let below = children.get(of).into_iter().flatten().rev();
            pending.extend(below.map(|&objcg| (objcg, parent)));
        };
        let mut pending = Vec::new();
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
        this.inherit(entries, &ancestors);
        this
    }

    /// Makes the nearest living ancestor of each deleted group pay for it.
    fn inherit(&mut self, entries: &[GroupEntry], ancestors: &[Ancestor]) {
        for (objcg, ancestor) in ancestors.iter().enumerate().skip(1) {
            if !entries[objcg].is_live() {
                self.payers[objcg] = self.payers[ancestor.living];
                // Bytes that a deleted group has reserved stay charged.
                let reserved = entries[objcg].group.own.reserved;
                let own = &mut self.all[self.payers[objcg]].own;
                own.reserved = own.reserved.saturating_add(reserved);
            }
        }
    }

    /// Charges each group with the objects that the census counted.
    pub(super) fn bill(&mut self, charges: &Charges, classes: &[Option<Class>]) {
        for objcg in 0..charges.groups() {
            let payer = self.payer(objcg);
            self.all[payer].own.add(&charges.usage(objcg, classes));
        }
        self.sum_up();
    }

    /// Computes `usage` from the `own` of a group and of all groups below it.
    fn sum_up(&mut self) {
        for group in &mut self.all {
            group.usage = group.own;
        }
        for at in (1..self.all.len()).rev() {
            let (parent, usage) = (self.all[at].parent, self.all[at].usage);
            self.all[parent].usage.add(&usage);
            // `cached` was the whole charge; the part that is not in use remains.
            self.all[at].cached = self.all[at].cached.saturating_sub(usage.current());
            if parent == 0 {
                self.all[0].cached = self.all[0].cached.saturating_add(self.all[at].cached);
            }
        }
    }
}

/// Nearest living ancestor of a group.
#[derive(Debug, Clone, Copy)]
struct Ancestor {
    /// Its id.
    living: usize,
    /// True when the chain of parents ends at the root.
    ends_at_root: bool,
}

impl Ancestor {
    fn of(entries: &[GroupEntry], objcg: usize) -> Self {
        let (mut at, mut living) = (objcg, None);
        for _ in 0..MAX_GROUP_DEPTH {
            at = entries[at].parent;
            if at == 0 {
                return Self { living: living.unwrap_or(0), ends_at_root: true };
            }
            let Some(entry) = entries.get(at) else { break };
            if entry.is_live() && living.is_none() {
                living = Some(at);
            }
        }
        Self { living: 0, ends_at_root: false }
    }
}

/// Kind of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An object of the size class with this number.
    Slab(usize),
    /// Pages.
    Pages,
    /// Virtually contiguous pages.
    Vmalloc,
    /// A per-CPU object.
    PerCpu,
}

/// Counts of the census by group id: objects by size class, bytes by tag.
#[derive(Debug)]
pub(super) struct Charges {
    /// Count of size classes, the unused class 0 included.
    classes: usize,
    /// `[objcg][class]`: live objects.
    objects: Vec<u64>,
    /// `[objcg]`: all but objects of size classes.
    others: Vec<Usage>,
    /// By extension word without its live bit. The root's objects are not in it.
    pairs: HashMap<u32, TagTotal>,
    /// By id and number of a cache: live objects, where records have the cache.
    caches: HashMap<(usize, u32), u64>,
    /// True when there were more pairs than are kept.
    beyond: bool,
}

impl Charges {
    pub(super) fn new(classes: usize) -> Self {
        let classes = classes.max(1);
        Self {
            classes,
            objects: vec![0; classes],
            others: vec![Usage::default()],
            pairs: HashMap::new(),
            caches: HashMap::new(),
            beyond: false,
        }
    }

    /// Counts `calls` allocations with this extension word, `bytes` together.
    #[inline]
    pub(super) fn add(&mut self, word: u32, kind: Kind, bytes: u64, calls: u64) {
        let objcg = (word >> OBJCG_SHIFT) as usize;
        if objcg >= self.others.len() {
            self.others.resize(objcg + 1, Usage::default());
            self.objects.resize((objcg + 1) * self.classes, 0);
        }
        let others = &mut self.others[objcg];
        match kind {
            Kind::Slab(class) => {
                if let Some(sum) = self.objects.get_mut(objcg * self.classes + class) {
                    *sum += calls;
                }
            }
            Kind::Pages => others.pages += bytes,
            Kind::Vmalloc => others.vmalloc += bytes,
            Kind::PerCpu => others.percpu += bytes,
        }
        if !matches!(kind, Kind::Slab(_)) {
            let words = if kind == Kind::PerCpu { calls } else { bytes / PAGE };
            others.objects += calls;
            others.metadata += words * CHARGED_METADATA;
        }
        if objcg != 0 {
            self.pair(word & !EXT_LIVE, bytes, calls);
        }
    }

    fn pair(&mut self, key: u32, bytes: u64, calls: u64) {
        let mut key = key;
        if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&key) {
            self.beyond = true;
            key = key & !TAG_MASK | TAG_OTHER;
        }
        let sum = self.pairs.entry(key).or_default();
        sum.bytes += bytes;
        sum.calls += calls;
    }

    /// Counts an object with this extension word of the cache with this number. Beyond the limit of
    /// pairs it counts for no cache.
    pub(super) fn add_cache(&mut self, word: u32, number: u32) {
        let key = ((word >> OBJCG_SHIFT) as usize, number);
        if self.caches.len() < MAX_PAIRS || self.caches.contains_key(&key) {
            *self.caches.entry(key).or_default() += 1;
        }
    }

    /// Id, number of the cache, and live objects.
    pub(super) fn caches(&self) -> impl Iterator<Item = (usize, u32, u64)> {
        self.caches.iter().map(|(&(objcg, number), &objects)| (objcg, number, objects))
    }

    /// Memory of the counts, in bytes.
    pub(super) fn memory(&self) -> u64 {
        const PAIR: usize = 48;
        let others = self.others.len() * size_of::<Usage>();
        ((self.pairs.len() + self.caches.len()) * PAIR
            + self.objects.len() * size_of::<u64>()
            + others) as u64
    }

    /// One more than the highest id that the census met; at least 1, for the root.
    fn groups(&self) -> usize {
        self.others.len()
    }

    /// Live objects of a group by size class.
    fn objects(&self, objcg: usize) -> &[u64] {
        let from = objcg * self.classes;
        self.objects.get(from..from + self.classes).unwrap_or_default()
    }

    /// Memory of the objects and pages marked with this id.
    fn usage(&self, objcg: usize, classes: &[Option<Class>]) -> Usage {
        let mut usage = self.others[objcg];
        for (&calls, class) in self.objects(objcg).iter().zip(classes) {
            if let Some(class) = class {
                usage.objects += calls;
                usage.slab += calls * u64::from(class.size);
                usage.metadata += calls * CHARGED_METADATA;
            }
        }
        usage
    }

    /// Id, tag and sums of all pairs without the root's, in no order.
    fn pairs(&self) -> impl Iterator<Item = (usize, u32, TagTotal)> {
        self.pairs
            .iter()
            .map(|(&word, &total)| ((word >> OBJCG_SHIFT) as usize, word & TAG_MASK, total))
    }
}

/// Live objects of each group by tag and by size class. Groups go by index in [`Groups::all`];
/// the objects of a deleted group count as its payer's.
#[derive(Debug, Clone, Default)]
pub struct Holdings {
    /// Group, tag and sums, in order of group and tag.
    pairs: Vec<(usize, u32, TagTotal)>,
    classes: usize,
    /// `[group][class]`: live objects.
    objects: Vec<u64>,
    beyond: bool,
}

impl Holdings {
    /// Joins the counts by id with the groups that pay. `totals` has the sums of all tags.
    pub(super) fn new(charges: &Charges, groups: &Groups, totals: &[TagTotal]) -> Self {
        let mut pairs: Vec<(usize, u32, TagTotal)> = Vec::new();
        let mut of_root = totals.to_vec();
        for (objcg, tag, total) in charges.pairs() {
            // A pair beyond the limit has the tag of other sites here, and its own in `totals`. So
            // the root's row of its own tag may be too large.
            if let Some(rest) = of_root.get_mut(tag as usize) {
                rest.bytes = rest.bytes.saturating_sub(total.bytes);
                rest.calls = rest.calls.saturating_sub(total.calls);
            }
            pairs.push((groups.payer(objcg), tag, total));
        }
        let of_root = (0..).zip(of_root).filter(|(_, total)| total.calls != 0);
        pairs.extend(of_root.map(|(tag, total)| (0, tag, total)));
        pairs.sort_unstable_by_key(|&(group, tag, _)| (group, tag));
        // Several ids may have one payer.
        pairs.dedup_by(|next, sum| {
            let same = (next.0, next.1) == (sum.0, sum.1);
            if same {
                sum.2.bytes += next.2.bytes;
                sum.2.calls += next.2.calls;
            }
            same
        });
        let classes = charges.classes;
        let mut objects = vec![0; groups.all().len() * classes];
        for objcg in 0..charges.groups() {
            let from = groups.payer(objcg) * classes;
            for (sum, &calls) in objects[from..].iter_mut().zip(charges.objects(objcg)) {
                *sum += calls;
            }
        }
        Self { pairs, classes, objects, beyond: charges.beyond }
    }

    /// Memory of the counts, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let pairs = self.pairs.len() * size_of::<(usize, u32, TagTotal)>();
        (pairs + self.objects.len() * size_of::<u64>()) as u64
    }

    /// False when there were more pairs of group and tag than are kept. Some objects of a group
    /// are then in its row of other sites, and in the root's row of their own tag.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.beyond
    }

    /// Live bytes and objects of some groups together, by tag.
    pub(super) fn tags(&self, groups: &Range<usize>) -> BTreeMap<u32, TagTotal> {
        let from = self.pairs.partition_point(|pair| pair.0 < groups.start);
        let pairs = self.pairs[from..].iter().take_while(|pair| pair.0 < groups.end);
        let mut sums: BTreeMap<u32, TagTotal> = BTreeMap::new();
        for (_, tag, total) in pairs {
            let sum = sums.entry(*tag).or_default();
            sum.bytes += total.bytes;
            sum.calls += total.calls;
        }
        sums
    }

    /// Live objects of a size class that some groups hold together.
    pub(super) fn objects(&self, groups: &Range<usize>, class: usize) -> u64 {
        let counts = self.objects.chunks_exact(self.classes.max(1));
        let of = counts.skip(groups.start).take(groups.len());
        of.filter_map(|counts| counts.get(class)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_group_stay_exact_when_there_is_no_room_for_pairs() {
        let mut charges = Charges::new(2);
        // As many tags as there are, of more groups than fit.
        let groups = MAX_PAIRS as u32 / (TAG_MASK + 1) + 2;
        for objcg in 1..=groups {
            for tag in 0..=TAG_MASK {
                charges.add(objcg << OBJCG_SHIFT | EXT_LIVE | tag, Kind::Slab(1), 16, 1);
            }
        }
        assert!(charges.beyond);
        assert!(charges.pairs.len() <= MAX_PAIRS + groups as usize);
        let mut sums = vec![TagTotal::default(); groups as usize + 1];
        for (objcg, _, total) in charges.pairs() {
            sums[objcg].bytes += total.bytes;
            sums[objcg].calls += total.calls;
        }
        let all = u64::from(TAG_MASK) + 1;
        for (objcg, sum) in sums.iter().enumerate().skip(1) {
            assert_eq!((sum.bytes, sum.calls), (16 * all, all));
            assert_eq!(charges.objects(objcg), [0, all]);
        }
    }
}
