//! Watched calls: counted since the start, checked for accounting errors, timed, or sampled. While
//! calls are watched the fast paths are closed: the cache of call sites is empty, and `free` knows
//! no chunk.

use core::fmt;

use kmem_layout::word::{EXT_LIVE, TAG_MASK, TAG_NONE};

use super::{Ledger, Taken};

use crate::alloc_tag::Place;
use crate::os::Platform;
use crate::report::{CallName, SiteName, print};
use crate::request::Caller;
use crate::sync::Ordering;
use crate::units::TagId;

impl<P: Platform> Ledger<P> {
    /// Counts, checks, times or samples an allocation of `bytes` at `at` with this extension word.
    #[cold]
    #[inline(never)]
    pub(super) fn saw_alloc(&self, word: u32, (at, bytes): (usize, u64), caller: Caller) {
        let (slots, tag) = (&self.heap.slots, TagId(word & TAG_MASK));
        self.books.count_alloc(slots.current(slots.hint(self.platform())), tag, bytes);
        match tag.0 {
            TAG_NONE => self.saw_untagged_alloc(bytes, caller),
            _ => self.check_balance(tag, 1),
        }
        let watch = self.books.watch();
        if watch.samples() {
            self.sample_alloc(at, bytes, caller);
        }
        if watch.notes_times() {
            self.note_time(at);
        }
    }

    /// Counts, checks or samples the free of an allocation of `bytes` at `at` with this extension
    /// word.
    #[cold]
    #[inline(never)]
    pub(super) fn saw_free(&self, word: u32, (at, bytes): (usize, u64)) {
        let (slots, tag) = (&self.heap.slots, TagId(word & TAG_MASK));
        self.books.count_free(slots.current(slots.hint(self.platform())), tag, bytes);
        match tag.0 {
            TAG_NONE => self.saw_untagged_free(bytes, at),
            _ => self.check_balance(tag, -1),
        }
        if self.books.watch().samples() {
            self.sample_free(at);
        }
    }

    /// Reports memory that was free until now, whose extension word still names a holder (the
    /// kernel's "alloc_tag was not cleared"). It does so once for each site that such words name.
    #[cold]
    #[inline(never)]
    pub(super) fn check_cleared(&self, taken: &Taken<'_>) {
        let word = taken.ext.map_or(0, |ext| ext.load(Ordering::Relaxed));
        let tag = TagId(word & TAG_MASK);
        if word & EXT_LIVE != 0 && self.books.warned.is_new(Place::Holder(tag)) {
            let (at, bytes) = (taken.at, taken.bytes);
            let site = SiteName { sites: &self.books.sites, tag, maps: &[] };
            print!(
                self.platform(),
                "kmem: debug: a tag was not cleared: {at:#x}, {bytes} bytes, has that of {site}\n"
            );
        }
    }

    fn saw_untagged_alloc(&self, bytes: u64, caller: Caller) {
        let place = caller.place();
        if !self.books.watch().checks() || !self.books.warned.is_new(Place::Caller(place)) {
            return;
        }
        self.warn(format_args!("an allocation of {bytes} bytes that nobody accounted"), place);
    }

    /// Reports the free of an allocation without a tag (the kernel's "alloc_tag was not set"). It
    /// does so once for each call that frees such allocations, or for each size where the call is
    /// not known.
    fn saw_untagged_free(&self, bytes: u64, at: usize) {
        let warned = &self.books.warned;
        // A walk takes long, so it is not for nothing.
        if !self.books.watch().checks() || !warned.has_room() {
            return;
        }
        let call = self.call_here();
        if warned.is_new(call.map_or(Place::Size(bytes), Place::Free)) {
            let what = format_args!("a free without a reference: {at:#x}, {bytes} bytes");
            self.warn(what, call.unwrap_or(0));
        }
    }

    /// Prints a warning of a call that returns to `ret`; 0: it is not known.
    fn warn(&self, what: fmt::Arguments<'_>, ret: usize) {
        if ret == 0 {
            return print!(self.platform(), "kmem: debug: {what}\n");
        }
        self.reporter().with_mappings(true, |maps| {
            print!(self.platform(), "kmem: debug: {what}, by {}\n", CallName { ret, maps });
        });
    }

    /// Adds to the live count of a tag, if calls are checked, and reports a negative count.
    fn check_balance(&self, tag: TagId, by: i64) {
        if self.books.watch().checks() && self.books.fell_below_zero(tag, by) {
            self.report_imbalance(tag);
        }
    }

    /// Not inlined: calls that are watched have no room for the text on their stack.
    #[cold]
    #[inline(never)]
    fn report_imbalance(&self, tag: TagId) {
        let site = SiteName { sites: &self.books.sites, tag, maps: &[] };
        print!(self.platform(), "kmem: debug: more frees than allocations of {site}\n");
    }
}
