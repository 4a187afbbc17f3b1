//! CPU arrays: refilled when they run empty, flushed when they are full, drained. One code serves
//! objects, blocks, per-CPU objects and areas.

use crate::class::ArrayId;
use crate::cpu::Slots;
use crate::os::Platform;
use crate::page::Way;
use crate::slab::sheaf::SHEAF_OBJECTS;
use crate::units::{CpuId, Item};

/// State in which the caller found the array a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// It was empty.
    Empty,
    /// The caller did not look.
    Not,
}

impl Looked {
    /// The value after a fast path found nothing. Without critical sections it does not look.
    #[inline]
    pub fn after_miss(slots: &Slots) -> Self {
        if slots.uses_rseq() { Self::Empty } else { Self::Not }
    }
}

/// Source of the items of an array, to which they also go back.
pub trait Backing {
    /// Returns whether a CPU may keep items for the next request.
    fn keeps(&self) -> bool {
        true
    }

    /// Number of items to move at once, on a CPU.
    fn batch(&self, cpu: CpuId, way: Way) -> usize;

    /// Finds 1 to `most` free items, and calls `take` with them, lowest last. `None`: there is no
    /// free item.
    fn supply(
        &self,
        cpu: Option<CpuId>,
        most: usize,
        take: impl FnOnce(&[Item]) -> Item,
    ) -> Option<Item>;

    /// Calls `fill` with room for up to `most` items. Takes the items that it put there; it returns
    /// their count.
    fn absorb(&self, most: usize, fill: impl FnOnce(&mut [Item]) -> usize);

    /// Takes items back.
    fn give(&self, items: &[Item]);
}

/// The CPU arrays of one kind; `cap` is the most items of each array.
#[derive(Clone, Copy)]
pub struct Arrays<'a, P, C> {
    /// The CPUs.
    pub slots: &'a Slots,
    /// The platform, which provides the arrays' memory.
    pub platform: &'a P,
    /// Most items of each array.
    pub cap: C,
}

impl<P: Platform, C: Fn(ArrayId) -> u16> Arrays<'_, P, C> {
    /// Takes the newest item of this CPU's array; none if it is empty.
    #[inline]
    pub fn pop(&self, array: ArrayId) -> Item {
        if self.slots.uses_rseq() {
            // SAFETY: the slots are of the rseq kind, so they have started. Each number of the type
            // that there is has an array.
            return unsafe { self.slots.pop(array) };
        }
        let mut one = [Item::NONE];
        self.slots.pop_many(array, self.slots.hint(self.platform), &mut one);
        one[0]
    }

    /// Takes an item, and more items for the CPU's array if it has room. None: there is no memory.
    pub fn refill(&self, array: ArrayId, looked: Looked, backing: &impl Backing) -> Item {
        if looked == Looked::Not {
            let one = self.pop(array);
            if !one.is_none() {
                return one;
            }
        }
        let hint = self.slots.hint(self.platform);
        let cpu = self.slots.current(hint);
        if let Some(cpu) = cpu {
            self.slots.ensure(self.platform, cpu, &self.cap);
        }
        let most = match cpu {
            Some(cpu) if backing.keeps() && self.slots.area(cpu).is_some() => {
                backing.batch(cpu, Way::Refill)
            }
            _ => 1,
        };
        let found = backing.supply(cpu, most, |items| {
            let Some((&one, rest)) = items.split_last() else { return Item::NONE };
            // SAFETY: free items of the array that the backing just took; nothing else refers to
            // them.
            let kept = unsafe { self.slots.push_many(array, hint, rest) };
            if kept < rest.len() {
                backing.give(&rest[kept..]);
            }
            one
        });
        found.unwrap_or(Item::NONE)
    }

    /// Makes room in a full array, and puts a free item there. If that fails, gives the item back.
    ///
    /// # Safety
    /// `item` is a free item of the array, and nothing else refers to it.
    pub unsafe fn flush(&self, array: ArrayId, item: Item, backing: &impl Backing) {
        let hint = self.slots.hint(self.platform);
        if let Some(cpu) = self.slots.current(hint).filter(|_| backing.keeps()) {
            self.slots.ensure(self.platform, cpu, &self.cap);
            for _ in 0..2 {
                // SAFETY: a free item of the array, by the contract.
                if unsafe { self.slots.push_many(array, hint, &[item]) } == 1 {
                    return;
                }
                let most = backing.batch(cpu, Way::Flush);
                backing.absorb(most, |room| self.slots.pop_many(array, hint, room));
            }
        }
        backing.give(&[item]);
    }

    /// Empties arrays of each CPU into `sink`, which may drain other arrays in turn: the end of a
    /// generation of the decay does. Two buffers have to fit on a small stack.
    pub fn drain<I: Iterator<Item = ArrayId>>(
        &self,
        arrays: impl Fn(CpuId) -> I,
        sink: impl Fn(ArrayId, &mut [Item]),
    ) {
        let mut buffer = [Item::NONE; SHEAF_OBJECTS / 2];
        for (cpu, area) in self.slots.areas() {
            if !arrays(cpu).any(|array| area.len(array) > 0) {
                continue;
            }
            let mut stopped = self.slots.stop(cpu, || self.platform.fence_cpus());
            let hint = self.slots.hint(self.platform);
            // A CPU that cannot be stopped, as in a sandbox: this thread's own needs no stop.
            if stopped.is_none() && self.slots.current(hint) != Some(cpu) {
                continue;
            }
            for array in arrays(cpu) {
                loop {
                    let got = match &mut stopped {
                        Some(stopped) => stopped.take(array, &mut buffer),
                        None => self.slots.pop_many(array, hint, &mut buffer),
                    };
                    if got == 0 {
                        break;
                    }
                    sink(array, &mut buffer[..got]);
                }
            }
        }
    }
}
