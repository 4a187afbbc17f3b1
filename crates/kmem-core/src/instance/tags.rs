//! Static tags of loaded objects; the census; sites.

use core::ops::Range;

use kmem_layout::mapping::MappingTable;
use kmem_layout::word::TAG_MASK;

use super::Instance;
use crate::alloc_tag::{Change, Held, LiveTag, Mode};
use crate::codetag::{Sites, StaticTag};
use crate::os::Platform;
use crate::request::Caller;
use crate::units::TagId;

impl<P: Platform> Instance<P> {
    /// Switches memory allocation profiling on or off, as `kmem sysctl vm.mem_profiling` does from
    /// outside (the kernel's sysctl of that name). While it is off, new objects are not tagged.
    /// Objects keep the tag that they have, and groups pay as ever. False: the instance keeps no
    /// books (`mem_profiling:never`), or cannot start.
    ///
    /// # Examples
    /// ```
    /// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
    /// assert_eq!(KMEM.profiling(), Some(true));
    /// assert!(KMEM.set_profiling(false));
    /// assert_eq!(KMEM.profiling(), Some(false));
    /// ```
    #[must_use]
    pub fn set_profiling(&'static self, on: bool) -> bool {
        self.ready() && self.ledger.books.turn(on)
    }

    /// Returns whether new objects get the tag of their call site, see [`Self::set_profiling`].
    /// `None`: the instance keeps no books, or cannot start.
    pub fn profiling(&'static self) -> Option<bool> {
        let books = &self.ledger.books;
        let kept = self.ready() && books.are_kept();
        kept.then(|| {
            books.look_outside();
            books.mode() == Mode::ON
        })
    }

    /// Registers the static tags of an object (a module) under its name. Called when the object is
    /// loaded. Readers list the tags from here on, used or not.
    ///
    /// # Safety
    /// The tags from `start` up to `stop` are loaded until [`Self::unregister_tags`].
    pub unsafe fn register_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        module: &[u8],
    ) {
        // SAFETY: the tags stay loaded, by the contract.
        unsafe { self.register_object(start..stop, start..stop, module) };
    }

    /// [`Self::register_tags`] for an object that has tags in other places, too. Its addresses are
    /// those of `object`. Tags of other places are listed from their first use on.
    ///
    /// # Safety
    /// `tags` are loaded until [`Self::unregister_tags`]; there may be none.
    pub unsafe fn register_object(
        &'static self,
        object: Range<*const StaticTag>,
        tags: Range<*const StaticTag>,
        module: &[u8],
    ) {
        self.ready();
        let sites = &self.ledger.books.sites;
        sites.register(object.start, object.end, module);
        // SAFETY: the tags stay loaded, by the contract.
        unsafe { sites.list(self.platform(), object.start, tags) };
    }

    /// Forgets the addresses of an object's static tags. Called before the object is unloaded. Its
    /// live allocations keep their tags, and a warning names their sites.
    pub fn unregister_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        module: &[u8],
    ) {
        self.ledger.unregister_tags(start, stop, module);
    }

    /// Notes that the dynamic linker is about to unload an object. Calls nest, and may be made by
    /// several threads.
    pub fn begin_unload(&self) {
        self.sites().begin_unload();
    }

    /// Notes that the object of a [`Self::begin_unload`] is gone.
    pub fn end_unload(&self) {
        self.sites().interpreter().leave_if_gone(self.platform());
        self.sites().end_unload();
    }

    /// The bits of a key for a call that returns to `ret`: the line of the thread's interpreter, or
    /// `ret`. For threads that [`crate::task::follows_frames`].
    #[inline(always)]
    pub fn key_in_frame(&'static self, ret: usize) -> usize {
        self.sites().key_in_frame(self.platform(), ret)
    }

    /// Returns whether a call that returns to `ret` is one of an interpreter's own code, and its
    /// lines are call sites.
    pub fn is_of_interpreter(&'static self, ret: usize) -> bool {
        let interpreter = self.sites().interpreter();
        interpreter.are_known() && interpreter.has_code(ret)
    }

    /// Notes that an allocation function returns a block for a request of `bytes` to a thread for
    /// which [`crate::task::follows_frames`]. What was known of code in it is forgotten.
    #[inline(always)]
    pub fn given(&'static self, block: *mut u8, bytes: usize) {
        if bytes >= self.sites().interpreter().least_block() {
            self.sites().given(block as usize);
        }
    }

    /// Notes that the program unmapped memory.
    pub fn unmapped(&'static self) {
        self.sites().interpreter().forget_pages();
    }

    /// Live bytes of the static tags in a range. Writes the tags that hold them into `out`, as far
    /// as there is room.
    pub fn live_tags(
        &'static self,
        start: *const StaticTag,
        stop: *const StaticTag,
        out: &mut [LiveTag],
    ) -> u64 {
        self.ledger.live_tags(start, stop, out)
    }

    /// Calls `each` with live bytes and allocations by tag, in parts.
    pub fn census(&'static self, mut each: impl FnMut(TagId, u64, u64)) {
        self.census_by_group(|held| each(held.tag, held.bytes, held.calls));
    }

    /// Calls `each` with everything live by tag, group and class, in parts.
    pub fn census_by_group(&'static self, mut each: impl FnMut(Held)) {
        self.ledger.census().each(|held, _| each(held));
    }

    /// Writes a record of the books to the black box, if there is one. `reason` is one of
    /// [`kmem_layout::blackbox::reason`].
    pub fn write_record(&'static self, reason: u32) {
        let ledger = &self.ledger;
        ledger.books.write_record(ledger.platform(), &ledger.census(), &ledger.groups, reason);
        ledger.reporter().make_due(&ledger.census());
    }

    /// Looks at the objects in the quarantine when the program ends, and if `alone` returns true at
    /// the red zones of all that live. Damage is reported, and ends the program. Without these
    /// checks this does nothing, and does not call `alone`.
    ///
    /// # Safety
    /// If `alone` returns true, no other thread runs, and this one is not inside a call of the
    /// instance.
    pub unsafe fn check_at_exit(&'static self, alone: impl FnOnce() -> bool) {
        let checks = self.ledger.guards.checks();
        if self.is_ready() && checks.any() {
            let alone = (checks.has_red_zones() || checks.has_fences()) && alone();
            // SAFETY: the same contract.
            unsafe { self.ledger.check_at_exit(alone) };
            if alone && checks.has_fences() {
                self.areas().check_fences();
            }
        }
    }

    /// The tag of a call site, for a record of memory that is not the instance's. `None` without
    /// books, and before the start: this function starts nothing, and repairs no forked child.
    pub fn tag_for(&'static self, caller: Caller) -> Option<TagId> {
        (self.is_ready() && self.ledger.books.are_kept())
            .then(|| TagId(self.ledger.word_for(caller) & TAG_MASK))
    }

    /// Tells readers outside the process where the table of the program's mappings is. Does nothing
    /// before the start.
    pub fn show_mappings(&'static self, table: &'static MappingTable) {
        if self.is_ready() {
            self.ledger.books.show_mappings(table);
        }
    }

    /// Notes that the program maps or unmaps memory itself: before it unmaps, and after it mapped.
    /// Does nothing before the start.
    #[inline]
    pub fn note_mapping(&'static self, change: Change) {
        if self.is_ready() {
            let ledger = &self.ledger;
            let census = ledger.census();
            ledger.books.note_mapping(ledger.platform(), &census, &ledger.groups, change);
            ledger.reporter().make_due(&census);
        }
    }

    /// Notes that the program is about to map bytes itself. A forked child that has not allocated
    /// yet is repaired here, if these bytes may be worth a record of its own.
    #[inline]
    pub fn before_mapping(&'static self, bytes: u64) {
        if bytes >= Change::MUCH && !self.is_ready() {
            self.before_mapping_in_child();
        }
    }

    #[cold]
    #[inline(never)]
    fn before_mapping_in_child(&'static self) {
        let ledger = &self.ledger;
        if self.is_started() && ledger.books.blackbox.is_there() && self.ready() {
            ledger.books.note_fork(ledger.platform(), &ledger.census(), &ledger.groups);
        }
    }

    /// The sites that tags stand for.
    pub fn sites(&self) -> &Sites {
        &self.ledger.books.sites
    }

    /// Return address that a tag stands for; 0 for reserved tags.
    pub fn site_address(&'static self, tag: TagId) -> usize {
        self.sites().address(tag)
    }

    /// Bills a live allocation to another site and group. A group at its limit exceeds it. For an
    /// address that is not that of a live allocation, this does nothing.
    ///
    /// # Safety
    /// No other thread frees or resizes the allocation concurrently.
    pub unsafe fn rebill(&'static self, at: *mut u8, caller: Caller) {
        self.ledger.rebill(at as usize, caller);
    }
}
