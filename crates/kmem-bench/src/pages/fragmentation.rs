//! Free huge pages left after random use, against the classic allocator.
//!
//! A zone is filled to nine tenths with blocks of a mix of orders. Then random blocks are freed and
//! others allocated, many times. The figure is the number of wholly free 2 MiB pageblocks at the
//! end, against the number that the free pages would make. Both zones get the same random numbers,
//! and neither has lists of CPUs.

use super::section::bare;
use crate::prng::Prng;
use crate::table::Grid;
use kmem_buddy::{Checks, MAX_ORDER, Zone as Buddy};
use kmem_core::os::regions::Regions;
use kmem_core::page::{Run, Zone};
use kmem_core::units::{Item, Order, PAGEBLOCK_PAGES, PageCount, Pfn};
use serde::Serialize;

/// Number of 2 MiB pageblocks of the zone: 2 GiB.
const PAGEBLOCKS: u32 = 1024;
/// Pages in use, in percent.
const FILL: u32 = 90;
/// Number of replacements, as a multiple of the live blocks.
const TURNS: usize = 10;

/// One figure of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Fragmentation {
    /// Name of the allocator.
    variant: &'static str,
    /// The orders of the blocks.
    orders: &'static str,
    /// Pages in use, in percent.
    fill_percent: u32,
    /// Free pages, in pageblocks.
    free_frames_at_best: f64,
    /// Wholly free pageblocks.
    free_pageblocks: u32,
}

/// Orders of blocks. An order is as likely as it is frequent here.
const MIXES: [(&str, &[u8]); 3] =
    [("0", &[0]), ("0..3", &[0, 0, 0, 0, 1, 1, 2, 3]), ("0..6", &[0, 0, 1, 2, 3, 4, 5, 6])];

/// A zone of either allocator.
trait Blocks {
    fn alloc(&mut self, order: u8) -> Option<u32>;
    fn free(&mut self, first: u32, order: u8);
    /// Number of wholly free pageblocks.
    fn whole(&mut self) -> u32;
}

impl Blocks for Buddy {
    fn alloc(&mut self, order: u8) -> Option<u32> {
        Buddy::alloc(self, order)
    }

    fn free(&mut self, first: u32, order: u8) {
        Buddy::free(self, first, order).expect("it was out");
    }

    fn whole(&mut self) -> u32 {
        (9..=MAX_ORDER).map(|order| self.free_blocks(order) << (order - 9)).sum()
    }
}

struct Kmem(&'static Zone, &'static Regions);

impl Blocks for Kmem {
    fn alloc(&mut self, order: u8) -> Option<u32> {
        Some(self.0.on(self.1).claim_order(Order(order))?.start.0)
    }

    fn free(&mut self, first: u32, order: u8) {
        self.0.give(Run { start: Pfn(first), pages: PageCount(1 << order) }).expect("it was out");
    }

    fn whole(&mut self) -> u32 {
        let mut pageblocks = vec![Item::NONE; PAGEBLOCKS as usize];
        self.0.on(self.1).claim_pageblocks_bulk(&mut pageblocks) as u32
    }
}

/// Uses a zone at random. Returns the numbers of wholly free pageblocks and of free pages.
fn churn(zone: &mut impl Blocks, orders: &[u8]) -> (u32, u32) {
    let full = PAGEBLOCKS * PAGEBLOCK_PAGES / 100 * FILL;
    let mut prng = Prng::new(7);
    let mut held: Vec<(u32, u8)> = Vec::new();
    let mut used = 0;
    let mut left = None;
    while left != Some(0) {
        if used < full {
            let order = orders[prng.between(0, orders.len() - 1)];
            if let Some(first) = zone.alloc(order) {
                held.push((first, order));
                used += 1 << order;
                continue;
            }
        }
        let turns = left.get_or_insert(TURNS * held.len());
        *turns -= 1;
        let (first, order) = held.swap_remove(prng.between(0, held.len() - 1));
        zone.free(first, order);
        used -= 1 << order;
    }
    (zone.whole(), PAGEBLOCKS * PAGEBLOCK_PAGES - used)
}

/// Measures both allocators.
pub(super) fn measure() -> Vec<Fragmentation> {
    let mut all = Vec::new();
    for (name, orders) in MIXES {
        let (zone, platform) = bare(PAGEBLOCKS * PAGEBLOCK_PAGES);
        let whole = zone.on(platform).claim(PageCount(PAGEBLOCKS * PAGEBLOCK_PAGES), PageCount(1));
        assert!(whole.is_some_and(|run| zone.give(run).is_ok()));
        let kmem = churn(&mut Kmem(zone, platform), orders);
        let buddy = churn(&mut Buddy::new(PAGEBLOCKS * PAGEBLOCK_PAGES, Checks::Off), orders);
        for (variant, (free_pageblocks, free_pages)) in [("kmem", kmem), ("reference", buddy)] {
            all.push(Fragmentation {
                variant,
                orders: name,
                fill_percent: FILL,
                free_frames_at_best: f64::from(free_pages) / f64::from(PAGEBLOCK_PAGES),
                free_pageblocks,
            });
        }
    }
    all
}

/// The table as text.
pub(super) fn text(all: &[Fragmentation]) -> String {
    let mut grid = Grid::default();
    grid.push(["random use at 90 %: orders", "zone", "free pageblocks", "at best"]);
    for one in all {
        grid.push([
            one.orders.to_owned(),
            one.variant.to_owned(),
            one.free_pageblocks.to_string(),
            format!("{:.1}", one.free_frames_at_best),
        ]);
    }
    grid.render()
}
