//! The slabs of all zones of an instance. A claim that no near slab can serve takes pages for a new
//! slab from the zones.
//!
//! Context: that of [`crate::slab`].

use core::ptr::NonNull;

use kmem_layout::geometry::ClassGeometry;

use super::{Contents, DoubleFree, Format, Kind, Retired, SlabZone};
use crate::class::{Classes, SizeClass};
use crate::os::{Access, Platform};
use crate::page::{BadPage, PageChecks, Placement, Run, ZoneSet, Zones};
use crate::prng::Prng;
use crate::units::{Item, PageCount, Pfn};

/// Reason why a claim failed.
pub enum Refused<'a> {
    /// No slab has an object, and no zone has pages for another slab.
    NoMemory,
    /// The pages that were claimed are bad. They stay claimed. The caller reports them and claims
    /// again.
    Bad(&'a ZoneSet<SlabZone>, BadPage),
}

/// The slabs of the heap.
///
/// # Invariants
/// The slabs of the zones for the heap have the geometry in `classes`, and this format.
#[derive(Clone, Copy)]
pub struct Slabs<'a, P> {
    zones: &'a Zones<SlabZone>,
    classes: &'a Classes,
    format: Format,
    platform: &'a P,
}

impl<'a, P: Platform> Slabs<'a, P> {
    /// The slabs of `zones`.
    ///
    /// # Safety
    /// All slabs in zones for the heap were and will be made with the geometry in `classes`, and in
    /// this format.
    #[inline]
    pub const unsafe fn new(
        zones: &'a Zones<SlabZone>,
        classes: &'a Classes,
        format: Format,
        platform: &'a P,
    ) -> Self {
        // INVARIANT: the same contract.
        Self { zones, classes, format, platform }
    }

    /// The slabs of a class.
    #[inline]
    pub fn kind(&self, class: SizeClass) -> Kind<'a> {
        Kind::new(class, self.classes.geometry(class), self.format)
    }

    /// Takes free objects of a class into the last part of `out`: lowest last, or in random order
    /// with a `mixer`. Makes a slab if none of the placement's first node has an object. Takes from
    /// slabs of other nodes only if there are no pages. Returns the count, at least 1.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn claim(
        &self,
        class: SizeClass,
        placement: Placement,
        mut mixer: Option<Prng>,
        out: &mut [Item],
    ) -> Result<usize, Refused<'a>> {
        for set in self.zones.of_node(placement.node()) {
            let got = self.claim_in(set, class, mixer.as_mut(), out);
            if got > 0 {
                return Ok(got);
            }
        }
        let pages = self.kind(class).pages();
        while let Some((set, run)) = self.zones.claim(self.platform, placement, pages, pages) {
            let on = set.zone.on(self.platform);
            // SAFETY: a run that this thread just claimed.
            unsafe { on.prepare(self.zones.checks(), run) }
                .map_err(|bad| Refused::Bad(set, bad))?;
            // SAFETY: a run that this thread just claimed, aligned to the length of a slab.
            let got = unsafe { self.make(set, class, run, mixer.as_mut(), out) };
            if got > 0 {
                return Ok(got);
            }
        }
        let got = self.zones.nearest(self.platform, placement).find_map(|set| {
            Some(self.claim_in(set, class, mixer.as_mut(), out)).filter(|&got| got > 0)
        });
        got.ok_or(Refused::NoMemory)
    }

    /// Takes objects out of the slabs of one zone. Returns the count.
    fn claim_in(
        &self,
        set: &ZoneSet<SlabZone>,
        class: SizeClass,
        mixer: Option<&mut Prng>,
        out: &mut [Item],
    ) -> usize {
        let in_order = mixer.is_none();
        // SAFETY: a zone for the heap, whose slabs have this kind, by the invariant.
        let got = unsafe { set.slabs.claim(self.kind(class), mixer, out) };
        let taken = out.len() - got;
        note_contents(set, self.kind(class).geometry, in_order, &out[taken..]);
        got
    }

    /// Makes a slab and takes objects out of it. Returns the count.
    ///
    /// # Safety
    /// The caller claimed the run from `set`. It is as long as a slab of the class, and aligned to
    /// that length.
    unsafe fn make(
        &self,
        set: &ZoneSet<SlabZone>,
        class: SizeClass,
        run: Run,
        mixer: Option<&mut Prng>,
        out: &mut [Item],
    ) -> usize {
        let kind = self.kind(class);
        let zero = !kind.format.has_words() || set.zone.reads_zero(run);
        let contents = if zero { Contents::Zero } else { Contents::Old };
        // In random order the first objects of a slab are claimed like all others.
        let in_order = mixer.is_none();
        let first = if in_order { &mut *out } else { &mut [] };
        let hidden = self.hidden(set, run.start, class);
        // SAFETY: the same contract. No user of the run gets a byte of the part that is hidden.
        let got = unsafe {
            if let Some((at, bytes)) = hidden {
                set.slabs.note_hidden();
                // Where the platform refuses, the objects can be read and written.
                self.platform.protect(at, bytes, Access::None);
            }
            set.slabs.create(kind, run.start, contents, first)
        };
        if !in_order {
            return self.claim_in(set, class, mixer, out);
        }
        let taken = out.len() - got;
        note_contents(set, kind.geometry, true, &out[taken..]);
        got
    }

    /// The part of the pages of a slab that its users cannot access, as address and bytes. It has
    /// objects of no bytes. None where the platform does not protect memory. `start` is the slab's
    /// first page.
    pub fn hidden(
        &self,
        set: &ZoneSet<SlabZone>,
        start: Pfn,
        class: SizeClass,
    ) -> Option<(NonNull<u8>, usize)> {
        let hides = class == SizeClass::ZERO && self.platform.can_protect();
        let at = NonNull::new(set.zone.address(start) as *mut u8).filter(|_| hides)?;
        Some((at, self.kind(class).geometry.limit as usize))
    }

    /// Gives free objects back to their slabs. Calls `retired` with each slab that became wholly
    /// free; `retired` gives its pages to the zone.
    ///
    /// # Errors
    /// The first object that was free already; all others are given back.
    ///
    /// # Safety
    /// Each item is an object of this class in a zone of this instance, and the caller alone uses
    /// it.
    pub unsafe fn give(
        &self,
        class: SizeClass,
        items: &[Item],
        mut retired: impl FnMut(&'a ZoneSet<SlabZone>, Retired),
    ) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        let mut rest = items;
        while let Some(&first) = rest.first() {
            let Some(set) = self.zones.of(first.address()) else { break };
            let (here, others) = rest.split_at(self.zones.prefix_in(set, rest));
            // SAFETY: objects of this class, which the caller alone uses, by the contract. They lie
            // in `set`.
            let given =
                unsafe { set.slabs.give(self.kind(class), here, |slab| retired(set, slab)) };
            result = result.and(given);
            rest = others;
        }
        result
    }

    /// Configured checks of pages.
    pub fn checks(&self) -> PageChecks {
        self.zones.checks()
    }
}

/// Notes that the pages of objects of one slab will not read as zero. The objects are in descending
/// order of addresses, or in random order.
fn note_contents(
    set: &ZoneSet<SlabZone>,
    geometry: &ClassGeometry,
    in_order: bool,
    items: &[Item],
) {
    let (low, high) = if in_order {
        (items.last(), items.first())
    } else {
        let address = |item: &&Item| item.address();
        (items.iter().min_by_key(address), items.iter().max_by_key(address))
    };
    let (Some(low), Some(high)) = (low, high) else { return };
    let end = high.address() + geometry.size as usize - 1;
    if let (Some(first), Some(last)) = (set.zone.pfn(low.address()), set.zone.pfn(end)) {
        set.zone.mark_dirty(Run { start: first, pages: last - first + PageCount::ONE });
    }
}
