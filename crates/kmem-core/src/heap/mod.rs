//! The heap of an instance: zones, CPU arrays, the barn, CPUs' reserves of pages. The heap neither
//! charges nor tags memory: the ledger does.
//!
//! ```text
//! take --> array of the CPU
//!           | empty: array::refill
//!           v
//!          objects: barn, slabs --\
//!          blocks:  reserve of the CPU --> zones --> platform
//!          runs:    ----------------------/
//! give --> array of the CPU
//!           | full: array::flush
//!           v
//!          barn, slabs, zones, each item to its node
//! ```
//!
//! | file      | what it does                                                          |
//! |-----------|-----------------------------------------------------------------------|
//! | `array`   | refills, flushes and drains CPU arrays, whatever they hold            |
//! | `objects` | objects of slabs                                                      |
//! | `blocks`  | blocks of pages of orders 0 to 3, and huge pages                      |
//! | `runs`    | runs of pages, and blocks of orders 4 to 8                            |
//! | `find`    | finds the live allocation at an address                               |
//! | `fast`    | tables that the fast paths read                                       |
//! | `decay`   | gives back what no CPU needed for a while; `drain` all of it, at once |
//! | `demand`  | the memory that was in use at once lately                             |
//! | `tend`    | gives back while the program makes no calls                           |
//! | `fork`    | repair in a forked child; `validate` recounts                         |
//! | `lazy`    | a zone that is made when it is first needed                           |
//! | `nodes`   | sends what CPUs keep of other nodes back to these                     |
//!
//! Lock order: there are no locks that a thread waits for. The exceptions are turns in which a zone
//! grows (see `page`), and slabs in a forked child (see `slab`).
//!
//! Context: any, signal handlers included.

use core::cell::UnsafeCell;

use kmem_layout::root::RootBlock;
use kmem_layout::word::EXT_LIVE;

use crate::class::{ArrayId, Classes, Contents, SizeClass};
use crate::conf::Thp;
use crate::cpu::{Kind, Slots};
use crate::os::Platform;
use crate::os::stepped::Part;
use crate::page::{BadPage, PageChecks, PageFormat, Pcp, Zone, Zones};
use crate::prng::{Prng, Seeds};
use crate::report;
use crate::slab::sheaf::Barn;
use crate::slab::slabs::{Refused, Slabs};
use crate::slab::{Format, SlabZone};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::PAGE_SIZE;

mod array;
mod blocks;
mod decay;
mod demand;
mod drain;
mod fast;
mod find;
mod fork;
mod lazy;
mod nodes;
mod objects;
mod runs;
mod tend;
mod validate;

pub use array::{Arrays, Backing, Looked};
pub use fast::{BookedWords, Fast};
pub use find::Live;
pub use lazy::LazyZone;
pub use runs::{Fit, RunRequest};
pub use validate::HeapFault;

/// A zone of an instance and its slabs.
pub type ZoneSet = crate::page::ZoneSet<SlabZone>;

/// The layers above the heap, as far as the heap needs them.
pub trait Owner: Sync {
    /// Gives back free memory that the layers above keep, because a request finds none.
    fn drain(&'static self);

    /// Gives back free memory that the layers above did not need for a generation of the decay.
    fn age(&'static self);

    /// Reports a bad page, which the heap does not use again.
    fn bad_page(&'static self, zone: &Zone, found: BadPage);

    /// Ends the program, which freed the memory at an address twice. That was reported. The calling
    /// thread may have stopped a CPU and taken a sheaf, so nothing here waits for either.
    fn freed_twice(&'static self, at: usize) -> !;
}

/// The heap. Zeroed memory, but for the platform, is a valid value: not started.
#[repr(C)]
pub struct Heap<P> {
    /// The CPUs' arrays of objects, blocks and runs.
    pub slots: Slots,
    /// Tables that the fast paths read.
    pub fast: Fast,
    /// The tables for `free` where `fast` is closed because each freed object is zeroed or checked,
    /// or may be a sample of a tracer.
    pub fast_aside: Fast,
    /// The geometry of each size class.
    pub classes: Classes,
    /// The zones.
    pub zones: Zones<SlabZone>,
    /// The CPUs' shares of the page layer: address of the first [`Pcp`], and their number.
    pcp: AtomicUsize,
    pcp_count: AtomicU32,
    /// Milliseconds for which free memory is kept; 0: it is not kept.
    decay_ms: AtomicU32,
    /// The time for which the highest use of pages counts as demand, in milliseconds.
    demand_ms: AtomicU32,
    demand: demand::Demand,
    /// Pages beyond which the system ends the process; `u32::MAX` if there is no limit.
    limit: AtomicU32,
    /// Calls of the tender.
    tended: tend::Tended,
    /// Ticks at the last look at the clock of all zones.
    looked: AtomicU64,
    /// [`Format`] as bits.
    format: AtomicU32,
    /// Number of blocks of pages that were found bad and are not used again.
    bad_pages: AtomicU64,
    /// Number of runs whose contents were remapped.
    remapped: AtomicU32,
    seeds: Seeds,
    given: UnsafeCell<Option<Given>>,
    /// The platform.
    pub platform: P,
}

// SAFETY: `given` is written once, before any other thread uses the heap (contract of `start`).
unsafe impl<P: Sync> Sync for Heap<P> {}

/// The things that a heap gets at its start, and never changes.
#[derive(Clone, Copy)]
struct Given {
    owner: &'static dyn Owner,
    /// Full sheaves on their way from CPU to CPU: a barn for each node.
    barns: &'static [Barn],
}

/// Memory and settings that a heap starts with.
pub struct Start<'a> {
    /// The root block.
    pub root: *const RootBlock,
    /// Number of nodes.
    pub nodes: u32,
    /// Barns of the nodes, zeroed: [`Barn::bytes`] for `nodes`.
    pub barns: *mut u8,
    /// Their pools: [`Barn::pools_bytes`] for `nodes` and `sheaves`.
    pub pools: Part,
    /// Number of sheaves in the pool of each.
    pub sheaves: u32,
    /// `[Pcp; cpus]`, zeroed.
    pub pcp: *mut u8,
    /// Number of CPUs.
    pub cpus: u32,
    /// The metadata that slabs have beside objects.
    pub format: Format,
    /// Number of vectors of words that slabs have behind their objects.
    pub vectors: u32,
    /// True if pages have times.
    pub times: bool,
    /// Checks of pages.
    pub checks: PageChecks,
    /// When memory is backed with huge pages.
    pub huge: Thp,
    /// Milliseconds for which free memory is kept; 0: it is not kept.
    pub decay_ms: u32,
    /// Milliseconds for which as much memory is kept as was in use at once.
    pub demand_ms: u32,
    /// Bytes beyond which the system ends the process.
    pub limit: usize,
    /// The layers above.
    pub owner: &'a dyn Owner,
}

const EXTENSION: u32 = 1;
const GUARDS: u32 = 2;
const CHARGES: u32 = 4;

impl<P: Platform> Heap<P> {
    /// A heap over a platform, not started.
    pub const fn over(platform: P) -> Self {
        Self {
            slots: Slots::new(),
            fast: Fast::new(),
            fast_aside: Fast::new(),
            classes: Classes::new(),
            zones: Zones::new(),
            pcp: AtomicUsize::new(0),
            pcp_count: AtomicU32::new(0),
            decay_ms: AtomicU32::new(0),
            demand_ms: AtomicU32::new(0),
            demand: demand::Demand::new(),
            limit: AtomicU32::new(0),
            tended: tend::Tended::new(),
            looked: AtomicU64::new(0),
            format: AtomicU32::new(0),
            bad_pages: AtomicU64::new(0),
            remapped: AtomicU32::new(0),
            seeds: Seeds::new(),
            given: UnsafeCell::new(None),
            platform,
        }
    }

    /// Starts the heap, without a zone and without CPU arrays.
    ///
    /// # Safety
    /// No other thread uses the heap. The memory is as [`Start`] says. Only the heap uses it and
    /// the root block's table of zones, and none of it is ever freed.
    pub unsafe fn start(&'static self, start: &Start<'static>) {
        let Start { format, owner, .. } = *start;
        let bits = if format.extension { EXTENSION } else { 0 }
            | if format.charges { CHARGES } else { 0 }
            | if format.guards { GUARDS } else { 0 };
        self.format.store(bits, Ordering::Relaxed);
        self.decay_ms.store(start.decay_ms, Ordering::Relaxed);
        self.demand_ms.store(start.demand_ms, Ordering::Relaxed);
        let limit = u32::try_from(start.limit / PAGE_SIZE).unwrap_or(u32::MAX);
        self.limit.store(limit, Ordering::Relaxed);
        // The address tells instances apart, and is random where programs are loaded at random.
        self.seeds.start(self.platform.entropy() ^ (&raw const *self as u64).rotate_left(32));
        // SAFETY: no other thread uses the heap, and there is no slab. The memory is as the callees
        // require, by the contract.
        unsafe {
            self.classes.start(start.vectors);
            let barns = Barn::start_all(start.barns, start.pools, start.nodes, start.sheaves);
            *self.given.get() = Some(Given { owner, barns });
            let words = PageFormat::new(format.has_words(), start.times);
            let pages = (start.checks, start.huge);
            self.zones.start(&self.platform, start.root, pages, (start.nodes, words));
        }
        self.pcp_count.store(start.cpus, Ordering::Relaxed);
        self.pcp.store(start.pcp as usize, Ordering::Release);
    }

    /// Lets CPUs have arrays.
    pub fn start_slots(&self, kind: Kind) {
        self.slots.start(&self.platform, kind);
    }

    fn given(&self) -> Option<Given> {
        // SAFETY: written once, before any other thread uses the heap.
        unsafe { *self.given.get() }
    }

    fn owner(&self) -> Option<&'static dyn Owner> {
        self.given().map(|given| given.owner)
    }

    /// The barns of all nodes.
    fn barns(&self) -> &'static [Barn] {
        self.given().map_or(&[], |given| given.barns)
    }

    /// The metadata that slabs of the heap have beside objects.
    #[inline]
    pub fn format(&self) -> Format {
        let bits = self.format.load(Ordering::Relaxed);
        Format {
            extension: bits & EXTENSION != 0,
            charges: bits & CHARGES != 0,
            guards: bits & GUARDS != 0,
        }
    }

    /// The slabs of the heap.
    #[inline]
    pub fn slabs(&self) -> Slabs<'_, P> {
        // SAFETY: all slabs of the heap are made with these classes and this format, which never
        // change after start.
        unsafe { Slabs::new(&self.zones, &self.classes, self.format(), &self.platform) }
    }

    /// The CPU arrays of objects, blocks and runs.
    #[inline]
    fn arrays(&self) -> Arrays<'_, P, impl Fn(ArrayId) -> u16> {
        Arrays { slots: &self.slots, platform: &self.platform, cap: |array| self.cap(array) }
    }

    /// Gives this CPU its arrays, on whose heads the stocks of groups are, if it has none.
    pub fn ensure_arrays(&self) {
        if let Some(cpu) = self.slots.current(self.slots.hint(&self.platform)) {
            self.slots.ensure(&self.platform, cpu, |array| self.cap(array));
        }
    }

    /// Most items of an array that a CPU keeps.
    fn cap(&self, array: ArrayId) -> u16 {
        match array.contents() {
            Contents::Objects(class) => self.classes.geometry(class).cap,
            Contents::Runs(class) => self.most_runs(class),
            Contents::Blocks(class) => class.cap(),
        }
    }

    /// The CPUs' shares of the page layer.
    pub fn pcps(&self) -> &[Pcp] {
        let at = self.pcp.load(Ordering::Acquire) as *const Pcp;
        if at.is_null() {
            return &[];
        }
        let count = self.pcp_count.load(Ordering::Relaxed) as usize;
        // SAFETY: the memory has `count` shares and is never freed, by the contract of `start`.
        // Zeroes are a valid `Pcp`.
        unsafe { core::slice::from_raw_parts(at, count) }
    }

    /// Returns whether CPUs keep free pages for a while.
    fn keeps_pages(&self) -> bool {
        self.decay_ms.load(Ordering::Relaxed) != 0
    }

    /// Number of blocks of pages that were found bad and are not used again.
    pub fn bad_pages(&self) -> u64 {
        self.bad_pages.load(Ordering::Relaxed)
    }

    /// A source of random numbers, if objects and pages are handed out in random order.
    fn mixer(&self) -> Option<Prng> {
        self.zones.checks().shuffles().then(|| Prng::new(self.seed()))
    }

    /// A number that follows from the platform's entropy, and differs from all others before.
    pub fn seed(&self) -> u64 {
        self.seeds.next() ^ self.platform.ticks()
    }

    /// Calls `claim` until it succeeds: again after bad pages, and once more after CPUs and the
    /// layers above gave back what they keep. `None`: there is no memory.
    fn retrying<'a, T>(
        &'static self,
        mut claim: impl FnMut() -> Result<T, Refused<'a>>,
    ) -> Option<T> {
        let mut drained = false;
        loop {
            match claim() {
                Ok(found) => {
                    self.mind_limit();
                    return Some(found);
                }
                Err(Refused::Bad(set, found)) => self.take_out_of_use(set, found),
                Err(Refused::NoMemory) if drained => return None,
                Err(Refused::NoMemory) => {
                    drained = true;
                    self.drain();
                }
            }
        }
    }

    /// Reports a bad page. Its run stays claimed. Its words say that no allocation has it, so a
    /// free of it is reported.
    #[cold]
    fn take_out_of_use(&'static self, set: &ZoneSet, found: BadPage) {
        self.bad_pages.fetch_add(1, Ordering::Relaxed);
        if let Some(owner) = self.owner() {
            owner.bad_page(&set.zone, found);
        }
        if let Some(words) = set.zone.words(found.run.start) {
            if let Some(ext) = words.ext {
                ext.fetch_and(!EXT_LIVE, Ordering::Relaxed);
            }
            words.len.store(0, Ordering::Release);
        }
    }

    /// Ends the program: an object came back to its slab although it is free there. Two threads
    /// freed it concurrently.
    #[cold]
    #[inline(never)]
    fn end_for_object(&self, object: usize, class: SizeClass) -> ! {
        report::print_freed_twice(&self.platform, object, class);
        self.end_for_double_free(object)
    }

    /// Ends the program: a page came back to its zone although it is free there.
    #[cold]
    #[inline(never)]
    fn end_for_page(&self, page: usize) -> ! {
        report::print_page_freed_twice(&self.platform, page);
        self.end_for_double_free(page)
    }

    fn end_for_double_free(&self, at: usize) -> ! {
        match self.owner() {
            Some(owner) => owner.freed_twice(at),
            None => self.platform.fatal(),
        }
    }

    /// Bytes of a slab of a class.
    #[inline(always)]
    pub fn slab_bytes(&self, class: SizeClass) -> usize {
        self.classes.geometry(class).slab_bytes()
    }
}
