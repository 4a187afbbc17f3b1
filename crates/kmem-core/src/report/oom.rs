//! The report on lack of memory (the kernel's `alloc_tag_top_users` in `show_mem`): the sites that
//! hold most.

use core::fmt;

use kmem_layout::blackbox::reason;
use kmem_layout::word::TAG_MASK;

use super::Reporter;
use super::line::{Size, print};
use super::name::{GroupPath, SiteName};
use crate::alloc_tag::{Census, Tally};
use crate::os::Platform;
use crate::request::Caller;
use crate::sync::Ordering;
use crate::units::{ObjcgId, TagId};

/// Bytes of room for the text of the mappings, with a table of `sites` sites.
pub const fn room(sites: u32) -> usize {
    let bytes = sites as usize * 4;
    if bytes > 256 << 10 { 256 << 10 } else { bytes }
}

/// Most sites in a report.
const TOP: usize = 10;
/// Least time between two reports, in milliseconds.
const INTERVAL_MS: u64 = 5000;

impl<P: Platform> Reporter<'_, P> {
    /// Reports the sites that hold most memory, because a request for `size` bytes fails. A request
    /// that no machine could serve is not reported: it is an error of the program.
    #[cold]
    #[inline(never)]
    pub fn out_of_memory(&self, census: &Census<'_>, size: usize, caller: Caller) {
        let budget = self.platform.budget();
        let possible = size <= budget.first_zone;
        if caller.is_quiet() || !possible || !census.knows_holders() || !self.may_report() {
            return;
        }
        self.books.with_tally(self.platform, |tally| {
            self.books.record(self.platform, census, self.groups, tally, reason::OUT_OF_MEMORY);
            let what = format_args!("out of memory: no {size} bytes");
            self.print_top(what, "Memory allocations", tally, caller);
        });
    }

    /// Reports the sites that hold most memory of the group `at`, because a request for `bytes` is
    /// refused at the group's limit.
    #[cold]
    #[inline(never)]
    pub fn group_refused(&self, census: &Census<'_>, at: ObjcgId, bytes: u64, caller: Caller) {
        if caller.is_quiet() || !self.may_report() {
            return;
        }
        self.books.with_tally(self.platform, |tally| {
            census.each(|held, _| {
                if self.groups.is_below(held.objcg, at) {
                    tally.add(held.tag, held.bytes, held.calls);
                }
            });
            let path = GroupPath(self.groups, at);
            let what = format_args!("the group {path} is at its max: no {bytes} bytes");
            self.print_top(what, "Memory allocations of the group", tally, caller);
        });
    }

    /// Returns whether the last report was long enough ago. If so, notes that one is made now.
    fn may_report(&self) -> bool {
        let now = self.platform.now_ms().max(1);
        let last = self.reports.last.load(Ordering::Relaxed);
        let long_ago = last == 0 || now.wrapping_sub(last) >= INTERVAL_MS;
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        long_ago && self.reports.last.compare_exchange(last, now, done, failed).is_ok()
    }

    fn print_top(&self, what: fmt::Arguments<'_>, title: &str, tally: &Tally<'_>, caller: Caller) {
        let (sites, maps) = (&self.books.sites, self.read_mappings());
        let tag = TagId(self.books.word_for(self.platform, caller) & TAG_MASK);
        print!(self.platform, "kmem: {what} for {}\n{title}:\n", SiteName { sites, tag, maps });
        let mut top = [TagId(0); TOP];
        let found = tally.largest(&mut top);
        for &tag in &top[..found] {
            self.print_row(tag, tally.get(tag), maps);
        }
    }

    /// Prints a line of a report: bytes and allocations of a tag, aligned as in the kernel.
    pub fn print_row(&self, tag: TagId, (bytes, calls): (u64, u64), maps: &[u8]) {
        let site = SiteName { sites: &self.books.sites, tag, maps };
        print!(self.platform, "{:>12} {calls:>8} {site}\n", Size(bytes));
    }

    /// Calls `work` with the text of the mappings. It is empty if it is not wanted, or if another
    /// thread makes a report.
    pub fn with_mappings(&self, wanted: bool, work: impl Fn(&[u8])) {
        let with = |_: &mut Tally<'_>| work(self.read_mappings());
        if !(wanted && self.books.with_tally(self.platform, with)) {
            work(&[]);
        }
    }

    /// Reads the text of the mappings. Only a thread that has the scratch table may call this.
    fn read_mappings(&self) -> &[u8] {
        let maps = self.reports.maps.load(Ordering::Acquire) as *mut u8;
        if maps.is_null() {
            return &[];
        }
        let bytes = self.reports.maps_bytes.load(Ordering::Relaxed);
        // SAFETY: room of that many bytes, which only the thread with the scratch table uses.
        let room = unsafe { core::slice::from_raw_parts_mut(maps, bytes) };
        let len = self.platform.mappings(room);
        &room[..len]
    }
}
