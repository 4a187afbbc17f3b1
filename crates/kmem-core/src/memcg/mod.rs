//! Groups: they pay for memory, in a hierarchy with limits (the kernel's memcg).
//!
//! ```text
//! extension word of an object --> objcg id --> blocks[id]: charged, own, limits, events, name
//!                                                 | parent
//!                                                 v
//!                                              blocks[parent] --> .. --> blocks[0], the root
//! ```
//!
//! A charge is added to `own` of the object's group first. Then it is added to `charged` of that
//! group and of all living groups above it but the root. An uncharge goes the other way round, to
//! `own` last. So if `own` is zero, no word names the entry, and no thread charges it.
//!
//! Deleting a group changes its state. From then on, a walk up the hierarchy steps over the group.
//! Its charges count for its nearest living ancestor, whose `charged` always included them. No
//! object is visited. (The kernel re-points the objcg to the parent. Here the id is the objcg, and
//! its entry has the parent.) When ids run short, the objects of deleted groups get the id of that
//! ancestor, see [`merge`].
//!
//! | state | meaning                                                                          |
//! |-------|----------------------------------------------------------------------------------|
//! | FREE  | not in use; its generation is that of the next group in the entry                |
//! | LIVE  | in the index of names; may be found, entered, charged                            |
//! | DYING | deleted; a thread that sees `own`, `pins` and `children` at zero makes it FREE   |
//!
//! A DYING group is `merging` while a walk merges it: see [`merge`]. The walk has a pin of it.
//!
//! Locks: one spin lock, which no allocation takes, is held to create, to delete and to find by
//! name. Charging is lock-free.
//!
//! Context: any for charging, signal handlers included; the rest not in signal handlers.

mod counter;
mod merge;
#[cfg(all(loom, test))]
mod model;
mod name;
mod registry;
mod request;
mod shrinker;
#[cfg(not(loom))]
pub mod stock;

use self::merge::Merge;
use crate::os::Memory;
use crate::os::stepped::{Part, Stepped};
use crate::sync::{AtomicU32, AtomicU64, Ordering, const_fn, fence, loom_fence};
use crate::units::ObjcgId;
use kmem_layout::group::{GroupBlock, Limit, MAX_GROUPS, NO_LIMIT, ROOT_GENERATION, group_state};
use kmem_layout::word::OBJCG_SHIFT;

pub use counter::{AtMax, Charged, Limits, MOST_CHARGED};
pub use merge::Step;
pub use shrinker::{Shrink, Shrinker};

/// Fewest groups an instance has room for.
pub const MIN_GROUPS: u32 = 256;

/// The number of a group: `generation:30 | objcg:14`. Never 0, and never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The root, which pays for everything that no other group pays for. It has no limits.
    pub const ROOT: Self = Self::new(ROOT_GENERATION, ObjcgId::ROOT);

    const fn new(generation: u32, objcg: ObjcgId) -> Self {
        Self((generation as u64) << ObjcgId::BITS | objcg.0 as u64)
    }

    /// The id in the extension words of the group's objects.
    pub const fn objcg(self) -> ObjcgId {
        ObjcgId(self.0 as u32 & (MAX_GROUPS - 1))
    }

    const fn generation(self) -> u32 {
        (self.0 >> ObjcgId::BITS) as u32
    }
}

/// The group in an extension word.
#[inline(always)]
pub const fn objcg_of(word: u32) -> ObjcgId {
    ObjcgId(word >> OBJCG_SHIFT)
}

/// A group as the bits of an extension word.
#[inline(always)]
pub const fn objcg_bits(objcg: ObjcgId) -> u32 {
    objcg.0 << OBJCG_SHIFT
}

/// Why an operation on a group fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// The name is not 1 to 255 bytes of UTF-8 without `/` and zero bytes, or it is `.` or `..`.
    BadName,
    /// The parent has a group of that name.
    Exists,
    /// There is no room for another group.
    Full,
    /// There would be more than 32 levels of groups, the root included.
    TooDeep,
    /// There is no such group, or it was deleted.
    NotFound,
    /// There are living groups below it.
    HasChildren,
    /// The root cannot be deleted, limited or left.
    IsRoot,
    /// The instance keeps no books and has no groups (`mem_profiling:never` without
    /// `groups:always`), or did not start.
    NoBooks,
    /// There is no memory.
    NoMemory,
    /// Not possible for a thread that is within a shrinker, or within the function that is told of
    /// refusals.
    InShrinker,
}

impl core::fmt::Display for GroupError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::BadName => {
                "not a group's name: 1 to 255 bytes of UTF-8 without / and zero bytes, not . or .."
            }
            Self::Exists => "there is a group of that name",
            Self::Full => "there are as many groups as there can be",
            Self::TooDeep => "more than 32 levels of groups",
            Self::NotFound => "no such group",
            Self::HasChildren => "there are groups below it",
            Self::IsRoot => "not possible for the root",
            Self::NoBooks => "no groups without books (mem_profiling:never needs groups:always)",
            Self::NoMemory => "no memory",
            Self::InShrinker => "not possible from within a callback",
        })
    }
}

impl core::error::Error for GroupError {}

/// The groups of an instance. Zeroed memory is a valid table, without groups.
///
/// # Invariants
/// `blocks` has no memory, or `blocks` and `index` lead to arrays for `capacity`, which are never
/// freed. The entries below `used` are committed, that of the root among them.
#[repr(C)]
pub struct Groups {
    /// `[GroupBlock; capacity]`.
    blocks: Stepped,
    capacity: AtomicU32,
    /// 1 while a thread uses the index; see `registry`.
    lock: AtomicU32,
    /// `[AtomicU32; 2 * capacity]`: the index of names.
    index: AtomicU64,
    /// No entry below this is free. (At first 0: an instance is all zeroes until it is used.)
    first_free: AtomicU32,
    /// Entries from this id on were never used.
    used: AtomicU32,
    merge: Merge,
}

impl Groups {
    const_fn! {
        /// A table without groups.
        pub const fn new() -> Self {
            Self {
                blocks: Stepped::new(),
                capacity: AtomicU32::new(0),
                lock: AtomicU32::new(0),
                index: AtomicU64::new(0),
                first_free: AtomicU32::new(0),
                used: AtomicU32::new(0),
                merge: Merge::new(),
            }
        }
    }

    /// Bytes of the table of `capacity` groups.
    pub const fn blocks_bytes(capacity: u32) -> usize {
        capacity as usize * size_of::<GroupBlock>()
    }

    /// Bytes of the index of `capacity` groups.
    pub const fn index_bytes(capacity: u32) -> usize {
        2 * capacity as usize * 4
    }

    /// Gives the table its memory, and makes the root. False: the platform has no memory, and there
    /// is no table.
    ///
    /// # Safety
    /// `blocks` meets the contract of [`Stepped::start`]. It and the zeroed `index` have
    /// [`Self::blocks_bytes`] and [`Self::index_bytes`], for this table alone, and are never freed.
    /// No other thread uses the table yet.
    pub unsafe fn start(
        &self,
        platform: &impl Memory,
        blocks: Part,
        index: *mut u8,
        capacity: u32,
    ) -> bool {
        // SAFETY: the contract of `Stepped::start`, by the contract.
        unsafe { self.blocks.start(blocks) };
        if !self.commit(platform, ObjcgId::ROOT) {
            return false;
        }
        // INVARIANT: the memory has these sizes and is never freed, by the contract. The root's
        // entry is committed.
        self.index.store(index as u64, Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.used.store(1, Ordering::Release);
        let root = self.block(ObjcgId::ROOT);
        for limit in [Limit::Max, Limit::High] {
            root.limit(limit).store(NO_LIMIT, Ordering::Relaxed);
        }
        root.pins.store(1, Ordering::Relaxed);
        root.state
            .store(ROOT_GENERATION << group_state::BITS | group_state::LIVE, Ordering::Release);
        true
    }

    /// Makes the entry of an id writable. False: there is no such entry, or no memory for it.
    fn commit(&self, platform: &impl Memory, id: ObjcgId) -> bool {
        self.blocks.ensure(platform, Self::blocks_bytes(id.0 + 1))
    }

    /// The entries that are or were in use, by id. Others may not be writable.
    #[inline]
    fn blocks(&self) -> &[GroupBlock] {
        let used = self.used() as usize;
        if used == 0 {
            return &[];
        }
        // SAFETY: an entry is in use, so this is an array with that many committed entries
        // (invariant), for which zeroes are valid.
        unsafe { core::slice::from_raw_parts(self.blocks.base().cast::<GroupBlock>(), used) }
    }

    /// The entry of an id. A word that a program has overwritten may name an entry that was never
    /// used: it counts as the root's.
    ///
    /// # Panics
    /// The table was not started.
    fn block(&self, id: ObjcgId) -> &GroupBlock {
        let blocks = self.blocks();
        blocks.get(id.0 as usize).unwrap_or(&blocks[ObjcgId::ROOT.0 as usize])
    }

    /// Number of ids that are or were in use: those from 0 up to this.
    #[inline]
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// The entries that are or were in use, by id.
    pub fn entries(&self) -> &[GroupBlock] {
        self.blocks()
    }

    /// Returns whether there is or was a group besides the root.
    pub fn any(&self) -> bool {
        self.used() > 1
    }

    /// The entry of a group, deleted or not. Without a pin, it may become another group's.
    ///
    /// # Errors
    /// There is no such group any more.
    #[inline]
    pub fn get(&self, id: GroupId) -> Result<&GroupBlock, GroupError> {
        self.in_state(id, |state| state != group_state::FREE)
    }

    /// The entry of a group, if `is` accepts its state.
    #[inline]
    fn in_state(&self, id: GroupId, is: impl Fn(u32) -> bool) -> Result<&GroupBlock, GroupError> {
        let block = self.blocks().get(id.objcg().0 as usize).ok_or(GroupError::NotFound)?;
        // One load: at a second one, the entry may be another group's.
        let state = block.state.load(Ordering::SeqCst);
        // The whole number is compared, because a program may pass any value.
        let same = GroupId::new(state >> group_state::BITS, id.objcg()) == id;
        if is(state & group_state::MASK) && same { Ok(block) } else { Err(GroupError::NotFound) }
    }

    /// The living group with an id; `None` if there is none.
    pub fn id(&self, objcg: ObjcgId) -> Option<GroupId> {
        let state = self.blocks().get(objcg.0 as usize)?.state.load(Ordering::SeqCst);
        let live = state & group_state::MASK == group_state::LIVE;
        live.then_some(GroupId::new(state >> group_state::BITS, objcg))
    }

    /// All living groups, the root included.
    pub fn all(&self) -> impl Iterator<Item = GroupId> {
        (0..self.used()).filter_map(|objcg| self.id(ObjcgId(objcg)))
    }

    /// A living group and all living ones below it.
    pub fn all_below(&self, top: ObjcgId) -> impl Iterator<Item = GroupId> {
        let alone = self.block(top).children.load(Ordering::SeqCst) == 0;
        let end = if alone { 0 } else { self.used() };
        let others = (0..end).map(ObjcgId).filter(move |&other| other != top);
        core::iter::once(top)
            .chain(others.filter(move |&other| self.is_below(other, top)))
            .filter_map(|objcg| self.id(objcg))
    }

    /// Bytes charged for an entry's own objects, stocks and reservations.
    pub fn own(&self, objcg: ObjcgId) -> u64 {
        self.block(objcg).own.load(Ordering::SeqCst)
    }

    /// Bytes of an entry's reservations, a part of [`Self::own`].
    pub fn reserved(&self, objcg: ObjcgId) -> u64 {
        self.block(objcg).reserved.load(Ordering::SeqCst)
    }

    /// Bytes charged to a group, and its `max`. `None`: there is no entry of that id.
    pub fn usage(&self, objcg: ObjcgId) -> Option<(u64, u64)> {
        let block = self.blocks().get(objcg.0 as usize)?;
        Some((block.charged.load(Ordering::Relaxed), block.max.load(Ordering::Relaxed)))
    }

    /// Number of deleted groups whose entries are not free yet.
    pub fn dying(&self) -> usize {
        self.merge.dying() as usize
    }

    /// Keeps a living group's entry from becoming another group's until [`Self::unpin`], even if
    /// the group is deleted.
    ///
    /// # Errors
    /// There is no such group, or it is deleted.
    pub fn pin(&self, id: GroupId) -> Result<&GroupBlock, GroupError> {
        let block = self.blocks().get(id.objcg().0 as usize).ok_or(GroupError::NotFound)?;
        // Pinned before the check: the thread that frees the entry sees the pin, or this thread
        // sees that the group is deleted. A failed pin does no harm to a later group in the entry.
        block.pins.fetch_add(1, Ordering::SeqCst);
        loom_fence();
        match self.living_block(id) {
            Ok(block) => Ok(block),
            Err(error) => {
                self.unpin(id.objcg());
                Err(error)
            }
        }
    }

    /// Adds a pin to an entry that the caller has pinned.
    pub fn pin_again(&self, objcg: ObjcgId) {
        self.block(objcg).pins.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a pin.
    pub fn unpin(&self, objcg: ObjcgId) {
        self.block(objcg).pins.fetch_sub(1, Ordering::SeqCst);
        self.reap(objcg);
    }

    /// Frees the entry of a deleted group if nothing refers to it. Then does the same for its
    /// parent.
    fn reap(&self, mut objcg: ObjcgId) {
        loop {
            // Pairs with the fence of `pin`. Also, of several threads that remove the last
            // references, the last one sees that all are removed.
            loom_fence();
            let block = self.block(objcg);
            let state = block.state.load(Ordering::SeqCst);
            let refers = |count: u64| count != 0;
            // `own` is read before the pins and after them. A thread that charges the group has a
            // pin meanwhile. A walk pins a group while that has a charge.
            if state & group_state::MASK != group_state::DYING
                || refers(block.own.load(Ordering::SeqCst))
            {
                return;
            }
            // Pairs with that of a walk between its pin and its look at `own`.
            fence(Ordering::SeqCst);
            if refers(block.pins.load(Ordering::SeqCst).into())
                || refers(block.children.load(Ordering::SeqCst).into())
                || refers(block.own.load(Ordering::SeqCst))
            {
                return;
            }
            let parent = ObjcgId(block.parent.load(Ordering::SeqCst));
            // In a deleted group, each count stays zero once it is zero, but for pins that fail.
            let free = ((state >> group_state::BITS) + 1) << group_state::BITS | group_state::FREE;
            let (done, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            if block.state.compare_exchange(state, free, done, failed).is_err() {
                return;
            }
            self.merge.freed();
            self.first_free.fetch_min(objcg.0, Ordering::SeqCst);
            self.block(parent).children.fetch_sub(1, Ordering::SeqCst);
            objcg = parent;
        }
    }

    /// Counts an event of a group. Returns the eventfd to signal, if the group has one.
    pub fn event(&self, objcg: ObjcgId, event: usize) -> Option<u32> {
        let block = self.block(objcg);
        block.events[event].fetch_add(1, Ordering::Relaxed);
        block.eventfd.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Resets all charges but reservations, so that live memory can be charged anew.
    ///
    /// # Safety
    /// There is no other thread.
    pub unsafe fn forget_charges(&self) {
        for block in self.blocks() {
            block.own.store(0, Ordering::Relaxed);
            block.charged.store(0, Ordering::Relaxed);
        }
        for objcg in (1..self.used()).map(ObjcgId) {
            let reserved = self.block(objcg).reserved.load(Ordering::Relaxed);
            let _ = self.charge(objcg, reserved, Limits::Exceed);
        }
    }

    /// Checks that `charged` of each living group is the sum of `own` over it and all groups below
    /// it. No thread may charge meanwhile.
    ///
    /// # Errors
    /// The first group for which that is false, its `charged` and the sum, both in bytes.
    pub fn validate(&self) -> Result<(), (GroupId, u64, u64)> {
        let used = self.used();
        for id in self.all().filter(|&id| id != GroupId::ROOT) {
            let sum = (1..used)
                .filter(|&other| self.is_below(ObjcgId(other), id.objcg()))
                .map(|other| self.block(ObjcgId(other)).own.load(Ordering::SeqCst))
                .sum();
            let charged = self.block(id.objcg()).charged.load(Ordering::SeqCst);
            if charged != sum {
                return Err((id, charged, sum));
            }
        }
        Ok(())
    }

    /// Returns whether `objcg` is `top` or lies below it.
    pub fn is_below(&self, objcg: ObjcgId, top: ObjcgId) -> bool {
        self.way_up(objcg).any(|(at, _)| at == top) || top == ObjcgId::ROOT
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self::new()
    }
}
