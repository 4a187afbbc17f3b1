//! A memory pool that asks a group.

use std::fmt;
use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion_common::{Result, resources_datafusion_err};
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, GroupStat};

/// A pool that grants memory while the group, and every group above it, holds less than its `max`.
/// There is one pool for all queries of a group.
///
/// A group holds what is allocated and not freed, or what the operators have reserved, if that is
/// more. So memory that no operator reserves counts, and a reservation counts before it is used.
/// The limits are read at each request: a limit that is moved holds from then on.
///
/// Operators that can spill share seven eighths of the limit equally, without what the others and
/// the rest of the query hold. An operator above its share is refused, and goes to disk. The last
/// eighth is for operators that cannot spill, because a query fails where one is refused. It also
/// fails where an operator is refused that has nothing to spill. So one that holds nothing gets up
/// to its share, even if the others hold all, and these are refused from then on.
///
/// Operators allocate some memory before they ask, and some without asking. kmem does not refuse
/// these allocations, because Rust code cannot go on without them. See [`kmem_core::fallible`].
/// So the group can go above its `max` for a while, and the pool then has operators spill.
///
/// Without a limit the pool grants everything.
#[derive(Debug)]
pub struct GroupPool {
    group: Group<Linux>,
    reserved: Mutex<Reserved>,
}

/// Reservations of the operators, in bytes.
#[derive(Debug, Default, Clone, Copy)]
struct Reserved {
    /// Number of operators.
    operators: u64,
    /// Number of operators that can spill.
    sharers: u64,
    /// Reservations of operators that can spill.
    spillable: u64,
    /// Reservations of the others.
    fixed: u64,
    /// The most that the group lately held without a reservation: what a query did once, it will do
    /// again. Each request takes a 64th from it, and the last operator that goes takes all.
    unreserved: u64,
}

impl Reserved {
    fn all(self) -> u64 {
        self.spillable + self.fixed
    }

    /// The sum that an operator's reservations belong to.
    fn of(&mut self, consumer: &MemoryConsumer) -> &mut u64 {
        if consumer.can_spill() { &mut self.spillable } else { &mut self.fixed }
    }

    /// Bytes that a group counts as held. `own` are the live bytes of the pool's group.
    /// Reservations that are not used yet are in no group.
    fn held(self, own: u64, stat: &GroupStat) -> u64 {
        stat.current.saturating_add(self.all().saturating_sub(own))
    }

    /// Returns whether a group of which `held` bytes count has room for `additional` bytes of an
    /// operator.
    fn fits(self, held: u64, max: u64, operator: &MemoryReservation, additional: u64) -> bool {
        let below = held.saturating_add(additional) <= max;
        if !operator.consumer().can_spill() {
            return below;
        }
        let rest = held.saturating_sub(self.spillable);
        let rest = rest.max(self.fixed.saturating_add(self.unreserved));
        let share = spill_at(max).saturating_sub(rest) / self.sharers.max(1);
        let size = operator.size() as u64;
        size.saturating_add(additional) <= share && (below || size == 0)
    }
}

/// Part of a limit that is shared by operators that can spill.
fn spill_at(max: u64) -> u64 {
    max - max / 8
}

impl GroupPool {
    /// Makes a pool for queries that `group` pays for.
    pub fn new(group: Group<Linux>) -> Self {
        Self { group, reserved: Mutex::default() }
    }

    /// Returns the group that pays.
    pub fn group(&self) -> &Group<Linux> {
        &self.group
    }

    fn reserved_now(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pool's group and those above it. The root has no limit, and to count what it
    /// holds takes a walk over the heap.
    fn limited(&self) -> impl Iterator<Item = (Group<Linux>, GroupStat)> {
        let groups = iter::successors(Some(self.group.clone()), Group::parent);
        groups.take_while(|group| group.id() != GroupId::ROOT).map(|group| {
            let stat = group.stat();
            (group, stat)
        })
    }
}

impl MemoryPool for GroupPool {
    fn name(&self) -> &str {
        "kmem"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        let mut reserved = self.reserved_now();
        reserved.operators += 1;
        reserved.sharers += u64::from(consumer.can_spill());
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        let mut reserved = self.reserved_now();
        reserved.operators -= 1;
        reserved.sharers -= u64::from(consumer.can_spill());
        if reserved.operators == 0 {
            reserved.unreserved = 0;
        }
    }

    fn grow(&self, operator: &MemoryReservation, additional: usize) {
        *self.reserved_now().of(operator.consumer()) += additional as u64;
    }

    fn shrink(&self, operator: &MemoryReservation, shrink: usize) {
        *self.reserved_now().of(operator.consumer()) -= shrink as u64;
    }

    /// Takes time in proportion to the CPUs and to the groups on the way to the root.
    fn try_grow(&self, operator: &MemoryReservation, additional: usize) -> Result<()> {
        // Operators ask for nothing, too, and fail where that is refused.
        if additional == 0 {
            return Ok(());
        }
        let mut reserved = self.reserved_now();
        let mut groups = self.limited().peekable();
        let own = groups.peek().map_or(0, |(_, stat)| stat.current);
        let lately = reserved.unreserved - reserved.unreserved.div_ceil(64);
        reserved.unreserved = lately.max(own.saturating_sub(reserved.all()));
        let full = groups.find_map(|(group, stat)| {
            let held = reserved.held(own, &stat);
            let fits = reserved.fits(held, stat.max, operator, additional as u64);
            (!fits).then_some((group, held, stat.max))
        });
        let Some((group, held, max)) = full else {
            *reserved.of(operator.consumer()) += additional as u64;
            return Ok(());
        };
        let Reserved { sharers, unreserved, .. } = *reserved;
        let all = reserved.all();
        drop(reserved);
        let [additional, own, held, max, all, unreserved] =
            [additional as u64, operator.size() as u64, held, max, all, unreserved]
                .map(|bytes| human_readable_size(bytes as usize));
        let name = operator.consumer().name();
        Err(resources_datafusion_err!(
            "no {additional} for {name}, which has {own}: the group {group} holds {held} of its \
             max of {max}. Operators have reserved {all}, the group has lately held {unreserved} \
             beside that, and {sharers} operators share the rest"
        ))
    }

    fn reserved(&self) -> usize {
        self.reserved_now().all() as usize
    }

    fn memory_limit(&self) -> MemoryLimit {
        match self.limited().map(|(_, stat)| stat.max).min() {
            None | Some(u64::MAX) => MemoryLimit::Infinite,
            Some(max) => MemoryLimit::Finite(usize::try_from(max).unwrap_or(usize::MAX)),
        }
    }
}

impl fmt::Display for GroupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = human_readable_size(self.group.stat().current as usize);
        let reserved = human_readable_size(self.reserved());
        write!(f, "{}(group: {}, held: {held}, reserved: {reserved})", self.name(), self.group)
    }
}
