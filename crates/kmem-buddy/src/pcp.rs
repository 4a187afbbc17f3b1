//! The lists of a CPU, for orders 0 to 3 and huge pages.

use super::{BadPage, NIL, Zone};

/// Pages moved between a list and the zone at once.
const BATCH: u32 = 63;
/// Most pages on the lists: six batches and two huge pages. Above that, a batch goes back.
const HIGH: u32 = 6 * BATCH + 2 * 512;
/// Order of a huge page.
const HUGE: u8 = 9;

/// The lists of one CPU over one zone. Dropping it gives their blocks back.
#[derive(Debug)]
pub struct Pcp<'a> {
    zone: &'a Zone,
    heads: [u32; 5],
    pages: u32,
}

impl<'a> Pcp<'a> {
    /// Makes empty lists.
    #[must_use]
    pub fn new(zone: &'a Zone) -> Self {
        Self { zone, heads: [NIL; 5], pages: 0 }
    }

    fn list(order: u8) -> Option<usize> {
        match order {
            0..=3 => Some(usize::from(order)),
            HUGE => Some(4),
            _ => None,
        }
    }

    /// Blocks of an order that are moved at once.
    fn batch(order: u8) -> u32 {
        if order == 0 { BATCH } else { (BATCH >> order).max(2) }
    }

    /// Number of pages on the lists.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Takes a block of an order. Returns its first page. `None`: there is none.
    ///
    /// # Errors
    /// A page that the checks found bad.
    #[inline]
    pub fn alloc(&mut self, order: u8) -> Result<Option<u32>, BadPage> {
        let Some(list) = Self::list(order) else { return Ok(self.zone.alloc(order)) };
        if self.heads[list] == NIL {
            self.refill(list, order)?;
        }
        let first = self.heads[list];
        if first == NIL {
            return Ok(None);
        }
        let page = self.zone.page(first);
        self.heads[list] = page.next();
        self.pages -= 1 << order;
        page.take();
        Ok(Some(first))
    }

    #[cold]
    fn refill(&mut self, list: usize, order: u8) -> Result<(), BadPage> {
        let (zone, head, pages) = (self.zone, &mut self.heads[list], &mut self.pages);
        zone.rmqueue_bulk(order, Self::batch(order), |first| {
            zone.page(first).put();
            zone.page(first).link(*head);
            *head = first;
            *pages += 1 << order;
        })?;
        Ok(())
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// A page of it that is free already or was found bad.
    #[inline]
    pub fn free(&mut self, first: u32, order: u8) -> Result<(), BadPage> {
        let Some(list) = Self::list(order) else { return self.zone.free(first, order) };
        self.zone.check_freed(first, order)?;
        self.zone.page(first).link(self.heads[list]);
        self.heads[list] = first;
        self.pages += 1 << order;
        if self.pages > HIGH {
            self.flush(list, order, Self::batch(order));
        }
        Ok(())
    }

    #[cold]
    fn flush(&mut self, list: usize, order: u8, count: u32) {
        let _held = self.zone.lock.lock();
        for _ in 0..count {
            let first = self.heads[list];
            if first == NIL {
                return;
            }
            self.heads[list] = self.zone.page(first).next();
            self.pages -= 1 << order;
            self.zone.free_one(first, order);
        }
    }
}

impl Drop for Pcp<'_> {
    fn drop(&mut self) {
        for order in [0, 1, 2, 3, HUGE] {
            if let Some(list) = Self::list(order) {
                self.flush(list, order, u32::MAX);
            }
        }
    }
}
