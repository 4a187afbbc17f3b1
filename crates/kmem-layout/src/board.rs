//! The board: a loader's modules and statistics, for readers outside the process.
//!
//! ```text
//! memfd kmem-modules, mapped privately:
//!   Header | [ModuleEntry; MODULES] | [FailedEntry; FAILED]
//! ```
//!
//! Readers find the mapping by its name in `/proc/PID/maps`. There is one board per loader. Counts
//! of uses and the statistics live only here; names and sizes are copies. [`Header::seq`] is odd
//! while an entry changes. One thread at a time makes changes, under the loader's lock.

use core::fmt;
use core::ops::Deref;

use crate::atomic::{AtomicU32, AtomicU64};

/// First word of a board: `kmemmods`, stored last.
pub const MAGIC: u64 = u64::from_le_bytes(*b"kmemmods");
/// Layout version; a reader refuses any other.
pub const VERSION: u32 = 1;
/// Name of the memfd behind the board, as `/memfd:<name> (deleted)` in `/proc/PID/maps`.
pub const MAPPING_NAME: &str = "kmem-modules";
/// Most modules at a time.
pub const MODULES: usize = 4096;
/// Most duplicates that are named.
pub const FAILED: usize = 4096;
/// Words of 8 bytes for the names of a module's users.
pub const USERS: usize = 20;
/// Most counters.
pub const STATS: usize = 16;
/// Bytes of the header.
pub const HEADER: usize = 4096;

/// Bit of [`ModuleEntry::refs`]: the module accepts no more users.
pub const CLOSED: u32 = 1 << 31;

/// Values of [`ModuleEntry::state`].
pub mod state {
    /// The entry is not used.
    pub const FREE: u32 = 0;
    /// The module is being loaded.
    pub const COMING: u32 = 1;
    /// The module is loaded.
    pub const LIVE: u32 = 2;
    /// The module is being unloaded.
    pub const GOING: u32 = 3;
}

/// Bits of [`FailedEntry::reason`].
pub mod reason {
    /// The loader found the duplicate before it allocated memory for the module. It finds all of
    /// them then, so the kernel's second reason (`Load`) does not exist.
    pub const BECOMING: u32 = 1;
}

/// Start of a board.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of the board.
    pub size: u32,
    /// Number of counters in use, those of [`Stat::ALL`].
    pub stat_count: u32,
    /// `size_of::<ModuleEntry>()`.
    pub module_size: u32,
    /// [`MODULES`].
    pub module_capacity: u32,
    /// `size_of::<FailedEntry>()`.
    pub failed_size: u32,
    /// [`FAILED`].
    pub failed_capacity: u32,
    /// Number of entries for duplicates in use.
    pub failed_count: AtomicU32,
    /// Number of entries for modules that were ever used, the first ones. The others have no memory
    /// yet, and a read would give them some.
    pub module_used: AtomicU32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Odd while the board changes.
    pub seq: AtomicU64,
    /// Bytes that the loader holds for modules and for loads in progress.
    pub held: AtomicU64,
    /// Most bytes that it held.
    pub held_peak: AtomicU64,
    /// Counters, in the order of [`Stat::ALL`].
    pub stats: [AtomicU64; STATS],
}

/// A module.
#[repr(C)]
pub struct ModuleEntry {
    /// See [`state`].
    pub state: AtomicU32,
    /// Number of uses, and [`CLOSED`].
    pub refs: AtomicU32,
    /// Address of its memory.
    pub base: AtomicU64,
    /// Bytes of its memory.
    pub size: AtomicU64,
    /// Bytes of its code.
    pub text: AtomicU64,
    /// Name, padded with zeroes.
    pub name: [AtomicU64; 7],
    /// Names of modules that use it, separated by commas; cut off where there is no room.
    pub users: [AtomicU64; USERS],
    /// Address of its symbols: an ELF file in its memory, whose section table is last. 0: none.
    pub symbols: AtomicU64,
}

/// A duplicate: a module whose load failed because it was loaded already.
#[repr(C)]
pub struct FailedEntry {
    /// Number of such loads.
    pub count: AtomicU64,
    /// See [`reason`].
    pub reason: AtomicU32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Name, padded with zeroes.
    pub name: [AtomicU64; 7],
}

/// Bytes of a board.
pub const SIZE: usize =
    HEADER + MODULES * size_of::<ModuleEntry>() + FAILED * size_of::<FailedEntry>();

const _: () = {
    assert!(size_of::<Header>() <= HEADER && Stat::ALL.len() <= STATS);
    assert!(size_of::<ModuleEntry>() == 256 && size_of::<FailedEntry>() == 72);
};

/// A counter of a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// Loads that succeeded.
    Loaded,
    /// Requests whose file could not be read.
    FailedKreads,
    /// Requests whose file could not be decompressed.
    FailedDecompress,
    /// Requests that failed before the module had memory: duplicates, and files that are no module.
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
    /// All counters, in the order of the text.
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

    /// Name of the counter in JSON.
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

    /// Name of the counter in the kernel's text.
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

/// Counters of a loader at one moment. `F` has the duplicates: name, number of loads, [`reason`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats<F> {
    /// Values, in the order of [`Stat::ALL`].
    pub values: [u64; Stat::ALL.len()],
    /// Duplicates.
    pub failed: F,
    /// Bytes that the loader holds.
    pub held: u64,
    /// Most bytes that it held.
    pub held_peak: u64,
}

impl<F> Stats<F> {
    /// Value of a counter.
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

    /// Averages, as label and value, rounded up. Those of which a part is zero are left out.
    pub fn averages(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("Average mod size", Stat::TotalSize, Stat::Loaded),
            ("Average mod text size", Stat::TotalText, Stat::Loaded),
            ("Avg fail kread bytes", Stat::KreadBytes, Stat::FailedKreads),
            ("Avg fail becoming bytes", Stat::BecomingBytes, Stat::FailedBecoming),
            ("Avg fail decomp bytes", Stat::DecompressBytes, Stat::FailedDecompress),
            ("Average fail load bytes", Stat::LoadBytes, Stat::FailedLoads),
        ]
        .into_iter()
        .map(|(label, bytes, count)| (label, self.get(bytes), self.get(count)))
        .filter(|&(_, bytes, count)| bytes != 0 && count != 0)
        .map(|(label, bytes, count)| (label, bytes.div_ceil(count)))
    }
}

/// Text for bits of [`reason`], as in the kernel.
#[must_use]
pub fn reason_name(bits: u32) -> &'static str {
    if bits & reason::BECOMING != 0 { "Becoming" } else { "unknown" }
}

/// Writes the kernel's text (`/sys/kernel/debug/modules/stats`), byte by byte.
impl<F, N> fmt::Display for Stats<F>
where
    F: Deref<Target = [(N, u64, u32)]>,
    N: AsRef<str>,
{
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
        for (name, count, bits) in self.failed.iter() {
            writeln!(f, "{:>25}\t{count:>15}\t{:>25}", name.as_ref(), reason_name(*bits))?;
        }
        Ok(())
    }
}
