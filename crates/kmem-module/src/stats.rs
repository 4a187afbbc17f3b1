//! Statistics: counters, and the kernel's text of them (`/sys/kernel/debug/modules/stats`).
//!
//! Bytes are all that a request took from the platform until it failed, for files, decompressed copies and module
//! memory alike. They are counted where the request failed, so no byte is counted twice.

use std::fmt;

use crate::board::{Board, reason};

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// Loads that succeeded.
    Loaded,
    /// Requests whose file could not be read.
    FailedKreads,
    /// Requests whose file could not be decompressed.
    FailedDecompress,
    /// Requests that failed before the module had memory: duplicates, and what is no module.
    FailedBecoming,
    /// Requests that failed after that.
    FailedLoads,
    /// Bytes of all modules loaded.
    TotalSize,
    /// Bytes of their code.
    TotalText,
    /// Bytes of [`Stat::FailedKreads`].
    KreadBytes,
    /// Bytes of [`Stat::FailedDecompress`].
    DecompressBytes,
    /// Bytes of [`Stat::FailedBecoming`].
    BecomingBytes,
    /// Bytes of [`Stat::FailedLoads`].
    LoadBytes,
}

impl Stat {
    /// All, in the order of the text.
    pub const ALL: [Self; 11] = [
        Self::Loaded,
        Self::FailedKreads,
        Self::FailedDecompress,
        Self::FailedBecoming,
        Self::FailedLoads,
        Self::TotalSize,
        Self::TotalText,
        Self::KreadBytes,
        Self::DecompressBytes,
        Self::BecomingBytes,
        Self::LoadBytes,
    ];

    /// Its name in JSON.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::FailedKreads => "failed_kreads",
            Self::FailedDecompress => "failed_decompress",
            Self::FailedBecoming => "failed_becoming",
            Self::FailedLoads => "failed_loads",
            Self::TotalSize => "total_bytes",
            Self::TotalText => "total_text_bytes",
            Self::KreadBytes => "failed_kread_bytes",
            Self::DecompressBytes => "failed_decompress_bytes",
            Self::BecomingBytes => "failed_becoming_bytes",
            Self::LoadBytes => "failed_load_bytes",
        }
    }

    /// The kernel's words for it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Loaded => "Mods ever loaded",
            Self::FailedKreads => "Mods failed on kread",
            Self::FailedDecompress => "Mods failed on decompress",
            Self::FailedBecoming => "Mods failed on becoming",
            Self::FailedLoads => "Mods failed on load",
            Self::TotalSize => "Total module size",
            Self::TotalText => "Total mod text size",
            Self::KreadBytes => "Failed kread bytes",
            Self::DecompressBytes => "Failed decompress bytes",
            Self::BecomingBytes => "Failed becoming bytes",
            Self::LoadBytes => "Failed kmod bytes",
        }
    }
}

/// The counters of a loader at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Values, in the order of [`Stat::ALL`].
    pub values: [u64; Stat::ALL.len()],
    /// Duplicates: name, how often, and [`reason`].
    pub failed: Vec<(String, u64, u32)>,
    /// Bytes that the loader holds now, and held at most.
    pub held: u64,
    /// Most bytes it held.
    pub held_peak: u64,
}

impl Stats {
    /// Reads a board of this process.
    #[must_use]
    pub fn of(board: &Board) -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        let header = board.header();
        let mut values = [0; Stat::ALL.len()];
        for (value, counter) in values.iter_mut().zip(&header.stats) {
            *value = counter.load(Relaxed);
        }
        Self {
            values,
            failed: board.failed(),
            held: header.held.load(Relaxed),
            held_peak: header.held_peak.load(Relaxed),
        }
    }

    /// A counter.
    #[must_use]
    pub fn get(&self, stat: Stat) -> u64 {
        self.values[stat as usize]
    }

    /// Bytes that failed requests took.
    #[must_use]
    pub fn wasted(&self) -> u64 {
        let bytes = [Stat::KreadBytes, Stat::DecompressBytes, Stat::BecomingBytes, Stat::LoadBytes];
        bytes.iter().fold(0, |sum, &stat| sum.saturating_add(self.get(stat)))
    }

    /// Averages that there is something for: label, bytes, and requests to divide them by.
    #[must_use]
    pub fn averages(&self) -> Vec<(&'static str, u64)> {
        [
            ("Average mod size", Stat::TotalSize, Stat::Loaded),
            ("Average mod text size", Stat::TotalText, Stat::Loaded),
            ("Avg fail kread bytes", Stat::KreadBytes, Stat::FailedKreads),
            ("Avg fail becoming bytes", Stat::BecomingBytes, Stat::FailedBecoming),
            ("Avg fail decomp bytes", Stat::DecompressBytes, Stat::FailedDecompress),
            ("Average fail load bytes", Stat::LoadBytes, Stat::FailedLoads),
        ]
        .into_iter()
        .filter(|(_, bytes, count)| self.get(*bytes) != 0 && self.get(*count) != 0)
        .map(|(label, bytes, count)| (label, self.get(bytes).div_ceil(self.get(count))))
        .collect()
    }
}

/// Words for bits of [`reason`].
#[must_use]
pub fn reason_name(bits: u32) -> &'static str {
    const BOTH: u32 = reason::BECOMING | reason::LOAD;
    match bits & BOTH {
        reason::BECOMING => "Becoming",
        reason::LOAD => "Load",
        BOTH => "Becoming & Load",
        _ => "unknown",
    }
}

/// The kernel's text, to the byte.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |label: &str, value: u64| writeln!(f, "{label:>25}\t{value}");
        for stat in Stat::ALL {
            line(stat.label(), self.get(stat))?;
        }
        line("Virtual mem wasted bytes", self.wasted())?;
        for (label, value) in self.averages() {
            line(label, value)?;
        }
        if self.failed.is_empty() {
            return Ok(());
        }
        f.write_str("Duplicate failed modules:\n")?;
        writeln!(f, "{:>25}\t{:>15}\t{:>25}", "Module-name", "How-many-times", "Reason")?;
        for (name, count, bits) in &self.failed {
            writeln!(f, "{name:>25}\t{count:>15}\t{:>25}", reason_name(*bits))?;
        }
        Ok(())
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
        stats.failed = vec![("kvm_intel".to_owned(), 249, 1), ("pcrypt".to_owned(), 20, 3)];
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
                   pcrypt\t             20\t          Becoming & Load
";
        assert_eq!(text, expected);
        let empty = Stats::default().to_string();
        assert_eq!(empty.lines().count(), 12);
        assert!(!empty.contains("Average"));
    }
}
