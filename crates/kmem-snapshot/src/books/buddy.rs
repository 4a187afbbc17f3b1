//! Free blocks per order, as `/proc/buddyinfo` shows them, and how fragmented they are.
//!
//! A zone keeps bits, not lists of blocks. A block is counted where a buddy allocator would have
//! one. It is an aligned power of two of free pages, and part of no larger one.

use serde::Serialize;

use super::follow::{Followed, follow, told};
use super::root::Root;
use super::source::Source;
use super::zone::{PAGEBLOCK_PAGES, WHOLE_TAKEN, Zone};
use crate::core_file::CoreFile;
use crate::error::ReadError;
use crate::image::Image;
use crate::process::Process;

/// Count of orders.
pub const ORDERS: usize = 12;
/// Order of a pageblock.
const PAGEBLOCK_ORDER: usize = PAGEBLOCK_PAGES.ilog2() as usize;
/// Rows of a pageblock: words of 64 pages.
const ROWS: usize = PAGEBLOCK_PAGES as usize / 64;

/// The free pages of one zone. Pages that CPUs keep on their arrays count as used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Buddy {
    /// Address of the root block that the zone belongs to.
    pub root: u64,
    /// NUMA node of its memory.
    pub node: u32,
    /// Address of its first page.
    pub base: u64,
    /// Pages that it may hand out so far.
    pub pages: u64,
    /// Free blocks by order.
    pub free: [u64; ORDERS],
}

/// The zones of a process, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Buddyinfo {
    /// Pid of the process.
    pub pid: u32,
    /// Its zones.
    pub zones: Vec<Buddy>,
    /// Why root blocks could not be followed, beside those that could.
    pub faults: Vec<String>,
}

impl Buddyinfo {
    /// Reads the zones of a live process, with or without books.
    ///
    /// # Errors
    ///
    /// The errors of [`Snapshot::take`](super::Snapshot::take).
    pub fn take(process: &Process) -> Result<Self, ReadError> {
        Self::of(&Image::Live(process))
    }

    /// Reads the zones of a dead process from its core file.
    ///
    /// # Errors
    ///
    /// The errors of [`Snapshot::of_core`](super::Snapshot::of_core).
    pub fn of_core(core: &CoreFile) -> Result<Self, ReadError> {
        Self::of(&Image::Core(core))
    }

    fn of(image: &Image<'_>) -> Result<Self, ReadError> {
        let Followed { kept, faults, .. } = follow(image, &image.budget(), zones)?;
        image.verify()?;
        Ok(Self {
            pid: image.pid(),
            zones: kept.into_iter().flatten().collect(),
            faults: told(&faults),
        })
    }
}

fn zones(source: &Source<'_>, root: &Root) -> Result<Vec<Buddy>, ReadError> {
    root.zones(source)?.iter().map(|zone| count(source, root, zone)).collect()
}

/// Counts the free blocks of a zone, pageblock by pageblock.
fn count(source: &Source<'_>, root: &Root, zone: &Zone) -> Result<Buddy, ReadError> {
    let free = [0; ORDERS];
    let mut buddy =
        Buddy { root: root.at, node: zone.node, base: zone.base, pages: zone.committed, free };
    // For each pageblock, whether all of it is free.
    let mut whole = Vec::new();
    for pages in zone.windows() {
        root.draw(source.budget.work((pages.end - pages.start).div_ceil(8)))?;
        // The last pageblock is read to its end: pages beyond it are not free.
        let all = pages.start..pages.end.next_multiple_of(PAGEBLOCK_PAGES);
        let credit = zone.credit(source, &all)?;
        root.draw(source.budget.memory(credit.len() as u64))?;
        let rows = zone.bits(source, zone.rows, &all)?;
        for (rows, credit) in rows.chunks_exact(ROWS * 8).zip(credit) {
            let words = rows.as_chunks().0.iter().map(|row| u64::from_le_bytes(*row));
            let taken = credit == WHOLE_TAKEN;
            whole.push(!taken && count_pageblock(words, &mut buddy.free));
        }
    }
    join(whole, &mut buddy.free);
    Ok(buddy)
}

/// Counts the free blocks inside a pageblock. Returns true, and counts nothing, when all of it is
/// free.
fn count_pageblock(rows: impl Iterator<Item = u64>, free: &mut [u64; ORDERS]) -> bool {
    let mut full = Vec::with_capacity(ROWS);
    for row in rows {
        // Bit n is set when the block of this order at page n is free.
        let (mut blocks, mut starts) = (row, u64::MAX);
        for (order, free) in free.iter_mut().enumerate().take(6) {
            let step = 1 << order;
            // Every second block of this order starts a block of the next one.
            starts &= u64::MAX / ((1 << step) + 1);
            let pairs = blocks & blocks >> step & starts;
            *free += u64::from(blocks.count_ones() - 2 * pairs.count_ones());
            blocks = pairs;
        }
        full.push(blocks != 0);
    }
    let mut order = 6;
    while full.len() > 1 {
        full = pairs(&full, order, free);
        order += 1;
    }
    full == [true]
}

/// Joins free neighbours of an order into blocks of the next order. Counts those that stay alone.
fn pairs(blocks: &[bool], order: usize, free: &mut [u64; ORDERS]) -> Vec<bool> {
    let mut joined = Vec::with_capacity(blocks.len().div_ceil(2));
    for two in blocks.chunks(2) {
        let both = two == [true, true];
        if !both {
            free[order] += two.iter().filter(|free| **free).count() as u64;
        }
        joined.push(both);
    }
    joined
}

/// Joins free pageblocks into blocks of the larger orders, and counts these.
fn join(mut blocks: Vec<bool>, free: &mut [u64; ORDERS]) {
    for order in PAGEBLOCK_ORDER..ORDERS - 1 {
        blocks = pairs(&blocks, order, free);
    }
    free[ORDERS - 1] += blocks.iter().filter(|free| **free).count() as u64;
}

impl Buddy {
    /// Count of free pages.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.free.iter().enumerate().map(|(order, blocks)| blocks << order).sum()
    }

    /// Fragmentation index of an order, in thousandths: why a request of this order would fail.
    /// Near 0 for lack of memory, near 1000 because of fragmentation; -1000 when it would not
    /// fail. (Gorman and Whitcroft: The What, The Why and the Where To of Anti-Fragmentation,
    /// 2006; `fragmentation_index()` in Linux `mm/vmstat.c`.)
    #[must_use]
    pub fn fragmentation_index(&self, order: usize) -> i64 {
        let blocks: u64 = self.free.iter().sum();
        if blocks == 0 {
            return 0;
        }
        if self.free[order..].iter().any(|blocks| *blocks > 0) {
            return -1000;
        }
        let pages = i64::try_from(self.free_pages()).unwrap_or(i64::MAX / 1000);
        let requests = pages.saturating_mul(1000) >> order;
        1000 - (1000 + requests) / i64::try_from(blocks).unwrap_or(i64::MAX)
    }

    /// Part of the free memory that is in blocks too small for an order, in thousandths
    /// (`unusable_free_index()` in Linux `mm/vmstat.c`).
    #[must_use]
    pub fn unusable_index(&self, order: usize) -> u64 {
        let pages = self.free_pages();
        let small: u64 = self.free[..order].iter().enumerate().map(|(o, n)| n << o).sum();
        small.saturating_mul(1000).checked_div(pages).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the blocks one after the other, by plain search.
    fn plain(free: &[bool]) -> [u64; ORDERS] {
        let mut count = [0; ORDERS];
        let mut at = 0;
        while at < free.len() {
            let fits = |order: &usize| {
                let size = 1 << order;
                at % size == 0 && at + size <= free.len() && free[at..at + size].iter().all(|f| *f)
            };
            match (0..ORDERS).rev().find(fits) {
                Some(order) => {
                    count[order] += 1;
                    at += 1 << order;
                }
                None => at += 1,
            }
        }
        count
    }

    #[test]
    fn blocks_are_counted_as_a_plain_search_finds_them() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for round in 0..200 {
            let mut free = vec![true; 9 * 512];
            for _ in 0..round * round / 20 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let (at, len) = (state as usize % free.len(), 1 << (state >> 40 & 7));
                let end = (at + len).min(free.len());
                free[at..end].fill(state >> 60 & 3 == 0);
            }
            let mut count = [0; ORDERS];
            let word = |row: &[bool]| row.iter().rev().fold(0, |w: u64, f| w << 1 | u64::from(*f));
            let whole = free
                .chunks(512)
                .map(|block| count_pageblock(block.chunks(64).map(word), &mut count))
                .collect();
            join(whole, &mut count);
            assert_eq!(count, plain(&free), "round {round}");
        }
    }

    #[test]
    fn the_index_tells_fragmentation_from_lack_of_memory() {
        let with = |free: &[(usize, u64)]| {
            let mut buddy = Buddy { root: 0, node: 0, base: 0, pages: 0, free: [0; ORDERS] };
            free.iter().for_each(|&(order, blocks)| buddy.free[order] = blocks);
            buddy
        };
        assert_eq!(with(&[]).fragmentation_index(3), 0);
        assert_eq!(with(&[(3, 1)]).fragmentation_index(3), -1000);
        // 1000 single pages: only fragmentation makes a request of 8 fail.
        assert_eq!(with(&[(0, 1000)]).fragmentation_index(3), 1000 - (1000 + 125_000) / 1000);
        // One page: the request fails for lack of memory.
        assert_eq!(with(&[(0, 1)]).fragmentation_index(9), 1000 - (1000 + 1));
        assert_eq!(with(&[(0, 8), (3, 1)]).unusable_index(3), 500);
        assert_eq!(with(&[(0, 8), (3, 1)]).free_pages(), 16);
        assert_eq!(with(&[]).unusable_index(3), 0);
    }
}
