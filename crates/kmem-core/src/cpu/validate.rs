//! Recounts of the arrays of CPUs.

use super::{BLOCK, Front, MAX_CAP, Slots, Stopped};
use crate::class::ArrayId;
use crate::sync::Ordering;
use crate::units::{CpuId, Item};

/// The first thing that [`Slots::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaFault {
    /// Another thread owns the area of a CPU.
    Busy {
        /// The CPU.
        cpu: CpuId,
    },
    /// The top of an array does not lie between its bottom and its end, or the word below its
    /// bottom is not null.
    Head {
        /// The CPU.
        cpu: CpuId,
        /// The array.
        array: ArrayId,
    },
    /// An item is none that may lie on its array.
    Item {
        /// The CPU.
        cpu: CpuId,
        /// The array.
        array: ArrayId,
        /// The item.
        item: Item,
    },
}

impl Slots {
    /// Looks at every array of every CPU; `is_right` says whether an item may lie on an array.
    /// `fence` is as in [`Self::stop`]. May run beside other threads, but see [`AreaFault::Busy`].
    ///
    /// # Errors
    /// The first array that is not as it must be.
    pub fn validate(
        &self,
        fence: impl Fn() -> bool,
        mut is_right: impl FnMut(ArrayId, Item) -> bool,
    ) -> Result<(), AreaFault> {
        for (cpu, _) in self.areas() {
            let Some(mut stopped) = self.stop(cpu, &fence) else {
                return Err(AreaFault::Busy { cpu });
            };
            for array in ArrayId::all() {
                stopped.validate(array, &mut is_right)?;
            }
        }
        Ok(())
    }
}

impl Stopped<'_> {
    fn validate(
        &mut self,
        array: ArrayId,
        is_right: &mut impl FnMut(ArrayId, Item) -> bool,
    ) -> Result<(), AreaFault> {
        let (cpu, front) = (self.cpu, &self.area.area().front);
        let top = front.head[array.0 as usize].load(Ordering::Relaxed) as u32 as usize;
        let bottom = front.bottom[array.0 as usize].load(Ordering::Relaxed) as usize;
        let end = size_of::<Front>() + array.0 as usize * BLOCK;
        let wrong = Err(AreaFault::Head { cpu, array });
        if !(bottom..=end).contains(&top)
            || end - bottom > MAX_CAP * 8
            || !top.is_multiple_of(8)
            || !bottom.is_multiple_of(8)
        {
            return wrong;
        }
        let (first, count) = ((bottom + BLOCK - end) / 8, (top - bottom) / 8);
        let block = self.area.block(array);
        if !block[first - 1].is_none() {
            return wrong;
        }
        match block[first..first + count].iter().find(|&&item| !is_right(array, item)) {
            Some(&item) => Err(AreaFault::Item { cpu, array, item }),
            None => Ok(()),
        }
    }
}

#[cfg(all(test, kmem_linux))]
mod tests {
    use std::boxed::Box;

    use super::*;
    use crate::class::SizeClass;
    use crate::cpu::{Area, Kind};
    use crate::os::linux::Linux;

    const ARRAY: ArrayId = SizeClass(4).array();
    const CPU: CpuId = CpuId(1);

    /// A CPU with three items on an array.
    fn slots() -> (Box<Slots>, &'static Area) {
        // SAFETY: zeroed memory is a valid value of both types.
        let (slots, area) = unsafe {
            (Box::<Slots>::new_zeroed().assume_init(), Box::<Area>::new_zeroed().assume_init())
        };
        let area = Box::leak(area);
        slots.start(&Linux::new(), Kind::Locked);
        // SAFETY: zeroed memory, which is never freed; items that nothing else refers to.
        unsafe {
            assert!(slots.add(CPU, area, |_| 8));
            let items = [1, 2, 3].map(|n| Item::at(n * 0x1000));
            assert_eq!(slots.push_many(ARRAY, CPU.0, &items), 3);
        }
        (slots, area)
    }

    fn validate(slots: &Slots) -> Result<(), AreaFault> {
        slots.validate(|| true, |array, item| array == ARRAY && item.address() < 0x4000)
    }

    #[test]
    fn arrays_that_are_right_pass() {
        assert_eq!(validate(&slots().0), Ok(()));
    }

    #[test]
    fn an_item_that_does_not_belong_is_found() {
        let (slots, _) = slots();
        let item = Item::at(0x9000);
        // SAFETY: an item that nothing else refers to.
        assert_eq!(unsafe { slots.push_many(ARRAY, CPU.0, &[item]) }, 1);
        assert_eq!(validate(&slots), Err(AreaFault::Item { cpu: CPU, array: ARRAY, item }));
    }

    #[test]
    fn a_top_that_is_out_of_bounds_is_found() {
        let (slots, area) = slots();
        let head = &area.front.head[ARRAY.0 as usize];
        let right = head.load(Ordering::Relaxed);
        for wrong in [right + 4, right - 4 * 8, right + 6 * 8] {
            head.store(wrong, Ordering::Relaxed);
            assert_eq!(validate(&slots), Err(AreaFault::Head { cpu: CPU, array: ARRAY }));
        }
    }

    #[test]
    fn an_area_that_another_thread_owns_is_told() {
        let (slots, _) = slots();
        let _stopped = slots.stop(CPU, || true).expect("no other owner");
        assert_eq!(validate(&slots), Err(AreaFault::Busy { cpu: CPU }));
    }
}
