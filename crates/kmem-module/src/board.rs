//! A loader's board: memory with its modules and counters, for readers outside the process.
//! [`kmem_layout::board`] defines the layout.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

pub use kmem_layout::board::{
    CLOSED, FAILED, FailedEntry, HEADER, Header, MAGIC, MAPPING_NAME, MODULES, ModuleEntry, SIZE,
    Stat, USERS, VERSION, reason, state,
};

/// Stores a text in words, cut off so that a zero byte follows.
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

/// Returns whether words hold a text, as [`store_text`] stores it.
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

// SAFETY: all fields that change are atomics.
unsafe impl Send for Board {}
// SAFETY: all fields that change are atomics.
unsafe impl Sync for Board {}

impl Board {
    /// Maps a board. `None`: there is no memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        let at = map()?;
        // SAFETY: fresh zeroed memory that no other code uses, large enough and aligned.
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

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        // SAFETY: mapped as long as the board lives; the fields that are no atomics never change.
        unsafe { self.at.cast::<Header>().as_ref() }
    }

    /// All entries for modules, used or not.
    #[must_use]
    pub fn modules(&self) -> &[ModuleEntry] {
        // SAFETY: mapped as long as the board lives; atomics, for which zero is valid.
        unsafe { std::slice::from_raw_parts(self.at.add(HEADER).cast().as_ptr(), MODULES) }
    }

    fn all_failed(&self) -> &[FailedEntry] {
        let offset = HEADER + MODULES * size_of::<ModuleEntry>();
        // SAFETY: mapped as long as the board lives; atomics, for which zero is valid.
        unsafe { std::slice::from_raw_parts(self.at.add(offset).cast().as_ptr(), FAILED) }
    }

    /// Names of duplicate modules, the number of requests for each, and their reasons ([`reason`]).
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

    /// Counts a request for a duplicate module. One thread at a time may call it.
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

    /// Calls `change`, which changes the board, while readers see that it changes. One thread at a
    /// time may call it.
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
        // SAFETY: mapped in `map` with this length; references into it borrow the board.
        unsafe { libc::munmap(self.at.as_ptr().cast(), SIZE) };
    }
}

/// Maps the memory, from a memfd whose name readers look for. Anonymous if there can be no memfd.
fn map() -> Option<NonNull<u8>> {
    let (name, mut limit) = (c"kmem-modules", libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    // SAFETY: the kernel fills `limit`, and `name` is a C string.
    let (fd, sized) = unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit);
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        // The kernel ends a program that makes a file longer than that, a memfd among them.
        let fits = fd >= 0 && limit.rlim_cur >= SIZE as libc::rlim_t;
        (fd, fits && libc::ftruncate(fd, SIZE as libc::off_t) == 0)
    };
    let anonymous = if sized { 0 } else { libc::MAP_ANONYMOUS };
    let file = if sized { fd } else { -1 };
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | anonymous);
    // SAFETY: a new mapping replaces none.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, prot, flags, file, 0) };
    if fd >= 0 {
        // SAFETY: opened above; the mapping does not need it.
        unsafe { libc::close(fd) };
    }
    if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) }
}
