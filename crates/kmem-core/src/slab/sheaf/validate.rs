//! Recounts of a barn at rest.

use super::{Barn, SHEAF_OBJECTS, Sheaf, Stack};
use crate::class::SizeClass;
use crate::sync::Ordering;
use crate::units::Item;

/// The first thing that [`Barn::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarnFault {
    /// The stacks do not hold each sheaf of the pool that was used once.
    Sheaves {
        /// Sheaves in the stacks; more than `used` if one is met twice.
        listed: u32,
        /// Sheaves of the pool that were used so far.
        used: u32,
    },
    /// The count of full sheaves of a class is wrong.
    Count {
        /// The class.
        class: SizeClass,
        /// The count.
        count: u32,
        /// Full sheaves in the stack of the class.
        listed: u32,
    },
    /// A full sheaf holds no object, or more than it has room for.
    Length {
        /// Its number.
        number: u32,
        /// Objects that it says it holds.
        len: u32,
    },
}

impl Barn {
    /// Recounts the barn, and calls `each` with the objects of every full sheaf. For a barn at
    /// rest.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn validate(&self, mut each: impl FnMut(SizeClass, &[Item])) -> Result<(), BarnFault> {
        let used = self.used.load(Ordering::Relaxed).min(self.sheaves.load(Ordering::Relaxed));
        let mut listed = 0;
        for class in SizeClass::all() {
            let mut full = 0;
            self.walk(&self.full[class.0 as usize], used, &mut listed, |number, sheaf| {
                full += 1;
                let len = sheaf.len as usize;
                if len == 0 || len > SHEAF_OBJECTS {
                    return Err(BarnFault::Length { number, len: sheaf.len });
                }
                each(class, &sheaf.objects[..len]);
                Ok(())
            })?;
            let count = self.count[class.0 as usize].load(Ordering::Relaxed);
            if count != full {
                return Err(BarnFault::Count { class, count, listed: full });
            }
        }
        self.walk(&self.empty, used, &mut listed, |_, _| Ok(()))?;
        if listed == used { Ok(()) } else { Err(BarnFault::Sheaves { listed, used }) }
    }

    /// Calls `each` with the sheaves of a stack, and counts them in `listed`.
    fn walk(
        &self,
        stack: &Stack,
        used: u32,
        listed: &mut u32,
        mut each: impl FnMut(u32, &Sheaf) -> Result<(), BarnFault>,
    ) -> Result<(), BarnFault> {
        let mut next = stack.0.load(Ordering::Acquire) as u32;
        while let Some(number) = next.checked_sub(1) {
            *listed += 1;
            // A stack that bites its own tail is found by the count.
            if *listed > used || number >= used {
                return Err(BarnFault::Sheaves { listed: *listed, used });
            }
            // SAFETY: a sheaf of the pool; at rest no thread writes to it.
            let sheaf = unsafe { &*self.sheaf(number) };
            each(number, sheaf)?;
            next = sheaf.next.load(Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::regions::Regions;
    use crate::os::stepped::Part;
    use kmem_layout::geometry::ClassGeometry;
    use std::vec;
    use std::vec::Vec;

    const CLASS: SizeClass = SizeClass(3);

    /// A barn with two full sheaves and an empty one.
    fn barn() -> Barn {
        let barn = Barn::new();
        let pool: Vec<u64> = vec![0; Barn::pool_bytes(8) / 8 + 8];
        let pool = pool.leak().as_mut_ptr().cast::<u8>();
        let aligned = pool.wrapping_add(pool.align_offset(align_of::<Sheaf>()));
        // SAFETY: zeroed memory of that size, which is never freed.
        unsafe { barn.start(Part::whole(aligned, Barn::pool_bytes(8)), 8) };
        let geometry = ClassGeometry::new(CLASS.size(), true);
        let platform = Regions::empty();
        let held: Vec<_> =
            (0..3).map_while(|_| barn.take_empty(&platform, CLASS, &geometry)).collect();
        for (i, held) in held.into_iter().enumerate() {
            if i == 0 {
                barn.give_empty(held);
                continue;
            }
            held.sheaf.len = 1;
            held.sheaf.objects[0] = Item::at(0x1000 * i);
            barn.give_full(CLASS, held);
        }
        barn
    }

    #[test]
    fn a_barn_that_is_right_shows_all_objects() {
        let mut objects = Vec::new();
        assert_eq!(barn().validate(|_, items| objects.extend_from_slice(items)), Ok(()));
        assert_eq!(objects, [Item::at(0x2000), Item::at(0x1000)]);
    }

    #[test]
    fn a_sheaf_that_is_lost_or_met_twice_is_found() {
        let lost = barn();
        lost.empty.0.store(0, Ordering::Relaxed);
        assert_eq!(lost.validate(|_, _| ()), Err(BarnFault::Sheaves { listed: 2, used: 3 }));
        let twice = barn();
        let full = twice.full[CLASS.0 as usize].0.load(Ordering::Relaxed);
        twice.empty.0.store(full, Ordering::Relaxed);
        assert_eq!(twice.validate(|_, _| ()), Err(BarnFault::Sheaves { listed: 4, used: 3 }));
        let circle = barn();
        // SAFETY: a sheaf of the pool, which no other thread uses.
        unsafe { (*circle.sheaf(1)).next.store(2, Ordering::Relaxed) };
        assert_eq!(circle.validate(|_, _| ()), Err(BarnFault::Sheaves { listed: 4, used: 3 }));
    }

    #[test]
    fn a_wrong_count_and_a_wrong_length_are_found() {
        let barn = barn();
        barn.count[CLASS.0 as usize].store(3, Ordering::Relaxed);
        let count = BarnFault::Count { class: CLASS, count: 3, listed: 2 };
        assert_eq!(barn.validate(|_, _| ()), Err(count));
        // SAFETY: a sheaf of the pool, which no other thread uses.
        unsafe { (*barn.sheaf(2)).len = 65 };
        assert_eq!(barn.validate(|_, _| ()), Err(BarnFault::Length { number: 2, len: 65 }));
    }
}
