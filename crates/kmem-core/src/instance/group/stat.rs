//! Charges and live allocations of groups, and a check of them.

use kmem_layout::group::{GroupBlock, group_event};

use crate::alloc_tag::Kind;
use crate::instance::Instance;
use crate::memcg::{GroupError, GroupId};
use crate::os::Platform;
use crate::sync::{AtomicU64, Ordering};
use crate::units::ObjcgId;

/// Charges and limits of a group, in bytes; the names are those of cgroup v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStat {
    /// Live allocations with their metadata, and reservations, of it and its descendants.
    pub current: u64,
    /// Live allocations with their metadata, and reservations, of its own.
    pub own: u64,
    /// Reservations of its own.
    pub reserved: u64,
    /// Charges in stocks of CPUs, for the next allocations, of it and its descendants.
    pub cached: u64,
    /// Highest `current + cached` since the last reset.
    pub peak: u64,
    /// See [`kmem_layout::group::Limit::Max`]; `u64::MAX` for none.
    pub max: u64,
    /// See [`kmem_layout::group::Limit::High`]; `u64::MAX` for none.
    pub high: u64,
    /// See [`kmem_layout::group::Limit::Low`].
    pub low: u64,
    /// Counts of events, by index of [`group_event`].
    pub events: [u64; group_event::COUNT],
    /// True if a request that could not be refused exceeded a limit.
    pub over_limit: bool,
}

/// Live allocations of a group and its descendants by kind, in bytes with their metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupKinds {
    /// Objects of slabs.
    pub slab: u64,
    /// Pages of the heap, large blocks of `malloc` included.
    pub pages: u64,
    /// Areas of vmalloc, and pages for vmap.
    pub vmalloc: u64,
    /// Per-CPU objects, one copy of each.
    pub percpu: u64,
}

impl<P: Platform> Instance<P> {
    /// Charges and limits of a group at this moment; for a deleted group, the charges that its
    /// entry still has.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_stat(&'static self, id: GroupId) -> Result<GroupStat, GroupError> {
        self.read_group(id, |block| self.stat_of(id, block))
    }

    fn stat_of(&'static self, id: GroupId, block: &GroupBlock) -> GroupStat {
        let groups = &self.ledger.groups;
        let (mut below, mut mine) = (0, 0);
        self.ledger.charging().each_stock(|objcg, bytes| {
            if objcg == id.objcg() {
                mine += bytes;
            }
            if groups.is_below(objcg, id.objcg()) {
                below += bytes;
            }
        });
        let read = |word: &AtomicU64| word.load(Ordering::SeqCst);
        // `charged` of a deleted group no longer includes its descendants.
        let live = groups.is_live(id.objcg());
        let charged = read(if live { &block.charged } else { &block.own });
        let mut stat = GroupStat {
            current: charged.saturating_sub(below),
            own: read(&block.own).saturating_sub(mine),
            reserved: read(&block.reserved),
            cached: below,
            peak: read(&block.peak).max(charged),
            max: read(&block.max),
            high: read(&block.high),
            low: read(&block.low),
            events: core::array::from_fn(|event| block.event_count(event)),
            over_limit: block.over.load(Ordering::Relaxed) != 0,
        };
        if id == GroupId::ROOT {
            // The root is not charged: count its allocations.
            self.ledger.census().each(|held, _| {
                stat.current += held.charged();
                if held.objcg == ObjcgId::ROOT {
                    stat.own += held.charged();
                }
            });
            let reserved = (1..groups.used()).map(|at| groups.reserved(ObjcgId(at)));
            stat.current += reserved.sum::<u64>();
        }
        stat
    }

    /// Live allocations of a group by kind, at this moment. Takes time linear in the number of
    /// objects.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_kinds(&'static self, id: GroupId) -> Result<GroupKinds, GroupError> {
        self.with_group(id, |_| {
            let mut kinds = GroupKinds::default();
            self.ledger.census().each(|held, kind| {
                let sum = match kind {
                    Kind::Slab => &mut kinds.slab,
                    Kind::Pages => &mut kinds.pages,
                    Kind::Vmalloc => &mut kinds.vmalloc,
                    Kind::PerCpu => &mut kinds.percpu,
                };
                if self.ledger.groups.is_below(held.objcg, id.objcg()) {
                    *sum += held.charged();
                }
            });
            kinds
        })
    }

    /// Recounts the groups. No other thread may use the instance.
    ///
    /// # Errors
    /// The first group with a wrong charge, the charge, and the right one. The charge must be the
    /// sum over its own and its descendants' charges. Its own must be the sum of its live
    /// allocations, stocks and reservations.
    pub fn validate_groups(&'static self) -> Result<(), (GroupId, u64, u64)> {
        /// Number of groups that one census counts.
        const PART: u32 = 256;
        let groups = &self.ledger.groups;
        groups.validate()?;
        let used = groups.used();
        for first in (1..used).step_by(PART as usize) {
            let mut sums = [0; PART as usize];
            let mut add = |objcg: ObjcgId, bytes: u64| {
                if let Some(sum) = sums.get_mut(objcg.0.wrapping_sub(first) as usize) {
                    *sum += bytes;
                }
            };
            self.ledger.census().each(|held, _| add(held.objcg, held.charged()));
            self.ledger.charging().each_stock(&mut add);
            for (objcg, sum) in (first..used).map(ObjcgId).zip(sums) {
                let (own, sum) = (groups.own(objcg), sum + groups.reserved(objcg));
                if own != sum {
                    let id = groups.id(objcg).unwrap_or(GroupId(objcg.0.into()));
                    return Err((id, own, sum));
                }
            }
        }
        Ok(())
    }
}
