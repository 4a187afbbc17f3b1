//! Recounts of a zone at rest.

use super::credit::{Credit, State};
use super::{Zone, lane};
use crate::units::{MAX_ORDER, PageCount, Pageblock, Pfn};

/// The first thing that [`Zone::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneFault {
    /// The credit of a pageblock is not the number of its free bits.
    Credit {
        /// The pageblock.
        pageblock: Pageblock,
        /// Its credit.
        credit: u16,
        /// Its free bits.
        bits: u32,
    },
    /// A search cannot find a pageblock that has free pages.
    Hint {
        /// The pageblock.
        pageblock: Pageblock,
    },
}

impl Zone {
    /// Recounts the zone: for every committed pageblock credit equals free bits, and hints lead to
    /// wholly free and partly used ones. For a zone at rest.
    ///
    /// # Errors
    /// The first pageblock of which that is not true.
    pub fn validate(&self) -> Result<(), ZoneFault> {
        for pageblock in Pageblock(0).up_to(self.end()) {
            let bits = self.free_bits(pageblock);
            let credit = self.credit(pageblock);
            let expected =
                if credit == Credit::HUGE { PageCount::PAGEBLOCK } else { credit.pages() };
            if bits != expected.0 {
                return Err(ZoneFault::Credit { pageblock, credit: credit.0, bits });
            }
            let hinted = match credit.state() {
                State::Partial => self.is_found(pageblock),
                State::Free => self.pageblocks.contains(lane::FREE, pageblock.0),
                State::Taken => true,
            };
            if !hinted {
                return Err(ZoneFault::Hint { pageblock });
            }
        }
        Ok(())
    }

    /// Bits of a pageblock that say "free".
    pub(super) fn free_bits(&self, pageblock: Pageblock) -> u32 {
        self.rows_of(pageblock).map(|(_, row)| row.load().count_ones()).sum()
    }

    /// Free blocks by order, as a buddy allocator would have them: aligned, and as large as
    /// possible. For a zone at rest.
    pub fn free_blocks(&self) -> [u64; MAX_ORDER as usize + 1] {
        let mut blocks = [0; MAX_ORDER as usize + 1];
        let committed = self.committed().0;
        let is_free = |page: u32| {
            let page = Pfn(page);
            !self.is_whole(page.pageblock()) && self.row(page).load() >> (page.0 % 64) & 1 != 0
        };
        let mut page = 0;
        while page < committed {
            if !is_free(page) {
                page += 1;
                continue;
            }
            let most = if page == 0 { MAX_ORDER } else { page.trailing_zeros().min(MAX_ORDER) };
            let mut order = 0;
            while order < most
                && page + (2 << order) <= committed
                && (page + (1 << order)..page + (2 << order)).all(is_free)
            {
                order += 1;
            }
            blocks[order as usize] += 1;
            page += 1 << order;
        }
        blocks
    }

    /// Number of free pages at this moment.
    pub fn free_pages(&self) -> u64 {
        let credits = Pageblock(0).up_to(self.end()).map(|pageblock| self.credit(pageblock));
        credits.map(|credit| u64::from(credit.pages().0)).sum()
    }
}
