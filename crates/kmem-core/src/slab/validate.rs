//! Recounts of the slabs of a zone at rest.

use kmem_layout::geometry::CHUNK_CLASS_MASK;
use kmem_layout::word::EXT_LIVE;

use super::{Format, MENDING, Place, SlabZone, class_in, credit_in};
use crate::class::{Classes, SizeClass};
use crate::row::span;
use crate::sync::Ordering;
use crate::units::{CHUNK_ORDER, CHUNK_SIZE, Item, PageCount};

/// The first thing that [`SlabZone::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlabFault {
    /// A chunk says that it is part of a slab of a class, and its slab does not.
    Class {
        /// Number of the chunk in its zone.
        chunk: u32,
    },
    /// The credit of a slab is not the number of its free objects.
    Credit {
        /// Address of the slab.
        slab: usize,
        /// Its credit.
        credit: u32,
        /// Its free objects.
        bits: u32,
    },
    /// A bit behind the last object of a slab is set.
    Tail {
        /// Address of the slab.
        slab: usize,
    },
    /// A claim cannot find a slab that has free objects.
    Hint {
        /// Address of the slab.
        slab: usize,
    },
    /// The extension word of a free object says that the object is live.
    Live {
        /// Address of the object.
        object: usize,
    },
}

/// Objects of slabs, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCount {
    /// Objects that their slabs do not have.
    pub claimed: u64,
    /// Objects whose extension words say that they are live.
    pub live: u64,
}

impl SlabZone {
    /// Recounts the slabs in the committed part of the zone. Slabs that wait to be mended are left
    /// out. For a zone at rest.
    ///
    /// # Errors
    /// The first slab that is not as it must be.
    pub fn validate(
        &self,
        committed: PageCount,
        classes: &Classes,
        format: Format,
    ) -> Result<ObjectCount, SlabFault> {
        let mut count = ObjectCount::default();
        let end = committed.0 >> CHUNK_ORDER;
        let mut chunk = 0;
        while chunk < end {
            let byte = self.chunk_class(chunk).load(Ordering::Acquire);
            let state = self.state(chunk).load(Ordering::Acquire);
            let class = SizeClass(byte & CHUNK_CLASS_MASK);
            if class.0 == 0 {
                if state != 0 {
                    return Err(SlabFault::Class { chunk });
                }
                chunk += 1;
                continue;
            }
            let geometry = classes.geometry(class);
            let slab = self.slab_address(chunk);
            let whole = geometry.chunks().max(1);
            let agrees = |chunk: u32| self.chunk_class(chunk).load(Ordering::Relaxed) == byte;
            if class_in(state) != class
                || slab & geometry.slab_mask as usize != 0
                || chunk + whole > end
                || !(chunk..chunk + whole).all(agrees)
            {
                return Err(SlabFault::Class { chunk });
            }
            if credit_in(state) < MENDING {
                // SAFETY: the state and the classes of the chunks agree that this is a slab.
                unsafe { self.validate_slab(chunk, class, classes, format, &mut count)? };
            }
            chunk += whole;
        }
        Ok(count)
    }

    /// # Safety
    /// A slab of this class begins at the chunk.
    unsafe fn validate_slab(
        &self,
        chunk: u32,
        class: SizeClass,
        classes: &Classes,
        format: Format,
        count: &mut ObjectCount,
    ) -> Result<(), SlabFault> {
        let (geometry, slab) = (classes.geometry(class), self.slab_address(chunk));
        let mut free = 0;
        // SAFETY: a slab of this geometry, by the contract.
        for (i, row) in (0..).zip(unsafe { self.rows(slab, geometry) }) {
            let (bits, first) = (row.load(), i * 64);
            if bits & !span(0, (geometry.objects - first).min(64)) != 0 {
                return Err(SlabFault::Tail { slab });
            }
            free += bits.count_ones();
        }
        let credit = credit_in(self.state(chunk).load(Ordering::Relaxed));
        if free != credit {
            return Err(SlabFault::Credit { slab, credit, bits: free });
        }
        if credit > 0 && !self.sets.contains(u32::from(class.0), chunk) {
            return Err(SlabFault::Hint { slab });
        }
        count.claimed += u64::from(geometry.objects - free);
        if !format.extension {
            return Ok(());
        }
        for index in 0..geometry.objects {
            let object = slab + (index * geometry.size) as usize;
            // SAFETY: a slab of this geometry with extension words.
            let words = unsafe { self.extension(slab, geometry) };
            let word = &words[(index * geometry.size) as usize >> geometry.ext_shift()];
            let live = word.load(Ordering::Relaxed) & EXT_LIVE != 0;
            count.live += u64::from(live);
            // SAFETY: a slab of this geometry.
            if live && unsafe { self.is_free(object, class, classes) } {
                return Err(SlabFault::Live { object });
            }
        }
        Ok(())
    }

    /// Returns whether an object is free in its slab.
    ///
    /// # Safety
    /// An object of this class and zone begins there.
    unsafe fn is_free(&self, object: usize, class: SizeClass, classes: &Classes) -> bool {
        let geometry = classes.geometry(class);
        let offset = object & geometry.slab_mask as usize;
        let index = geometry.index_within(offset as u32) as usize;
        // SAFETY: the slab of an object of this geometry, by the contract.
        let rows = unsafe { self.rows(object - offset, geometry) };
        rows[index / 64].load() >> (index % 64) & 1 != 0
    }

    /// Returns whether an item is an object of a class that its slab gave away, as those that CPUs
    /// and sheaves keep are.
    pub fn is_claimed(&self, item: Item, class: SizeClass, classes: &Classes) -> bool {
        let Some(chunk) = item.address().checked_sub(self.base).map(|at| at / CHUNK_SIZE) else {
            return false;
        };
        let byte = if chunk < self.chunks as usize {
            self.chunk_class(chunk as u32).load(Ordering::Acquire)
        } else {
            0
        };
        byte == class.0
            && matches!(
                Self::place(item.address(), classes.geometry(class)),
                Place::Object { .. }
            )
            // SAFETY: an object of this class begins there.
            && !unsafe { self.is_free(item.address(), class, classes) }
    }
}
