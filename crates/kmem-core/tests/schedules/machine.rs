//! The platform of the models: a piece of memory or none, a CPU for each thread, and a clock. It
//! checks the owner of pages that it drops.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use kmem_core::os::regions::Regions;
use kmem_core::os::{Budget, Clock, Console, Cpus, Memory, Process};
use kmem_core::sync::{Ordering, fence};
use kmem_core::units::PAGE_SIZE;
use shuttle::rand::{Rng, thread_rng};

use crate::console::{fatal, print};
use crate::stamps::{NOBODY, Stamps};

/// Owner of pages while the platform drops their contents.
const PLATFORM: u8 = 0x7F;

pub(crate) struct Machine {
    region: Regions,
    /// Where the pages of the stamps begin, and whether there is memory behind them.
    base: usize,
    is_memory: bool,
    pub(crate) stamps: Stamps,
    cpus: u32,
    nodes: u32,
    clock: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Address of the root block.
    pub(crate) root: AtomicUsize,
}

impl Machine {
    /// A machine whose pages are not memory: its `pages` from `base` on have stamps.
    pub(crate) fn without_memory(base: usize, pages: u32, cpus: u32) -> Self {
        // SAFETY: the machine has no bytes of memory.
        unsafe { Self::new(std::ptr::null_mut(), 0, base, pages, cpus) }
    }

    /// A machine over `bytes` at `at`.
    ///
    /// # Safety
    /// The memory is zeroed, and the machine alone uses it.
    pub(crate) unsafe fn with_memory(at: *mut u8, bytes: usize, cpus: u32) -> Self {
        // SAFETY: zeroed memory that the machine alone uses, by the contract.
        unsafe { Self::new(at, bytes, at as usize, (bytes / PAGE_SIZE) as u32, cpus) }
    }

    /// # Safety
    /// The `bytes` at `at` are zeroed memory that the machine alone uses.
    unsafe fn new(at: *mut u8, bytes: usize, base: usize, pages: u32, cpus: u32) -> Self {
        Self {
            // SAFETY: zeroed memory that the region alone uses, by the contract.
            region: unsafe { Regions::of(at, bytes, cpus, print, fatal) },
            base,
            is_memory: bytes > 0,
            stamps: Stamps::new(pages),
            cpus,
            nodes: 1,
            clock: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            root: AtomicUsize::new(0),
        }
    }

    /// Gives the machine a number of nodes: CPU `n` is of node `n % nodes`.
    pub(crate) fn with_nodes(self, nodes: u32) -> Self {
        Self { nodes, ..self }
    }

    /// Number of the page at an address, for its stamp.
    pub(crate) fn page(&self, at: usize) -> u32 {
        ((at - self.base) / PAGE_SIZE) as u32
    }
}

/// Number of the calling thread in the model. The thread that made the others is 0.
pub(crate) fn me() -> usize {
    shuttle::current::me().into()
}

/// A number that the schedule decides.
pub(crate) fn random(range: std::ops::Range<u32>) -> u32 {
    thread_rng().gen_range(range)
}

// SAFETY: memory is the region's, and is zero again when its contents were dropped.
unsafe impl Memory for Machine {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.region.reserve(bytes, align)
    }

    unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: the same contract, for the same range.
        unsafe { self.region.release(at, bytes) }
    }

    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // Other threads run meanwhile.
        fence(Ordering::SeqCst);
        // SAFETY: the same contract, for the same range.
        unsafe { self.region.commit(at, bytes) }
    }

    /// No thread may own the pages before, during or after the call.
    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        let (first, pages) = (self.page(at.as_ptr() as usize), (bytes / PAGE_SIZE) as u32);
        self.stamps.pass(first, pages, NOBODY, PLATFORM, false);
        fence(Ordering::SeqCst);
        // Now and then it refuses.
        let drops = thread_rng().gen_ratio(7, 8);
        if drops {
            if self.is_memory {
                // SAFETY: committed memory whose contents are not needed, by the contract.
                unsafe { at.as_ptr().write_bytes(0, bytes) };
            }
            self.stamps.wipe(first, pages);
            self.dropped.fetch_add(bytes as u64, Relaxed);
        }
        fence(Ordering::SeqCst);
        self.stamps.pass(first, pages, PLATFORM, NOBODY, false);
        drops
    }

    fn budget(&self) -> Budget {
        self.region.budget()
    }

    fn map_root(&self, bytes: usize) -> Option<NonNull<u8>> {
        let root = self.region.map_root(bytes)?;
        self.root.store(root.as_ptr() as usize, Relaxed);
        Some(root)
    }
}

impl Cpus for Machine {
    /// Each thread has a CPU, and is now and then moved to another.
    fn slot_hint(&self) -> u32 {
        let moved = thread_rng().gen_ratio(1, 8);
        let cpu = if moved { random(0..self.cpus) } else { me() as u32 };
        cpu % self.cpus
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn node(&self) -> u32 {
        self.slot_hint() % self.nodes
    }
}

impl Clock for Machine {
    fn now_ms(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// Each look costs two milliseconds; with several nodes a second, so that arrays are searched
    /// for items of other nodes.
    fn ticks(&self) -> u64 {
        let step = if self.nodes > 1 { 1000 } else { 2 };
        self.clock.fetch_add(step, Relaxed) * 1_000_000
    }
}

impl Console for Machine {
    fn print(&self, text: &[u8]) {
        self.region.print(text);
    }

    fn fatal(&self) -> ! {
        self.region.fatal()
    }
}

impl Process for Machine {}
