//! A platform over regions of memory: for a kernel, a unikernel, or a test.
//!
//! ```text
//! regions: | start ... next ... end |   each handed out once, front to back
//!          | start next ....... end |   added at any time, also while the allocator is used
//! doors:   cpu, clock, entropy, console, configuration, waiting, page tables
//! ```
//!
//! Address space is memory here, so nothing is ever given back to a region.
//!
//! Context: any. A kernel's functions behind the doors may run in each allocation.

use core::ptr::NonNull;

use super::{Access, Budget, Clock, ConfSource, Console, Cpus, Memory, Process};
use crate::sync::{AtomicU32, AtomicUsize, Ordering, atomics, const_fn};
use crate::units::PAGE_SIZE;

/// Most regions that can be added.
pub const MAX_REGIONS: usize = 64;

/// A change of page tables: address, bytes, and whether the pages become accessible. The caller
/// alone uses them.
pub type Protect = unsafe fn(at: *mut u8, bytes: usize, accessible: bool) -> bool;

/// The functions that a kernel gives beside memory: `Doors { print, ..Doors::NONE }`.
///
/// They must not allocate, unwind, or wait for a lock that a caller of the allocator may hold.
#[derive(Clone, Copy, Debug)]
pub struct Doors {
    /// Number of the CPU that the caller runs on. If it is the wrong one, allocation is slower.
    pub cpu: fn() -> u32,
    /// See [`Clock::now_ms`].
    pub now_ms: fn() -> u64,
    /// See [`Clock::ticks`].
    pub ticks: fn() -> u64,
    /// See [`Clock::wall_ns`].
    pub wall_ns: fn() -> u64,
    /// See [`Clock::entropy`].
    pub entropy: fn() -> u64,
    /// See [`Console::print`].
    pub print: fn(&[u8]),
    /// See [`Console::fatal`].
    pub fatal: fn() -> !,
    /// Lets other tasks and CPUs run for a moment. The caller waits for one of them.
    pub give_way: fn(),
    /// Makes whole pages of a range inaccessible, or accessible again with their contents, on all
    /// CPUs. False: refused, nothing changed. With it, areas of vmalloc have guard pages.
    pub protect: Option<Protect>,
    /// The options, such as `shuffle:1,debug:1`; empty for none.
    pub configuration: &'static str,
}

impl Doors {
    /// One CPU, no clock, no entropy, a silent console, no configuration; waits spin.
    pub const NONE: Self = Self {
        cpu: || 0,
        now_ms: || 0,
        ticks: || 0,
        wall_ns: || 0,
        entropy: || 0,
        print: |_| (),
        fatal: || loop {
            core::hint::spin_loop();
        },
        give_way: crate::sync::spin,
        protect: None,
        configuration: "",
    };
}

/// A region. Zeroed, it has no memory.
///
/// # Invariants
/// `next` never decreases, and passes `end` never. `end` is written after `next`, once.
struct Region {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// Regions of memory; see the module's description.
pub struct Regions {
    regions: [Region; MAX_REGIONS],
    count: AtomicU32,
    /// Bytes of all regions.
    bytes: AtomicUsize,
    /// Most bytes that are expected in all regions; 0: not known.
    most: usize,
    cpus: u32,
    doors: Doors,
}

impl Regions {
    const_fn! {
        /// A platform without memory so far, for up to `cpus` CPUs.
        pub const fn new(cpus: u32, doors: Doors) -> Self {
            Self {
                regions: atomics!(
                    Region { next: AtomicUsize::new(0), end: AtomicUsize::new(0) }; MAX_REGIONS
                ),
                count: AtomicU32::new(0),
                bytes: AtomicUsize::new(0),
                most: 0,
                cpus,
                doors,
            }
        }
    }

    /// Has tables made for `bytes` of memory, which an instance makes at its start. Without this
    /// they are for the memory that is there then. More memory can be used, but an instance with
    /// short tables knows fewer call sites and groups.
    #[must_use]
    pub const fn with_most(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    /// Adds `bytes` of memory at `at`, at any time and on any CPU. False: there are
    /// [`MAX_REGIONS`] regions already, and the memory stays the caller's.
    ///
    /// An instance takes a region in zones with tables of their own. Objects and pages of the first
    /// zone take the fast paths. So the largest region comes first, before the first allocation.
    ///
    /// # Safety
    /// The memory is valid for reads and writes, and zero. Nothing else uses it for as long as
    /// this value, or memory allocated from it, is used.
    pub unsafe fn add(&self, at: *mut u8, bytes: usize) -> bool {
        let start = at as usize;
        let Some(end) = start.checked_add(bytes) else { return false };
        let full = |count| (count < MAX_REGIONS as u32).then_some(count + 1);
        let Ok(number) = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, full) else {
            return false;
        };
        let region = &self.regions[number as usize];
        // INVARIANT: only this call got the number. Release pairs with the acquire in `reserve`.
        region.next.store(start, Ordering::Relaxed);
        region.end.store(end, Ordering::Release);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// A platform over one region, which writes to a console.
    ///
    /// # Safety
    /// See [`Self::add`].
    pub unsafe fn of(
        at: *mut u8,
        bytes: usize,
        cpus: u32,
        print: fn(&[u8]),
        fatal: fn() -> !,
    ) -> Self {
        let regions = Self::new(cpus, Doors { print, fatal, ..Doors::NONE });
        // SAFETY: the same contract.
        unsafe { regions.add(at, bytes) };
        regions
    }

    /// A platform without memory.
    #[cfg(test)]
    pub fn empty() -> Self {
        Self::new(1, Doors { fatal: || panic!("fatal"), ..Doors::NONE })
    }

    /// Bytes at the end of a region that nothing has.
    fn left(region: &Region) -> usize {
        let end = region.end.load(Ordering::Acquire);
        if end == 0 { 0 } else { end - region.next.load(Ordering::Relaxed) }
    }
}

impl Region {
    /// Hands out a part. `None`: the region has no such part left.
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        // Acquire pairs with the release in `add`: `next` is written.
        let limit = self.end.load(Ordering::Acquire);
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let at = next.checked_next_multiple_of(align)?;
            let end = at.checked_add(bytes)?;
            if end > limit {
                return None;
            }
            // INVARIANT: `end` is not below the old `next`, and not above the region's end.
            match self.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return NonNull::new(at as *mut u8),
                Err(seen) => next = seen,
            }
        }
    }
}

// SAFETY: `reserve` hands out each byte once; all of it is readable, writable and zero.
unsafe impl Memory for Regions {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.regions.iter().find_map(|region| region.reserve(bytes, align))
    }

    unsafe fn release(&self, _at: NonNull<u8>, _bytes: usize) {}

    unsafe fn commit(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        true
    }

    fn budget(&self) -> Budget {
        // A zone's tables and alignment, per-CPU memory, and areas with guards need the rest.
        let parts = if self.can_protect() { 6 } else { 7 };
        let for_pages = |bytes: usize| (bytes / 8 * parts) & !(PAGE_SIZE - 1);
        let zone = for_pages(self.regions.iter().map(Self::left).max().unwrap_or(0));
        let all = for_pages(self.bytes.load(Ordering::Relaxed).max(self.most));
        // Areas have memory of their own here, and not address space alone.
        Budget { memory: all, areas: all / 8, ..Budget::of(zone, self.cpus) }
    }

    fn can_protect(&self) -> bool {
        self.doors.protect.is_some()
    }

    unsafe fn protect(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool {
        let accessible = match access {
            Access::All => true,
            Access::None => false,
            Access::Marked => return false,
            Access::Unmarked => return true,
        };
        // SAFETY: the same contract.
        self.doors.protect.is_some_and(|protect| unsafe { protect(at.as_ptr(), bytes, accessible) })
    }
}

impl Cpus for Regions {
    fn slot_hint(&self) -> u32 {
        (self.doors.cpu)() % self.cpus.max(1)
    }
}

impl Clock for Regions {
    fn now_ms(&self) -> u64 {
        (self.doors.now_ms)()
    }

    fn ticks(&self) -> u64 {
        (self.doors.ticks)()
    }

    fn wall_ns(&self) -> u64 {
        (self.doors.wall_ns)()
    }

    fn entropy(&self) -> u64 {
        (self.doors.entropy)()
    }
}

impl Console for Regions {
    fn print(&self, text: &[u8]) {
        (self.doors.print)(text);
    }

    fn fatal(&self) -> ! {
        (self.doors.fatal)()
    }
}

impl Process for Regions {
    fn configuration(&self, source: ConfSource, buf: &mut [u8]) -> Option<usize> {
        if source != ConfSource::Environment {
            return None;
        }
        let text = self.doors.configuration.as_bytes();
        let len = text.len().min(buf.len());
        buf[..len].copy_from_slice(&text[..len]);
        (!text.is_empty()).then_some(text.len())
    }

    fn give_way(&self) {
        (self.doors.give_way)();
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        if word.load(Ordering::SeqCst) == seen {
            (self.doors.give_way)();
        }
    }
}
