//! Freed objects that are held back: poisoned when they go in, and looked at when they leave.
//!
//! ```text
//! free --> array of the CPU --> quarantine, in batches --> look at the poison --> heap
//! ```
//!
//! Most frees put a small object on the CPU's array by one critical section. When the array is
//! full, its objects enter the quarantine, and as many old ones leave. Larger objects enter it at
//! once, so that the arrays hold little.

use super::Ledger;
use super::object_checks::Damage;
use crate::class::{ArrayId, PageClass, SizeClass};
use crate::cpu::{Kind, Slots};
use crate::heap::Arrays;
use crate::os::Platform;
use crate::slab::quarantine::Quarantine;
use crate::slab::{CHUNK_STALE, bytes, guard};
use crate::sync::{AtomicUsize, Ordering};
use crate::units::Item;

/// The pattern of objects in quarantine (the kernel's `POISON_FREE`).
const POISON: u8 = 0x6B;

/// The one array of a CPU that is used here. It holds objects of all classes.
const FRESH: ArrayId = PageClass::SINGLE.array();

/// Most objects on the array of a CPU.
const FRESH_OBJECTS: usize = 32;

/// An object enters the array only if the quarantine may hold this number of its size. So the
/// arrays of four CPUs hold no more than the quarantine.
const FRESH_SHARE: u32 = 4 * FRESH_OBJECTS as u32;

/// The objects that are held back. Zeroed memory is a valid value: there are none, and never will
/// be.
///
/// # Invariants
/// `fresh` is 0 or the address of slots that are started and never freed.
pub struct HeldBack {
    fresh: AtomicUsize,
    quarantine: Quarantine,
}

impl HeldBack {
    /// Holds nothing back.
    pub const fn new() -> Self {
        Self { fresh: AtomicUsize::new(0), quarantine: Quarantine::new() }
    }

    /// Bytes of the tables for a quarantine of `bound` bytes. Programs without one have no slots.
    pub const fn table_bytes(bound: u64) -> usize {
        let slots = if bound == 0 { 0 } else { size_of::<Slots>() };
        slots + Quarantine::ring_bytes(bound)
    }

    /// Opens the quarantine for up to `bound` bytes, and the arrays of CPUs of this kind.
    ///
    /// # Safety
    /// `tables` is zeroed memory of [`Self::table_bytes`], aligned to a page, used by this value
    /// alone and never freed. No other thread uses this value.
    pub unsafe fn start(&self, platform: &impl Platform, kind: Kind, tables: *mut u8, bound: u64) {
        if bound == 0 {
            return;
        }
        // SAFETY: memory for both, by the contract. Zeroes are stopped slots.
        unsafe {
            self.quarantine.start(tables.add(size_of::<Slots>()), bound);
            (*tables.cast::<Slots>()).start(platform, kind);
        }
        // INVARIANT: they were started above.
        self.fresh.store(tables as usize, Ordering::Relaxed);
    }

    /// The slots with the arrays of CPUs, if there is a quarantine.
    #[inline]
    fn fresh(&self) -> Option<&Slots> {
        let slots = self.fresh.load(Ordering::Relaxed) as *const Slots;
        // SAFETY: null or slots that are never freed, by the invariant.
        unsafe { slots.as_ref() }
    }

    /// Stops the arrays of CPUs, until [`Self::resume`]. The sections of other threads have ended.
    pub fn pause(&self) {
        if let Some(fresh) = self.fresh() {
            fresh.pause(|| true);
        }
    }

    /// Ends a [`Self::pause`].
    pub fn resume(&self) {
        if let Some(fresh) = self.fresh() {
            fresh.resume();
        }
    }

    /// In a forked child: forgets all objects. The repair of the child's slabs makes them free.
    ///
    /// # Safety
    /// No other thread exists that could use this value.
    pub unsafe fn forget(&self) {
        // SAFETY: the same contract.
        unsafe {
            self.quarantine.forget();
            if let Some(fresh) = self.fresh() {
                fresh.restart_empty();
            }
        }
    }
}

/// Most items of an array.
fn cap(array: ArrayId) -> u16 {
    if array == FRESH { FRESH_OBJECTS as u16 } else { 0 }
}

impl Default for HeldBack {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> Ledger<P> {
    /// Holds a freed object back, if a quarantine is configured. False: the caller gives it back at
    /// once.
    ///
    /// # Safety
    /// `object` is an object of that class of the heap, which the caller alone uses.
    #[inline]
    pub(super) unsafe fn hold_back(&'static self, object: usize, class: SizeClass) -> bool {
        let (size, held) = (class.size(), &self.guards.held);
        // Objects of no bytes have no contents that a stray write could damage.
        if !self.checks().has_quarantine()
            || !held.quarantine.holds(size)
            || class == SizeClass::ZERO
        {
            return false;
        }
        let room = size as usize - self.checks().red_zone();
        // SAFETY: the object's bytes, which the caller alone uses.
        unsafe { bytes::fill(object as *mut u8, room, POISON) };
        let item = Item::at(object);
        let fresh = held.fresh().filter(|_| held.quarantine.holds(size * FRESH_SHARE));
        // SAFETY: slots that are started. A free object that nothing else refers to.
        if !fresh.is_some_and(|fresh| unsafe { fresh.push(FRESH, item) }) {
            self.hold_back_batch(item, fresh);
        }
        true
    }

    /// Moves an object into the quarantine, and with it those of the CPU's array in `fresh`, which
    /// is full or not there yet.
    #[cold]
    #[inline(never)]
    fn hold_back_batch(&'static self, item: Item, fresh: Option<&Slots>) {
        let mut batch = [Item::NONE; FRESH_OBJECTS + 1];
        let mut len = 0;
        if let Some(fresh) = fresh
            && fresh.uses_rseq()
            && let Some(cpu) = fresh.current(0)
        {
            fresh.ensure(self.platform(), cpu, cap);
            len = fresh.pop_many(FRESH, 0, &mut batch[..FRESH_OBJECTS]);
        }
        batch[len] = item;
        self.quarantine_all(&batch[..=len]);
    }

    /// Moves objects into the quarantine, and lets old ones out.
    fn quarantine_all(&'static self, items: &[Item]) {
        let quarantine = &self.guards.held.quarantine;
        let bytes = items.iter().filter_map(|&item| Some(u64::from(self.class_of(item)?.size())));
        quarantine.put(items, bytes.sum(), |displaced| self.release(displaced));
        let size = |item| self.class_of(item).map_or(0, SizeClass::size);
        quarantine.take_excess(size, |item| self.release(item));
    }

    /// Lets all objects out that are held back, and looks at them.
    pub fn empty_quarantine(&'static self) {
        if !self.checks().has_quarantine() {
            return;
        }
        let held = &self.guards.held;
        if let Some(slots) = held.fresh() {
            let arrays = Arrays { slots, platform: self.platform(), cap };
            arrays.drain(|_| core::iter::once(FRESH), |_, items| self.quarantine_all(items));
        }
        held.quarantine.take_all(|item| self.release(item));
    }

    /// The class of an object of the heap; `None` for other items.
    #[inline]
    fn class_of(&self, item: Item) -> Option<SizeClass> {
        if let Ok(class) = self.heap.fast_aside.class(item.address())
            && class.0 & CHUNK_STALE == 0
        {
            return Some(class);
        }
        let set = self.heap.zones.of(item.address())?;
        // SAFETY: a page of the zone.
        Some(unsafe { set.slabs.class_of(set.zone.pfn(item.address())?) }.0)
    }

    /// Checks an object that leaves the quarantine, and gives it back. Returns its bytes.
    fn release(&'static self, item: Item) -> u32 {
        let at = item.address();
        let Some(class) = self.class_of(item) else { return 0 };
        let size = class.size() as usize;
        let poisoned = size - self.checks().red_zone();
        // SAFETY: a free object of that class, which this thread took out of the quarantine.
        let poison = unsafe { core::slice::from_raw_parts(at as *const u8, poisoned) };
        if !bytes::are_all(poison, POISON)
            && let Some(bad) = poison.iter().position(|&byte| byte != POISON)
        {
            self.held_was_written_to("poison", item, class, bad, &poison[bad..]);
        }
        if poisoned < size
            // SAFETY: the end of an object that this thread took out of the quarantine.
            && let Some((end, bad)) = unsafe { guard::damage(at + size) }
        {
            self.held_was_written_to("right redzone", item, class, poisoned + bad, &end[bad..]);
        }
        // SAFETY: a free object of that class, which this thread took out of the quarantine.
        unsafe { self.give_object(class, item) };
        class.size()
    }

    /// Reports a write to an object that was held back, and ends the program.
    #[cold]
    fn held_was_written_to(
        &'static self,
        place: &str,
        item: Item,
        class: SizeClass,
        bad: usize,
        found: &[u8],
    ) -> ! {
        let (object, size) = (item.address(), class.size() as usize);
        // SAFETY: an object of that class. Its slab has extension words: checks of objects need
        // the books.
        let word = unsafe { self.object_word(object, class) }.load(Ordering::Relaxed);
        self.overwritten(Damage {
            place,
            object,
            size,
            len: None,
            offset: bad as isize,
            front: None,
            found,
            word,
        })
    }
}
