//! Claims: free objects out of slabs that have some.

use super::{MENDING, SlabZone, class_in, credit_in};
use crate::class::{ClassGeometry, SizeClass};
use crate::prng::Prng;
use crate::sync::{Ordering, spin};
use crate::units::Item;

impl SlabZone {
    /// Takes up to `out.len()` free objects of a class from the lowest slab that has some into
    /// the last part of `out`, highest first, or any of the slab's in any order if there is a `mixer`; how many.
    pub fn claim(
        &self,
        class: SizeClass,
        geometry: &ClassGeometry,
        books: bool,
        mixer: Option<&mut Prng>,
        out: &mut [Item],
    ) -> usize {
        let mut mixer = mixer;
        let lane = u32::from(class.0);
        let mut from = 0;
        while let Some(chunk) = self.sets.next(lane, from) {
            let want = out.len() as u32;
            match self.take_credit(chunk, class, want) {
                Ok(0) => from = chunk + 1,
                Ok(credit) => {
                    let got = match &mut mixer {
                        None => self.take_objects(chunk, geometry, credit, out),
                        Some(mixer) => self.take_any(chunk, geometry, credit, mixer, out),
                    };
                    if got > 0 {
                        return got;
                    }
                    from = chunk + 1;
                }
                Err(NeedsMending) => self.mend(chunk, geometry, books),
            }
        }
        0
    }

    /// Takes up to `want` credit of a slab; 0 if it has none or is of another class.
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
            // Acquire pairs with the release of the state: rows are ready, bits are there.
            match state.compare_exchange_weak(
                seen,
                self.stamped(class, credit - take),
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

    /// Takes the objects for credit in hand, highest first.
    fn take_objects(
        &self,
        chunk: u32,
        geometry: &ClassGeometry,
        credit: u32,
        out: &mut [Item],
    ) -> usize {
        let slab = self.slab_address(chunk);
        let mut got = 0;
        // Bits move between rows while others take and give, so one pass may miss some.
        for pass in 0..64 {
            for (i, row) in self.rows(slab, geometry).iter().enumerate() {
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

    /// The same: objects from anywhere in the slab, in any order.
    #[cold]
    fn take_any(
        &self,
        chunk: u32,
        geometry: &ClassGeometry,
        credit: u32,
        mixer: &mut Prng,
        out: &mut [Item],
    ) -> usize {
        let slab = self.slab_address(chunk);
        let rows = self.rows(slab, geometry);
        let mut places = out.iter_mut().rev();
        let mut got = 0;
        // As above, bits may be missed.
        for _ in 0..credit + 64 {
            let first = mixer.below(geometry.objects) as usize;
            // The next free object, going round: so the row of the first one twice.
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
/// `out`, highest first; how many.
#[inline]
fn spread(bits: u64, slab: usize, first: usize, size: usize, out: &mut [Item]) -> usize {
    let (start, step) = ((slab + first * size) as u64, size as u64);
    if bits == u64::MAX
        && let Some(out) = out.last_chunk_mut::<64>()
    {
        for (i, slot) in out.iter_mut().rev().enumerate() {
            *slot = Item(start + i as u64 * step);
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

/// The slab is stale.
pub(super) struct NeedsMending;
