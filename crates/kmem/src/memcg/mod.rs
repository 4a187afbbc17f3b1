//! Groups: who pays for memory (the kernel's memcg), hierarchical, with limits.
//!
//! ```text
//! extension word of an object --> objcg id --> blocks[id]: charged, own, limits, events, name
//!                                                 | parent
//!                                                 v
//!                                              blocks[parent] --> .. --> blocks[0], the root
//! ```
//!
//! A charge goes to `own` of the object's group first, then to `charged` of that group and of all
//! living groups above it but the root. An uncharge goes the other way round, to `own` last. So an
//! entry whose `own` is zero is named by no word, and nobody is at work on it.
//!
//! Deleting a group changes its state; from then on whoever walks up from it steps over it, so what is
//! charged to it counts for its nearest living ancestor, which had it in its `charged` all along.
//! No object is visited. (The kernel's objcg is re-pointed to the parent; here the id is the objcg, and
//! its entry is what points.)
//!
//! | state | meaning                                                                        |
//! |-------|--------------------------------------------------------------------------------|
//! | FREE  | nobody's; its generation is the next one to be given                           |
//! | LIVE  | in the index of names; may be found, entered, charged                          |
//! | DYING | deleted; goes when `own`, `pins` and `children` are zero, by whom sees that    |
//!
//! Locks: creating, deleting and finding by name are done under one spin lock, which no allocation
//! takes. Charging is lock-free.
//!
//! Context: charging anywhere; the rest not in signal handlers.

mod counter;
#[cfg(all(loom, test))]
mod model;
mod name;
mod registry;
mod shrinker;

use crate::root::{GroupBlock, NO_LIMIT, group_event, group_state};
use crate::sync::{AtomicU32, AtomicU64, Ordering, const_fn, fence};
use crate::units::ObjcgId;

pub use counter::{AtMax, Charged, MOST_CHARGED};
pub use shrinker::{Shrink, Shrinker};

/// Most groups an instance can have, the root included.
pub const MAX_GROUPS: u32 = 1 << ObjcgId::BITS;
/// Fewest groups an instance has room for.
pub const MIN_GROUPS: u32 = 256;

/// A group by number: `generation:30 | objcg:14`. Never 0; a number is not given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct GroupId(pub u64);

impl GroupId {
    /// The root: everything that nobody else pays for. It has no limits.
    pub const ROOT: Self = Self(1 << ObjcgId::BITS);

    const fn new(generation: u32, objcg: ObjcgId) -> Self {
        Self((generation as u64) << ObjcgId::BITS | objcg.0 as u64)
    }

    /// What its objects are marked with.
    pub const fn objcg(self) -> ObjcgId {
        ObjcgId(self.0 as u32 & (MAX_GROUPS - 1))
    }

    const fn generation(self) -> u32 {
        (self.0 >> ObjcgId::BITS) as u32
    }
}

/// Why something cannot be done with a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// A name is 1 to 255 bytes of UTF-8 without `/` and zero bytes, and not `.` or `..`.
    BadName,
    /// Its parent has a group of that name.
    Exists,
    /// There are as many groups as there can be.
    Full,
    /// It would be more than 32 levels below the root.
    TooDeep,
    /// No such group, or no more.
    NotFound,
    /// There are groups below it.
    HasChildren,
    /// The root cannot be deleted, limited or left.
    IsRoot,
    /// The instance keeps no books (`mem_profiling:never`), or did not start.
    NoBooks,
    /// There is no memory for it.
    NoMemory,
    /// From within a shrinker that cannot be done.
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
            Self::NoBooks => "no groups without books (mem_profiling:never)",
            Self::NoMemory => "no memory",
            Self::InShrinker => "not possible from within a shrinker",
        })
    }
}

impl core::error::Error for GroupError {}

/// A limit of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Most that may be charged.
    Max,
    /// Above this the group's shrinkers are called.
    High,
    /// Up to this the group is spared when an ancestor needs memory back.
    Low,
}

/// The groups of an instance. Zeroed memory is a table without groups.
#[repr(C)]
pub struct Groups {
    /// `[GroupBlock; capacity]`.
    blocks: AtomicU64,
    capacity: AtomicU32,
    /// Held while the index is looked at; see `registry`.
    lock: AtomicU32,
    /// `[AtomicU32; 2 * capacity]`: the index of names.
    index: AtomicU64,
    /// No entry below this is free. (At first 0: an instance is all zeroes until it is used.)
    first_free: AtomicU32,
    /// Entries from here on were never used.
    used: AtomicU32,
}

impl Groups {
    const_fn! {
        /// A table without groups.
        pub const fn new() -> Self {
            Self {
                blocks: AtomicU64::new(0),
                capacity: AtomicU32::new(0),
                lock: AtomicU32::new(0),
                index: AtomicU64::new(0),
                first_free: AtomicU32::new(0),
                used: AtomicU32::new(0),
            }
        }
    }

    /// Bytes of memory for so many groups.
    pub const fn blocks_bytes(capacity: u32) -> usize {
        capacity as usize * size_of::<GroupBlock>()
    }

    /// Bytes of memory for their index.
    pub const fn index_bytes(capacity: u32) -> usize {
        2 * capacity as usize * 4
    }

    /// Gives the table its memory, and makes the root.
    ///
    /// # Safety
    /// Memory of the sizes above, for good; the first zeroed.
    pub unsafe fn start(&self, blocks: *mut GroupBlock, index: *mut u8, capacity: u32) {
        self.index.store(index as u64, Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.blocks.store(blocks as u64, Ordering::Release);
        let root = self.block(ObjcgId::ROOT);
        for limit in [Limit::Max, Limit::High] {
            root.limit(limit).store(NO_LIMIT, Ordering::Relaxed);
        }
        root.pins.store(1, Ordering::Relaxed);
        self.used.store(1, Ordering::Relaxed);
        root.state.store(1 << group_state::BITS | group_state::LIVE, Ordering::Release);
    }

    fn blocks(&self) -> &[GroupBlock] {
        let blocks = self.blocks.load(Ordering::Acquire) as *const GroupBlock;
        if blocks.is_null() {
            return &[];
        }
        // SAFETY: `start` was given memory for that many, of which zeroes are valid.
        unsafe {
            core::slice::from_raw_parts(blocks, self.capacity.load(Ordering::Relaxed) as usize)
        }
    }

    /// The entry of an id that some word names, or below [`Self::used`].
    fn block(&self, id: ObjcgId) -> &GroupBlock {
        &self.blocks()[id.0 as usize]
    }

    /// Ids below this were in use at some time.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// The entries that are or were in use, by id.
    pub fn entries(&self) -> &[GroupBlock] {
        &self.blocks()[..self.used() as usize]
    }

    /// Whether there are groups beside the root, or were.
    pub fn any(&self) -> bool {
        self.used() > 1
    }

    /// The entry of a group that is there, deleted or not.
    pub fn get(&self, id: GroupId) -> Result<&GroupBlock, GroupError> {
        self.in_state(id, |state| state != group_state::FREE)
    }

    /// The entry of a group in such a state.
    fn in_state(&self, id: GroupId, is: impl Fn(u32) -> bool) -> Result<&GroupBlock, GroupError> {
        let block = self.blocks().get(id.objcg().0 as usize).ok_or(GroupError::NotFound)?;
        // In one look: the entry may be another group's at the next one.
        let state = block.state.load(Ordering::SeqCst);
        // All of the number: it may be anything that a program came by.
        let same = GroupId::new(state >> group_state::BITS, id.objcg()) == id;
        if is(state & group_state::MASK) && same { Ok(block) } else { Err(GroupError::NotFound) }
    }

    /// The living group with that objcg id.
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

    /// What an entry's objects, stocks and reservations are charged as.
    pub fn own(&self, objcg: ObjcgId) -> u64 {
        self.block(objcg).own.load(Ordering::SeqCst)
    }

    /// Of that, its reservations.
    pub fn reserved(&self, objcg: ObjcgId) -> u64 {
        self.block(objcg).reserved.load(Ordering::SeqCst)
    }

    /// Deleted groups that something is still charged to.
    pub fn dying(&self) -> usize {
        let is_dying = |block: &&GroupBlock| {
            block.state.load(Ordering::SeqCst) & group_state::MASK == group_state::DYING
        };
        self.blocks()[..self.used() as usize].iter().filter(is_dying).count()
    }

    /// Keeps a group's entry in its place until [`Self::unpin`], also when it is deleted.
    ///
    /// # Errors
    /// There is no such group, or it is deleted.
    pub fn pin(&self, id: GroupId) -> Result<&GroupBlock, GroupError> {
        let block = self.blocks().get(id.objcg().0 as usize).ok_or(GroupError::NotFound)?;
        // Before the look: whoever deletes it sees the pin, or we see that it is deleted. In vain, it
        // does no harm to whoever has the entry.
        block.pins.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        match self.living_block(id) {
            Ok(block) => Ok(block),
            Err(error) => {
                self.unpin(id.objcg());
                Err(error)
            }
        }
    }

    /// Pins once more what the caller has pinned.
    pub fn pin_again(&self, objcg: ObjcgId) {
        self.block(objcg).pins.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes a pin back.
    pub fn unpin(&self, objcg: ObjcgId) {
        self.block(objcg).pins.fetch_sub(1, Ordering::SeqCst);
        self.reap(objcg);
    }

    /// Makes a deleted entry free if nothing refers to it any more, and then perhaps its parent's.
    fn reap(&self, mut objcg: ObjcgId) {
        loop {
            // Pairs with that of `pin`; and of those who take the last references away, the last one
            // sees that the others are gone.
            fence(Ordering::SeqCst);
            let block = self.block(objcg);
            let state = block.state.load(Ordering::SeqCst);
            let refers = |count: u64| count != 0;
            if state & group_state::MASK != group_state::DYING
                || refers(block.pins.load(Ordering::SeqCst).into())
                || refers(block.children.load(Ordering::SeqCst).into())
                || refers(block.own.load(Ordering::SeqCst))
            {
                return;
            }
            let parent = ObjcgId(block.parent.load(Ordering::SeqCst));
            // All three stay zero once they were zero in a deleted group.
            let free = ((state >> group_state::BITS) + 1) << group_state::BITS | group_state::FREE;
            let (done, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            if block.state.compare_exchange(state, free, done, failed).is_err() {
                return;
            }
            self.first_free.fetch_min(objcg.0, Ordering::SeqCst);
            self.block(parent).children.fetch_sub(1, Ordering::SeqCst);
            objcg = parent;
        }
    }

    /// Counts an event of a group. Its eventfd, if it is to be told.
    pub fn event(&self, objcg: ObjcgId, event: usize) -> Option<u32> {
        let block = self.block(objcg);
        block.events[event].fetch_add(1, Ordering::Relaxed);
        block.eventfd.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Forgets what is charged, but for reservations, so that it can be charged anew.
    ///
    /// # Safety
    /// There is no other thread.
    pub unsafe fn forget_charges(&self) {
        for block in &self.blocks()[..self.used() as usize] {
            block.own.store(0, Ordering::Relaxed);
            block.charged.store(0, Ordering::Relaxed);
        }
        for objcg in (1..self.used()).map(ObjcgId) {
            let reserved = self.block(objcg).reserved.load(Ordering::Relaxed);
            let _ = self.charge(objcg, reserved, true);
        }
    }

    /// Recounts: what is charged to each living group must be what it and all below it own.
    ///
    /// # Errors
    /// The first group of which that is not true, what is charged, and what was counted.
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

    /// Whether a group is another or lies below it.
    pub fn is_below(&self, objcg: ObjcgId, top: ObjcgId) -> bool {
        self.way_up(objcg).any(|(at, _)| at == top) || top == ObjcgId::ROOT
    }
}

impl Default for Groups {
    fn default() -> Self {
        Self::new()
    }
}

impl GroupBlock {
    /// The word of a limit.
    pub fn limit(&self, limit: Limit) -> &AtomicU64 {
        match limit {
            Limit::Max => &self.max,
            Limit::High => &self.high,
            Limit::Low => &self.low,
        }
    }

    /// How often an event happened.
    pub fn event_count(&self, event: usize) -> u64 {
        assert!(event < group_event::COUNT);
        self.events[event].load(Ordering::Relaxed)
    }

    /// Copies its name.
    pub fn name<'a>(&self, room: &'a mut [u8; crate::root::MAX_GROUP_NAME]) -> &'a [u8] {
        let len = usize::from(self.name_len.load(Ordering::Relaxed)).min(room.len());
        for (to, from) in room[..len].iter_mut().zip(&self.name) {
            *to = from.load(Ordering::Relaxed);
        }
        &room[..len]
    }
}
