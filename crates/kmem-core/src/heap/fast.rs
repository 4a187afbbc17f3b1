//! Tables that the fast paths read: those of the first zone of each node, which lie side by side.
//! Everything else takes the slow paths.

use crate::class::SizeClass;
use crate::page::{FirstZones, PageWords, Zone};
use crate::slab::{Format, SlabZone};
use crate::sync::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use crate::units::{PAGE_SHIFT, Pfn};

use kmem_layout::geometry::CHUNK_SHIFT;

/// The tables. Zeroed memory is a valid value: all fast paths are closed.
///
/// # Invariants
/// `chunk_class` leads to a byte for each chunk below each number of chunks; `ext` and `len`
/// lead to a readable word for each page below `pages`, which is committed if the page is. So does
/// `len` for those below `bare_pages`. None of it is ever freed.
#[repr(C, align(64))]
pub struct Fast {
    /// Address of the first zone.
    base: AtomicUsize,
    /// Number of chunks of the zones whose objects the fast path of `free` may free. 0 before
    /// start, without books, and where every call takes the slow path.
    chunks: AtomicUsize,
    /// Chunks of the zones of an instance without books and groups.
    bare_chunks: AtomicUsize,
    /// Chunks of the zones of an instance without books, but with groups.
    charged_chunks: AtomicUsize,
    /// `[AtomicU8; chunks]`: class of each chunk.
    chunk_class: AtomicUsize,
    /// Requests of fewer bytes are served by slabs. 0 before start and where objects are guarded,
    /// so that every request takes the slow path. Never more than `MAX_OBJECT + 1`.
    slab_bound: AtomicUsize,
    /// Pages whose words the fast paths of blocks may use; 0 before start and where every call
    /// takes the slow path.
    pages: AtomicUsize,
    /// Pages whose lengths the fast paths may use, where pages have no extension words.
    bare_pages: AtomicUsize,
    /// Address of the first zone whose page words these are.
    pages_base: AtomicUsize,
    ext: AtomicUsize,
    len: AtomicUsize,
    /// 1 between [`Self::close`] and [`Self::reopen`].
    is_closed: AtomicUsize,
    /// The values of `chunks` and `pages` after that.
    closed_chunks: AtomicUsize,
    closed_pages: AtomicUsize,
}

/// The words of a page with an extension word; see [`PageWords`].
#[derive(Clone, Copy)]
pub struct BookedWords<'a> {
    /// Its extension word.
    pub ext: &'a AtomicU32,
    /// Its length word.
    pub len: &'a AtomicU32,
}

impl Fast {
    /// All fast paths are closed.
    pub const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            chunks: AtomicUsize::new(0),
            bare_chunks: AtomicUsize::new(0),
            charged_chunks: AtomicUsize::new(0),
            chunk_class: AtomicUsize::new(0),
            slab_bound: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            bare_pages: AtomicUsize::new(0),
            pages_base: AtomicUsize::new(0),
            ext: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            is_closed: AtomicUsize::new(0),
            closed_chunks: AtomicUsize::new(0),
            closed_pages: AtomicUsize::new(0),
        }
    }

    /// Lets requests of fewer bytes than `bound` be served by slabs.
    pub fn open_requests(&self, bound: usize) {
        self.slab_bound.store(bound, Ordering::Relaxed);
    }

    /// Requests of fewer bytes are served by slabs.
    #[inline(always)]
    pub fn slab_bound(&self) -> usize {
        self.slab_bound.load(Ordering::Relaxed)
    }

    /// Notes where the first zones and the classes of their chunks are. Called once, before other
    /// threads use these tables, so that they never see the one without the other.
    pub fn show_objects(&self, first: &FirstZones<'_, SlabZone>) {
        self.base.store(first.set.zone.base(), Ordering::Relaxed);
        // INVARIANT: a byte per chunk of all of them, never freed, as zones are not.
        self.chunk_class.store(first.set.slabs.chunk_classes() as usize, Ordering::Relaxed);
    }

    /// Opens the fast path of `free` for the objects of the first zones, which are shown.
    pub fn open_objects(&self, first: &FirstZones<'_, SlabZone>, format: Format) {
        let slabs = &first.set.slabs;
        let chunks = match (format.extension, format.charges) {
            (true, _) => &self.chunks,
            (false, true) => &self.charged_chunks,
            (false, false) => &self.bare_chunks,
        };
        chunks.store(slabs.chunks() as usize * first.count as usize, Ordering::Release);
    }

    /// Opens the fast paths of blocks for the first zones. Where not all words can be read, they
    /// open for one zone, as far as [`Self::reach`] will say.
    pub fn open_blocks(&self, first: &FirstZones<'_, SlabZone>) {
        let zone = &first.set.zone;
        // SAFETY: only addresses are taken; nothing is read.
        let PageWords { ext, len, .. } = unsafe { zone.words_of(Pfn::ZERO) };
        self.ext.store(ext.map_or(0, |ext| ext.as_ptr() as usize), Ordering::Relaxed);
        self.len.store(len.as_ptr() as usize, Ordering::Relaxed);
        self.pages_base.store(zone.base(), Ordering::Relaxed);
        if first.shows_words {
            // INVARIANT: all words can be read, and those of committed pages are committed. Only
            // the words of claimed pages, which are committed, are written.
            let pages = zone.pages().0 as usize * first.count as usize;
            self.reached().store(pages, Ordering::Release);
        }
    }

    /// The number of pages whose words the fast paths may use.
    fn reached(&self) -> &AtomicUsize {
        match self.ext.load(Ordering::Relaxed) {
            0 => &self.bare_pages,
            _ => &self.pages,
        }
    }

    /// Notes the number of pages of a zone that are committed now.
    pub fn reach(&self, zone: &Zone) {
        let (committed, reached) = (zone.committed().0 as usize, self.reached());
        let seen = reached.load(Ordering::SeqCst);
        let is_closed = || self.is_closed.load(Ordering::SeqCst) != 0;
        if self.pages_base.load(Ordering::Relaxed) == zone.base()
            && seen < committed
            && !is_closed()
        {
            let change = |from, to| {
                // INVARIANT: the words of committed pages are committed.
                let _ = reached.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
            };
            change(seen, committed);
            if is_closed() {
                change(committed, 0);
            }
        }
    }

    /// Closes the fast paths of an instance with books. Those of objects are open in `aside`
    /// instead. [`Self::reopen`] is not called meanwhile.
    pub fn close(&self, aside: &Self) {
        self.is_closed.store(1, Ordering::SeqCst);
        let chunks = self.chunks.load(Ordering::Relaxed);
        if chunks != 0 {
            self.closed_chunks.store(chunks, Ordering::Relaxed);
            // INVARIANT: both lead to the same zones and classes.
            aside.chunks.store(chunks, Ordering::Release);
            self.chunks.store(0, Ordering::SeqCst);
        }
        // Threads may raise it in between.
        self.closed_pages.fetch_max(self.pages.load(Ordering::SeqCst), Ordering::SeqCst);
        let pages = self.pages.swap(0, Ordering::SeqCst);
        self.closed_pages.fetch_max(pages, Ordering::SeqCst);
    }

    /// Opens the fast paths that [`Self::close`] closed. That is not called meanwhile. In a forked
    /// child, also what a thread of the parent had begun to close or to open.
    pub fn reopen(&self, aside: &Self) {
        let chunks = self.closed_chunks.load(Ordering::Relaxed);
        if chunks != 0 {
            // INVARIANT: the table had this value.
            self.chunks.store(chunks, Ordering::SeqCst);
            aside.chunks.store(0, Ordering::SeqCst);
            self.closed_chunks.store(0, Ordering::SeqCst);
        }
        // INVARIANT: the table had this value, and never shrinks.
        self.pages.fetch_max(self.closed_pages.load(Ordering::Relaxed), Ordering::SeqCst);
        self.closed_pages.store(0, Ordering::SeqCst);
        self.is_closed.store(0, Ordering::SeqCst);
    }

    /// The chunk that an address lies in, and its class, if the fast path of `free` may free its
    /// objects. Else the chunk's number alone, for [`Self::bare_class`].
    #[inline(always)]
    pub fn class(&self, at: usize) -> Result<SizeClass, usize> {
        let chunk = at.wrapping_sub(self.base.load(Ordering::Relaxed)) >> CHUNK_SHIFT;
        if chunk >= self.chunks.load(Ordering::Relaxed) {
            return Err(chunk);
        }
        // SAFETY: below the chunks of the zones.
        Ok(unsafe { self.class_of_chunk(chunk) })
    }

    /// The class of a chunk in an instance without books: with groups for `CHARGES`, else without.
    #[inline(always)]
    pub fn bare_class<const CHARGES: bool>(&self, chunk: usize) -> Option<SizeClass> {
        let chunks = if CHARGES { &self.charged_chunks } else { &self.bare_chunks };
        // SAFETY: below the chunks of the zone.
        (chunk < chunks.load(Ordering::Relaxed)).then(|| unsafe { self.class_of_chunk(chunk) })
    }

    /// # Safety
    /// The zone has such a chunk.
    #[inline(always)]
    unsafe fn class_of_chunk(&self, chunk: usize) -> SizeClass {
        let classes = self.chunk_class.load(Ordering::Relaxed) as *const AtomicU8;
        // SAFETY: one byte per chunk of the zone, by the type's invariant.
        SizeClass(unsafe { (*classes.add(chunk)).load(Ordering::Relaxed) })
    }

    /// The words of the page at an address, if the fast paths may use them; and the distance of the
    /// address from the zone's base.
    #[inline(always)]
    pub fn page(&self, at: usize) -> Option<(BookedWords<'_>, usize)> {
        self.words::<false>(at)
    }

    /// [`Self::page`] where pages have no extension words: the length word alone, and the distance.
    #[inline(always)]
    pub fn bare_page(&self, at: usize) -> Option<(&AtomicU32, usize)> {
        self.words::<true>(at).map(|(words, offset)| (words.len, offset))
    }

    /// The words of the page at an address. With `BARE`, both are the length word.
    #[inline(always)]
    fn words<const BARE: bool>(&self, at: usize) -> Option<(BookedWords<'_>, usize)> {
        let offset = at.wrapping_sub(self.pages_base.load(Ordering::Relaxed));
        let pfn = offset >> PAGE_SHIFT;
        let bound = if BARE { &self.bare_pages } else { &self.pages };
        if pfn >= bound.load(Ordering::Relaxed) {
            return None;
        }
        let word = |table: &AtomicUsize| {
            // SAFETY: a readable word for each page below the bound, by the type's invariant.
            unsafe { &*(table.load(Ordering::Relaxed) as *const AtomicU32).wrapping_add(pfn) }
        };
        let ext = if BARE { &self.len } else { &self.ext };
        Some((BookedWords { ext: word(ext), len: word(&self.len) }, offset))
    }
}

impl Default for Fast {
    fn default() -> Self {
        Self::new()
    }
}
