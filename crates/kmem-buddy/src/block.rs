//! The structure of a page: 64 bytes, of which the checks look at most.

use super::NIL;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Flag: the first page of a free block.
const BUDDY: u32 = 1;

/// A page. Atomics, because blocks are checked outside the lock; relaxed, for the lock orders them.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Page {
    flags: AtomicU32,
    order: AtomicU32,
    next: AtomicU32,
    prev: AtomicU32,
    refcount: AtomicI32,
    /// Mappings less one.
    mapcount: AtomicI32,
    mapping: AtomicU64,
    memcg: AtomicU64,
}

const _: () = assert!(size_of::<Page>() == 64);

impl Page {
    pub(crate) fn new() -> Self {
        Self {
            flags: AtomicU32::new(0),
            order: AtomicU32::new(0),
            next: AtomicU32::new(NIL),
            prev: AtomicU32::new(NIL),
            refcount: AtomicI32::new(0),
            mapcount: AtomicI32::new(-1),
            mapping: AtomicU64::new(0),
            memcg: AtomicU64::new(0),
        }
    }

    /// Whether nobody uses it, and nothing of it says otherwise.
    pub(crate) fn is_new(&self) -> bool {
        self.mapcount.load(Relaxed) == -1
            && self.mapping.load(Relaxed) == 0
            && self.refcount.load(Relaxed) == 0
            && self.memcg.load(Relaxed) == 0
            && self.flags.load(Relaxed) & BUDDY == 0
    }

    /// Whether it begins a free block of that order.
    pub(crate) fn is_free_block(&self, order: u8) -> bool {
        self.flags.load(Relaxed) & BUDDY != 0 && self.order.load(Relaxed) == u32::from(order)
    }

    /// Becomes the first block of a free list.
    pub(crate) fn insert(&self, order: u8, next: u32) {
        self.flags.store(BUDDY, Relaxed);
        self.order.store(u32::from(order), Relaxed);
        self.next.store(next, Relaxed);
        self.prev.store(NIL, Relaxed);
    }

    /// Leaves a free list; the blocks before and after it.
    pub(crate) fn remove(&self) -> (u32, u32) {
        self.flags.store(0, Relaxed);
        (self.prev.load(Relaxed), self.next.load(Relaxed))
    }

    pub(crate) fn next(&self) -> u32 {
        self.next.load(Relaxed)
    }

    pub(crate) fn link(&self, next: u32) {
        self.next.store(next, Relaxed);
    }

    pub(crate) fn set_prev(&self, prev: u32) {
        self.prev.store(prev, Relaxed);
    }

    /// It is handed out.
    pub(crate) fn take(&self) {
        self.refcount.store(1, Relaxed);
    }

    /// It comes back. False: it was not out.
    pub(crate) fn put(&self) -> bool {
        let was = self.refcount.load(Relaxed);
        self.refcount.store(0, Relaxed);
        was == 1
    }

    pub(crate) fn spoil(&self) {
        self.mapping.store(0xdead, Relaxed);
    }
}
