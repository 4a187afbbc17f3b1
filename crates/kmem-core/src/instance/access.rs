//! Accesses that the hardware refused: the block that each was meant for.

use super::Instance;
use crate::os::{AccessReport, Platform, RefusedAccess};

impl<P: Platform> Instance<P> {
    /// Reports refused accesses beside areas, and to freed blocks with a fence.
    pub(super) fn report_accesses(&'static self) {
        self.platform().report_accesses::<Self>(&raw const *self as usize);
    }
}

impl<P: Platform + 'static> AccessReport for Instance<P> {
    fn report(value: usize, access: RefusedAccess) {
        // SAFETY: the address of an instance that lives for ever, from `report_accesses`.
        let Some(instance) = (unsafe { (value as *const Self).as_ref() }) else {
            return;
        };
        if let Some(fault) = instance.areas().block_beside(access.at) {
            instance.ledger.report_access(access, fault);
        }
    }
}
