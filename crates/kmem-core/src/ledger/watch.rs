//! Watched calls: counted since the start, or checked for accounting errors. While calls are
//! watched the fast paths are closed: the cache of call sites is empty, and `free` knows no chunk.

use kmem_layout::word::{EXT_LIVE, TAG_MASK, TAG_NONE};

use super::{Ledger, Taken};

use crate::alloc_tag::Place;
use crate::os::Platform;
use crate::report::{CallName, SiteName, print};
use crate::request::Caller;
use crate::sync::Ordering;
use crate::units::TagId;

impl<P: Platform> Ledger<P> {
    /// Counts or checks an allocation of `bytes` with this extension word.
    #[cold]
    #[inline(never)]
    pub(super) fn saw_alloc(&self, word: u32, bytes: u64, caller: Caller) {
        let (slots, tag) = (&self.heap.slots, TagId(word & TAG_MASK));
        self.books.count_alloc(slots.current(slots.hint(self.platform())), tag, bytes);
        match tag.0 {
            TAG_NONE => self.saw_untagged_alloc(bytes, caller),
            _ => self.check_balance(tag, 1),
        }
    }

    /// Counts or checks the free of an allocation of `bytes` at `at` with this extension word.
    #[cold]
    #[inline(never)]
    pub(super) fn saw_free(&self, word: u32, bytes: u64, at: usize) {
        let (slots, tag) = (&self.heap.slots, TagId(word & TAG_MASK));
        self.books.count_free(slots.current(slots.hint(self.platform())), tag, bytes);
        match tag.0 {
            TAG_NONE => self.saw_untagged_free(bytes, at),
            _ => self.check_balance(tag, -1),
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
        let what =
            format_args!("kmem: debug: an allocation of {bytes} bytes that nobody accounted");
        if place == 0 {
            print!(self.platform(), "{what}\n");
        } else {
            self.reporter().with_mappings(true, |maps| {
                print!(self.platform(), "{what}, by {}\n", CallName { ret: place, maps });
            });
        }
    }

    fn saw_untagged_free(&self, bytes: u64, at: usize) {
        if self.books.watch().checks() && self.books.warned.is_new(Place::Size(bytes)) {
            print!(
                self.platform(),
                "kmem: debug: a free without a reference: {at:#x}, {bytes} bytes\n"
            );
        }
    }

    /// Adds to the live count of a tag, if calls are checked, and reports a negative count.
    fn check_balance(&self, tag: TagId, by: i64) {
        if self.books.watch().checks() && self.books.fell_below_zero(tag, by) {
            let site = SiteName { sites: &self.books.sites, tag, maps: &[] };
            print!(self.platform(), "kmem: debug: more frees than allocations of {site}\n");
        }
    }
}
