//! The books of an instance: the switch, the call sites, and which calls are watched.
//!
//! The fast paths do not test the switch. The cache of call sites gives them the word to write,
//! which is "not tagged" for every site while profiling is off. The thread that switches empties
//! the cache. While calls are watched the cache stays empty, so every call takes the slow path.

use kmem_layout::mapping::MappingTable;
use kmem_layout::root::{RootBlock, profiling};
use kmem_layout::word::{EXT_LIVE, TAG_UNTAGGED};

use super::unending::Unending;
use super::{BlackBox, Scratch, Tally, Warned, Watch, watch};
use crate::codetag::Sites;
use crate::os::stepped::{Part, Stepped};
use crate::os::{Memory, Platform};
use crate::request::Caller;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::task;
use crate::units::{CpuId, TagId};

/// The switch as the fast paths see it: like [`profiling`], with zero for "not started".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(u32);

impl Mode {
    /// Allocations get the tag of their call site.
    pub const ON: Self = Self(profiling::ON);
    /// There are no extension words.
    pub const NEVER: Self = Self(profiling::NEVER);
    /// Allocations are not tagged.
    pub const OFF: Self = Self(3);
    /// There are no extension words, and the fast paths of allocation stay closed.
    pub const NEVER_CLOSED: Self = Self(4);

    /// A value of [`RootBlock::profiling`].
    pub const fn of(switch: u32) -> Self {
        if switch == profiling::OFF { Self::OFF } else { Self(switch) }
    }
}

/// The books. Zeroed memory is a valid value: not started.
///
/// # Invariants
/// `live` is 0 or the address of a count, which is never freed, for each of the `site_capacity` of
/// the root block. Once there is a root block, `peak` has the memory of a peak table for as many.
pub struct Books {
    /// The sites that tags stand for.
    pub sites: Sites,
    /// See [`Mode`].
    mode: AtomicU32,
    /// See [`Watch`].
    watch: AtomicU32,
    root: Unending<RootBlock>,
    /// Time of the start, in milliseconds of the platform's clock.
    pub(super) started_ms: AtomicU64,
    /// 1 if the sums of the highest use are kept.
    pub(super) keep_peak: AtomicU32,
    pub(super) peak: Stepped,
    pub(super) scratch: Scratch,
    /// The file that survives the process, if there is one.
    pub blackbox: BlackBox,
    /// Places that were warned of.
    pub warned: Warned,
    /// Address of the live count of each tag, if calls are checked.
    live: AtomicUsize,
    /// The table of memory that the program mapped.
    mappings: Unending<MappingTable>,
}

/// Most times that a thread looks for the scratch table while the clock stands still.
const TRIES_WITHOUT_CLOCK: u32 = 1 << 22;

/// Memory of the books: zeroed tables.
pub struct Tables {
    /// [`Sites::sites_bytes`].
    pub sites: Part,
    /// [`Sites::index_bytes`].
    pub index: *mut u8,
    /// [`super::peak_bytes`].
    pub peak: Part,
    /// [`super::scratch_bytes`].
    pub scratch: Part,
    /// [`super::live_bytes`] if calls are checked, else null.
    pub live: *mut u8,
}

impl Books {
    /// Books that are not started.
    pub const fn new() -> Self {
        Self {
            sites: Sites::new(),
            mode: AtomicU32::new(0),
            watch: AtomicU32::new(0),
            root: Unending::new(),
            started_ms: AtomicU64::new(0),
            keep_peak: AtomicU32::new(0),
            peak: Stepped::new(),
            scratch: Scratch::new(),
            blackbox: BlackBox::new(),
            warned: Warned::new(),
            live: AtomicUsize::new(0),
            mappings: Unending::new(),
        }
    }

    /// Gives the books their memory.
    ///
    /// # Safety
    /// `tables` are as long as their docs say for the root block's `site_capacity`. Parts meet the
    /// contract of [`Stepped::start`], and the others are zeroed. These books alone use them and
    /// the root block. No reader knows that yet, and it has the time of the start. None of it is
    /// ever freed.
    pub unsafe fn start(
        &self,
        platform: &impl Platform,
        root: *mut RootBlock,
        tables: &Tables,
        keep_peak: bool,
    ) {
        // SAFETY: memory of the sizes that all three require, by the contract, and the root block.
        let root = unsafe {
            self.sites.start(platform, tables.sites, tables.index, root);
            self.scratch.start(tables.scratch);
            self.peak.start(tables.peak);
            root.as_ref()
        };
        self.live.store(tables.live as usize, Ordering::Relaxed);
        self.keep_peak.store(u32::from(keep_peak), Ordering::Relaxed);
        // INVARIANT: the counts are never freed, by the contract.
        if let Some(root) = root {
            self.started_ms.store(root.started_ms, Ordering::Relaxed);
            self.root.set(root);
        }
    }

    /// Sets which calls are watched. Called before any allocation.
    pub fn start_watch(&self, watch: Watch) {
        self.watch.store(watch.0, Ordering::Relaxed);
    }

    /// Watches calls for one more reason from here on, at any time. The caller closes the fast
    /// paths after that: an entry of the cache of call sites that is made meanwhile goes again.
    pub fn add_watch(&self, reason: u32) {
        self.watch.fetch_or(reason, Ordering::SeqCst);
    }

    /// Ends the watch of calls for a reason.
    pub fn end_watch(&self, reason: u32) {
        self.watch.fetch_and(!reason, Ordering::SeqCst);
    }

    /// Sets the switch to the configured mode. From here on the fast paths may run.
    pub fn open(&self, mode: Mode) {
        self.mode.store(mode.0, Ordering::Release);
    }

    /// The root block; `None` before start.
    pub fn root(&self) -> Option<&RootBlock> {
        self.root.get()
    }

    /// Tells readers outside the process, and records, where the table of the program's mappings
    /// is.
    pub fn show_mappings(&self, table: &'static MappingTable) {
        let Some(root) = self.root() else { return };
        root.mapping_capacity.store(table.records.len() as u32, Ordering::Relaxed);
        root.mappings.store((&raw const *table) as u64, Ordering::Release);
        self.mappings.set(table);
    }

    /// The table of memory that the program mapped.
    pub(super) fn mappings(&self) -> Option<&MappingTable> {
        self.mappings.get()
    }

    /// State of the switch.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        Mode(self.mode.load(Ordering::Relaxed))
    }

    /// Returns whether objects have extension words.
    pub fn are_kept(&self) -> bool {
        !matches!(self.mode(), Mode::NEVER | Mode::NEVER_CLOSED)
    }

    /// Which calls are watched.
    #[inline]
    pub fn watch(&self) -> Watch {
        Watch(self.watch.load(Ordering::Relaxed))
    }

    /// Reads the switch in the root block, which a reader outside the process may have written, and
    /// takes it over.
    pub fn look_outside(&self) {
        let Some(root) = self.root() else { return };
        // Once more after a change: this thread may have read a wish that is older than the mode.
        loop {
            let wish = root.profiling.load(Ordering::SeqCst);
            if !self.are_kept() || wish > profiling::ON || self.mode() == Mode::of(wish) {
                return;
            }
            let wish = Mode::of(wish);
            if self.mode.swap(wish.0, Ordering::SeqCst) != wish.0 {
                self.sites.forget();
            }
        }
    }

    /// Turns the switch on or off. False: there are no books, or they are not started.
    pub fn turn(&self, on: bool) -> bool {
        let Some(root) = self.root().filter(|_| self.are_kept()) else { return false };
        root.profiling.store(if on { profiling::ON } else { profiling::OFF }, Ordering::SeqCst);
        self.look_outside();
        // Another thread may have taken the wish over, and not have emptied the cache yet.
        self.sites.forget();
        true
    }

    /// The extension word of a live allocation by a caller whose callers were told apart before, if
    /// the fast paths are open.
    #[inline(always)]
    pub fn word_of_chain(&self, platform: &impl Platform, caller: Caller) -> Option<u32> {
        if self.mode() != Mode::ON || self.watch().any() {
            return None;
        }
        Some(self.sites.lookup_chain(platform, caller.site(), true)?.0 | EXT_LIVE)
    }

    /// The extension word of a live allocation by a caller: tag and live bit.
    pub fn word_for(&self, platform: &impl Platform, caller: Caller) -> u32 {
        self.sites.cached(caller.key()).unwrap_or_else(|| self.word_not_cached(platform, caller))
    }

    /// The extension word of a live allocation by a caller, where fast paths are closed by
    /// [`Sites::put_aside`] alone. `None`: the site is not in the cache, or calls are watched.
    #[inline]
    pub fn word_aside(&self, platform: &impl Platform, caller: Caller) -> Option<u32> {
        let cached = self.sites.cached_aside(caller.key());
        cached.or_else(|| self.word_of_chain(platform, caller))
    }

    /// Returns whether the sites that calls have while a tracer is told of samples are cached, for
    /// [`Self::word_for_sample`].
    #[inline]
    fn caches_aside(&self, watch: Watch) -> bool {
        watch.only_samples() && !self.sites.are_put_aside()
    }

    /// The extension word of a live allocation by a caller while a tracer is told of samples, where
    /// nothing else closes the fast paths. `None`: that is not so, or the site is not cached.
    #[inline]
    pub fn word_for_sample(&self, platform: &impl Platform, caller: Caller) -> Option<u32> {
        if !self.caches_aside(self.watch()) {
            return None;
        }
        let cached = self.sites.cached_aside(caller.key());
        if cached.is_some() || self.mode() != Mode::ON {
            return cached;
        }
        Some(self.sites.lookup_chain(platform, caller.site(), true)?.0 | EXT_LIVE)
    }

    /// [`Self::word_for`] of a site that is not in the cache. Not inlined: callers of `malloc` may
    /// have little stack.
    #[inline(never)]
    fn word_not_cached(&self, platform: &impl Platform, caller: Caller) -> u32 {
        self.look_outside();
        let (mode, watch) = (self.mode(), self.watch());
        let is_aside = self.caches_aside(watch);
        if is_aside && let Some(word) = self.sites.cached_aside(caller.key()) {
            return word;
        }
        let keep = !watch.any() || is_aside;
        if mode == Mode::ON && self.sites.follow(platform, caller.site()) {
            task::follow_frames();
        }
        // The tag of a chain is never cached, and that of a line with the care of `remember`. So it
        // needs none of the care below.
        if mode == Mode::ON
            && let Some(tag) = self.sites.lookup_chain(platform, caller.site(), keep)
        {
            self.blackbox.note_site(platform, &self.sites, tag);
            return tag.0 | EXT_LIVE;
        }
        let tag = if mode == Mode::ON {
            let tag = self.sites.lookup(platform, caller.site(), keep);
            self.scratch.prepare(platform, tag);
            self.blackbox.note_site(platform, &self.sites, tag);
            tag
        } else {
            // The fast path needs a word for the site, even if it says "not tagged".
            let tag = TagId(TAG_UNTAGGED);
            if keep {
                self.sites.remember(caller.key(), tag);
            }
            tag
        };
        // The thread that switches writes the mode, or the watch, before it empties the cache. If
        // this thread cached a word of the old mode after that, it sees the new mode here.
        fence(Ordering::SeqCst);
        if (self.mode(), self.watch()) != (mode, watch) {
            self.sites.forget();
        }
        tag.0 | EXT_LIVE
    }

    /// Calls `work` with an empty tally. False: another thread has the scratch table, or the books
    /// are not started.
    pub fn with_tally(&self, platform: &impl Memory, work: impl FnOnce(&mut Tally<'_>)) -> bool {
        self.root().is_some_and(|root| self.scratch.with(platform, root, work))
    }

    /// [`Self::with_tally`], which waits up to `most_ms` for a thread that has the scratch table.
    /// For callers whose work cannot be done later, and which interrupt no other thread.
    pub fn with_tally_within<P: Platform>(
        &self,
        platform: &P,
        most_ms: u64,
        work: impl FnOnce(&mut Tally<'_>),
    ) -> bool {
        let began = platform.now_ms();
        let mut work = Some(work);
        for tries in 0.. {
            let done = self.with_tally(platform, |tally| {
                if let Some(work) = work.take() {
                    work(tally);
                }
            });
            let waited = platform.now_ms().saturating_sub(began);
            let is_still = waited == 0 && tries >= TRIES_WITHOUT_CLOCK;
            if done || is_still || waited >= most_ms || self.root().is_none() {
                return done;
            }
            platform.give_way();
        }
        false
    }

    /// Counts an allocation of `bytes` for a tag, if calls are counted.
    pub fn count_alloc(&self, cpu: Option<CpuId>, tag: TagId, bytes: u64) {
        if self.watch().counts() {
            self.blackbox.count(cpu, tag, bytes, watch::Call::Alloc);
        }
    }

    /// Counts a free of `bytes` for a tag, if calls are counted.
    pub fn count_free(&self, cpu: Option<CpuId>, tag: TagId, bytes: u64) {
        if self.watch().counts() {
            self.blackbox.count(cpu, tag, bytes, watch::Call::Free);
        }
    }

    /// Adds `by` to the live count of a tag, if calls are checked. Returns whether the count fell
    /// below zero for the first time.
    pub fn fell_below_zero(&self, tag: TagId, by: i64) -> bool {
        let live = self.live.load(Ordering::Relaxed) as *const u8;
        let capacity = self.root().map_or(0, |root| root.site_capacity);
        if live.is_null() || tag.0 >= capacity {
            return false;
        }
        // SAFETY: `live` has a count for each of `site_capacity` tags, by the invariant.
        let count = unsafe { watch::count_live(live, tag, by) };
        count < 0 && self.warned.is_new(watch::Place::Tag(tag))
    }

    /// In a forked child: takes the scratch table back from threads of the parent, and leaves the
    /// black box to the parent. Undoes what other threads had begun.
    pub fn forget(&self) {
        self.sites.forget_threads();
        self.scratch.forget();
        self.blackbox.leave();
    }
}

impl Default for Books {
    fn default() -> Self {
        Self::new()
    }
}
