//! Stacks of threads and tables of loaded code: what a walk over the callers of a call reads.

use core::ffi::CStr;
use core::marker::PhantomData;
use core::ops::Range;

/// Part of the calling thread's own stack. It holds all frames of the callers of the function at
/// its low end, and can be read as long as the thread runs.
///
/// # Invariants
/// The thread that made it may read all of `words`, until the thread ends. The bounds are multiples
/// of 8.
#[derive(Debug)]
pub struct Stack {
    words: Range<usize>,
    /// Keeps it on its thread.
    _thread: PhantomData<*const usize>,
}

impl Stack {
    /// The stack between two addresses. Only whole words count.
    ///
    /// # Safety
    /// The calling thread may read this memory until it ends.
    #[inline(always)]
    pub unsafe fn new(bytes: Range<usize>) -> Self {
        // INVARIANT: all of it can be read, by the contract.
        Self { words: bytes.start.next_multiple_of(8)..bytes.end & !7, _thread: PhantomData }
    }

    /// The word at an address. `None`: no word of the stack begins there.
    #[inline(always)]
    pub fn word(&self, at: usize) -> Option<usize> {
        if !at.is_multiple_of(8) || !self.words.contains(&at) {
            return None;
        }
        // SAFETY: a word of the stack (invariant), which ends at a multiple of 8. Other functions
        // of the thread may have borrowed it, so it is read as the machine sees it.
        Some(unsafe { (at as *const usize).read_volatile() })
    }

    /// The address behind its last word.
    #[inline(always)]
    pub fn top(&self) -> usize {
        self.words.end
    }
}

/// A loaded object of code.
#[derive(Clone, Copy, Debug)]
pub struct CodeObject<'a> {
    /// Path of its file; empty for the program itself.
    pub path: &'a CStr,
    /// Its first address.
    pub start: usize,
    /// The address behind its last byte.
    pub end: usize,
    /// Distance from the addresses in the file to those in memory.
    pub bias: usize,
    /// The beginning of the file, as it is in memory; empty if it is not known.
    pub head: &'a [u8],
    /// Readable memory of the object that holds its `.eh_frame_hdr` and its `.eh_frame`. Empty: the
    /// object has none.
    pub bytes: &'a [u8],
    /// Address of `bytes`.
    pub address: usize,
    /// Offset of `.eh_frame_hdr` in `bytes`. Beyond them: the object has one that cannot be read.
    pub header: usize,
}

impl CodeObject<'_> {
    /// An object of which nothing is known.
    pub const BARE: Self =
        Self { path: c"", start: 0, end: 0, bias: 0, head: &[], bytes: &[], address: 0, header: 0 };

    /// Base name of its file.
    pub fn name(&self) -> &[u8] {
        let path = self.path.to_bytes();
        path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
    }
}
