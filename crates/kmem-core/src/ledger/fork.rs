//! Repair of the ledger in a forked child.

use super::Ledger;
use crate::memcg::Limits;
use crate::os::Platform;
use crate::sync::Ordering;
use crate::task;
use crate::units::ObjcgId;

impl<P: Platform> Ledger<P> {
    /// Repairs the heap, and charges groups again for live allocations.
    ///
    /// # Safety
    /// This is a forked child, in which no other thread exists.
    pub unsafe fn restart_in_child(&self) {
        // SAFETY: no other thread exists that could use any of this.
        unsafe {
            self.guards.forget();
            self.heap.restart_in_child();
            self.books.forget();
            self.reports.forget();
            self.repair_samples();
            if let Some(root) = self.books.root() {
                // It was meant for the parent.
                root.request.number.store(0, Ordering::Relaxed);
            }
            self.charge_anew();
        }
    }

    /// Charges groups for live allocations: the inherited counts are not of one moment.
    ///
    /// # Safety
    /// No other thread exists.
    unsafe fn charge_anew(&self) {
        let groups = &self.groups;
        if !groups.any() {
            return;
        }
        // SAFETY: no other thread exists that could use the groups.
        unsafe {
            groups.repair(task::is_shrinking());
            groups.forget_charges();
        }
        self.census().each(|held, _| {
            if held.objcg != ObjcgId::ROOT {
                // SAFETY: no other thread exists that could use the groups, and there are some.
                unsafe { groups.adopt(self.platform(), held.objcg) };
                let _ = groups.charge(held.objcg, held.charged(), Limits::Exceed);
            }
        });
        (1..groups.used()).for_each(|objcg| groups.settle(ObjcgId(objcg)));
    }
}
