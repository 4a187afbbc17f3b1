//! Statistics: counters, and their text as the kernel prints it
//! (`/sys/kernel/debug/modules/stats`).
//!
//! Bytes of a failed request are all bytes that it took from the platform: of the file, of
//! decompressed copies, of the module's memory. They are counted once, for the stage that failed.

pub use kmem_layout::board::{Stat, reason_name};

use crate::board::Board;

/// The counters of a loader at one moment. Duplicate modules are (name, requests, reasons).
pub type Stats = kmem_layout::board::Stats<Vec<(String, u64, u32)>>;

/// Reads the counters of a board of this process.
#[must_use]
pub(crate) fn of(board: &Board) -> Stats {
    use std::sync::atomic::Ordering::Relaxed;
    let header = board.header();
    let mut values = [0; Stat::ALL.len()];
    for (value, counter) in values.iter_mut().zip(&header.stats) {
        *value = counter.load(Relaxed);
    }
    Stats {
        values,
        failed: board.failed(),
        held: header.held.load(Relaxed),
        held_peak: header.held_peak.load(Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_the_kernels() {
        let mut stats = Stats {
            values: [67, 0, 0, 2, 1, 8_032_256, 5_771_264, 0, 0, 262_148, 4097],
            ..Stats::default()
        };
        stats.failed = vec![("kvm_intel".to_owned(), 249, 1), ("pcrypt".to_owned(), 20, 1)];
        let text = stats.to_string();
        let expected = "         Mods ever loaded\t67
     Mods failed on kread\t0
Mods failed on decompress\t0
  Mods failed on becoming\t2
      Mods failed on load\t1
        Total module size\t8032256
      Total mod text size\t5771264
       Failed kread bytes\t0
  Failed decompress bytes\t0
    Failed becoming bytes\t262148
        Failed kmod bytes\t4097
 Virtual mem wasted bytes\t266245
         Average mod size\t119885
    Average mod text size\t86139
  Avg fail becoming bytes\t131074
  Average fail load bytes\t4097
Duplicate failed modules:
              Module-name\t How-many-times\t                   Reason
                kvm_intel\t            249\t                 Becoming
                   pcrypt\t             20\t                 Becoming
";
        assert_eq!(text, expected);
        let empty = Stats::default().to_string();
        assert_eq!(empty.lines().count(), 12);
        assert!(!empty.contains("Average"));
    }
}
