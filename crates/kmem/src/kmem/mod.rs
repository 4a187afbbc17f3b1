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

use crate::codetag::Sites;
use crate::conf::Conf;
use crate::cpu::Slots;
use crate::os::Platform;
use crate::page::Zone;
use crate::root::{EXT_LIVE, MAX_ZONES, RootBlock, TAG_UNTAGGED};
use crate::slab::SlabZone;
use crate::slab::class::{CHUNK_SHIFT, ClassGeometry, MAX_OBJECT, SizeClass};
use crate::slab::sheaf::Barn;
use crate::sync::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

mod fault;
mod fork;
#[cfg(target_os = "linux")]
mod global;
mod large;
mod realloc;
mod slow;
mod start;
mod stats;

pub use fault::Fault;
pub use stats::Stats;

/// An instance on Linux.
#[cfg(target_os = "linux")]
pub type Kmem = Instance<crate::os::linux::Linux>;

/// The switch as the fast paths see it: like [`crate::root::profiling`], with a value for "not
/// started" that is zero.
mod mode {
    use crate::root::profiling;

    pub(super) const UNSTARTED: u32 = 0;
    pub(super) const ON: u32 = profiling::ON;
    pub(super) const NEVER: u32 = profiling::NEVER;
    pub(super) const OFF: u32 = 3;

    pub(super) const fn from(switch: u32) -> u32 {
        if switch == profiling::OFF { OFF } else { switch }
    }
}

/// A zone and its slabs; lives at the start of the zone's metadata.
struct ZoneSet {
    zone: Zone,
    slabs: SlabZone,
}

/// What the fast paths read: two cache lines.
#[repr(C, align(64))]
struct Hot {
    /// Address of the first zone.
    base: AtomicUsize,
    /// Chunks of the first zone; 0 before start, so that every free is slow.
    chunks: AtomicUsize,
    /// `[AtomicU8; chunks]`: class of each chunk.
    chunk_class: AtomicUsize,
    /// The switch, copied from the root block now and then; see [`mode`].
    mode: AtomicU32,
}

/// One allocator. All zero but for the platform until first used, and then started by itself.
#[repr(C)]
pub struct Instance<P> {
    slots: Slots,
    hot: Hot,
    /// Indexed by a byte of `chunk_class`; entries that are no class have no valid offset.
    classes: UnsafeCell<[ClassGeometry; 256]>,
    sites: Sites,
    barn: Barn,
    zones: [AtomicUsize; MAX_ZONES],
    zone_slots: AtomicU32,
    /// See `start`.
    state: AtomicU32,
    root: AtomicUsize,
    conf: UnsafeCell<MaybeUninit<Conf>>,
    /// From the configuration, for the paths that cannot afford to look it up.
    decay_ms: AtomicU32,
    keep_peak: AtomicU32,
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
            },
            classes: UnsafeCell::new([ClassGeometry::NONE; 256]),
            sites: Sites::new(),
            barn: Barn::new(),
            zones: [const { AtomicUsize::new(0) }; MAX_ZONES],
            zone_slots: AtomicU32::new(0),
            state: AtomicU32::new(0),
            root: AtomicUsize::new(0),
            conf: UnsafeCell::new(MaybeUninit::zeroed()),
            decay_ms: AtomicU32::new(0),
            keep_peak: AtomicU32::new(0),
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

    /// Allocates `size` bytes for the call site that returns to `ret`; null if there is no
    /// memory. Aligned to 16 bytes.
    #[inline(always)]
    pub fn alloc(&'static self, size: usize, ret: usize) -> *mut u8 {
        let at = self.alloc_fast(size, ret);
        if at.is_null() { self.alloc_any(size, ret) } else { at }
    }

    /// `alloc`, when the request is small and the CPU has an object for it: about 40
    /// instructions, no atomics. Null: [`Self::alloc_any`] must be asked.
    #[inline(always)]
    pub fn alloc_fast(&'static self, size: usize, ret: usize) -> *mut u8 {
        match SizeClass::of_small(size) {
            Some(class) => self.alloc_class(class, ret),
            None => no_memory(),
        }
    }

    /// Takes an object off the CPU's array and books it; null if that cannot be done at once.
    #[inline(always)]
    fn alloc_class(&'static self, class: SizeClass, ret: usize) -> *mut u8 {
        let mode = self.mode();
        let word = if mode == mode::ON {
            match self.sites.cached(ret) {
                Some(word) => word,
                None => return no_memory(),
            }
        } else if mode == mode::UNSTARTED {
            return no_memory();
        } else {
            TAG_UNTAGGED | EXT_LIVE
        };
        let object = self.slots.pop(class);
        if object.is_null() {
            return object;
        }
        if mode != mode::NEVER {
            let ext = self.ext_of(object, class);
            if ext.load(Ordering::Relaxed) & EXT_LIVE != 0 {
                self.taken_twice(object, class)
            }
            ext.store(word, Ordering::Relaxed);
        }
        object
    }

    /// `alloc` of any size.
    #[inline(never)]
    pub fn alloc_any(&'static self, size: usize, ret: usize) -> *mut u8 {
        if size > MAX_OBJECT {
            return self.alloc_large(size, ret);
        }
        let class = SizeClass::of(size);
        let object = self.alloc_class(class, ret);
        if object.is_null() { self.alloc_slow(class, ret) } else { object }
    }

    /// The extension word of an object.
    #[inline(always)]
    fn ext_of(&self, object: *mut u8, class: SizeClass) -> &AtomicU32 {
        let geometry = self.geometry(class);
        let offset = object as u32 & geometry.slab_mask;
        let index = geometry.index_within(offset);
        let ext = object as usize - offset as usize + geometry.ext_offset as usize + index as usize * 4;
        // SAFETY: every slab made with books has its vector there.
        unsafe { &*(ext as *const AtomicU32) }
    }

    /// Frees what `alloc` and its relatives returned; null is nothing. Fast path: about 40
    /// instructions, no atomics.
    ///
    /// # Safety
    /// Nobody uses the memory any more. (An address that was not allocated, or was freed
    /// already, is found out and reported.)
    #[inline(always)]
    pub unsafe fn free(&'static self, at: *mut u8) {
        let chunk = (at as usize).wrapping_sub(self.hot.base.load(Ordering::Relaxed)) >> CHUNK_SHIFT;
        if chunk >= self.hot.chunks.load(Ordering::Relaxed) {
            return self.free_slow(at);
        }
        let classes = self.hot.chunk_class.load(Ordering::Relaxed) as *const AtomicU8;
        // SAFETY: one byte per chunk.
        let class = SizeClass(unsafe { (*classes.add(chunk)).load(Ordering::Relaxed) });
        let geometry = self.geometry(class);
        let offset = at as u32 & geometry.slab_mask;
        // Pages and stale slabs have a class without valid offsets.
        let Some(index) = geometry.index(offset) else { return self.free_slow(at) };
        if self.mode() != mode::NEVER {
            let ext = at as usize - offset as usize + geometry.ext_offset as usize + index as usize * 4;
            // SAFETY: every slab made with books has its vector there.
            let ext = unsafe { &*(ext as *const AtomicU32) };
            let word = ext.load(Ordering::Relaxed);
            if word & EXT_LIVE == 0 {
                return self.free_slow(at);
            }
            ext.store(word & !EXT_LIVE, Ordering::Relaxed);
        }
        // SAFETY: a live object until now, given up by the caller.
        if !unsafe { self.slots.push(class, at) } {
            self.flush(class, at);
        }
    }

    /// The zones, oldest first.
    fn zone_sets(&self) -> impl Iterator<Item = &ZoneSet> {
        let count = self.zone_slots.load(Ordering::Acquire) as usize;
        self.zones[..count.min(MAX_ZONES)].iter().filter_map(|zone| {
            let set = zone.load(Ordering::Acquire) as *const ZoneSet;
            // SAFETY: null or a set that is never freed.
            unsafe { set.as_ref() }
        })
    }

    /// The zone an address belongs to.
    fn zone_of(&self, at: usize) -> Option<&ZoneSet> {
        self.zone_sets().find(|set| set.zone.pfn(at).is_some())
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

    /// The name of the socket to call at exit, if the configuration has one.
    pub fn report_socket(&self) -> Option<([u8; crate::conf::MAX_NAME], usize)> {
        let conf = self.conf();
        (conf.report_len > 0).then_some((conf.report, conf.report_len))
    }
}

/// Keeps the shape of null results in one place.
const fn no_memory() -> *mut u8 {
    null_mut()
}
