//! Blocks of pages of orders 0 to 3, and huge pages, taken from the zones and given back in bulk.
//! Blocks of orders 4 to 8 are in `runs`.
//!
//! ```text
//! take_block --> array of the CPU
//!                 | empty
//!                 v
//!                reserve of the CPU: credit of one pageblock --> its rows
//!                 | used up
//!                 v
//!                another pageblock --> zone --> platform
//! ```

use super::array::{Backing, Looked};
use super::{Heap, ZoneSet};
use crate::class::PageClass;
use crate::os::Platform;
use crate::page::{DoubleFree, Pcp, Reserve, Run, Way};
use crate::slab::slabs::Refused;
use crate::units::{CpuId, Item, PageCount};

/// Most blocks that are moved at once.
const MOST: usize = 127;
const _: () = assert!(PageClass::SINGLE.most_batch() as usize <= MOST);

/// The blocks of one class, behind the CPU arrays.
struct Blocks<P: 'static> {
    heap: &'static Heap<P>,
    class: PageClass,
}

impl<P: Platform> Backing for Blocks<P> {
    fn keeps(&self) -> bool {
        self.heap.keeps_pages()
    }

    fn batch(&self, cpu: CpuId, way: Way) -> usize {
        self.heap.pcp(Some(cpu)).map_or(1, |pcp| pcp.batch(self.class, way))
    }

    fn supply(
        &self,
        cpu: Option<CpuId>,
        most: usize,
        take: impl FnOnce(&[Item]) -> Item,
    ) -> Option<Item> {
        let (heap, class) = (self.heap, self.class);
        heap.send_home();
        let mut buffer = [Item::NONE; MOST];
        let out = &mut buffer[..most];
        loop {
            let (set, got) = heap.claim_blocks(class, heap.pcp(cpu), out)?;
            heap.fast.reach(&set.zone);
            let good = heap.check_refill(set, class, &mut out[most - got..]);
            // If all of them are bad, take others.
            if good > 0 {
                return Some(take(&out[most - good..]));
            }
        }
    }

    fn absorb(&self, most: usize, fill: impl FnOnce(&mut [Item]) -> usize) {
        let mut buffer = [Item::NONE; MOST];
        let len = fill(&mut buffer[..most]);
        self.heap.zones.gather(&mut buffer[..len]);
        self.give(&buffer[..len]);
    }

    fn give(&self, items: &[Item]) {
        // SAFETY: free blocks of this class, taken off the array.
        unsafe { self.heap.give_blocks(self.class, items) };
    }
}

impl<P: Platform> Heap<P> {
    /// Share of a CPU, or any share for a thread without a CPU; `None` before start.
    pub(super) fn pcp(&self, cpu: Option<CpuId>) -> Option<&Pcp> {
        let all = self.pcps();
        all.get(cpu.map_or(0, |cpu| cpu.0 as usize) % all.len().max(1))
    }

    /// Takes a free block; none if there is no memory.
    pub fn take_block(&'static self, class: PageClass, looked: Looked) -> Item {
        self.arrays().refill(class.array(), looked, &Blocks { heap: self, class })
    }

    /// Takes up to `out.len()` free blocks at once, and puts them at the start of `out`. Those that
    /// the CPU keeps come first, then blocks of the zones. Returns the count.
    pub fn take_blocks(&'static self, class: PageClass, out: &mut [Item]) -> usize {
        let hint = self.slots.hint(&self.platform);
        let mut got = self.slots.pop_many(class.array(), hint, out);
        let cpu = self.slots.current(hint);
        while got < out.len() {
            let room = &mut out[got..];
            let most = room.len().min(MOST);
            let taken = Blocks { heap: self, class }.supply(cpu, most, |items| {
                for (place, &item) in room.iter_mut().zip(items.iter().rev()) {
                    *place = item;
                }
                got += items.len();
                Item::NONE
            });
            if taken.is_none() {
                break;
            }
        }
        got
    }

    /// Gives a free block back because its CPU's array is full.
    ///
    /// # Safety
    /// `item` is a block of this class, which the caller alone uses.
    #[cold]
    #[inline(never)]
    pub unsafe fn flush_block(&'static self, class: PageClass, item: Item) {
        self.send_home();
        // SAFETY: a free block of the class, by the contract.
        unsafe { self.arrays().flush(class.array(), item, &Blocks { heap: self, class }) };
    }

    /// Takes blocks of one zone, into the last part of `out`, lowest last. Returns the zone and the
    /// count.
    fn claim_blocks(
        &'static self,
        class: PageClass,
        pcp: Option<&Pcp>,
        out: &mut [Item],
    ) -> Option<(&'static ZoneSet, usize)> {
        let order = class.order();
        let (zone, mut reserve) = match pcp {
            Some(pcp) if !class.is_huge() => pcp.take_reserve(class),
            _ => (0, Reserve::NONE),
        };
        if reserve.credit > 0
            && let Some(set) = self.zones.numbered(zone)
        {
            let got = set.zone.on(&self.platform).claim_bulk(order, &mut reserve, out);
            self.put_reserve(pcp, class, set, reserve);
            if got > 0 {
                return Some((set, got));
            }
        }
        let here = self.zones.here(&self.platform);
        for set in self.zones.nearest(&self.platform, here) {
            let on = set.zone.on(&self.platform);
            let mut reserve = Reserve::NONE;
            let got = if class.is_huge() {
                on.claim_pageblocks_bulk(out)
            } else {
                on.claim_bulk(order, &mut reserve, out)
            };
            self.put_reserve(pcp, class, set, reserve);
            if got > 0 {
                return Some((set, got));
            }
        }
        // Take one block from a new zone, or after CPUs gave back what they keep.
        let claim = || {
            let found = self.zones.claim(&self.platform, here, class.pages(), class.pages());
            found.ok_or(Refused::NoMemory)
        };
        let (set, run) = self.retrying(claim)?;
        *out.last_mut()? = Item::at(set.zone.address(run.start));
        Some((set, 1))
    }

    fn put_reserve(&self, pcp: Option<&Pcp>, class: PageClass, set: &ZoneSet, reserve: Reserve) {
        if reserve.credit == 0 {
            return;
        }
        let put = pcp
            .zip(self.zones.number(set))
            .is_some_and(|(pcp, number)| pcp.put_reserve(class, number, reserve));
        if !put {
            set.zone.unreserve(reserve);
        }
    }

    /// Puts blocks into random order, if that is configured.
    #[inline]
    pub(super) fn shuffle(&self, items: &mut [Item]) {
        if let Some(mut prng) = self.mixer() {
            for last in (1..items.len()).rev() {
                items.swap(last, prng.below(last as u32 + 1) as usize);
            }
        }
    }

    /// Checks and shuffles blocks that come from a zone to a CPU, as configured. Returns the count
    /// of good blocks, which are at the end of `items`.
    #[inline]
    fn check_refill(
        &'static self,
        set: &'static ZoneSet,
        class: PageClass,
        items: &mut [Item],
    ) -> usize {
        let checks = self.zones.checks();
        self.shuffle(items);
        // SAFETY: this thread just claimed the blocks in this zone.
        if !checks.at_refill() || unsafe { set.zone.are_claimed(items, class.pages()) } {
            return items.len();
        }
        self.sort_out(set, class, items)
    }

    /// Reports the bad blocks of `items`, and moves the good ones to the end. Returns the count of
    /// good ones.
    #[cold]
    fn sort_out(&'static self, set: &ZoneSet, class: PageClass, items: &mut [Item]) -> usize {
        let mut good = 0;
        for i in (0..items.len()).rev() {
            let Some(start) = set.zone.pfn(items[i].address()) else { continue };
            if let Err(bad) = set.zone.check_claimed(Run { start, pages: class.pages() }) {
                self.take_out_of_use(set, bad);
                continue;
            }
            good += 1;
            items.swap(i, items.len() - good);
        }
        good
    }

    /// Gives free blocks back to their zones.
    ///
    /// # Safety
    /// The items are blocks of this class of the heap, which the caller alone uses.
    pub unsafe fn give_blocks(&'static self, class: PageClass, items: &[Item]) {
        let mut rest = items;
        while let Some(&first) = rest.first() {
            let Some(set) = self.zones.of(first.address()) else { return };
            let (here, others) = rest.split_at(self.zones.prefix_in(set, rest));
            rest = others;
            // SAFETY: blocks of the heap lie in the committed part of their zone.
            let given = unsafe {
                if class.is_huge() {
                    set.zone.give_pageblocks_bulk(here)
                } else {
                    set.zone.give_bulk(class.order(), here)
                }
            };
            if let Err(DoubleFree(page)) = given {
                self.end_for_page(set.zone.address(page));
            }
            self.came_back(set, PageCount(class.pages().0 * here.len() as u32));
        }
    }

    /// Gives the reserves of a CPU back to their zones.
    pub(super) fn unreserve(&self, pcp: &Pcp) {
        for (zone, reserve) in pcp.take_reserves() {
            if let Some(set) = self.zones.numbered(zone) {
                set.zone.unreserve(reserve);
            }
        }
    }
}
