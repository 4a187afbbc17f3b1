//! An allocator as the tables call it: through two function pointers.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::NonNull;

/// `malloc` of some allocator.
pub(crate) type MallocFn = unsafe extern "C" fn(usize) -> *mut c_void;
/// `free` of the same allocator.
pub(crate) type FreeFn = unsafe extern "C" fn(*mut c_void);

/// An allocator inside this process.
///
/// # Invariants
/// `malloc` and `free` belong together, live as long as the process, and may be
/// called from any thread between its `thread_start` and `thread_end`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heap {
    malloc: MallocFn,
    free: FreeFn,
    thread_start: Option<fn()>,
    thread_end: Option<fn()>,
}

/// A block from some [`Heap`]: at least eight bytes.
pub(crate) type Block = NonNull<u64>;

impl Heap {
    /// # Safety
    /// The pair must satisfy the invariants of the type.
    pub(crate) unsafe fn new(malloc: MallocFn, free: FreeFn) -> Self {
        // INVARIANT: the contract.
        Self { malloc, free, thread_start: None, thread_end: None }
    }

    /// Adds the functions that an allocator needs at the start and end of each thread.
    #[cfg(feature = "rpmalloc")]
    pub(crate) fn with_threads(self, start: fn(), end: fn()) -> Self {
        Self { thread_start: Some(start), thread_end: Some(end), ..self }
    }

    /// A copy with pointers that are opaque to the compiler, so that every allocator costs an
    /// indirect call.
    pub(crate) fn opaque(&self) -> Self {
        black_box(*self)
    }

    /// Runs `body` as a thread of this allocator.
    pub(crate) fn in_thread<T>(&self, body: impl FnOnce() -> T) -> T {
        if let Some(start) = self.thread_start {
            start();
        }
        let value = body();
        if let Some(end) = self.thread_end {
            end();
        }
        value
    }

    /// Allocates `size` bytes, eight or more, and writes the first eight.
    #[inline(always)]
    pub(crate) fn alloc(&self, size: usize) -> Block {
        debug_assert!(size >= 8);
        // SAFETY: by the invariant the pointer is callable.
        let Some(block) = NonNull::new(unsafe { (self.malloc)(size) }.cast::<u64>()) else {
            out_of_memory();
        };
        // SAFETY: the block has at least eight bytes, aligned for any type of that size.
        unsafe { block.write_volatile(size as u64) };
        block
    }

    /// Allocates a block, and writes to all of it.
    pub(crate) fn alloc_written(&self, size: usize) -> Block {
        let block = self.alloc(size);
        // SAFETY: a block of that size.
        unsafe { block.cast::<u8>().write_bytes(1, size) };
        block
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `block` came from this heap's `alloc` and is not used again.
    #[inline(always)]
    pub(crate) unsafe fn free(&self, block: Block) {
        // SAFETY: the same contract.
        unsafe { (self.free)(block.as_ptr().cast()) }
    }

    /// Addresses of the two functions, to find the object that contains them.
    pub(crate) fn addresses(&self) -> [*const c_void; 2] {
        [self.malloc as *const c_void, self.free as *const c_void]
    }

    /// Frees all blocks of `blocks`.
    ///
    /// # Safety
    /// As for [`Heap::free`], for each of them.
    pub(crate) unsafe fn free_all(&self, blocks: &[Block]) {
        for &block in blocks {
            // SAFETY: the same contract, for each block.
            unsafe { self.free(block) };
        }
    }
}

#[cold]
#[inline(never)]
pub(crate) fn out_of_memory() -> ! {
    eprintln!("kmem-bench: the allocator under test returned null");
    std::process::exit(1);
}
