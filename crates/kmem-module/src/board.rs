//! The board: where a loader's modules and statistics lie for readers outside the process.
//!
//! ```text
//! memfd kmem-modules, mapped privately:
//!   Header | [ModuleEntry; MODULES] | [FailedEntry; FAILED]
//! ```
//!
//! A private mapping of a memfd carries its name in `/proc/PID/maps`. There is one board per loader. Counts of
//! uses and the statistics live here and nowhere else; names and sizes are copies. `seq` is odd while
//! something is put up or taken down (by one thread at a time, under the loader's lock).
//!
//! A reader trusts nothing of it: see `kmem-snapshot`.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::stats::Stat;

/// First word of a board: `kmemmods`, stored last.
pub const MAGIC: u64 = u64::from_le_bytes(*b"kmemmods");
/// Layout version.
pub const VERSION: u32 = 1;
/// Name of the mapping: `/memfd:kmem-modules (deleted)`.
pub const MAPPING_NAME: &str = "kmem-modules";
/// Most modules at a time.
pub const MODULES: usize = 4096;
/// Most names of duplicates that are kept.
pub const FAILED: usize = 4096;
/// Words of the names of a module's users.
pub(crate) const USERS: usize = 20;
/// Room for counters.
pub const STATS: usize = 16;
/// Bytes of the header.
pub const HEADER: usize = 4096;

/// Values of [`ModuleEntry::state`].
pub mod state {
    /// The entry is not used.
    pub const FREE: u32 = 0;
    /// Being loaded.
    pub const COMING: u32 = 1;
    /// Loaded.
    pub const LIVE: u32 = 2;
    /// Being unloaded.
    pub const GOING: u32 = 3;
}

/// Bits of [`FailedEntry::reason`].
pub mod reason {
    /// Found to be a duplicate before its memory was made.
    pub const BECOMING: u32 = 1;
    /// Found to be a duplicate after that.
    pub const LOAD: u32 = 2;
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
    /// Counters in use: [`Stat::ALL`].
    pub stat_count: u32,
    /// `size_of::<ModuleEntry>()`.
    pub module_size: u32,
    /// [`MODULES`].
    pub module_capacity: u32,
    /// `size_of::<FailedEntry>()`.
    pub failed_size: u32,
    /// [`FAILED`].
    pub failed_capacity: u32,
    /// Entries for duplicates in use.
    pub failed_count: AtomicU32,
    /// Places for modules that were ever used: the first ones. What follows has no memory yet, and a reader would make some.
    pub module_used: AtomicU32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Odd while the board changes.
    pub seq: AtomicU64,
    /// Bytes that the loader holds for modules and loads now.
    pub held: AtomicU64,
    /// Most bytes it held.
    pub held_peak: AtomicU64,
    /// Counters, in the order of [`Stat::ALL`].
    pub stats: [AtomicU64; STATS],
}

/// A module.
#[repr(C)]
pub struct ModuleEntry {
    /// See [`state`].
    pub state: AtomicU32,
    /// Uses; the highest bit: nobody may use it any more.
    pub refs: AtomicU32,
    /// Address.
    pub base: AtomicU64,
    /// Bytes.
    pub size: AtomicU64,
    /// Bytes of code.
    pub text: AtomicU64,
    /// Name, filled up with zeroes.
    pub name: [AtomicU64; 7],
    /// Names of modules that use it, with commas; cut off where there is no room.
    pub users: [AtomicU64; USERS],
    /// Reserved, zero.
    pub reserved: AtomicU64,
}

/// A module that was asked for again.
#[repr(C)]
pub struct FailedEntry {
    /// How often.
    pub count: AtomicU64,
    /// See [`reason`].
    pub reason: AtomicU32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Name, filled up with zeroes.
    pub name: [AtomicU64; 7],
}

/// Bytes of a board.
pub const SIZE: usize =
    HEADER + MODULES * size_of::<ModuleEntry>() + FAILED * size_of::<FailedEntry>();

const _: () = {
    assert!(size_of::<Header>() <= HEADER && Stat::ALL.len() <= STATS);
    assert!(size_of::<ModuleEntry>() == 256 && size_of::<FailedEntry>() == 72);
};

/// Puts bytes into words, as many as there is room for with a zero behind.
pub(crate) fn store_text(words: &[AtomicU64], text: &[u8]) {
    let text = &text[..text.len().min(words.len() * 8 - 1)];
    for (number, word) in words.iter().enumerate() {
        let mut bytes = [0; 8];
        let part = text.get(number * 8..).unwrap_or_default();
        let len = part.len().min(8);
        bytes[..len].copy_from_slice(&part[..len]);
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// Whether words hold a text, or as much of it as there is room for.
fn is_text(words: &[AtomicU64], text: &[u8]) -> bool {
    let text = &text[..text.len().min(words.len() * 8 - 1)];
    words.iter().enumerate().all(|(number, word)| {
        let bytes = word.load(Ordering::Relaxed).to_le_bytes();
        let byte = |at: usize| text.get(at).copied().unwrap_or(0);
        (0..8).all(|i| bytes[i] == byte(number * 8 + i))
    })
}

fn text_of(words: &[AtomicU64]) -> Vec<u8> {
    let mut text: Vec<u8> =
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    text.truncate(text.iter().position(|&b| b == 0).unwrap_or(text.len()));
    text
}

/// A loader's board.
pub struct Board {
    at: NonNull<u8>,
}

// SAFETY: everything on it is atomic.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Puts up a board. None: there is no memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        let at = map()?;
        // SAFETY: zeroed memory that nobody knows of yet, large enough and aligned for the header.
        unsafe {
            let header = at.cast::<Header>().as_mut();
            header.version = VERSION;
            header.size = SIZE as u32;
            header.stat_count = Stat::ALL.len() as u32;
            header.module_size = size_of::<ModuleEntry>() as u32;
            header.module_capacity = MODULES as u32;
            header.failed_size = size_of::<FailedEntry>() as u32;
            header.failed_capacity = FAILED as u32;
            header.magic.store(MAGIC, Ordering::Release);
        }
        Some(Self { at })
    }

    /// The start.
    #[must_use]
    pub fn header(&self) -> &Header {
        // SAFETY: mapped as long as the board is; its plain fields do not change any more.
        unsafe { self.at.cast::<Header>().as_ref() }
    }

    /// All places for modules.
    #[must_use]
    pub fn modules(&self) -> &[ModuleEntry] {
        // SAFETY: mapped as long as the board is; atomics, of which zero is a value.
        unsafe { std::slice::from_raw_parts(self.at.add(HEADER).cast().as_ptr(), MODULES) }
    }

    fn all_failed(&self) -> &[FailedEntry] {
        let offset = HEADER + MODULES * size_of::<ModuleEntry>();
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.at.add(offset).cast().as_ptr(), FAILED) }
    }

    /// Modules that were asked for again, how often, and where that was found out.
    #[must_use]
    pub fn failed(&self) -> Vec<(String, u64, u32)> {
        let count = self.header().failed_count.load(Ordering::Acquire) as usize;
        let entries = self.all_failed().iter().take(count);
        entries
            .map(|entry| {
                let name = String::from_utf8_lossy(&text_of(&entry.name)).into_owned();
                let count = entry.count.load(Ordering::Relaxed);
                (name, count, entry.reason.load(Ordering::Relaxed))
            })
            .collect()
    }

    /// Counts a duplicate. One caller at a time.
    pub fn count_failed(&self, name: &str, reason: u32) {
        let used = self.header().failed_count.load(Ordering::Relaxed) as usize;
        let entries = self.all_failed();
        let found = entries[..used].iter().find(|entry| is_text(&entry.name, name.as_bytes()));
        let entry = match (found, entries.get(used)) {
            (Some(entry), _) => entry,
            (None, Some(entry)) => {
                store_text(&entry.name, name.as_bytes());
                self.header().failed_count.store(used as u32 + 1, Ordering::Release);
                entry
            }
            (None, None) => return,
        };
        entry.count.fetch_add(1, Ordering::Relaxed);
        entry.reason.fetch_or(reason, Ordering::Relaxed);
    }

    /// Changes what is on the board. One caller at a time.
    pub fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let seq = &self.header().seq;
        seq.fetch_add(1, Ordering::AcqRel);
        let result = change();
        seq.fetch_add(1, Ordering::Release);
        result
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, with this length; nobody has a reference into it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), SIZE) };
    }
}

/// Memory with the name; without it where the system has no memfd.
fn map() -> Option<NonNull<u8>> {
    let name = c"kmem-modules";
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a descriptor, or -1, which is refused.
    let sized = fd >= 0 && unsafe { libc::ftruncate(fd, SIZE as libc::off_t) } == 0;
    let anonymous = if sized { 0 } else { libc::MAP_ANONYMOUS };
    let file = if sized { fd } else { -1 };
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | anonymous);
    // SAFETY: a new mapping disturbs nobody.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, prot, flags, file, 0) };
    if fd >= 0 {
        // SAFETY: ours; the mapping does without.
        unsafe { libc::close(fd) };
    }
    if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) }
}
