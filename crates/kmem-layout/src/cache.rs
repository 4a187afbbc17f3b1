//! Caches of objects (the kernel's `kmem_cache`), and the table by which readers find them.
//!
//! Caches of one size share their slabs, so a slab does not tell whose its objects are. A cache
//! counts its objects in use. If objects are guarded, each one's record has its cache's number; see
//! [`crate::geometry`].

use crate::atomic::AtomicU64;

/// Most caches with numbers of their own. A reader does not know the others.
pub const MAX_CACHES: usize = 1023;
/// Longest name of a cache, in bytes.
pub const MAX_CACHE_NAME: usize = 48;
/// Name of a cache, padded with zeroes.
pub type CacheName = [u8; MAX_CACHE_NAME];

/// The bytes of a name without its padding.
#[must_use]
pub fn unpadded(name: &CacheName) -> &[u8] {
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(MAX_CACHE_NAME);
    &name[..len]
}

/// Position of a cache's number in the record of an object: `cache:16 | len:16`.
pub const RECORD_CACHE_SHIFT: u32 = 16;

/// A cache, as readers see it. Its address is in [`crate::root::RootBlock::slab_caches`], at its
/// number minus one, while the cache exists.
#[repr(C)]
pub struct CacheBlock {
    /// The name.
    pub name: CacheName,
    /// Bytes of an object.
    pub size: u64,
    /// Alignment of an object in bytes.
    pub align: u64,
    /// Size class of its slabs; 0: each object is a run of pages.
    pub class: u64,
    /// *Live.* Objects in use.
    pub live: AtomicU64,
}
