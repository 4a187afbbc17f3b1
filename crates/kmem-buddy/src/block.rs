//! The structure of a page: 64 bytes, most of which the checks read.

use super::NIL;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Flag: the first page of a free block.
const BUDDY: u32 = 1;

/// A page. Its fields are atomics, because blocks are checked outside the lock. Accesses are
/// relaxed, because the lock orders the others.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Page {
    flags: AtomicU32,
    order: AtomicU32,
    next: AtomicU32,
    prev: AtomicU32,
    refcount: AtomicI32,
    /// Number of mappings, minus one.
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

    /// Returns whether all fields are those of an unused page.
    pub(crate) fn is_new(&self) -> bool {
        self.mapcount.load(Relaxed) == -1
            && self.mapping.load(Relaxed) == 0
            && self.refcount.load(Relaxed) == 0
            && self.memcg.load(Relaxed) == 0
            && self.flags.load(Relaxed) & BUDDY == 0
    }

    /// Returns whether it is the first page of a free block of an order.
    pub(crate) fn is_free_block(&self, order: u8) -> bool {
        self.flags.load(Relaxed) & BUDDY != 0 && self.order.load(Relaxed) == u32::from(order)
    }

    /// Becomes the first block of the free list of an order, before `next`.
    pub(crate) fn insert(&self, order: u8, next: u32) {
        self.flags.store(BUDDY, Relaxed);
        self.order.store(u32::from(order), Relaxed);
        self.next.store(next, Relaxed);
        self.prev.store(NIL, Relaxed);
    }

    /// Leaves its free list. Returns the blocks before and after it.
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

    /// Marks it as allocated.
    pub(crate) fn take(&self) {
        self.refcount.store(1, Relaxed);
    }

    /// Marks it as free. False: it was not allocated.
    pub(crate) fn put(&self) -> bool {
        let was = self.refcount.load(Relaxed);
        self.refcount.store(0, Relaxed);
        was == 1
    }

    /// Writes a wrong value into a field that the checks read.
    pub(crate) fn spoil(&self) {
        self.mapping.store(0xdead, Relaxed);
    }
}
