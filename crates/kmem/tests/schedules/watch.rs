//! What holds at every moment.

use kmem::root::ZoneBlock;
use kmem::units::FRAME_PAGES;

/// Credit of a frame that is taken as a whole.
const HUGE: u16 = 0xFFFF;

/// No frame has more credit than free pages. Reads the tables as a reader outside does, for what looks in
/// every point must not be one.
pub(crate) fn credit_is_covered(block: &ZoneBlock) {
    // SAFETY: the words of a zone that is there; nobody writes at this moment.
    unsafe {
        let committed = block.committed.as_ptr().read() as u32;
        for frame in 0..committed / FRAME_PAGES {
            let credit = (block.credit as *const u16).add(frame as usize).read();
            let rows = (block.rows as *const u64).add(frame as usize * 8);
            let free: u32 = (0..8).map(|row| rows.add(row).read().count_ones()).sum();
            assert!(
                credit == HUGE || u32::from(credit) <= free,
                "frame {frame} has {free} free pages and credit for {credit}"
            );
        }
    }
}
