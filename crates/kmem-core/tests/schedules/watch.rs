//! Invariants of a zone at every moment.

use kmem_core::units::PAGEBLOCK_PAGES;
use kmem_layout::root::ZoneBlock;

/// Credit of a pageblock that is taken as a whole.
const HUGE: u16 = 0xFFFF;

/// Checks that no pageblock has more credit than free pages. It reads the tables as an outside
/// reader does: a look must not be a point of the schedule itself.
pub(crate) fn credit_is_covered(block: &ZoneBlock) {
    // SAFETY: words of a living zone; no thread of the model runs during the look.
    unsafe {
        let committed = block.committed.as_ptr().read() as u32;
        for pageblock in 0..committed / PAGEBLOCK_PAGES {
            let credit = (block.credit as *const u16).add(pageblock as usize).read();
            let rows = (block.rows as *const u64).add(pageblock as usize * 8);
            let free: u32 = (0..8).map(|row| rows.add(row).read().count_ones()).sum();
            assert!(
                credit == HUGE || u32::from(credit) <= free,
                "pageblock {pageblock} has {free} free pages and credit for {credit}"
            );
        }
    }
}
