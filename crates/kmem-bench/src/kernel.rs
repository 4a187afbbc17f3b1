//! The kernel's allocation functions over one instance of kmem, called through pointers: the
//! functions behind `kmalloc`, `kfree`, `alloc_pages` and `__free_pages` of `kmem.h`.

use kmem_core::StaticTag;
use kmem_core::units::Gfp;
use std::hint::black_box;
use std::ptr::NonNull;

/// The functions of one instance.
///
/// # Invariants
/// They belong together and live as long as the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    /// `kmalloc_tag` of `kmem.h`.
    pub(crate) kmalloc_tag: unsafe extern "C" fn(usize, Gfp, *const StaticTag) -> *mut u8,
    /// `kfree`.
    pub(crate) kfree: unsafe extern "C" fn(*mut u8),
    /// `alloc_pages_tag`.
    pub(crate) alloc_pages_tag: unsafe extern "C" fn(Gfp, u32, *const StaticTag) -> *mut u8,
    /// `__free_pages`.
    pub(crate) free_pages: unsafe extern "C" fn(*mut u8, u32),
    /// Calls back with tags and their live objects, in parts.
    pub(crate) census: fn(&mut dyn FnMut(u32, u64)),
}

impl Kernel {
    /// A copy with pointers that are opaque to the compiler.
    pub(crate) fn opaque(&self) -> Self {
        black_box(*self)
    }

    /// Allocates `size` bytes, eight or more, billed to `tag`, and writes the first eight.
    #[inline(always)]
    pub(crate) fn kmalloc(&self, size: usize, tag: &'static StaticTag) -> NonNull<u8> {
        debug_assert!(size >= 8);
        // SAFETY: by the invariant the pointer is callable; the tag is static.
        let Some(at) = NonNull::new(unsafe { (self.kmalloc_tag)(size, Gfp::KERNEL, tag) }) else {
            crate::heap::out_of_memory();
        };
        // SAFETY: the object has at least eight bytes, aligned for any type of that size.
        unsafe { at.cast::<u64>().write_volatile(size as u64) };
        at
    }

    /// Frees an object of [`Self::kmalloc`].
    ///
    /// # Safety
    /// `at` came from this kernel's `kmalloc` and is not used again.
    #[inline(always)]
    pub(crate) unsafe fn kfree(&self, at: NonNull<u8>) {
        // SAFETY: the same contract.
        unsafe { (self.kfree)(at.as_ptr()) }
    }

    /// Allocates a block of an order, billed to `tag`; it is not written.
    #[inline(always)]
    pub(crate) fn pages(&self, order: u32, tag: &'static StaticTag) -> NonNull<u8> {
        // SAFETY: by the invariant the pointer is callable; the tag is static.
        let block = unsafe { (self.alloc_pages_tag)(Gfp::KERNEL, order, tag) };
        NonNull::new(block).unwrap_or_else(|| crate::heap::out_of_memory())
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `at` came from this kernel's `pages` of that order and is not used again.
    #[inline(always)]
    pub(crate) unsafe fn free_pages(&self, at: NonNull<u8>, order: u32) {
        // SAFETY: the same contract.
        unsafe { (self.free_pages)(at.as_ptr(), order) }
    }
}
