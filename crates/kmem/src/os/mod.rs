//! The only door to the platform. `libc` and `cfg(target_os)` appear nowhere else.
//!
//! Memory goes through three states:
//!
//! ```text
//! (nothing) --reserve--> reserved --commit--> committed --decommit--> committed, zero
//!     ^------------------release--------------------/
//! ```
//!
//! Reserved memory must not be touched. Committed memory reads as zero until written.
//! Decommitted memory stays committed but its contents are gone and it reads as zero; where
//! the platform refuses, `decommit` returns false and the contents are as before.
//! None of these may allocate, lock, or touch `errno`.

use core::ptr::NonNull;

use crate::sync::AtomicU32;

#[cfg(kmem_linux)]
pub mod linux;
pub mod region;
#[cfg(not(loom))]
pub mod sim;

/// What the platform allows an instance to take at start, so that it fits the machine.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Address space of the first zone, in bytes.
    pub first_zone: usize,
    /// Address space of further zones is at least this, in bytes.
    pub min_zone: usize,
    /// Memory that the heap may come to have, in bytes: tables are made for so much.
    pub memory: usize,
    /// Most CPU slots that can be in use at once.
    pub cpus: u32,
}

/// What to do with a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// It is not ours to write to.
    Keep,
    /// It may be written anew, unless this process is alive and another one.
    Replace {
        /// A process's number.
        unless_alive: u32,
    },
}

/// A platform.
///
/// # Safety
/// `reserve` returns ranges that nobody else uses until `release`; `commit` makes exactly the
/// given range readable and writable and zero where it was not committed before.
pub unsafe trait Platform: Sync {
    /// Reserves `bytes` of address space at a multiple of `align` (a power of two).
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Gives a whole reservation back.
    ///
    /// # Safety
    /// The range was returned by `reserve` and nothing in it is used any more.
    unsafe fn release(&self, at: NonNull<u8>, bytes: usize);

    /// Makes part of a reservation usable. False: the platform has no memory for it.
    ///
    /// # Safety
    /// The range lies in one reservation; page aligned.
    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Drops the contents of committed memory. False: refused, contents unchanged.
    ///
    /// # Safety
    /// The range is committed, page aligned, and its contents are not needed.
    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Whether [`Self::protect`] can be had at all.
    fn can_protect(&self) -> bool {
        false
    }

    /// Makes committed memory inaccessible, or accessible again with its contents. False: refused,
    /// nothing changed.
    ///
    /// # Safety
    /// The range is committed, page aligned, and nobody uses it while it is inaccessible.
    unsafe fn protect(&self, _at: NonNull<u8>, _bytes: usize, _accessible: bool) -> bool {
        false
    }

    /// Asks for huge pages behind committed memory.
    ///
    /// # Safety
    /// The range is committed and page aligned.
    unsafe fn advise_huge(&self, _at: NonNull<u8>, _bytes: usize) {}

    /// Moves the contents of committed memory to other committed memory, without copying them; what was there is lost, and the old
    /// place reads as zero. False: refused, nothing has changed.
    ///
    /// # Safety
    /// Both ranges are committed, page aligned, distinct, and in nobody else's use.
    unsafe fn remap(&self, _from: NonNull<u8>, _to: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Makes the memory of a reservation such that it can be mapped again by [`Self::alias`]; a forked child does not have it.
    /// False: there is no such memory.
    ///
    /// # Safety
    /// A range of a reservation, page aligned, nothing of it committed.
    unsafe fn share(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Makes committed memory at `to` show that at `from`. False: refused, nothing has changed.
    ///
    /// # Safety
    /// Both ranges are committed and page aligned; `from` is shared, and nobody uses `to`.
    unsafe fn alias(&self, _from: NonNull<u8>, _to: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Makes memory its own again, committed and zero. False: refused, it is as before.
    ///
    /// # Safety
    /// The range was the target of [`Self::alias`], and nobody uses it.
    unsafe fn unalias(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Mappings that the process may have.
    fn max_mappings(&self) -> usize {
        usize::MAX
    }

    /// Whether an instance may have so many bytes committed: a limit that was set after the
    /// address space was reserved binds here.
    fn allows(&self, committed: usize) -> bool;

    /// What to start with.
    fn budget(&self) -> Budget;

    /// CPUs that there can be, those that appear later included: the highest number of one, plus one.
    fn possible_cpus(&self) -> u32 {
        self.budget().cpus
    }

    /// Nodes whose memory is near to some CPUs and far from others (NUMA): their numbers are below this.
    fn nodes(&self) -> u32 {
        1
    }

    /// The node of the CPU that the calling thread runs on, below [`Self::nodes`]: a hint.
    fn node(&self) -> u32 {
        0
    }

    /// Asks that a reservation gets its memory from a node, as long as that has some.
    ///
    /// # Safety
    /// A range of a reservation, page aligned, nothing of it committed.
    unsafe fn prefer_node(&self, _at: NonNull<u8>, _bytes: usize, _node: u32) {}

    /// Copies the user's configuration text into `buf`; its length, more than there is room for
    /// when it is too long. `None`: there is none, or the program runs with more rights than its
    /// user.
    fn configuration(&self, buf: &mut [u8]) -> Option<usize>;

    /// A slot number for the calling thread, below the budget's `cpus`: a hint that spreads
    /// threads, not a promise.
    fn slot_hint(&self) -> u32;

    /// Milliseconds of a clock that never goes back; may be coarse.
    fn now_ms(&self) -> u64;

    /// A counter that moves on its own, cheap to read: about a nanosecond each, roughly. Only
    /// says whether it is worth asking for the time.
    fn ticks(&self) -> u64;

    /// Maps the `bytes` of the root block so that a reader finds it by name.
    fn map_root(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Asks that `bytes` at `at` read as zero in a forked child. False: not supported.
    ///
    /// # Safety
    /// The range is page aligned, private and anonymous.
    unsafe fn wipe_on_fork(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Stops every other thread's critical section on CPU slots that began before the call
    /// (membarrier). False: not supported.
    fn fence_cpus(&self) -> bool;

    /// A full memory barrier on every CPU that runs a thread of this process. False: not supported.
    fn barrier(&self) -> bool {
        false
    }

    /// Offset of the thread's rseq area from the thread pointer, where the C library
    /// registered one that can be used.
    fn rseq_offset(&self) -> Option<isize>;

    /// Copies memory of this process at `at`, which may not be mapped, into `buf`; how many bytes
    /// could be read.
    fn peek(&self, _at: usize, _buf: &mut [u8]) -> usize {
        0
    }

    /// Makes a file of `bytes` zeroes and maps it so that it outlives the process. `path` may hold
    /// `%p`, `%h`, `%t` and `%e`. Of a file that is there already, `decide` sees the beginning.
    ///
    /// # Errors
    /// Why there is no such file.
    fn map_file(
        &self,
        _path: &[u8],
        _bytes: usize,
        _decide: impl Fn(&[u8]) -> File,
    ) -> Result<NonNull<u8>, &'static str> {
        Err("there are no files here")
    }

    /// The process's number, 0 where there are none.
    fn process(&self) -> u32 {
        0
    }

    /// Nanoseconds since 1970, 0 where that is not known.
    fn wall_ns(&self) -> u64 {
        0
    }

    /// Writes the path of the executable into `buf`; its length.
    fn executable(&self, _buf: &mut [u8]) -> usize {
        0
    }

    /// Writes what is mapped where into `buf`, as `/proc/self/maps` does; its length.
    fn mappings(&self, _buf: &mut [u8]) -> usize {
        0
    }

    /// Adds one to the counter of an eventfd, best effort.
    fn signal_event(&self, _fd: u32) {}

    /// Lets another thread run that this one waits for.
    fn give_way(&self) {}

    /// Waits until somebody wakes `word`, if it is `seen`; or for a little while, or not at all: the caller looks again.
    fn wait(&self, _word: &AtomicU32, _seen: u32) {
        crate::sync::spin();
    }

    /// Ends the waits for `word`.
    fn wake(&self, _word: &AtomicU32) {}

    /// Writes a diagnostic, best effort, without blocking.
    fn print(&self, text: &[u8]);

    /// Ends the program after an unrecoverable error.
    fn fatal(&self) -> !;
}
