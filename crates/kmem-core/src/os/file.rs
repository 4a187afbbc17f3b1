//! Files that outlive the process: their lengths, and what it accesses of them as memory.

use super::Owner;
use crate::sync::{AtomicU32, AtomicUsize, Ordering, const_fn};

/// Decision about a file that exists already; see [`super::Process::make_file`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Leave it unchanged: it is not a file of kmem.
    Keep,
    /// Put another in its place, unless this process is alive.
    Replace {
        /// The process that wrote the file, if the file says so.
        unless_alive: Option<Owner>,
    },
}

/// Lengths of a file that [`super::Process::make_file`] makes.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Length of the file, in bytes.
    pub bytes: usize,
    /// Offset of the part that the process accesses as memory, a multiple of the page size. The
    /// part ends with the file, and may be empty.
    pub direct: usize,
}

/// A file that [`super::Process::make_file`] has made. Zeroed, there is none.
///
/// # Invariants
/// `at` is 0, or `bytes` bytes of the file are mapped there, and never unmapped. There is no
/// reference to them: the file may be cut off at any time, and an access would end the program.
///
/// `direct` is 0, or `direct_bytes` bytes of the file are mapped there a second time. They can be
/// accessed at any time, and are never unmapped. Memory takes their place when they are lost.
#[cfg_attr(not(kmem_linux), allow(dead_code, reason = "only Linux has files"))]
pub struct SharedFile {
    pub(super) at: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) direct: AtomicUsize,
    pub(super) direct_bytes: AtomicUsize,
    /// 1 after [`Self::FAILURE`] was printed.
    complained: AtomicU32,
}

impl SharedFile {
    /// Message about a file that cannot be written.
    pub const FAILURE: &[u8] =
        b"kmem: the black box cannot be written: it was cut off, or the disk is full\n";

    const_fn! {
        /// No file.
        pub const fn new() -> Self {
            Self {
                at: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                direct: AtomicUsize::new(0),
                direct_bytes: AtomicUsize::new(0),
                complained: AtomicU32::new(0),
            }
        }
    }

    /// Address of the part that the process accesses as memory; 0: there is none.
    pub fn direct(&self) -> usize {
        self.direct.load(Ordering::Acquire)
    }

    /// Returns whether [`Self::FAILURE`] is to be printed: true for the first caller.
    pub fn is_first_failure(&self) -> bool {
        self.complained.swap(1, Ordering::Relaxed) == 0
    }
}

impl Default for SharedFile {
    fn default() -> Self {
        Self::new()
    }
}
