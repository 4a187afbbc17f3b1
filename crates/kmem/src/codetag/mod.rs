//! Code tags: what a tag number stands for. Knows nothing of allocation.
//!
//! ```text
//! cache[ret & 4095]   ret << 17 ^ (live | tag)      direct-mapped, inside the instance
//! index[hash(ret)]    tag                           open addressing, twice the sites
//! sites[tag]          the return address, for readers
//! ```
//!
//! Numbers are given once and never taken back; when they run out, callers share
//! [`TAG_OTHER`], which is counted like any other.
//!
//! Context: any. Lock-free.

use crate::root::{
    EXT_LIVE, RootBlock, Site, TAG_BITS, TAG_FIRST_SITE, TAG_OTHER, TAG_UNTAGGED, site_kind,
};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::TagId;

/// Most sites of an instance, the reserved ones included.
pub const MAX_SITES: u32 = 1 << TAG_BITS;
const INDEX_SLOTS: usize = 2 * MAX_SITES as usize;
const CACHE_SLOTS: usize = 4096;
/// Bits of an extension word that the cache gives: tag and live bit.
const CACHE_WORD: u32 = TAG_BITS + 1;

/// The sites of an instance. Zeroed memory is a table that knows no site and learns none.
#[repr(C, align(64))]
pub struct Sites {
    cache: [AtomicU64; CACHE_SLOTS],
    sites: AtomicU64,
    index: AtomicU64,
    root: AtomicU64,
}

impl Sites {
    /// A table without memory: every caller is [`TAG_UNTAGGED`].
    pub const fn new() -> Self {
        Self {
            cache: [const { AtomicU64::new(0) }; CACHE_SLOTS],
            sites: AtomicU64::new(0),
            index: AtomicU64::new(0),
            root: AtomicU64::new(0),
        }
    }

    /// Bytes of memory for the sites themselves.
    pub const fn sites_bytes() -> usize {
        MAX_SITES as usize * size_of::<Site>()
    }

    /// Bytes of memory for the index.
    pub const fn index_bytes() -> usize {
        INDEX_SLOTS * 4
    }

    /// The cache, which readers may empty: address and length.
    pub fn cache_part(&self) -> (u64, u64) {
        (self.cache.as_ptr() as u64, size_of_val(&self.cache) as u64)
    }

    /// Gives the table its memory.
    ///
    /// # Safety
    /// Zeroed memory of the sizes above and a valid root block, for good.
    pub unsafe fn start(&self, sites: *mut u8, index: *mut u8, root: *const RootBlock) {
        // SAFETY: a valid root block.
        unsafe { (*root).site_count.store(TAG_FIRST_SITE, Ordering::Relaxed) };
        self.index.store(index as u64, Ordering::Relaxed);
        self.root.store(root as u64, Ordering::Relaxed);
        self.sites.store(sites as u64, Ordering::Release);
    }

    /// The extension word of a live object for the call that returns to `ret`, if that was
    /// looked up not long ago. Fast path. (0 and 1, which return addresses never are, look cached.)
    #[inline(always)]
    pub fn cached(&self, ret: usize) -> Option<u32> {
        let word = self.cache[ret % CACHE_SLOTS].load(Ordering::Relaxed);
        let word = word ^ (ret as u64) << TAG_BITS;
        if word >> CACHE_WORD == 0 { Some(word as u32) } else { None }
    }

    /// Empties the cache: without an entry in it no fast path is taken.
    pub fn forget(&self) {
        for word in &self.cache {
            word.store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// The tag of a return address, a new one if need be.
    #[cold]
    #[inline(never)]
    pub fn lookup(&self, ret: usize) -> TagId {
        let sites = self.sites.load(Ordering::Acquire) as *const Site;
        if sites.is_null() {
            return TagId(TAG_UNTAGGED);
        }
        let tag = self.find_or_add(ret as u64, sites);
        let word = (ret as u64) << TAG_BITS ^ u64::from(tag.0 | EXT_LIVE);
        self.cache[ret % CACHE_SLOTS].store(word, Ordering::Relaxed);
        tag
    }

    fn find_or_add(&self, ret: u64, sites: *const Site) -> TagId {
        let index = self.index.load(Ordering::Relaxed) as *const AtomicU32;
        // SAFETY: set together with `sites`.
        let root = unsafe { &*(self.root.load(Ordering::Relaxed) as *const RootBlock) };
        // SAFETY: tags in the index are below MAX_SITES.
        let site = |tag: u32| unsafe { &*sites.add(tag as usize) };
        let mut slot = (ret.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % INDEX_SLOTS;
        let mut fresh = 0;
        for _ in 0..INDEX_SLOTS {
            // SAFETY: below INDEX_SLOTS.
            let word = unsafe { &*index.add(slot) };
            // Acquire pairs with the release below: the site is written.
            let mut tag = word.load(Ordering::Acquire);
            if tag == 0 {
                if fresh == 0 {
                    fresh = root.site_count.load(Ordering::Relaxed);
                    loop {
                        if fresh >= MAX_SITES {
                            return TagId(TAG_OTHER);
                        }
                        match root.site_count.compare_exchange_weak(
                            fresh,
                            fresh + 1,
                            Ordering::AcqRel,
                            Ordering::Relaxed,
                        ) {
                            Ok(_) => break,
                            Err(now) => fresh = now,
                        }
                    }
                    site(fresh).kind.store(site_kind::CALLER, Ordering::Relaxed);
                    site(fresh).addr.store(ret, Ordering::Relaxed);
                }
                match word.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return TagId(fresh),
                    Err(now) => tag = now,
                }
            }
            if site(tag).addr.load(Ordering::Relaxed) == ret {
                if fresh != 0 {
                    // Somebody added the same site first; our number stays unused.
                    site(fresh).addr.store(0, Ordering::Relaxed);
                }
                return TagId(tag);
            }
            slot = (slot + 1) % INDEX_SLOTS;
        }
        TagId(TAG_OTHER)
    }

    /// The return address a tag stands for; 0 for none.
    pub fn address(&self, tag: TagId) -> usize {
        let sites = self.sites.load(Ordering::Acquire) as *const Site;
        if sites.is_null() || tag.0 >= MAX_SITES {
            return 0;
        }
        // SAFETY: in range.
        unsafe { (*sites.add(tag.0 as usize)).addr.load(Ordering::Relaxed) as usize }
    }
}

impl Default for Sites {
    fn default() -> Self {
        Self::new()
    }
}

// User addresses have 47 bits. Shifted by the tag's width, the lowest falls on the live bit; it is
// also part of the index, so addresses that differ in it alone do not meet.
const _: () = assert!(TAG_BITS + 47 == 64);
