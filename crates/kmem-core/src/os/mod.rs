//! The platform: all that the core asks of an operating system or a bare machine. `libc` and
//! `cfg(target_os)` appear nowhere else.
//!
//! | trait       | a platform provides                                      | default             |
//! |-------------|----------------------------------------------------------|---------------------|
//! | [`Memory`]  | address space, memory behind it, the amount of both      | none: must be given |
//! | [`Cpus`]    | the CPU and node a thread runs on; barriers              | one CPU, no barrier |
//! | [`Clock`]   | time, a cycle counter, entropy                           | time stands still   |
//! | [`Console`] | diagnostics, the end of the program                      | silent; spins       |
//! | [`Process`] | configuration, files, waiting, number of the process     | there is none       |
//!
//! [`Platform`] is all five. The defaults are right for a bare machine, so a kernel implements
//! [`Memory`] and as much of the rest as it has.
//!
//! Beside it is the task word, one per program and not per instance: thread-local storage on Linux,
//! and elsewhere what the kernel gives with `task_word::give`.
//!
//! Context: any. No function may allocate, take a lock that a caller could hold, or change `errno`.

use core::ptr::NonNull;

use crate::sync::AtomicU32;
use crate::units::PAGE_SIZE;

mod access;
#[cfg(not(loom))]
mod address;
mod conf_source;
mod file;
pub mod functions;
#[cfg(kmem_linux)]
pub mod linux;
pub mod mappings;
pub mod regions;
#[cfg(not(loom))]
pub mod sim;
mod stack;
pub mod stepped;
#[cfg(all(not(loom), any(test, miri, not(kmem_linux))))]
pub mod task_word;

pub use access::{Access, AccessReport, RefusedAccess};
#[cfg(not(loom))]
pub(crate) use address::{ADDRESS_BITS, RETURN_UNIT, is_address, return_address};
pub use conf_source::ConfSource;
pub use file::{File, Shape, SharedFile};
use functions::Functions;
pub use stack::{CodeObject, Stack};

/// Most nodes with memory of their own. Nodes with higher numbers count as node 0.
pub const MAX_NODES: u32 = 64;

/// A platform: see the module's table.
pub trait Platform: Memory + Cpus + Clock + Console + Process {}

impl<T: Memory + Cpus + Clock + Console + Process> Platform for T {}

/// Limits of what an instance takes. It asks for them once, at its start.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Address space of the first zone, in bytes.
    pub first_zone: usize,
    /// Least address space of further zones, in bytes.
    pub min_zone: usize,
    /// Address space of the zone of vmalloc's areas, in bytes; less if that is not available.
    pub areas: usize,
    /// Most memory that the heap may have, in bytes. Tables are sized for it.
    pub memory: usize,
    /// CPU slots that can be in use at once.
    pub cpus: u32,
    /// True if address space is limited. Then the instance takes no more of it than it needs.
    pub scarce: bool,
    /// Memory beyond which the system ends the process, in bytes; `usize::MAX` if there is none.
    /// The heap keeps less free memory the nearer it is.
    pub limit: usize,
}

impl Budget {
    /// A budget of `bytes` for each zone and for all memory, without limits beyond that.
    pub const fn of(bytes: usize, cpus: u32) -> Self {
        Self {
            first_zone: bytes,
            min_zone: bytes,
            areas: bytes,
            memory: bytes,
            cpus,
            scarce: false,
            limit: usize::MAX,
        }
    }
}

/// The memory that a platform backs with huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum HugePages {
    /// None.
    Never = 1,
    /// Memory for which it was advised to.
    OnAdvice = 2,
    /// All memory for which it was not advised against it.
    Always = 3,
}

impl HugePages {
    /// The kind with a number. `None`: there is none.
    pub fn numbered(number: u32) -> Option<Self> {
        let all = [Self::Never, Self::OnAdvice, Self::Always];
        all.into_iter().find(|&kind| kind as u32 == number)
    }
}

/// Memory of a platform.
///
/// ```text
/// (nothing) --reserve--> reserved --commit--> committed --decommit--> committed, zero
///     ^------------------release--------------------/
/// ```
///
/// Reserved memory must not be touched. Committed memory reads as zero until it is written.
/// Memory that is shown stays reserved: it can be read as zero, and not be written.
/// Decommitted memory stays committed, but its contents are gone and it reads as zero; where
/// [`Self::decommit`] returns false the contents are unchanged.
///
/// # Safety
/// [`Self::reserve`] returns ranges that no other user of the platform has until
/// [`Self::release`]. [`Self::commit`] makes exactly the given range readable and writable, and
/// zero where it was not committed before.
pub unsafe trait Memory: Sync {
    /// Bytes of the pages that the platform's calls work on. An instance starts only if its own
    /// ([`PAGE_SIZE`]) are as long or a multiple of them.
    fn page_bytes(&self) -> usize {
        PAGE_SIZE
    }

    /// Reserves `bytes` of address space at a multiple of `align`, a power of two. `None`: the
    /// platform has no such range.
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Gives a reservation back. If the platform cannot, the address space is lost.
    ///
    /// # Safety
    /// A function of this trait returned the range as a new one, or [`Self::releases_parts`] and it
    /// is a part that was never committed. Nothing in it is used from here on.
    unsafe fn release(&self, at: NonNull<u8>, bytes: usize);

    /// Returns whether [`Self::release`] also takes parts of a reservation that were never
    /// committed.
    fn releases_parts(&self) -> bool {
        false
    }

    /// Makes part of a reservation usable. False: the platform has no memory for it.
    ///
    /// # Safety
    /// The range lies in one reservation and is page aligned.
    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool;

    /// Reserves whole pages, and shows them as [`Self::show`] does. Also returns whether it could.
    fn reserve_shown(&self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        let at = self.reserve(bytes, PAGE_SIZE)?;
        // SAFETY: whole pages of the fresh reservation, of which nothing is committed.
        let shown = unsafe { self.show(at, bytes) };
        Some((at, shown))
    }

    /// Reserves memory and commits all of it: `bytes` of zeroes at a multiple of `align`, a power
    /// of two up to a page. `None`: the platform has none.
    fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let at = self.reserve(bytes, align)?;
        // SAFETY: the fresh reservation.
        if unsafe { self.commit(at, bytes) } {
            return Some(at);
        }
        // SAFETY: the fresh reservation, which nothing uses.
        unsafe { self.release(at, bytes) };
        None
    }

    /// Drops the contents of committed memory. False: refused, contents unchanged.
    ///
    /// # Safety
    /// The range is committed and page aligned, and its contents are not needed.
    unsafe fn decommit(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Limits for an instance that starts now.
    fn budget(&self) -> Budget;

    /// Returns whether an instance may have `committed` bytes. Checks limits that may have been set
    /// after address space was reserved.
    fn allows(&self, _committed: usize) -> bool {
        true
    }

    /// Returns whether one request may have `bytes`. False where the platform refuses obvious
    /// overcommitment.
    fn grants(&self, _bytes: usize) -> bool {
        true
    }

    /// Returns whether [`Self::protect`] works at all.
    fn can_protect(&self) -> bool {
        false
    }

    /// Changes the access to committed memory. False: refused, nothing changed.
    ///
    /// # Safety
    /// The range is committed and page aligned. It is not used while it is inaccessible. Its
    /// contents are not needed if it is [`Access::Marked`].
    unsafe fn protect(&self, _at: NonNull<u8>, _bytes: usize, _access: Access) -> bool {
        false
    }

    /// Most mappings that the process may have. Each inaccessible part of a range makes two more,
    /// but for marked ones.
    fn max_mappings(&self) -> usize {
        usize::MAX
    }

    /// The memory that the platform backs with huge pages.
    fn huge_pages(&self) -> HugePages {
        HugePages::Never
    }

    /// Advises the platform to back a range with huge pages, or not to.
    ///
    /// # Safety
    /// The range lies in one reservation and is page aligned.
    unsafe fn advise_huge(&self, _at: NonNull<u8>, _bytes: usize, _huge: bool) {}

    /// Moves the contents of committed memory to other committed memory without copying. The old
    /// contents of `to` are lost, and `from` reads as zero. False: refused, nothing changed.
    ///
    /// # Safety
    /// Both ranges are committed, page aligned and distinct, and the caller alone uses them.
    unsafe fn remap(&self, _from: NonNull<u8>, _to: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Backs part of a reservation with memory that [`Self::alias`] can map a second time. A forked
    /// child does not have it. False: the platform has no such memory.
    ///
    /// # Safety
    /// The range lies in one reservation, is page aligned, and none of it is committed.
    unsafe fn share(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Maps the memory at `from` a second time at `to`. False: refused, nothing changed.
    ///
    /// # Safety
    /// Both ranges are committed and page aligned; `from` lies in memory from [`Self::share`], and
    /// the caller alone uses `to`.
    unsafe fn alias(&self, _from: NonNull<u8>, _to: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Ends a mapping by [`Self::alias`]: the range has memory of its own again, committed and
    /// zero. False: refused, nothing changed.
    ///
    /// # Safety
    /// The range was the `to` of `alias`, and the caller alone uses it.
    unsafe fn unalias(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Advises the platform to take the memory of part of a reservation from a node, while that
    /// node has some.
    ///
    /// # Safety
    /// The range lies in one reservation, is page aligned, and none of it is committed.
    unsafe fn prefer_node(&self, _at: NonNull<u8>, _bytes: usize, _node: u32) {}

    /// Makes part of a reservation readable, as zeroes, without memory behind it. It can be
    /// committed afterwards. False: refused, nothing changed.
    ///
    /// # Safety
    /// The range lies in one reservation, is page aligned, and none of it is committed.
    unsafe fn show(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Makes a range read as zero in a forked child. False: not supported.
    ///
    /// # Safety
    /// The range is page aligned, private and anonymous.
    unsafe fn wipe_on_fork(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Address and number of the [`kmem_layout::mapping::OwnRange`]s of all reservations. They are
    /// for readers outside the process; 0 if the platform does not keep them.
    fn reservations(&self) -> (u64, u32) {
        (0, 0)
    }

    /// Returns whether an address is in one of those reservations.
    fn has_reserved(&self, _at: usize) -> bool {
        false
    }

    /// Maps `bytes` of zeroes for the root block. A reader outside the process finds them by name
    /// if the platform names mappings. `None`: there is no memory.
    fn map_root(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.allocate(bytes.next_multiple_of(PAGE_SIZE), PAGE_SIZE)
    }
}

/// The CPUs of a platform.
pub trait Cpus: Memory {
    /// Highest number of a CPU plus one, counting CPUs that may come online later.
    fn possible_cpus(&self) -> u32 {
        self.budget().cpus
    }

    /// Slot for the calling thread, below the budget's `cpus`. A hint that spreads threads over
    /// slots: two threads may get the same slot at the same time.
    fn slot_hint(&self) -> u32 {
        0
    }

    /// A number that no other thread has that runs now; a signal handler has that of the thread
    /// that it interrupts. 0: the platform does not tell threads apart. Two threads may commit the
    /// same pages then.
    fn thread(&self) -> u32 {
        0
    }

    /// Highest number of a NUMA node plus one.
    fn nodes(&self) -> u32 {
        1
    }

    /// Node of the CPU that the calling thread runs on. A hint: the thread may be moved at any
    /// time. Called by each refill of an array, so it should be quick.
    fn node(&self) -> u32 {
        0
    }

    /// Writes the distance of the memory of each node from the CPUs of a node, for comparisons. The
    /// caller has written a distance for each.
    fn distances(&self, _from: u32, _to: &mut [u8]) {}

    /// Offset in bytes of the thread's rseq area from the thread pointer. `None`: the C library
    /// registered none that can be used.
    fn rseq_offset(&self) -> Option<isize> {
        None
    }

    /// Ends every restartable section of other threads that began before the call
    /// (`membarrier(2)`). False: not supported.
    fn fence_cpus(&self) -> bool {
        false
    }

    /// A full memory barrier on every CPU that runs a thread of this process. False: not supported.
    fn barrier(&self) -> bool {
        false
    }
}

/// Time of a platform.
pub trait Clock {
    /// Milliseconds of a clock that never goes back; may be coarse. It decides when free memory is
    /// given back to the platform: while it stands still, none is.
    fn now_ms(&self) -> u64 {
        0
    }

    /// Value of a counter that advances by about one per nanosecond and is cheap to read. It
    /// decides when to call [`Self::now_ms`].
    fn ticks(&self) -> u64 {
        0
    }

    /// A number that others cannot guess, or the best there is. An instance asks once, at its
    /// start. Random orders of memory and the hashes of tables follow from it. They are as
    /// guessable as it is.
    fn entropy(&self) -> u64 {
        self.ticks()
    }

    /// Nanoseconds since 1970; 0 if the platform does not know.
    fn wall_ns(&self) -> u64 {
        0
    }
}

/// Diagnostics of a platform.
pub trait Console {
    /// Writes a diagnostic. Best effort; does not block.
    fn print(&self, _text: &[u8]) {}

    /// Ends the program after an error that cannot be recovered from.
    fn fatal(&self) -> ! {
        loop {
            core::hint::spin_loop();
        }
    }
}

/// A process, told apart from later processes with its number, and from those of other containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Number of the process.
    pub pid: u32,
    /// Its start, in ticks since the system's start; 0: not known.
    pub start_ticks: u64,
    /// Name of the space that `pid` is a number of; 0: not known.
    pub pid_namespace: u64,
}

/// Answer about a word that may be a return address; see [`Process::return_address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// It follows an instruction for calls in a loaded object.
    AfterCall,
    /// It lies elsewhere in a loaded object.
    NoCall,
    /// It lies in no loaded object.
    NoObject,
    /// The platform does not know its objects.
    Unknown,
}

/// Answer of [`Process::resident_in`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// The number of pages in memory.
    Pages(u64),
    /// One of the pages is not mapped.
    NotMapped,
    /// The platform does not know.
    Unknown,
}

/// The process, and the files, waits and environment of its system.
pub trait Process {
    /// Passes `value` and each access that the hardware refuses to the report from now on. The
    /// first call in a process wins.
    fn report_accesses<R: AccessReport>(&self, _value: usize) {}

    /// Copies the configuration text of a source into `buf`. Returns the text's length in bytes,
    /// which exceeds that of `buf` if the text does not fit. `None`: there is none, or the program
    /// has more rights than its user and the source is not the program.
    fn configuration(&self, _source: ConfSource, _buf: &mut [u8]) -> Option<usize> {
        None
    }

    /// Notes, before any other question to the platform, that the process was started under a
    /// filter of system calls. Calls that such filters forbid are left out from here on.
    fn start_in_sandbox(&self) {}

    /// Number of the process; 0 if the platform has no processes.
    fn process(&self) -> u32 {
        0
    }

    /// This process; all zero if the platform has no processes.
    fn owner(&self) -> Owner {
        Owner::default()
    }

    /// Writes the path of the executable into `buf`. Returns its length in bytes, 0 on failure.
    fn executable(&self, _buf: &mut [u8]) -> usize {
        0
    }

    /// Writes the process's mappings into `buf`, in the format of `/proc/self/maps`. Returns the
    /// length in bytes, 0 on failure.
    fn mappings(&self, _buf: &mut [u8]) -> usize {
        0
    }

    /// Pages of the process that are in memory. `None`: the platform does not know.
    fn resident_pages(&self) -> Option<u64> {
        None
    }

    /// Pages of this process from `at` on that are in memory. A byte of `room` is written for each
    /// of the pages to look at.
    fn resident_in(&self, _at: usize, _room: &mut [u8]) -> Residency {
        Residency::Unknown
    }

    /// Copies memory of this process at `at`, which may be unmapped, into `buf`. Returns the number
    /// of bytes that could be read.
    fn peek(&self, _at: usize, _buf: &mut [u8]) -> usize {
        0
    }

    /// The word of this process at `at`, which may be unmapped. `None`: it cannot be read.
    fn peek_word(&self, at: usize) -> Option<usize> {
        let mut word = [0; size_of::<usize>()];
        (self.peek(at, &mut word) == word.len()).then(|| usize::from_ne_bytes(word))
    }

    /// Returns whether the process may make files now. Asks by no system call.
    ///
    /// # Errors
    /// The reason why it may not, as text for a diagnostic.
    fn may_make_files(&self) -> Result<(), &'static str> {
        Err("there are no files here")
    }

    /// The calling thread's own stack from `at` up, where frames of callers are. `None`: `at` lies
    /// elsewhere, such as on a stack for signals or of a coroutine, or the platform does not know.
    fn stack(&self, _at: usize) -> Option<Stack> {
        None
    }

    /// Calls `work` with the loaded object that has the code at an address. `None`: no object has
    /// it, or the platform does not know its objects.
    fn with_object<T>(&self, _at: usize, _work: impl FnOnce(&CodeObject<'_>) -> T) -> Option<T> {
        None
    }

    /// Tells a return address from other words. Reads no memory that may be gone, as the word may
    /// be of long ago.
    fn return_address(&self, _word: usize) -> Return {
        Return::Unknown
    }

    /// Calls `work` with the functions of a loaded object. `None`: it names none, or the platform
    /// cannot read them.
    fn with_functions<T>(
        &self,
        _object: &CodeObject<'_>,
        _work: impl FnOnce(&Functions<'_>) -> T,
    ) -> Option<T> {
        None
    }

    /// Makes a file of a shape, which outlives the process, and puts it into `file`. It begins with
    /// `head`; the rest is zero, and takes no room yet. `path` may hold `%p`, `%h`, `%t`,
    /// `%n` and `%e`. If a file of that name exists, `decide` gets its first bytes and its length.
    /// The new file takes the name only when its head is written.
    ///
    /// # Errors
    /// The reason why the file cannot be made, as text for a diagnostic.
    fn make_file(
        &self,
        _path: &[u8],
        _shape: Shape,
        _head: &[u8],
        _decide: impl Fn(&[u8], u64) -> File,
        _file: &'static SharedFile,
    ) -> Result<(), &'static str> {
        Err("there are no files here")
    }

    /// Writes bytes into a file at an offset. They survive the process from then on. False: a part
    /// of them may be written. The file was cut off, or there is no room for it.
    fn write_file(&self, _file: &SharedFile, _offset: usize, _bytes: &[u8]) -> bool {
        false
    }

    /// [`Self::write_file`] of `len` bytes of memory at `from`, which may be gone. Then, too, it
    /// returns false.
    fn copy_to_file(&self, _file: &SharedFile, _offset: usize, _from: usize, _len: usize) -> bool {
        false
    }

    /// Returns whether a tracer outside the process waits for [`Self::trace_alloc`]. Asks by no
    /// system call.
    fn is_traced(&self) -> bool {
        false
    }

    /// Tells the tracer of an allocation of `bytes` at `at`, a sample that stands for `weight`
    /// bytes. `calls` are the return addresses of the calls that led to it, innermost first, as far
    /// as they are known.
    fn trace_alloc(&self, _at: usize, _bytes: u64, _weight: u64, _calls: &[usize]) {}

    /// Tells the tracer that such a sample is freed.
    fn trace_free(&self, _at: usize) {}

    /// Adds one to the counter of an eventfd. Best effort.
    fn signal_event(&self, _fd: u32) {}

    /// Yields the CPU to other threads, one of which the caller waits for.
    fn give_way(&self) {}

    /// Waits until another thread calls [`Self::wake`] for `word`, if its value is `seen`. May
    /// return at any time: the caller checks its condition again.
    fn wait(&self, _word: &AtomicU32, _seen: u32) {
        crate::sync::spin();
    }

    /// Ends all waits for `word`.
    fn wake(&self, _word: &AtomicU32) {}

    /// Memory came back: asks for calls of [`crate::instance::Instance::tend`], from a thread or a
    /// timer of the embedder. Called from any context.
    fn call_tender(&self) {}

    /// In a forked child: the thread that [`Self::call_tender`] wakes does not exist.
    fn forget_tender(&self) {}
}
