//! Caches: the size classes with their slabs, and the caches that the program named.
//!
//! Named caches of one size share the slabs of a size class, so only their own counts tell them
//! apart. Objects whose records have the cache also tell it by group; see
//! [`kmem_layout::cache`].

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::Range;

use kmem_layout::cache::{CacheBlock, MAX_CACHES, unpadded};

use super::groups::{Charges, Groups};
use super::root::{Root, bad};
use super::source::Source;
use super::{Books, Snapshot};
use crate::error::ReadError;
use crate::maps::{PAGE, Span};
use crate::memory::{self, field};

/// One size class and its slabs, as `/proc/slabinfo` shows a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cache {
    /// Bytes of an object.
    pub size: u32,
    /// Bytes of the largest request that it serves.
    pub request: u32,
    /// Objects in a slab.
    pub objects_per_slab: u32,
    /// Pages of a slab.
    pub pages_per_slab: u32,
    /// Most objects that a CPU keeps.
    pub limit: u16,
    /// Objects moved by one refill or flush of a CPU.
    pub batch: u16,
    /// Live objects.
    pub active: u64,
    /// Slabs.
    pub slabs: u64,
    /// Slabs with at least one live object.
    pub active_slabs: u64,
}

impl Cache {
    /// Name of the cache, as the kernel forms it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("kmalloc-{}", self.request)
    }

    /// Adds up those that are alike, the smallest first.
    pub(crate) fn together(caches: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut sums: BTreeMap<(u32, u32, u32), Self> = BTreeMap::new();
        for cache in caches {
            let key = (cache.size, cache.objects_per_slab, cache.pages_per_slab);
            sums.entry(key).and_modify(|sum| sum.add(&cache)).or_insert(cache);
        }
        sums.into_values().collect()
    }

    /// Adds the counts of the same cache in another copy of the library, or in another process.
    fn add(&mut self, other: &Self) {
        self.active = self.active.saturating_add(other.active);
        self.slabs = self.slabs.saturating_add(other.slabs);
        self.active_slabs = self.active_slabs.saturating_add(other.active_slabs);
    }

    /// Count of objects that its slabs have room for.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.slabs.saturating_mul(u64::from(self.objects_per_slab))
    }
}

/// A cache that the program made, with objects in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCache {
    /// The name, not yet safe to print.
    pub name: String,
    /// Its objects. Slabs count for the size class, in a [`Cache`] of its own. Large objects are
    /// runs of pages, and each counts as a slab here.
    pub cache: Cache,
}

/// The named caches under one root block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Named {
    /// By number, from 1.
    blocks: BTreeMap<u32, Block>,
    /// By number, and index of the group that pays: live objects. None where records do not have
    /// the cache.
    by_group: Option<BTreeMap<(u32, usize), u64>>,
}

/// A cache, as the process describes it.
#[derive(Debug, Clone)]
struct Block {
    name: String,
    size: u64,
    class: usize,
    live: u64,
}

impl Named {
    /// Reads the table of caches.
    pub(super) fn read(
        source: &Source<'_>,
        root: &Root,
        charges: &Charges,
        groups: &Groups,
    ) -> Result<Self, ReadError> {
        let (at, capacity) = root.slab_caches;
        if capacity as usize > MAX_CACHES {
            let what = format!("slab_cache_capacity is {capacity}, above {MAX_CACHES}");
            return Err(bad(root.at, what));
        }
        let table = || root.records(source, "slab_caches", at, capacity, 8);
        let before = table()?;
        let numbered = (1..).zip(before.as_chunks::<8>().0);
        let known = numbered.map(|(number, entry)| (number, u64::from_le_bytes(*entry)));
        let known: Vec<(u32, u64)> = known.filter(|(_, address)| *address != 0).collect();
        let of = |&(_, addr): &(u32, u64)| Span { addr, len: size_of::<CacheBlock>() };
        let spans: Vec<Span> = known.iter().map(of).collect();
        let mut bytes = vec![0; spans.len() * size_of::<CacheBlock>()];
        let whole = source.memory.read_spans(&spans, &mut bytes)?;
        // A cache whose entry changed was made or destroyed in between.
        let after = table()?;
        let stays = |number: u32| {
            let at = (number as usize - 1) * 8;
            before.get(at..at + 8) == after.get(at..at + 8)
        };
        let records = bytes.chunks_exact(size_of::<CacheBlock>());
        let blocks = known.iter().zip(records).zip(whole);
        let blocks = blocks
            .filter(|(((number, _), _), whole)| *whole && stays(*number))
            .map(|((&(number, _), record), _)| (number, Block::parse(record)))
            .collect();
        let by_group = root.records_caches.then(|| {
            let mut sums = BTreeMap::new();
            for (objcg, number, objects) in charges.caches() {
                *sums.entry((number, groups.payer(objcg))).or_default() += objects;
            }
            sums
        });
        Ok(Self { blocks, by_group })
    }

    /// Objects of a cache that some groups hold together; those of all groups without a range.
    fn objects(&self, number: u32, live: u64, groups: Option<&Range<usize>>) -> u64 {
        let Some(groups) = groups else { return live };
        let of = (number, groups.start)..(number, groups.end);
        self.by_group.iter().flat_map(|counts| counts.range(of.clone())).map(|(_, live)| live).sum()
    }
}

impl Block {
    fn parse(record: &[u8]) -> Self {
        let name = record.get(offset_of!(CacheBlock, name)..).and_then(|name| name.first_chunk());
        Self {
            name: name.map_or_else(String::new, |name| memory::name(unpadded(name))),
            size: field!(record, CacheBlock.size: u64),
            class: usize::try_from(field!(record, CacheBlock.class: u64)).unwrap_or(0),
            live: field!(record, CacheBlock.live: u64),
        }
    }

    /// The columns of a cache with `active` objects in use. `classes` are the size classes.
    fn cache(&self, active: u64, classes: &[Cache]) -> Cache {
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        let class = self.class.checked_sub(1).and_then(|at| classes.get(at));
        let pages = u32::try_from(self.size.div_ceil(PAGE)).unwrap_or(u32::MAX);
        let (slabs, active_slabs) = if class.is_some() { (0, 0) } else { (active, active) };
        let runs = Cache { objects_per_slab: 1, pages_per_slab: pages, ..Cache::default() };
        Cache { size, request: size, active, slabs, active_slabs, ..*class.unwrap_or(&runs) }
    }
}

impl Snapshot {
    /// The size classes of all copies of the library, added up. With the path of a group their
    /// live objects are those of this group and of the groups below it.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoGroup`] when there is no such group.
    pub fn caches(&self, group: Option<&str>) -> Result<Vec<Cache>, ReadError> {
        if let Some(path) = group {
            self.groups_at(path)?;
        }
        Ok(Cache::together(self.books.iter().flat_map(|books| match group {
            None => books.caches.clone(),
            Some(path) => books.caches_of(&books.below(path)),
        })))
    }

    /// The caches that the program named, by name and size, those of all copies of the library
    /// added up. With the path of a group their objects are those of this group and of the groups
    /// below it.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoGroup`] when there is no such group.
    pub fn named_caches(&self, group: Option<&str>) -> Result<Vec<NamedCache>, ReadError> {
        if let Some(path) = group {
            self.groups_at(path)?;
        }
        let mut sums: BTreeMap<(&str, u64), Cache> = BTreeMap::new();
        for books in &self.books {
            let groups = group.map(|path| books.below(path));
            for (&number, block) in &books.named.blocks {
                let active = books.named.objects(number, block.live, groups.as_ref());
                let next = block.cache(active, &books.caches);
                let key = (block.name.as_str(), block.size);
                sums.entry(key).and_modify(|sum| sum.add(&next)).or_insert(next);
            }
        }
        let named =
            |((name, _), cache): ((&str, u64), Cache)| NamedCache { name: name.to_owned(), cache };
        Ok(sums.into_iter().map(named).collect())
    }

    /// Returns whether objects tell their cache, so that caches are known by group.
    #[must_use]
    pub fn tells_caches_by_group(&self) -> bool {
        self.books
            .iter()
            .all(|books| books.named.by_group.is_some() || books.named.blocks.is_empty())
    }
}

impl Books {
    /// The size classes with the live objects of some groups. `groups` are indexes; see
    /// [`Groups::below`].
    #[must_use]
    pub fn caches_of(&self, groups: &Range<usize>) -> Vec<Cache> {
        // There is no class 0.
        let classes = (1..).zip(&self.caches);
        let of = |(class, cache): (usize, &Cache)| Cache {
            active: self.holdings.objects(groups, class),
            ..*cache
        };
        classes.map(of).collect()
    }
}
