//! An instance: one allocator over one platform. It starts itself, serves the fast paths, and
//! passes everything else to the layers below.
//!
//! ```text
//! alloc --> slots.pop ------------------------------> extension word of the object
//!            | empty                                   ^
//!            v                                         |
//!          ledger: pay, heap.take, write the word -----/
//!
//! free  --> extension word: live bit out --> slots.push
//!            | not a live object of the       | full
//!            | first zone without a group     v
//!            v                               heap.flush
//!          ledger: refund, heap.give
//! ```
//!
//! | file       | offers                                                               |
//! |------------|----------------------------------------------------------------------|
//! | `alloc`    | `malloc`, `kmalloc`, zeroed, aligned                                 |
//! | `free`     | `free`, sizes and owners of allocations                              |
//! | `realloc`  | changes of size                                                      |
//! | `pages`    | blocks of pages (the kernel's `alloc_pages`)                         |
//! | `node`     | objects and pages of a node (the kernel's `_node` functions)         |
//! | `cache`    | objects of one kind (the kernel's `kmem_cache`)                      |
//! | `vmalloc`  | areas with a guard page                                              |
//! | `access`   | reports of accesses that the hardware refused                        |
//! | `percpu`   | objects of which every CPU has a copy; `percpu_variable` static ones |
//! | `group`    | groups: limits, charges, events                                      |
//! | `refusal`  | the function that is told of refused requests                        |
//! | `mempool`  | pools with a reserve                                                 |
//! | `source`   | hash tables, and memory for the layers that use `Source`             |
//! | `tags`     | static tags of loaded objects; the census                            |
//! | `stats`    | counts; giving memory back at once; `validate` recounts               |
//! | `start`    | configuration and the first zone; `tables` their memory              |
//! | `fork`     | repair of a forked child; `vfork`                                    |
//! | `global`   | the global allocator of a Rust program                               |
//!
//! Lock order: there are no locks that a thread waits for. The exceptions are turns in which a zone
//! grows (see `page`), and slabs in a forked child (see `slab`).
//!
//! Context: any, signal handlers included. An instance must not move once it was used, so methods
//! take `&'static self`.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

use crate::conf::{Conf, GroupBy, MAX_NAME, Text};
use crate::heap::{Heap, Owner};
use crate::ledger::Ledger;
use crate::os::Platform;
use crate::page::{BadPage, Zone};
use crate::percpu::PerCpu;
use crate::sync::{AtomicU32, Ordering};
use crate::vmalloc::Vmalloc;

mod access;
mod alloc;
mod cache;
mod configure;
mod constructed;
mod fork;
mod free;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod global;
mod group;
mod mempool;
mod node;
mod pages;
mod percpu;
mod percpu_variable;
mod realloc;
mod refusal;
mod sized;
mod source;
mod start;
mod stats;
mod tables;
mod tags;
mod validate;
mod vmalloc;

pub use cache::{Cache, CacheFlags, Constructor};
pub use group::{Group, GroupKinds, GroupScope, GroupStat, Grouped, Reservation};
pub use mempool::{Elements, FromInstance, Mempool};
pub use percpu_variable::PerCpuVariable;
pub use sized::SizedFree;
pub use source::Table;
pub use stats::Stats;
pub use validate::Invalid;

/// An instance on Linux.
#[cfg(kmem_linux)]
pub type Kmem = Instance<crate::os::linux::Linux>;

/// One allocator. It is all zero but for the platform until it is first used; then it starts
/// itself.
///
/// # Invariants
/// `conf` is written once, before `state` is `start::READY`.
///
/// # Examples
/// ```
/// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
/// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
/// let at = KMEM.alloc(100, caller);
/// assert!(!at.is_null());
/// assert_eq!(KMEM.stats().objects, 1);
/// // SAFETY: a live allocation, which is used no longer.
/// unsafe { KMEM.free(at) };
/// assert_eq!(KMEM.stats().objects, 0);
/// ```
#[repr(C)]
pub struct Instance<P> {
    ledger: Ledger<P>,
    percpu: PerCpu,
    vmalloc: Vmalloc,
    /// Number of forks between this process and the one that started the instance.
    forks: AtomicU32,
    /// See [`start`].
    state: AtomicU32,
    conf: UnsafeCell<MaybeUninit<Conf>>,
}

// SAFETY: the thread that starts the instance writes the cell before it sets the state (release).
// Other threads read the cell after they saw that state (acquire).
unsafe impl<P: Sync> Sync for Instance<P> {}

impl<P: Platform> Instance<P> {
    /// An instance over a platform. It starts when it is first used.
    pub const fn over(platform: P) -> Self {
        Self {
            ledger: Ledger::over(platform),
            percpu: PerCpu::new(),
            vmalloc: Vmalloc::new(),
            forks: AtomicU32::new(0),
            state: AtomicU32::new(start::NEW),
            conf: UnsafeCell::new(MaybeUninit::zeroed()),
        }
    }

    /// Platform of the instance.
    pub fn platform(&self) -> &P {
        self.ledger.platform()
    }

    #[inline(always)]
    fn heap(&self) -> &Heap<P> {
        &self.ledger.heap
    }

    fn conf(&self) -> Conf {
        if self.state.load(Ordering::Acquire) == start::READY {
            // SAFETY: written before the state became ready, by the invariant.
            unsafe { (*self.conf.get()).assume_init() }
        } else {
            Conf::DEFAULT
        }
    }

    /// Configured group of a thread that enters none.
    pub fn group_by(&self) -> GroupBy {
        self.conf().group_by
    }

    /// Configured: whether a thread gives memory back while the program makes no calls.
    pub fn wants_background_thread(&self) -> bool {
        self.conf().background_thread
    }

    /// Configured name of the socket to call at exit.
    pub fn report_socket(&self) -> Text<MAX_NAME> {
        self.conf().report
    }
}

impl<P: Platform> Owner for Instance<P> {
    fn drain(&'static self) {
        self.ledger.empty_quarantine();
        self.percpu.on(&self.ledger).drain();
        self.vmalloc.on(&self.ledger).drain();
    }

    fn age(&'static self) {
        self.vmalloc.on(&self.ledger).drain_arrays();
    }

    fn bad_page(&'static self, zone: &Zone, found: BadPage) {
        self.ledger.reporter().bad_page(zone, found);
        if self.heap().zones.checks().are_fatal() {
            self.ledger.end_for_damage(None);
        }
    }

    fn freed_twice(&'static self, at: usize) -> ! {
        self.ledger.end_for_double_free(at)
    }
}
