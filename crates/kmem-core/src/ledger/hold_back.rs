//! Freed objects in the quarantine: poisoned when they go in, and looked at when they leave.

use super::Ledger;
use super::object_checks::Damage;
use crate::class::SizeClass;
use crate::os::Platform;
use crate::slab::{bytes, guard};
use crate::sync::Ordering;
use crate::units::Item;

/// The pattern of objects in quarantine (the kernel's `POISON_FREE`).
const POISON: u8 = 0x6B;

impl<P: Platform> Ledger<P> {
    /// Holds a freed object back, if a quarantine is configured. False: the caller gives it back at
    /// once.
    ///
    /// # Safety
    /// `object` is an object of that class of the heap, which the caller alone uses.
    pub(super) unsafe fn hold_back(&'static self, object: usize, class: SizeClass) -> bool {
        let size = class.size();
        if !self.checks().has_quarantine() || !self.guards.quarantine.holds(size) {
            return false;
        }
        let room = size as usize - self.checks().red_zone();
        // SAFETY: the object's bytes, which the caller alone uses.
        unsafe { bytes::fill(object as *mut u8, room, POISON) };
        self.release(self.guards.quarantine.put(Item::at(object), size));
        while self.release(self.guards.quarantine.take_excess()) {}
        true
    }

    /// Lets all objects out of the quarantine.
    pub fn empty_quarantine(&'static self) {
        while self.release(self.guards.quarantine.take()) {}
    }

    /// Checks an object that leaves the quarantine, and gives it back. False: `item` is none.
    fn release(&'static self, item: Item) -> bool {
        let at = item.address();
        let set = if item.is_none() { None } else { self.heap.zones.of(at) };
        let Some((set, pfn)) = set.and_then(|set| Some((set, set.zone.pfn(at)?))) else {
            return false;
        };
        // SAFETY: a page of the zone.
        let class = unsafe { set.slabs.class_of(pfn) }.0;
        let size = class.size() as usize;
        self.guards.quarantine.left(class.size());
        let poisoned = size - self.checks().red_zone();
        // SAFETY: a free object of that class, which this thread took out of the quarantine. Its
        // slab has extension words: checks of objects need the books.
        let (poison, word) = unsafe {
            let poison = core::slice::from_raw_parts(at as *const u8, poisoned);
            (poison, self.object_word(at, class).load(Ordering::Relaxed))
        };
        let damage =
            Damage { place: "poison", object: at, size, len: None, offset: 0, found: &[], word };
        if !bytes::are_all(poison, POISON)
            && let Some(bad) = poison.iter().position(|&byte| byte != POISON)
        {
            self.overwritten(Damage { offset: bad as isize, found: &poison[bad..], ..damage })
        }
        if poisoned < size
            // SAFETY: the end of an object that this thread took out of the quarantine.
            && let Some((end, bad)) = unsafe { guard::damage(at + size) }
        {
            let (offset, found) = ((poisoned + bad) as isize, &end[bad..]);
            self.overwritten(Damage { place: "right redzone", offset, found, ..damage })
        }
        // SAFETY: a free object of that class, which this thread took out of the quarantine.
        unsafe { self.give_object(class, item) };
        true
    }
}
