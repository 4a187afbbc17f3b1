//! Recounts of areas at rest.

use super::area::On;
use super::{LONG, length};
use crate::class::ArrayId;
use crate::cpu::AreaFault;
use crate::os::Platform;
use crate::page::Run;
use crate::units::{Item, PageCount};

impl<P: Platform> On<P> {
    /// Looks at the areas that CPUs keep: each is free, its pages are claimed, and a long one ends
    /// with a guard. (The zone is recounted with those of the heap.)
    ///
    /// # Errors
    /// The first array that is not as it must be.
    pub fn validate(self) -> Result<(), AreaFault> {
        let Some(set) = self.zone() else { return Ok(()) };
        let is_right = |array: ArrayId, item: Item| {
            let Some(start) = set.zone.pfn(item.address()) else { return false };
            let pages = if array == LONG { self.length_of_kept(set, start) } else { length(array) };
            let run = Run { start, pages };
            array <= LONG
                && pages > PageCount::ZERO
                && self.area_at(set, start).is_none()
                && set.zone.check_taken(run).is_ok()
        };
        let platform = self.ledger.platform();
        self.part.slots.validate(|| platform.fence_cpus(), is_right)
    }

    /// Counts pages that are guards.
    pub fn count_guards(self) -> usize {
        let Some(set) = self.zone() else { return 0 };
        self.guard_bits(set).all(set.zone.committed()).count()
    }
}

#[cfg(test)]
impl super::Vmalloc {
    /// Makes the count of guards wrong.
    pub(crate) fn miscount_guards(&self) {
        self.guards.fetch_add(1, crate::sync::Ordering::Relaxed);
    }
}
