//! What holds at every moment.

use kmem_core::units::PAGEBLOCK_PAGES;
use kmem_layout::root::ZoneBlock;

/// Credit of a pageblock that is taken as a whole.
const HUGE: u16 = 0xFFFF;

/// No pageblock has more credit than free pages. Reads the tables as a reader outside does, for what looks in
/// every point must not be one.
pub(crate) fn credit_is_covered(block: &ZoneBlock) {
    // SAFETY: the words of a zone that is there; nobody writes at this moment.
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
