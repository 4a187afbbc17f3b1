//! Claims: taking free objects out of slabs, and out of pages that become a slab.

use super::{Contents, HELD, Kind, MENDING, SlabZone, class_in, credit_in, guard};
use crate::class::SizeClass;
use crate::prng::Prng;
use crate::sync::{Ordering, spin};
use crate::units::{CHUNK_ORDER, Item, Pfn};
use kmem_layout::geometry::ClassGeometry;

impl SlabZone {
    /// Makes pages into a slab. Takes its first objects into the last part of `out`, highest first.
    /// Returns the count of these.
    ///
    /// # Safety
    /// `start` is the first page of `geometry.chunks()` chunks of this zone. Their address is
    /// naturally aligned, the caller alone uses them, and `contents` is right about them.
    pub unsafe fn create(
        &self,
        kind: Kind<'_>,
        start: Pfn,
        contents: Contents,
        out: &mut [Item],
    ) -> usize {
        let Kind { class, geometry, format } = kind;
        let chunk = start.0 >> CHUNK_ORDER;
        let slab = self.slab_address(chunk);
        if format.has_words() && contents == Contents::Old {
            // SAFETY: the pages become a slab of this geometry with extension words here. The
            // caller alone uses them, by the contract.
            unsafe {
                let words = self.extension(slab, geometry);
                words.as_ptr().cast_mut().write_bytes(0, words.len());
            }
        }
        if format.guards {
            // SAFETY: the pages become a slab of this geometry here. The caller alone uses them, by
            // the contract.
            unsafe { guard::set_all(slab, geometry) };
        }
        let taken = geometry.objects.min(out.len() as u32);
        let mut left = geometry.objects;
        let mut first = taken;
        // SAFETY: the pages become a slab of this geometry here.
        for row in unsafe { self.rows(slab, geometry) } {
            let here = left.min(64);
            let used = first.min(here);
            let bits = if used == 64 { 0 } else { crate::row::span(0, here) & (u64::MAX << used) };
            row.0.store(bits, Ordering::Relaxed);
            left -= here;
            first -= used;
        }
        for (i, slot) in out.iter_mut().rev().take(taken as usize).enumerate() {
            *slot = Item::at(slab + i * geometry.size as usize);
        }
        for i in 0..geometry.chunks() {
            self.chunk_class(chunk + i).store(class.0, Ordering::Release);
        }
        let credit = geometry.objects - taken;
        // Release: a thread that takes credit sees the rows and extension words.
        // INVARIANT: the pages are a slab of this class now.
        self.state(chunk).store(self.stamped(class, credit), Ordering::Release);
        if credit > 0 {
            self.sets.insert(u32::from(class.0), chunk);
        }
        taken as usize
    }

    /// Takes up to `out.len()` free objects of a class, from the lowest slab that has some, into
    /// the last part of `out`. They are the lowest ones, highest first; with a `mixer`, random ones
    /// in random order. Returns the count.
    ///
    /// # Safety
    /// `kind` is that of this zone's slabs of its class.
    pub unsafe fn claim(
        &self,
        kind: Kind<'_>,
        mixer: Option<&mut Prng>,
        out: &mut [Item],
    ) -> usize {
        let Kind { class, geometry, .. } = kind;
        let mut mixer = mixer;
        let lane = u32::from(class.0);
        let mut from = 0;
        while let Some(chunk) = self.sets.next(lane, from) {
            let want = out.len() as u32;
            match self.take_credit(chunk, class, want) {
                Ok(0) => from = chunk + 1,
                Ok(credit) => {
                    // SAFETY: this thread just took the credit; the geometry is that of the class,
                    // by the contract.
                    let got = unsafe {
                        match &mut mixer {
                            None => self.take_objects(chunk, geometry, credit, out),
                            Some(mixer) => self.take_any(chunk, geometry, credit, mixer, out),
                        }
                    };
                    if got > 0 {
                        return got;
                    }
                    from = chunk + 1;
                }
                // SAFETY: a stale slab of the class begins at the chunk, and `kind` is that of its
                // class, by the contract.
                Err(NeedsMending) => unsafe { self.mend(chunk, kind) },
            }
        }
        0
    }

    /// Takes up to `want` credit of a slab; 0 if it has none or is of another class.
    ///
    /// # Errors
    /// The slab is stale or being mended.
    pub(super) fn take_credit(
        &self,
        chunk: u32,
        class: SizeClass,
        want: u32,
    ) -> Result<u32, NeedsMending> {
        let state = self.state(chunk);
        let mut seen = state.load(Ordering::Relaxed);
        loop {
            let credit = credit_in(seen);
            if class_in(seen) != class || credit == 0 {
                self.dismiss(chunk, class);
                return Ok(0);
            }
            if credit >= MENDING {
                return Err(NeedsMending);
            }
            let take = credit.min(want);
            // Acquire pairs with the release of the state: the rows are visible, and so are the
            // bits that the credit stands for.
            match state.compare_exchange_weak(
                seen,
                seen & HELD | self.stamped(class, credit - take),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    if take == credit {
                        self.dismiss(chunk, class);
                    }
                    return Ok(take);
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Takes a slab without credit out of its set, unless it has credit again.
    fn dismiss(&self, chunk: u32, class: SizeClass) {
        self.sets.remove(u32::from(class.0), chunk);
        let now = self.state(chunk).load(Ordering::SeqCst);
        if class_in(now) == class && credit_in(now) != 0 {
            self.sets.insert(u32::from(class.0), chunk);
        }
    }

    /// Takes the objects for `credit`, highest first. Returns the count.
    ///
    /// # Safety
    /// The caller holds that credit of a slab of this geometry, which begins at `chunk`.
    unsafe fn take_objects(
        &self,
        chunk: u32,
        geometry: &ClassGeometry,
        credit: u32,
        out: &mut [Item],
    ) -> usize {
        let slab = self.slab_address(chunk);
        let mut got = 0;
        // Other threads take and give concurrently, so one pass may miss bits.
        for pass in 0..64 {
            // SAFETY: the caller holds credit of this slab, by the contract, so it stays a slab of
            // its class.
            for (i, row) in unsafe { self.rows(slab, geometry) }.iter().enumerate() {
                let bits = row.take(credit - got as u32);
                let end = out.len() - got;
                got += spread(bits, slab, i * 64, geometry.size as usize, &mut out[..end]);
                if got as u32 == credit {
                    break;
                }
            }
            if pass > 0 {
                let end = out.len();
                out[end - got..].sort_unstable_by_key(|item| core::cmp::Reverse(item.address()));
            }
            if got as u32 == credit {
                break;
            }
            spin();
        }
        got
    }

    /// Takes the objects for `credit` from anywhere in the slab, in random order. Returns the
    /// count.
    ///
    /// # Safety
    /// See [`Self::take_objects`].
    #[cold]
    unsafe fn take_any(
        &self,
        chunk: u32,
        geometry: &ClassGeometry,
        credit: u32,
        mixer: &mut Prng,
        out: &mut [Item],
    ) -> usize {
        let slab = self.slab_address(chunk);
        // SAFETY: the caller holds credit of this slab, by the contract, so it stays a slab of its
        // class.
        let rows = unsafe { self.rows(slab, geometry) };
        let mut places = out.iter_mut().rev();
        let mut got = 0;
        // Other threads take and give concurrently, so a search may miss bits.
        for _ in 0..credit + 64 {
            let first = mixer.below(geometry.objects) as usize;
            // Take the next free object from `first` on, cyclically. So the row of `first` comes
            // twice: first its upper bits, at last all.
            let found = (0..=rows.len()).find_map(|step| {
                let number = (first / 64 + step) % rows.len();
                let wanted = if step == 0 { u64::MAX << (first % 64) } else { u64::MAX };
                let bits = rows[number].load() & wanted;
                let bit = bits & bits.wrapping_neg();
                (bit != 0 && rows[number].take_exact(bit))
                    .then(|| number * 64 + bit.trailing_zeros() as usize)
            });
            let Some(index) = found else {
                spin();
                continue;
            };
            if let Some(place) = places.next() {
                *place = Item::at(slab + index * geometry.size as usize);
            }
            got += 1;
            if got == credit {
                break;
            }
        }
        got as usize
    }
}

/// Writes the items for the set bits of a row that begins at object `first` into the last part of
/// `out`, highest first. Returns the count.
#[inline]
fn spread(bits: u64, slab: usize, first: usize, size: usize, out: &mut [Item]) -> usize {
    let (start, step) = ((slab + first * size) as u64, size as u64);
    if bits == u64::MAX
        && let Some(out) = out.last_chunk_mut::<64>()
    {
        // A running sum: products would be 64 values that the compiler keeps on the stack.
        let mut next = start;
        for slot in out.iter_mut().rev() {
            *slot = Item(next);
            next += step;
        }
        return 64;
    }
    let mut rest = bits;
    let mut count = 0;
    for slot in out.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *slot = Item(start + u64::from(rest.trailing_zeros()) * step);
        rest &= rest - 1;
        count += 1;
    }
    count
}

/// The slab is stale or being mended.
pub(super) struct NeedsMending;
