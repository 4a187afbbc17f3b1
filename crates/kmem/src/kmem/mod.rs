//! The facade: one value wires an instance.
//!
//! ```text
//! alloc --> slots.pop ------------------------------------> book (tag into the object's word)
//!            | empty                                          ^
//!            v                                                |
//!          barn: a full sheaf --> slabs: credit, rows --> zone: a new slab --> platform
//!
//! free  --> unbook (live bit out of the word) --> slots.push
//!                                                  | full
//!                                                  v
//!                                    barn: a sheaf more --> slabs: rows, credit --> zone
//! ```
//!
//! Lock order: there are no locks that anybody waits for (see `slab` for the one exception in
//! a forked child).
//!
//! Context: any, signal handlers included. An instance must not move once it was used: all
//! methods take `&'static self`.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::null_mut;

use crate::alloc_tag::{BlackBox, Scratch, Warned, Watch};
use crate::class::{CHUNK_SHIFT, ClassGeometry, FINE, MAX_OBJECT, SMALL_SLAB, SizeClass};
use crate::codetag::{Caller, Sites, objcg, scope};
use crate::conf::Conf;
use crate::cpu::Slots;
use crate::memcg::Groups;
use crate::os::Platform;
use crate::root::{EXT_LIVE, MAX_ZONES, RootBlock, TAG_BITS, TAG_MASK};
use crate::slab::quarantine::Quarantine;
use crate::slab::sheaf::Barn;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{Gfp, Item, ObjcgId};

mod account;
mod cache;
mod fault;
mod fork;
#[cfg(kmem_linux)]
mod global;
mod group;
mod large;
mod mempool;
mod node;
mod object_debug;
mod oom;
mod page_debug;
mod pages;
mod pcp;
mod percpu;
mod percpu_variable;
mod realloc;
mod reclaim;
mod slow;
mod source;
mod start;
mod stats;
mod vmalloc;
mod vmap;
mod watch;
mod zone_set;

pub use cache::Cache;
pub use fault::Fault;
pub use group::{Group, GroupKinds, GroupScope, GroupStat, Grouped, Reservation, fallible};
pub use mempool::{Elements, FromInstance, Mempool};
pub use percpu::PerCpuStats;
pub use percpu_variable::PerCpuVariable;
pub use source::Table;
pub use stats::Stats;
pub use vmalloc::VmallocStats;
use zone_set::{Purpose, ZoneSet};

/// An instance on Linux.
#[cfg(kmem_linux)]
pub type Kmem = Instance<crate::os::linux::Linux>;

/// The switch as the fast paths see it: like [`crate::root::profiling`], with a value for "not
/// started" that is zero.
mod mode {
    use crate::root::profiling;

    // 0 is "not started".
    pub(super) const ON: u32 = profiling::ON;
    pub(super) const NEVER: u32 = profiling::NEVER;
    pub(super) const OFF: u32 = 3;

    pub(super) const fn from(switch: u32) -> u32 {
        if switch == profiling::OFF { OFF } else { switch }
    }
}

/// What the fast paths read.
#[repr(C, align(64))]
struct Hot {
    /// Address of the first zone.
    base: AtomicUsize,
    /// Chunks of the first zone; 0 before start and without books, so that every free goes
    /// the other way.
    chunks: AtomicUsize,
    /// `[AtomicU8; chunks]`: class of each chunk.
    chunk_class: AtomicUsize,
    /// The switch, copied from the root block now and then; see [`mode`].
    mode: AtomicU32,
    /// Requests of fewer bytes are served by slabs; 0 before start and where objects are guarded, so that
    /// every request goes the other way. Never more than [`MAX_OBJECT`] and one.
    slab_bound: AtomicUsize,
    /// Parts of the classes' geometries, each in a table of its own so that an index needs no
    /// arithmetic. Indexed by a byte of `chunk_class`; for what is no class, no offset is valid.
    layout: UnsafeCell<Layout>,
}

/// See [`ClassGeometry`].
struct Layout {
    reciprocal: [u64; 256],
    /// All ones above the bits of an offset in a slab.
    slab: [usize; 256],
    ext_offset: [usize; 256],
    ext_shift: [u32; 256],
    /// What a CPU may have in stock for a group, in objects, is below this.
    stock_bound: [u32; 256],
}

/// One allocator. All zero but for the platform until first used, and then started by itself.
#[repr(C)]
pub struct Instance<P> {
    slots: Slots,
    hot: Hot,
    /// Indexed by a byte of `chunk_class`; entries that are no class have no valid offset.
    classes: UnsafeCell<[ClassGeometry; 256]>,
    sites: Sites,
    groups: Groups,
    barn: Barn,
    /// Chunks of the first zone, in an instance without books.
    bare_chunks: AtomicUsize,
    /// See [`pages::Tables`].
    pages: pages::Tables,
    /// See [`crate::page::Pcp`]: address of the first, and how many.
    pcp: AtomicUsize,
    pcp_count: AtomicU32,
    /// See [`page_debug::PageDebug`].
    page_debug: AtomicU32,
    /// Pages found bad so far.
    bad_pages: AtomicU64,
    /// See [`object_debug::ObjectDebug`].
    object_debug: AtomicU32,
    quarantine: Quarantine,
    caches: cache::Index,
    zones: [AtomicUsize; MAX_ZONES],
    zone_slots: AtomicU32,
    nodes: node::Nodes,
    /// See `start`.
    state: AtomicU32,
    root: AtomicUsize,
    conf: UnsafeCell<MaybeUninit<Conf>>,
    /// From the configuration, for the paths that cannot afford to look it up.
    decay_ms: AtomicU32,
    keep_peak: AtomicU32,
    /// See `ensure_area`.
    refused: AtomicU32,
    /// See [`Watch`].
    watch: AtomicU32,
    scratch: Scratch,
    blackbox: BlackBox,
    warned: Warned,
    /// Live objects by tag, where calls are checked; see `watch`.
    live: AtomicUsize,
    /// When the last out-of-memory report was made, in milliseconds; 0: never.
    last_report: AtomicU64,
    /// Room for a report on the mappings.
    report_room: AtomicUsize,
    percpu: percpu::PerCpu,
    vmalloc: vmalloc::Vmalloc,
    platform: P,
}

// SAFETY: cells are written once, before `state` says ready (release), and read after that
// (acquire, or through values that are zero until then).
unsafe impl<P: Sync> Sync for Instance<P> {}

impl<P: Platform> Instance<P> {
    /// An instance over a platform; starts when it is first used.
    pub const fn over(platform: P) -> Self {
        Self {
            slots: Slots::new(),
            hot: Hot {
                base: AtomicUsize::new(0),
                chunks: AtomicUsize::new(0),
                chunk_class: AtomicUsize::new(0),
                mode: AtomicU32::new(0),
                slab_bound: AtomicUsize::new(0),
                layout: UnsafeCell::new(Layout {
                    reciprocal: [0; 256],
                    slab: [0; 256],
                    ext_offset: [0; 256],
                    ext_shift: [0; 256],
                    stock_bound: [0; 256],
                }),
            },
            classes: UnsafeCell::new([ClassGeometry::NONE; 256]),
            sites: Sites::new(),
            groups: Groups::new(),
            barn: Barn::new(),
            bare_chunks: AtomicUsize::new(0),
            pages: pages::Tables::new(),
            pcp: AtomicUsize::new(0),
            pcp_count: AtomicU32::new(0),
            page_debug: AtomicU32::new(0),
            bad_pages: AtomicU64::new(0),
            object_debug: AtomicU32::new(0),
            quarantine: Quarantine::new(),
            caches: cache::Index::new(),
            zones: [const { AtomicUsize::new(0) }; MAX_ZONES],
            zone_slots: AtomicU32::new(0),
            nodes: node::Nodes::new(),
            state: AtomicU32::new(0),
            root: AtomicUsize::new(0),
            conf: UnsafeCell::new(MaybeUninit::zeroed()),
            decay_ms: AtomicU32::new(0),
            keep_peak: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            watch: AtomicU32::new(0),
            scratch: Scratch::new(),
            blackbox: BlackBox::new(),
            warned: Warned::new(),
            live: AtomicUsize::new(0),
            last_report: AtomicU64::new(0),
            report_room: AtomicUsize::new(0),
            percpu: percpu::PerCpu::new(),
            vmalloc: vmalloc::Vmalloc::new(),
            platform,
        }
    }

    /// The platform under it.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    #[inline(always)]
    fn geometry(&self, class: SizeClass) -> &ClassGeometry {
        // SAFETY: 256 entries for a byte; written before any object or class byte exists.
        unsafe { &(*self.classes.get())[class.0 as usize] }
    }

    fn geometries(&self) -> &[ClassGeometry; 256] {
        // SAFETY: as above.
        unsafe { &*self.classes.get() }
    }

    #[inline(always)]
    fn mode(&self) -> u32 {
        self.hot.mode.load(Ordering::Relaxed)
    }

    fn books(&self) -> bool {
        self.mode() != mode::NEVER
    }

    fn watch(&self) -> Watch {
        Watch(self.watch.load(Ordering::Relaxed))
    }

    /// Allocates `size` bytes for a caller; null if there is no memory. Aligned to 16 bytes.
    #[inline(always)]
    pub fn alloc(&'static self, size: usize, caller: Caller) -> *mut u8 {
        let at = self.alloc_fast(size, caller.key);
        if at.is_null() { self.alloc_any(size, caller) } else { at }
    }

    /// `alloc`, when the request is small and the CPU has an object for it: about 40
    /// instructions, no atomics. Null: [`Self::alloc_any`] must be asked. `key` is that of the
    /// caller.
    #[inline(always)]
    pub fn alloc_fast(&'static self, size: usize, key: usize) -> *mut u8 {
        match SizeClass::of_small(size) {
            Some(class) => self.alloc_class(class, SMALL_SLAB, key),
            None => no_memory(),
        }
    }

    /// The same for a key that names no group, where that is known: a test less.
    #[inline(always)]
    pub fn alloc_fast_root(&'static self, size: usize, key: usize) -> *mut u8 {
        match SizeClass::of_small(size) {
            Some(class) => self.alloc_class_root(class, SMALL_SLAB, key),
            None => no_memory(),
        }
    }

    /// Allocates `size` bytes as the kernel's `kmalloc` does.
    #[inline(always)]
    pub fn kmalloc(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        if gfp == Gfp::KERNEL {
            let at = self.alloc_fast(size, caller.key);
            if !at.is_null() {
                return at;
            }
        }
        self.kmalloc_any(size, gfp, caller)
    }

    /// [`Self::kmalloc`] for a caller without a group: the thread's pays.
    #[inline(always)]
    pub fn kmalloc_here(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        if gfp == Gfp::UNACCOUNTED || (gfp == Gfp::KERNEL && !scope::is_in_any()) {
            let at = self.alloc_fast_root(size, caller.key);
            if !at.is_null() {
                return at;
            }
        }
        self.kmalloc_scoped(size, gfp, caller)
    }

    #[inline(never)]
    fn kmalloc_scoped(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        self.kmalloc(size, gfp, caller.here())
    }

    #[inline(never)]
    fn kmalloc_any(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        if gfp == Gfp::KERNEL {
            return self.alloc_any(size, caller);
        }
        let caller = caller.with(gfp);
        if gfp.has(Gfp::ZERO) { self.alloc_zeroed(size, caller) } else { self.alloc(size, caller) }
    }

    /// Takes an object off the CPU's array and books it; null if that cannot be done at once.
    /// While calls are watched, and without books, the cache knows no call site.
    /// `slab` is the size of the class's slabs.
    #[inline(always)]
    fn alloc_class(&'static self, class: SizeClass, slab: usize, key: usize) -> *mut u8 {
        let objcg = objcg(key);
        if objcg == ObjcgId::ROOT {
            return self.alloc_class_root(class, slab, key);
        }
        let Some(word) = self.sites.cached(key) else {
            return no_memory();
        };
        let item = self.slots.pop_paid(class, objcg);
        if item.is_none() {
            return no_memory();
        }
        self.book_in(item, class, slab, word | account::objcg_bits(objcg));
        // SAFETY: it is not none.
        unsafe { core::hint::assert_unchecked(item.address() != 0) };
        item.address() as *mut u8
    }

    /// The same for nobody's bill.
    #[inline(always)]
    fn alloc_class_root(&'static self, class: SizeClass, slab: usize, key: usize) -> *mut u8 {
        let Some(word) = self.sites.cached(key) else {
            return self.alloc_bare(class);
        };
        let item = self.slots.pop(class);
        if item.is_none() {
            return no_memory();
        }
        self.book_in(item, class, slab, word);
        // SAFETY: it is not none.
        unsafe { core::hint::assert_unchecked(item.address() != 0) };
        item.address() as *mut u8
    }

    /// The same without books, where there are none; null if there are some.
    #[inline(always)]
    fn alloc_bare(&'static self, class: SizeClass) -> *mut u8 {
        if self.mode() != mode::NEVER {
            return no_memory();
        }
        self.slots.pop(class).address() as *mut u8
    }

    /// Writes the extension word of an object that just came off an array.
    fn book(&self, item: Item, class: SizeClass, word: u32) {
        self.book_in(item, class, self.geometry(class).slab_bytes(), word);
    }

    /// The same, where the size of the slab is known.
    #[inline(always)]
    fn book_in(&self, item: Item, class: SizeClass, slab: usize, word: u32) {
        let offset = item.address() & (slab - 1);
        // SAFETY: an object of that class, in a slab made with books.
        let ext = unsafe { self.extension(class, item.address() - offset, offset) };
        ext.store(word, Ordering::Relaxed);
    }

    /// The extension word for an offset in a slab.
    ///
    /// # Safety
    /// There is a slab of that class, made with books, and the offset lies in it.
    #[inline(always)]
    unsafe fn extension(&self, class: SizeClass, slab: usize, offset: usize) -> &AtomicU32 {
        let layout = self.layout();
        let word = (offset >> layout.ext_shift[class.0 as usize]) * 4;
        // SAFETY: the vector has a word for every offset in the slab.
        unsafe { &*((slab + layout.ext_offset[class.0 as usize] + word) as *const AtomicU32) }
    }

    #[inline(always)]
    fn layout(&self) -> &Layout {
        // SAFETY: written before any object or class byte exists.
        unsafe { &*self.hot.layout.get() }
    }

    /// `alloc` of any size and in any mode.
    #[inline(never)]
    pub fn alloc_any(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if size >= self.hot.slab_bound.load(Ordering::Relaxed) {
            return self.alloc_large(size, caller);
        }
        // SAFETY: the bound is no more than one above that.
        unsafe { core::hint::assert_unchecked(size <= MAX_OBJECT) };
        let class = SizeClass::of(size);
        if caller.objcg() != ObjcgId::ROOT && size <= FINE {
            // The fast path was asked already.
            return self.alloc_charged(class, caller);
        }
        let object = self.alloc_class(class, self.geometry(class).slab_bytes(), caller.key);
        if object.is_null() { self.alloc_slow(class, caller) } else { object }
    }

    /// Frees what `alloc` and its relatives returned; null is nothing. Fast path: about 40
    /// instructions, no atomics.
    ///
    /// # Safety
    /// Nobody uses the memory any more. (An address that was not allocated, or was freed
    /// already, is found out and reported.)
    #[inline(always)]
    pub unsafe fn free(&'static self, at: *mut u8) {
        // SAFETY: the caller's promise.
        if !unsafe { self.free_fast(at) } {
            self.free_slow(at);
        }
    }

    /// `free` of an object of the first zone, which is live as far as one can see. False:
    /// `free_slow` must be asked.
    ///
    /// # Safety
    /// As for [`Self::free`].
    #[inline(always)]
    unsafe fn free_fast(&'static self, at: *mut u8) -> bool {
        let chunk =
            (at as usize).wrapping_sub(self.hot.base.load(Ordering::Relaxed)) >> CHUNK_SHIFT;
        if chunk >= self.hot.chunks.load(Ordering::Relaxed) {
            return self.free_bare(at, chunk);
        }
        let Some((class, slab, offset)) = self.object_at(at, chunk) else {
            return false;
        };
        // SAFETY: a slab of that class; books are open where chunks are known here.
        let ext = unsafe { self.extension(class, slab, offset) };
        let word = ext.load(Ordering::Relaxed);
        // Live, and nobody pays.
        if word >> TAG_BITS != EXT_LIVE >> TAG_BITS {
            if word & EXT_LIVE == 0 {
                return false;
            }
            ext.store(word & TAG_MASK, Ordering::Relaxed);
            self.free_charged(at, class, word);
            return true;
        }
        ext.store(word & TAG_MASK, Ordering::Relaxed);
        let item = Item::at(at as usize);
        // SAFETY: a live object until now, given up by the caller.
        if !unsafe { self.slots.push(class, item) } {
            self.flush(class, item);
        }
        true
    }

    /// Class, slab and offset of the object that begins at `at`, in a chunk of the first zone; or
    /// of a place behind the last object (whose extension word is zero). Pages and stale slabs
    /// have a class without valid offsets.
    #[inline(always)]
    fn object_at(&self, at: *mut u8, chunk: usize) -> Option<(SizeClass, usize, usize)> {
        let classes = self.hot.chunk_class.load(Ordering::Relaxed) as *const AtomicU8;
        // SAFETY: one byte per chunk.
        let class = SizeClass(unsafe { (*classes.add(chunk)).load(Ordering::Relaxed) });
        let layout = self.layout();
        let slab = at as usize & layout.slab[class.0 as usize];
        let offset = at as usize - slab;
        let reciprocal = layout.reciprocal[class.0 as usize];
        let product = offset as u128 * u128::from(reciprocal);
        if product as u64 >= reciprocal { None } else { Some((class, slab, offset)) }
    }

    /// `free_fast` without books, and for what the first zone does not hold.
    #[inline(always)]
    fn free_bare(&'static self, at: *mut u8, chunk: usize) -> bool {
        if chunk >= self.bare_chunks.load(Ordering::Relaxed) {
            return false;
        }
        let Some((class, _, offset)) = self.object_at(at, chunk) else {
            return false;
        };
        if offset >= self.geometry(class).limit as usize {
            return false;
        }
        let item = Item::at(at as usize);
        // SAFETY: an object's start; that it is live cannot be known without books.
        if !unsafe { self.slots.push(class, item) } {
            self.flush(class, item);
        }
        true
    }

    fn root(&self) -> Option<&RootBlock> {
        let root = self.root.load(Ordering::Acquire) as *const RootBlock;
        // SAFETY: null or a block that is never freed.
        unsafe { root.as_ref() }
    }

    fn conf(&self) -> Conf {
        if self.state.load(Ordering::Acquire) == start::READY {
            // SAFETY: written before the state became ready.
            unsafe { (*self.conf.get()).assume_init() }
        } else {
            Conf::DEFAULT
        }
    }

    /// Which group a thread works in that chooses none.
    pub fn group_by(&self) -> crate::conf::GroupBy {
        self.conf().group_by
    }

    /// The name of the socket to call at exit.
    pub fn report_socket(&self) -> crate::conf::Text<{ crate::conf::MAX_NAME }> {
        self.conf().report
    }
}

/// Keeps the shape of null results in one place.
const fn no_memory() -> *mut u8 {
    null_mut()
}
