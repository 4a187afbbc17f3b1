//! The zone of areas, and that of pages that vmap can map a second time.

use super::area::On;
use super::bits::{Bits, Words};
use crate::heap::ZoneSet;
use crate::os::Platform;
use crate::page::Purpose;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{PAGE_SIZE, PAGEBLOCK_SIZE, PageCount};

/// Largest zone of pages that can be mapped a second time, in bytes.
const MAX_SHARED: usize = 1 << 30;
/// Kinds of words beside the zone of areas.
const KINDS: usize = 5;

impl<P: Platform> On<P> {
    /// Zone of areas; `None` before it is made.
    #[inline(always)]
    pub fn zone(self) -> Option<&'static ZoneSet> {
        self.part.zone.get()
    }

    /// Zone of areas, which the first call makes. `None`: there is no address space for it, or the
    /// platform cannot protect memory.
    pub(super) fn space(self) -> Option<&'static ZoneSet> {
        let can_protect = self.ledger.platform().can_protect();
        self.part.zone.get_or_make(|| if can_protect { self.make_space() } else { None })
    }

    fn make_space(self) -> Option<&'static ZoneSet> {
        let (heap, platform) = (&self.ledger.heap, self.ledger.platform());
        let mut bytes = platform.budget().areas & !(PAGEBLOCK_SIZE - 1);
        let set = loop {
            if bytes < 2 * PAGEBLOCK_SIZE {
                return None;
            }
            // Allocate the words first: zones are never freed, and this one needs them.
            let pages = PageCount((bytes / PAGE_SIZE) as u32);
            let bytes_of_words = (KINDS * Words::bytes(pages)).next_multiple_of(PAGE_SIZE);
            if let Some(at) = platform.reserve(bytes_of_words, PAGE_SIZE) {
                // SAFETY: a fresh reservation.
                if unsafe { platform.commit(at, bytes_of_words) } {
                    self.part.words.store(at.as_ptr() as usize, Ordering::Relaxed);
                    let bounds = self.ledger.guards.checks().has_fences();
                    let kind = (Purpose::Vmalloc, bounds);
                    if let Some(set) = heap.zones.add_for(platform, kind, bytes) {
                        break set;
                    }
                }
                // SAFETY: the fresh reservation, which nothing uses.
                unsafe { platform.release(at, bytes_of_words) };
            }
            bytes = (bytes / 2) & !(PAGEBLOCK_SIZE - 1);
        };
        // Such a range makes two mappings more. Half of all mappings are left to the program.
        self.part.most_splits.store(platform.max_mappings() / 4, Ordering::Relaxed);
        self.part.slots.start(platform, heap.slots.kind(platform));
        Some(set)
    }

    /// Bits of the zone of areas: the page is a guard.
    pub(super) fn guard_bits(self, set: &ZoneSet) -> Bits {
        Bits(self.words(set, 0))
    }

    /// Bits of the zone of areas: an area of vmap begins at the page.
    pub(super) fn map_bits(self, set: &ZoneSet) -> Bits {
        Bits(self.words(set, 1))
    }

    /// Bits of the zone of areas: an inaccessible range with a mapping of its own begins there.
    pub(super) fn split_bits(self, set: &ZoneSet) -> Bits {
        Bits(self.words(set, 2))
    }

    /// Bits of the zone of areas: an area that is held begins there.
    pub(super) fn held_bits(self, set: &ZoneSet) -> Bits {
        Bits(self.words(set, 3))
    }

    /// Places for areas that are held.
    pub(super) fn held_places(self, set: &ZoneSet) -> Words {
        self.words(set, 4)
    }

    /// Words of a kind below [`KINDS`].
    fn words(self, set: &ZoneSet, kind: usize) -> Words {
        let words = self.part.words.load(Ordering::Relaxed) + kind * Words::bytes(set.zone.pages());
        // SAFETY: `make_space` made the words of each kind for this zone, one kind behind the
        // other; they are never freed.
        unsafe { Words::new(words as *const AtomicU64, set.zone.pages()) }
    }

    /// Zone of pages that can be mapped a second time, which the first call makes. `None`: the
    /// platform has no such memory.
    pub(super) fn shared_space(self) -> Option<&'static ZoneSet> {
        self.part.shared.get_or_make(|| {
            let (heap, platform) = (&self.ledger.heap, self.ledger.platform());
            let wish = (platform.budget().memory / 4).clamp(2 * PAGEBLOCK_SIZE, MAX_SHARED);
            let halves = core::iter::successors(Some(wish), |bytes| Some(bytes / 2));
            halves
                .map(|bytes| bytes & !(PAGEBLOCK_SIZE - 1))
                .take_while(|&bytes| bytes > 0)
                .find_map(|bytes| heap.zones.add_for(platform, (Purpose::Shared, false), bytes))
        })
    }
}
