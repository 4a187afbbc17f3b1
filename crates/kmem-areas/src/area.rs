//! Areas: pages, and a page that faults behind them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use kmem_core::units::{Gfp, PAGE_SIZE};
use kmem_core::{Caller, Kmem, static_tag};

use crate::KMEM;

/// Whole pages of memory, zeroed at first. The byte behind them faults.
///
/// Each area takes two of the mappings that the system allows a process. When half of these are
/// used up, areas go without the page that faults. `Kmem::vmalloc_stats` counts them.
pub struct Area {
    kmem: &'static Kmem,
    /// A live area of vmalloc, of `pages` pages.
    at: NonNull<u8>,
    pages: usize,
}

// SAFETY: an area is memory that its owner alone uses, on any thread.
unsafe impl Send for Area {}
// SAFETY: threads that share an area can only read it: all that writes needs `&mut`.
unsafe impl Sync for Area {}

impl Area {
    /// Allocates pages for `bytes` bytes, at least one. `None`: there is no memory.
    pub fn new(bytes: usize) -> Option<Self> {
        Self::of(&KMEM, bytes)
    }

    /// Allocates from an instance. The group of the thread pays. `None`: there is no memory, or
    /// the group is at its limit.
    pub fn of(kmem: &'static Kmem, bytes: usize) -> Option<Self> {
        let bytes = bytes.max(1);
        let caller = Caller::tagged(static_tag!("Area")).here();
        let at = NonNull::new(kmem.vmalloc(bytes, Gfp::ZERO, caller))?;
        Some(Self { kmem, at, pages: bytes.div_ceil(PAGE_SIZE) })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: a live area of the instance, which is used no longer.
        unsafe { self.kmem.vfree(self.at.as_ptr()) };
    }
}

impl Deref for Area {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a live area of `pages` pages, initialized, borrowed as the area is.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.pages * PAGE_SIZE) }
    }
}

impl DerefMut for Area {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: a live area of `pages` pages, initialized, borrowed as the area is.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.pages * PAGE_SIZE) }
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area").field("at", &self.at).field("bytes", &self.len()).finish()
    }
}
