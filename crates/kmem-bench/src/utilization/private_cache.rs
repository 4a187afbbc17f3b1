//! A cache with slabs of its own, of which a group had one per size before slabs were shared. As in
//! SLUB, slabs have a power of two of pages, partial slabs are filled first, and a few empty slabs
//! are kept (`min_partial`). Slabs that each CPU keeps are not modelled.

use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Kmem, StaticTag};
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

const PAGE: usize = 4096;
/// SLUB's `slub_max_order`.
const MOST_ORDER: u8 = 3;
/// Least number of objects in a slab of SLUB on a machine with two CPUs: `4 * (fls(cpus) + 1)`.
const LEAST_OBJECTS: usize = 12;

static TAG: StaticTag = StaticTag::new(c"private_cache.rs", c"slab", 1);

/// A cache of objects of one size.
pub(super) struct PrivateCache {
    kmem: &'static Kmem,
    size: usize,
    order: Order,
    slabs: BTreeMap<usize, Slab>,
    /// Slabs with free objects.
    partial: BTreeSet<usize>,
}

struct Slab {
    /// Numbers of free objects.
    free: Vec<u16>,
}

impl PrivateCache {
    pub(super) fn new(kmem: &'static Kmem, size: usize) -> Self {
        let size = size.next_multiple_of(8);
        Self { kmem, size, order: order(size), slabs: BTreeMap::new(), partial: BTreeSet::new() }
    }

    pub(super) fn object_size(&self) -> usize {
        self.size
    }

    pub(super) fn slab_bytes(&self) -> u64 {
        (self.slabs.len() * self.slab_size()) as u64
    }

    fn slab_size(&self) -> usize {
        PAGE << self.order.0
    }

    /// Most slabs with free objects at which an empty slab is kept.
    fn min_partial(&self) -> usize {
        (self.size.ilog2() as usize / 2).clamp(5, 10)
    }

    pub(super) fn alloc(&mut self) -> Option<NonNull<u8>> {
        let base = match self.partial.first() {
            Some(&base) => base,
            None => {
                let pages =
                    self.kmem.alloc_pages(self.order, Gfp::KERNEL, Caller::tagged(&TAG)) as usize;
                let objects = (self.slab_size() / self.size) as u16;
                if pages == 0 {
                    return None;
                }
                self.slabs.insert(pages, Slab { free: (0..objects).rev().collect() });
                self.partial.insert(pages);
                pages
            }
        };
        let slab = self.slabs.get_mut(&base)?;
        let index = slab.free.pop()?;
        if slab.free.is_empty() {
            self.partial.remove(&base);
        }
        NonNull::new((base + usize::from(index) * self.size) as *mut u8)
    }

    /// Frees an object of [`Self::alloc`].
    pub(super) fn free(&mut self, at: NonNull<u8>) {
        // Blocks of pages lie at multiples of their size.
        let base = at.as_ptr() as usize & !(self.slab_size() - 1);
        let all = self.slab_size() / self.size;
        let Some(slab) = self.slabs.get_mut(&base) else { return };
        slab.free.push(((at.as_ptr() as usize - base) / self.size) as u16);
        if slab.free.len() == all && self.partial.len() > self.min_partial() {
            self.slabs.remove(&base);
            self.partial.remove(&base);
            // SAFETY: a block of this cache, without objects in use.
            unsafe { self.kmem.free_pages(base as *mut u8, self.order) };
        } else {
            self.partial.insert(base);
        }
    }
}

impl Drop for PrivateCache {
    fn drop(&mut self) {
        for &base in self.slabs.keys() {
            // SAFETY: a block of this cache, whose objects no code uses any more.
            unsafe { self.kmem.free_pages(base as *mut u8, self.order) };
        }
    }
}

/// Order of the slabs for objects of `size` bytes, by SLUB's `calculate_order`. The slab is the
/// smallest that holds enough objects and wastes at most a sixteenth, else an eighth, else a
/// quarter. If there is none, fewer objects are enough.
fn order(size: usize) -> Order {
    let mut least = LEAST_OBJECTS.min((PAGE << MOST_ORDER) / size);
    while least > 1 {
        for part in [16, 8, 4] {
            let fits = |order: &u8| {
                let slab = PAGE << order;
                slab >= least * size && slab % size <= slab / part
            };
            if let Some(order) = (0..=MOST_ORDER).find(fits) {
                return Order(order);
            }
        }
        least -= 1;
    }
    Order((0..=MOST_ORDER).find(|order| PAGE << order >= size).unwrap_or(MOST_ORDER))
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn slabs_are_as_large_as_slub_makes_them() {
        // As in the slabinfo of a machine with two CPUs: pages per slab.
        for (size, pages) in
            [(64, 1), (192, 1), (256, 1), (512, 2), (1024, 4), (2048, 8), (4096, 8)]
        {
            assert_eq!(1 << order(size).0, pages, "{size}");
        }
    }
}
