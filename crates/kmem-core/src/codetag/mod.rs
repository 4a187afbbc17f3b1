//! Code tags: the call site behind each tag number. Independent of allocation.
//!
//! ```text
//! cache[slot(key)]    key << 17 ^ (live | tag)      direct-mapped, inside the instance
//! index[hash(key)]    tag                           open addressing, two slots per site
//! sites[tag]          a return address, a static tag's names, or a chain of return addresses
//! texts               copies of names and chains
//!
//! made by the first chain:
//! rules[ret]          where the caller's frame is, for a return address
//! passages[hash]      a call in a wrapper and its caller, walked before, by both addresses
//! trails[hash]        another chain that was walked before, by the place of its words on the stack
//! ```
//!
//! Beside these, the lines of an interpreter are sites: see `lines`.
//!
//! A number is given once and never taken back. When no number is left, new call sites share
//! [`TAG_OTHER`], which is counted like any other. A static tag whose object was unloaded keeps its
//! number and its names. A tag of equal names that is loaded later gets both back.
//!
//! Context: any, signal handlers included. Lock-free.

mod cache;
mod chain;
mod lines;
mod lookup;
mod made;
mod passages;
mod probes;
mod ranges;
mod register;
mod rules;
mod sequence;
mod tag;
mod texts;
mod trails;
mod unloads;
mod unwind;
mod validate;
mod wrappers;

use crate::os::stepped::{Part, Stepped};
use crate::os::{Memory, Platform};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::TagId;
use cache::Cache;
use chain::Unwinder;
use kmem_layout::root::RootBlock;
use kmem_layout::site::{Site, Text, site_kind};
use kmem_layout::word::{TAG_BITS, TAG_FIRST_SITE, TAG_OTHER};
use probes::Probes;
use ranges::Ranges;
pub(crate) use tag::packed;
use tag::{BESIDE, Key, bytes};
pub use tag::{CallSite, SECTION, StaticTag};
use texts::Texts;
pub use validate::SiteFault;

/// Most sites of an instance, the reserved ones included.
pub const MAX_SITES: u32 = 1 << TAG_BITS;
/// Fewest sites an instance has room for.
pub const MIN_SITES: u32 = 1 << 10;
/// Marks a slot of the index whose static tag was unloaded: searches go on behind it, and another
/// tag may use it.
const UNLOADED: u32 = u32::MAX;
/// The sites of an instance. Zeroed memory is a valid table, which has no site and accepts none.
///
/// # Invariants
/// `sites` has no memory, or `sites`, `index` and `root` lead to a valid root block and to tables
/// for its `site_capacity`, which are never freed. The sites below its `site_count` are committed.
#[repr(C, align(64))]
pub struct Sites {
    cache: Cache,
    /// The cache where fast paths are closed because each new object is zeroed or guarded, or may
    /// be a sample of a tracer. Then `cache` is empty. See [`Self::cached_aside`].
    aside: Cache,
    /// Reasons for which words go into `aside`, as bits.
    is_aside: AtomicU32,
    sites: Stepped,
    index: AtomicU64,
    root: AtomicU64,
    texts: Texts,
    ranges: Ranges,
    unwinder: Unwinder,
    probes: Probes,
    /// Sites of static tags that were unloaded and not loaded again.
    gone: AtomicU32,
}

impl Sites {
    /// A table without memory: the tag of each call site is
    /// [`TAG_UNTAGGED`](kmem_layout::word::TAG_UNTAGGED).
    pub const fn new() -> Self {
        Self {
            cache: cache::empty(),
            aside: cache::empty(),
            is_aside: AtomicU32::new(0),
            sites: Stepped::new(),
            index: AtomicU64::new(0),
            root: AtomicU64::new(0),
            texts: Texts::new(),
            ranges: Ranges::new(),
            unwinder: Unwinder::new(),
            probes: Probes::new(),
            gone: AtomicU32::new(0),
        }
    }

    /// Bytes of the table of `capacity` sites.
    pub const fn sites_bytes(capacity: u32) -> usize {
        capacity as usize * size_of::<Site>()
    }

    /// Bytes of the index of `capacity` sites.
    pub const fn index_bytes(capacity: u32) -> usize {
        2 * capacity as usize * 4
    }

    /// Gives the table its memory.
    ///
    /// # Safety
    /// `root` is a valid root block that no other thread reads yet. `sites` meets the contract of
    /// [`Stepped::start`]. It and the zeroed `index` have [`Self::sites_bytes`] and
    /// [`Self::index_bytes`] for the block's `site_capacity`, for this table alone. None of the
    /// three is ever freed.
    pub unsafe fn start(
        &self,
        platform: &impl Platform,
        sites: Part,
        index: *mut u8,
        root: *mut RootBlock,
    ) {
        // SAFETY: `root` is valid, and no other thread reads it yet, by the contract.
        unsafe {
            (*root).site_count.store(TAG_FIRST_SITE, Ordering::Relaxed);
            (*root).texts = self.texts.start(platform, (*root).site_capacity);
        }
        // INVARIANT: the memory has these sizes and is never freed, by the contract.
        self.index.store(index as u64, Ordering::Relaxed);
        self.root.store(root as u64, Ordering::Relaxed);
        // SAFETY: the contract of `start`, by the contract.
        unsafe { self.sites.start(sites) };
    }

    /// Gives address space that texts never used back to the platform. Returns the bytes given
    /// back.
    pub fn spare_space(&self, platform: &impl Platform) -> usize {
        self.texts.spare_space(platform)
    }

    /// Takes functions for allocation wrappers whose names match these patterns. Called once, at
    /// the start.
    pub fn choose_wrappers(&self, patterns: &'static [u8]) {
        self.unwinder.choose(patterns);
    }

    /// Notes that the dynamic linker is about to unload an object. Until [`Self::end_unload`]
    /// nothing is remembered of the program's code.
    pub fn begin_unload(&self) {
        self.unwinder.begin_unload();
    }

    /// Notes that the object of a [`Self::begin_unload`] is gone. What was remembered of the
    /// program's code is forgotten, for another object may take its place.
    pub fn end_unload(&self) {
        self.unwinder.end_unload();
        self.forget_calls_below();
        self.forget();
    }

    /// In a forked child: forgets what other threads of the parent had begun.
    pub fn forget_threads(&self) {
        self.unwinder.forget_threads();
        self.forget_line_writers();
    }

    /// The memory of the table, if it has been started. Inlined: returned through memory, its words
    /// would be loaded again before they are stored.
    #[inline(always)]
    fn table(&self) -> Option<Table<'_>> {
        let sites = self.sites.base() as *const Site;
        if sites.is_null() {
            return None;
        }
        // SAFETY: `sites` is not null, so the root block and the tables of its capacity are valid
        // (invariant).
        unsafe {
            let root = &*(self.root.load(Ordering::Relaxed) as *const RootBlock);
            Some(Table {
                sites: core::slice::from_raw_parts(sites, root.site_capacity as usize),
                index: core::slice::from_raw_parts(
                    self.index.load(Ordering::Relaxed) as *const AtomicU32,
                    2 * root.site_capacity as usize,
                ),
                root,
                memory: &self.sites,
            })
        }
    }

    fn find_or_add(&self, platform: &impl Platform, table: &Table<'_>, key: Key<'_>) -> TagId {
        let mut fresh: Option<Fresh> = None;
        // Repeats only if another thread took the slot that the search found.
        loop {
            let (word, was) = match table.search(key) {
                Found::Tag(tag) => {
                    // With a number already taken: another thread added this site first.
                    if let Some(fresh) = fresh {
                        self.give_up(table, fresh);
                    }
                    return TagId(tag);
                }
                Found::Free(word, was) => (word, was),
                Found::Full => {
                    if let Some(fresh) = fresh {
                        self.give_up(table, fresh);
                    }
                    return TagId(TAG_OTHER);
                }
            };
            let new = match fresh {
                Some(new) => new,
                None => {
                    let revived = self.revive(table, key);
                    let Some(number) = revived.or_else(|| table.number(platform)) else {
                        return TagId(TAG_OTHER);
                    };
                    let new = Fresh { number, revived: revived.is_some() };
                    if !self.describe(platform, table, number, key) {
                        self.give_up(table, new);
                        return TagId(TAG_OTHER);
                    }
                    new
                }
            };
            fresh = Some(new);
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            if word.compare_exchange(was, new.number, done, failed).is_ok() {
                return TagId(new.number);
            }
        }
    }

    /// Gives up a number that is not needed. A revived site counts as unloaded again; a new number
    /// stays unused.
    fn give_up(&self, table: &Table<'_>, fresh: Fresh) {
        let site = &table.sites[fresh.number as usize];
        if fresh.revived {
            self.gone.fetch_add(1, Ordering::Relaxed);
        } else {
            site.kind.store(0, Ordering::Release);
        }
        site.addr.store(0, Ordering::Release);
    }

    /// Fills in a site that only this thread uses. False: no memory for its names or chain.
    fn describe(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        tag: u32,
        key: Key<'_>,
    ) -> bool {
        let site = &table.sites[tag as usize];
        if let Some(tag) = key.static_tag() {
            if site.data.load(Ordering::Relaxed) == 0 {
                // SAFETY: the tag of a call site is loaded (invariant of `CallSite`).
                let Some(data) = (unsafe { self.copy_tag(platform, table, tag) }) else {
                    return false;
                };
                site.data.store(data, Ordering::Relaxed);
            }
        } else if key.kind == site_kind::LINE {
            let Some(data) = self.copy_names(platform, table, *key.names) else { return false };
            site.data.store(data, Ordering::Relaxed);
        } else if key.kind == site_kind::CHAIN {
            let frames = key.frames;
            let Some(room) = self.texts.take(platform, table.root, size_of_val(frames)) else {
                return false;
            };
            // SAFETY: `room` has the bytes of the frames, and only this thread uses it.
            unsafe {
                room.cast::<usize>()
                    .as_ptr()
                    .copy_from_nonoverlapping(frames.as_ptr(), frames.len())
            };
            site.count.store(frames.len() as u32, Ordering::Relaxed);
            site.data.store(room.as_ptr() as u64, Ordering::Relaxed);
            site.wrappers.store(key.wrappers as u32, Ordering::Relaxed);
            site.skip.store(key.chosen as u32, Ordering::Relaxed);
        }
        site.addr.store(key.address as u64, Ordering::Relaxed);
        site.kind.store(key.kind, Ordering::Release);
        true
    }

    /// Copies a static tag's names into memory that is never freed. Returns the copy's address.
    /// `None`: there is no memory.
    ///
    /// # Safety
    /// `tag` is a static tag that is loaded.
    unsafe fn copy_tag(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        tag: *const StaticTag,
    ) -> Option<u64> {
        let range = self.ranges.module(tag);
        // SAFETY: the same contract.
        self.copy_names(platform, table, unsafe { names_of(tag, &range) })
    }

    /// Copies names into memory that is never freed. Returns the copy's address. `None`: there is
    /// no memory.
    fn copy_names(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        Names { line, module, file, function }: Names<'_>,
    ) -> Option<u64> {
        let names = [module, file, function];
        let len = names.iter().map(|name| name.len()).sum::<usize>();
        let room = self.texts.take(platform, table.root, size_of::<Text>() + len)?;
        let text = Text {
            line,
            module_len: module.len() as u16,
            file_len: file.len() as u16,
            function_len: function.len() as u16,
            reserved: [0; 3],
        };
        // SAFETY: `room` has the bytes of the text and its names, and only this thread uses it.
        unsafe {
            room.cast().write(text);
            let mut at = room.as_ptr().add(size_of::<Text>());
            for name in names {
                at.copy_from_nonoverlapping(name.as_ptr(), name.len());
                at = at.add(name.len());
            }
        }
        Some(room.as_ptr() as u64)
    }

    /// Claims the site of an unloaded static tag of equal names. Returns its number.
    fn revive(&self, table: &Table<'_>, key: Key<'_>) -> Option<u32> {
        let tag = key.static_tag()?;
        if self.gone.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let range = self.ranges.module(tag);
        // SAFETY: the tag of a call site is loaded (invariant of `CallSite`).
        let wanted = unsafe { names_of(tag, &range) };
        let count = table.count();
        let found = (TAG_FIRST_SITE..count).find(|&number| {
            let site = &table.sites[number as usize];
            site.kind.load(Ordering::Acquire) == site_kind::STATIC
                && site.addr.load(Ordering::Relaxed) == 0
                && table.names(number) == Some(wanted)
                // Of several threads that use such a tag, one claims the site.
                && site
                    .addr
                    .compare_exchange(0, tag as u64, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })?;
        self.gone.fetch_sub(1, Ordering::Relaxed);
        Some(found)
    }

    /// Address of a static tag; null for other tags, and for one whose object was unloaded.
    pub fn place(&self, tag: TagId) -> *const StaticTag {
        let site = self.site(tag);
        let site = site.filter(|site| site.kind.load(Ordering::Acquire) == site_kind::STATIC);
        site.map_or(core::ptr::null(), |site| site.addr.load(Ordering::Relaxed) as *const _)
    }

    /// Names of a static tag or a line of an interpreter; `None` for other tags.
    pub fn names(&self, tag: TagId) -> Option<Names<'_>> {
        let table = self.table()?;
        let site = table.sites.get(tag.0 as usize)?;
        let kind = site.kind.load(Ordering::Acquire);
        matches!(kind, site_kind::STATIC | site_kind::LINE).then(|| table.names(tag.0))?
    }

    /// Return addresses of a tag, innermost first; none for a static tag.
    pub fn frames(&self, tag: TagId) -> &[u64] {
        self.table().map_or(&[], |table| table.frames(tag))
    }

    /// The innermost return address of a tag that is in no allocation wrapper; 0 for none. If all
    /// are, it is the innermost one.
    pub fn address(&self, tag: TagId) -> usize {
        let frames = self.frames(tag);
        let wrappers = self.site(tag).map_or(0, |site| site.wrappers.load(Ordering::Relaxed));
        let ret = frames.get(wrappers as usize).or(frames.first());
        ret.map_or(0, |&ret| ret as usize)
    }

    /// Number of return addresses of a tag that the user chose to skip.
    pub fn skip(&self, tag: TagId) -> u32 {
        let is_chain = |site: &&Site| site.kind.load(Ordering::Acquire) == site_kind::CHAIN;
        self.site(tag).filter(is_chain).map_or(0, |site| site.skip.load(Ordering::Relaxed))
    }

    fn site(&self, tag: TagId) -> Option<&Site> {
        self.table()?.sites.get(tag.0 as usize)
    }
}

/// The names in a static tag, or of a line of an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// Line in the file.
    pub line: u32,
    /// The module; empty for the main program.
    pub module: &'a [u8],
    /// The source file.
    pub file: &'a [u8],
    /// The function, or the scope.
    pub function: &'a [u8],
}

impl Names<'_> {
    /// Empty names.
    const NONE: Self = Self { line: 0, module: &[], file: &[], function: &[] };
}

/// Names of a loaded tag. `range` is the module's name if the tag has none.
///
/// # Safety
/// `tag` is a static tag that stays loaded for `'a`.
unsafe fn names_of<'a>(
    tag: *const StaticTag,
    range: &'a ([u8; ranges::MAX_MODULE], usize),
) -> Names<'a> {
    // SAFETY: the tag is loaded, and its names are null or C strings.
    let (line, module, file, function) =
        unsafe { ((*tag).line, bytes((*tag).module), bytes((*tag).file), bytes((*tag).function)) };
    let module = if module.is_empty() { &range.0[..range.1] } else { module };
    Names { line, module, file, function }
}

/// A number for a site that is not in the index yet.
#[derive(Clone, Copy)]
struct Fresh {
    number: u32,
    /// The number belonged to a tag of equal names that was unloaded.
    revived: bool,
}

/// The result of a search in the index.
enum Found<'a> {
    Tag(u32),
    /// No tag. It may be stored in this slot, which has this value now.
    Free(&'a AtomicU32, u32),
    /// No tag, and no slot for one.
    Full,
}

/// The memory of a table that has been started.
struct Table<'a> {
    sites: &'a [Site],
    index: &'a [AtomicU32],
    root: &'a RootBlock,
    /// The memory of `sites`.
    memory: &'a Stepped,
}

impl<'a> Table<'a> {
    /// Sites in use.
    fn count(&self) -> u32 {
        self.root.site_count.load(Ordering::Acquire).min(self.root.site_capacity)
    }

    /// A number that was never given. `None`: all were, or there is no memory for its site.
    fn number(&self, platform: &impl Memory) -> Option<u32> {
        let next = |count: u32| {
            let room = count < self.root.site_capacity
                && self.memory.ensure(platform, Sites::sites_bytes(count + 1));
            room.then_some(count + 1)
        };
        let count = &self.root.site_count;
        // INVARIANT: the site of the new number is committed.
        count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok()
    }

    /// The slots of the index where `key` may be, in the order of a search.
    fn slots(&self, key: Key<'_>) -> impl Iterator<Item = &'a AtomicU32> {
        let from = |place: usize| {
            let (after, before) = self.index.split_at(place % self.index.len());
            before.iter().chain(after)
        };
        let [near, anywhere] = key.places().map(from);
        near.take(BESIDE).chain(anywhere)
    }

    fn search(&self, key: Key<'_>) -> Found<'a> {
        let mut free = None;
        for word in self.slots(key) {
            // Acquire pairs with the release that stored the tag: the site is written.
            match word.load(Ordering::Acquire) {
                0 => {
                    let (word, was) = free.unwrap_or((word, 0));
                    return Found::Free(word, was);
                }
                UNLOADED => free = free.or(Some((word, UNLOADED))),
                tag if self.is(tag, key) => return Found::Tag(tag),
                _ => {}
            }
        }
        free.map_or(Found::Full, |(word, was)| Found::Free(word, was))
    }

    /// Removes a site that no longer stands for `key` from the index.
    fn unlink(&self, tag: u32, key: Key<'_>) {
        let here = |word: &&AtomicU32| {
            let now = word.load(Ordering::Relaxed);
            now == 0 || now == tag
        };
        if let Some(word) = self.slots(key).find(here) {
            let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = word.compare_exchange(tag, UNLOADED, done, failed);
        }
    }

    /// Returns whether a tag of the index stands for `key`.
    fn is(&self, tag: u32, key: Key<'_>) -> bool {
        let site = &self.sites[tag as usize];
        if site.addr.load(Ordering::Relaxed) != key.address as u64
            || site.kind.load(Ordering::Acquire) != key.kind
        {
            return false;
        }
        if key.kind == site_kind::LINE {
            return self.names(tag).is_some_and(|names| names == *key.names);
        }
        key.kind != site_kind::CHAIN
            || site.count.load(Ordering::Relaxed) as usize == key.frames.len()
                // SAFETY: the frames are written before the index names the tag, and neither
                // changed nor freed after.
                && unsafe {
                    let at = site.data.load(Ordering::Relaxed) as *const usize;
                    core::slice::from_raw_parts(at, key.frames.len()) == key.frames
                }
    }

    /// Return addresses of a tag, innermost first; none for a static tag.
    fn frames(&self, tag: TagId) -> &'a [u64] {
        let Some(site) = self.sites.get(tag.0 as usize) else { return &[] };
        let (at, len) = match site.kind.load(Ordering::Acquire) {
            site_kind::CALLER => (site.addr.as_ptr() as *const u64, 1),
            site_kind::CHAIN => (
                site.data.load(Ordering::Relaxed) as *const u64,
                site.count.load(Ordering::Relaxed) as usize,
            ),
            _ => return &[],
        };
        // SAFETY: the addresses are written before the kind, and neither changed nor freed after.
        unsafe { core::slice::from_raw_parts(at, len) }
    }

    /// Names of a static tag or a line.
    fn names(&self, tag: u32) -> Option<Names<'a>> {
        let at = self.sites[tag as usize].data.load(Ordering::Relaxed) as *const Text;
        // SAFETY: null, or a text with its names behind it, written before the kind, never freed.
        unsafe {
            let text = at.as_ref()?;
            let names = at.add(1).cast::<u8>();
            let slice = |from: u16, len: u16| {
                core::slice::from_raw_parts(names.add(from as usize), len as usize)
            };
            Some(Names {
                line: text.line,
                module: slice(0, text.module_len),
                file: slice(text.module_len, text.file_len),
                function: slice(text.module_len + text.file_len, text.function_len),
            })
        }
    }
}

impl Default for Sites {
    fn default() -> Self {
        Self::new()
    }
}
