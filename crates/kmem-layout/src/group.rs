//! The table of groups: what is charged to each, its limits, its events and its name.

use crate::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::word::OBJCG_BITS;

/// Most groups an instance can have, the root included.
pub const MAX_GROUPS: u32 = 1 << OBJCG_BITS;
/// Longest name of a group, in bytes.
#[cfg(not(loom))]
pub const MAX_GROUP_NAME: usize = 255;
/// Longest name under a model checker, which keeps account of every atomic byte.
#[cfg(loom)]
pub const MAX_GROUP_NAME: usize = 1;
/// Most groups on the path from a group to the root, both included.
pub const MAX_GROUP_DEPTH: u32 = 32;
/// Value of a limit that a group does not have.
pub const NO_LIMIT: u64 = u64::MAX;

/// A limit of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Most bytes that may be charged.
    Max,
    /// Bytes above which the group's shrinkers are called.
    High,
    /// Bytes up to which the group is spared when an ancestor reclaims memory.
    Low,
}

/// Values of the lowest bits of [`GroupBlock::state`]. The other bits are the id's generation.
pub mod group_state {
    /// The entry is not in use.
    pub const FREE: u32 = 0;
    /// The group is in use.
    pub const LIVE: u32 = 1;
    /// The group is deleted. Its charges count for its nearest living ancestor.
    pub const DYING: u32 = 2;
    /// Number of these bits.
    pub const BITS: u32 = 2;
    /// Mask of these bits.
    pub const MASK: u32 = (1 << BITS) - 1;
}

/// Generation of the root's id. The root's entry is not listed before there is another group.
pub const ROOT_GENERATION: u32 = 1;

/// Events of a group: indexes into [`GroupBlock::events`], named as in cgroup v2's
/// `memory.events`.
pub mod group_event {
    /// Its shrinkers were called although it is charged less than its `low`.
    pub const LOW: usize = 0;
    /// It was above its `high`, and its shrinkers were called.
    pub const HIGH: usize = 1;
    /// It was about to exceed its `max`.
    pub const MAX: usize = 2;
    /// A request was refused, or exceeded `max` because it could not be refused.
    pub const OOM: usize = 3;
    /// Number of events.
    pub const COUNT: usize = 4;
    /// Names of the events, by index.
    pub const NAMES: [&str; COUNT] = ["low", "high", "max", "oom"];
}

/// A group of allocations.
#[repr(C, align(64))]
pub struct GroupBlock {
    /// *Live.* `generation << 2 | state`, see [`group_state`].
    pub state: AtomicU32,
    /// Id of its parent.
    pub parent: AtomicU32,
    /// *Live.* Bytes charged to it and its descendants, stocks of CPUs included. Not kept for the
    /// root.
    pub charged: AtomicU64,
    /// *Live.* Bytes charged for its own objects, stocks and reservations. Zero proves that no
    /// extension word has its id.
    pub own: AtomicU64,
    /// *Live.* Bytes of `own` that are reserved, but not allocated.
    pub reserved: AtomicU64,
    /// *Live.* Highest `charged` since the last reset of this.
    pub peak: AtomicU64,
    /// *Live, writable from outside.* Most bytes that may be charged, or [`NO_LIMIT`].
    pub max: AtomicU64,
    /// *Live, writable from outside.* Bytes above which its shrinkers are called, or [`NO_LIMIT`].
    pub high: AtomicU64,
    /// *Live, writable from outside.* Bytes up to which its shrinkers are spared when an ancestor
    /// is above its limit.
    pub low: AtomicU64,
    /// *Live.* Counts of events; see [`group_event`].
    pub events: [AtomicU64; group_event::COUNT],
    /// *Live.* Number of handles, scopes and calls that need the entry to stay.
    pub pins: AtomicU32,
    /// *Live.* Number of groups whose parent this is, deleted ones included.
    pub children: AtomicU32,
    /// *Live.* 1 once a request exceeded `max` because it could not be refused, until a reset.
    pub over: AtomicU32,
    /// File descriptor plus 1 of an eventfd that events signal; 0: none.
    pub eventfd: AtomicU32,
    /// *Live.* Number of children that are not deleted.
    pub living: AtomicU32,
    /// *Live.* Not 0 while objects of the deleted group are being charged to its parent.
    pub merging: AtomicU32,
    /// Address of the first of its shrinkers; 0: none.
    pub shrinkers: AtomicU64,
    /// Length of its name in bytes.
    pub name_len: AtomicU8,
    /// Name; that of the root is empty.
    pub name: [AtomicU8; MAX_GROUP_NAME],
}

impl GroupBlock {
    /// Word of a limit.
    pub fn limit(&self, limit: Limit) -> &AtomicU64 {
        match limit {
            Limit::Max => &self.max,
            Limit::High => &self.high,
            Limit::Low => &self.low,
        }
    }

    /// Number of times that an event, an index of [`group_event`], happened.
    pub fn event_count(&self, event: usize) -> u64 {
        assert!(event < group_event::COUNT);
        self.events[event].load(Ordering::Relaxed)
    }

    /// Copies the name into `room`. Returns the copy.
    pub fn name<'a>(&self, room: &'a mut [u8; MAX_GROUP_NAME]) -> &'a [u8] {
        copy_name(&self.name_len, &self.name, room)
    }
}

// A model checker's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(size_of::<GroupBlock>() == 384);

/// Values of [`GroupRequest::action`].
pub mod group_action {
    /// Make a group.
    pub const CREATE: u32 = 1;
    /// Delete a group.
    pub const DELETE: u32 = 2;
}

/// Values of [`GroupRequest::answer`].
pub mod group_answer {
    /// It is done.
    pub const DONE: u32 = 0;
    /// The action or the name is none.
    pub const INVALID: u32 = 1;
    /// The parent has a group of that name.
    pub const EXISTS: u32 = 2;
    /// There is no room for another group.
    pub const FULL: u32 = 3;
    /// There would be too many levels.
    pub const TOO_DEEP: u32 = 4;
    /// There is no such group.
    pub const NOT_FOUND: u32 = 5;
    /// There are groups below it.
    pub const HAS_CHILDREN: u32 = 6;
    /// The root cannot be deleted.
    pub const IS_ROOT: u32 = 7;
    /// There is no memory.
    pub const NO_MEMORY: u32 = 8;
}

/// A request from outside the process, which its next allocation off the fast path serves.
///
/// ```text
/// outside:  number = 0 --> the other words --> number = n            wait until served == n
/// process:                                     number? --> copy, number still n? --> act
///                                              --> answer --> served = n --> number = 0
/// ```
///
/// A writer outside excludes others with `flock` of `/proc/PID`.
#[repr(C)]
pub struct GroupRequest {
    /// Number of the request; 0: there is none.
    pub number: AtomicU32,
    /// Number of the last request that was served.
    pub served: AtomicU32,
    /// See [`group_answer`].
    pub answer: AtomicU32,
    /// See [`group_action`].
    pub action: AtomicU32,
    /// Number of the group to delete, or of the parent of the new one: `generation << 14 | objcg`.
    pub group: AtomicU64,
    /// Limits of the new group.
    pub max: AtomicU64,
    /// See [`GroupBlock::high`].
    pub high: AtomicU64,
    /// See [`GroupBlock::low`].
    pub low: AtomicU64,
    /// Length of the name in bytes.
    pub name_len: AtomicU8,
    /// Name of the new group.
    pub name: [AtomicU8; MAX_GROUP_NAME],
}

impl GroupRequest {
    /// No request.
    #[must_use]
    pub fn none() -> Self {
        Self {
            number: AtomicU32::new(0),
            served: AtomicU32::new(0),
            answer: AtomicU32::new(0),
            action: AtomicU32::new(0),
            group: AtomicU64::new(0),
            max: AtomicU64::new(0),
            high: AtomicU64::new(0),
            low: AtomicU64::new(0),
            name_len: AtomicU8::new(0),
            name: core::array::from_fn(|_| AtomicU8::new(0)),
        }
    }

    /// Copies the name into `room`. Returns the copy.
    pub fn name<'a>(&self, room: &'a mut [u8; MAX_GROUP_NAME]) -> &'a [u8] {
        copy_name(&self.name_len, &self.name, room)
    }
}

/// Copies a name into `room`. Returns the copy.
fn copy_name<'a>(
    len: &AtomicU8,
    name: &[AtomicU8; MAX_GROUP_NAME],
    room: &'a mut [u8; MAX_GROUP_NAME],
) -> &'a [u8] {
    let len = usize::from(len.load(Ordering::Relaxed)).min(room.len());
    for (to, from) in room[..len].iter_mut().zip(name) {
        *to = from.load(Ordering::Relaxed);
    }
    &room[..len]
}
