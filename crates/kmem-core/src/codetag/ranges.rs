//! The loaded objects that static tags belong to.

use super::tag::StaticTag;
use crate::sync::{AtomicU64, Ordering};

/// Most objects with static tags at a time. The tags of further objects have no module.
const MAX_RANGES: usize = 1024;
/// Most bytes of a module's name, the zero at its end included.
pub(super) const MAX_MODULE: usize = 56;

/// The tags of one object, and its name. Free while `start` is 0.
struct Range {
    start: AtomicU64,
    stop: AtomicU64,
    /// Address of the tags that have numbers; 0 for none.
    listed: AtomicU64,
    /// The name, ended by a zero.
    name: [AtomicU64; MAX_MODULE / 8],
}

/// The loaded objects.
pub(super) struct Ranges([Range; MAX_RANGES]);

/// `start` of a range while a thread fills it in.
const BUSY: u64 = 1;

impl Ranges {
    pub(super) const fn new() -> Self {
        Self(
            [const {
                Range {
                    start: AtomicU64::new(0),
                    stop: AtomicU64::new(0),
                    listed: AtomicU64::new(0),
                    name: [const { AtomicU64::new(0) }; MAX_MODULE / 8],
                }
            }; MAX_RANGES],
        )
    }

    /// Adds an object and its name, of which it keeps the end. Does nothing if the object is there
    /// already, or if there are [`MAX_RANGES`] objects.
    pub(super) fn add(&self, start: *const StaticTag, stop: *const StaticTag, module: &[u8]) {
        if self.0.iter().any(|range| range.start.load(Ordering::Acquire) == start as u64) {
            return;
        }
        let free = |range: &&Range| {
            range.start.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let Some(range) = self.0.iter().find(free) else {
            return;
        };
        let module = &module[module.len().saturating_sub(MAX_MODULE - 1)..];
        for (i, word) in range.name.iter().enumerate() {
            let mut bytes = [0; 8];
            let part = module.get(i * 8..).unwrap_or_default();
            let len = part.len().min(8);
            bytes[..len].copy_from_slice(&part[..len]);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        range.listed.store(0, Ordering::Relaxed);
        range.stop.store(stop as u64, Ordering::Relaxed);
        range.start.store(start as u64, Ordering::Release);
    }

    /// Removes an object. False: it is not there.
    pub(super) fn remove(&self, start: *const StaticTag) -> bool {
        let is = |range: &&Range| {
            let start = start as u64;
            range.start.compare_exchange(start, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.0.iter().find(is).is_some()
    }

    /// Notes that the tags from `tags` on are about to get numbers. False: they have them already,
    /// or the object that starts at `start` is not there.
    pub(super) fn list(&self, start: *const StaticTag, tags: *const StaticTag) -> bool {
        let is = |range: &&Range| range.start.load(Ordering::Acquire) == start as u64;
        let swap = |range: &Range| range.listed.swap(tags as u64, Ordering::Relaxed);
        self.0.iter().find(is).is_some_and(|range| swap(range) != tags as u64)
    }

    /// Name of the module that a tag belongs to, and its length in bytes; 0 for an unknown module.
    pub(super) fn module(&self, tag: *const StaticTag) -> ([u8; MAX_MODULE], usize) {
        let mut name = [0; MAX_MODULE];
        let holds = |range: &&Range| {
            let start = range.start.load(Ordering::Acquire);
            start > BUSY && (start..range.stop.load(Ordering::Relaxed)).contains(&(tag as u64))
        };
        let Some(range) = self.0.iter().find(holds) else {
            return (name, 0);
        };
        for (bytes, word) in name.chunks_exact_mut(8).zip(&range.name) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let len = name.iter().position(|&b| b == 0).unwrap_or(MAX_MODULE);
        (name, len)
    }
}
