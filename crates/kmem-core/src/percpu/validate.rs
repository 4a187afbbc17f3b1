//! Recounts of per-CPU objects at rest.

use super::objects::On;
use crate::class::{ArrayId, Contents};
use crate::cpu::AreaFault;
use crate::os::Platform;
use crate::units::Item;

impl<P: Platform> On<P> {
    /// Looks at the handles that CPUs keep: each is one that its slab gave away, and not live. (The
    /// slabs of handles are recounted with those of the heap.)
    ///
    /// # Errors
    /// The first array that is not as it must be.
    pub fn validate(self) -> Result<(), AreaFault> {
        let Some(set) = self.zone() else { return Ok(()) };
        let heap = &self.ledger.heap;
        let is_right = |array: ArrayId, item: Item| match array.contents() {
            Contents::Objects(class) => {
                set.slabs.is_claimed(item, class, &heap.classes)
                    && heap.find_in(set, item.address()).is_err() == heap.format().extension
            }
            Contents::Runs(_) | Contents::Blocks(_) => false,
        };
        self.part.slots.validate(|| heap.platform.fence_cpus(), is_right)
    }
}
