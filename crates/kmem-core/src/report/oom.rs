//! The report on lack of memory (the kernel's `alloc_tag_top_users` in `show_mem`): the sites that
//! hold most.

use core::fmt;

use kmem_layout::blackbox::reason;

use super::Reporter;
use super::due::Shortage;
use super::line::{Size, print};
use super::name::{GroupPath, SiteName};
use super::refusal::Asker;
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
    /// Tells the program that a request for `size` bytes fails, or reports the sites that hold
    /// most memory. A request that no machine could serve is not reported: it is an error of the
    /// program.
    #[cold]
    #[inline(never)]
    pub fn out_of_memory(&self, census: &Census<'_>, size: usize, caller: Caller) {
        if caller.is_quiet() {
            return;
        }
        let asker = Asker::new(caller);
        self.note_refusal(ObjcgId::ROOT, size as u64, &asker);
        if self.tell(ObjcgId::ROOT, caller.objcg(), size as u64, &asker) {
            return;
        }
        let budget = self.platform.budget();
        // The first zone of a kernel has what is left of its regions.
        let is_possible = size <= budget.first_zone.max(budget.memory);
        if is_possible && census.knows_holders() {
            self.report_shortage(census, ObjcgId::ROOT, size as u64, &asker);
        }
    }

    /// Tells the program that the group `at` refuses a request of `payer` at its limit, or reports
    /// the sites that hold most of its memory. `bytes` is the size of the request, `cost` what it
    /// would be charged.
    #[cold]
    #[inline(never)]
    pub fn group_refused(
        &self,
        census: &Census<'_>,
        (at, payer): (ObjcgId, ObjcgId),
        (bytes, cost): (u64, u64),
        caller: Caller,
    ) {
        if caller.is_quiet() {
            return;
        }
        let asker = Asker::new(caller);
        self.note_refusal(at, bytes, &asker);
        if !self.tell(at, payer, bytes, &asker) {
            self.report_shortage(census, at, cost, &asker);
        }
    }

    /// Notes a refused request in the black box, for those who read it after the end.
    fn note_refusal(&self, at: ObjcgId, bytes: u64, asker: &Asker) {
        let books = self.books;
        if books.are_kept() && books.blackbox.is_there() {
            let site = (asker.tag(self), at);
            books.blackbox.note_refusal(self.platform, &books.sites, site, bytes);
        }
    }

    fn report_shortage(&self, census: &Census<'_>, group: ObjcgId, bytes: u64, asker: &Asker) {
        if !self.may_report() {
            return;
        }
        let tag = asker.tag(self);
        self.reports.due.leave(Shortage { bytes, tag, group });
        self.make_due_report(census);
        // The report on a group counts its own memory alone, and a record all.
        if group != ObjcgId::ROOT {
            self.books.write_record(self.platform, census, self.groups, reason::OUT_OF_MEMORY);
        }
    }

    /// Makes the report on lack of memory that is due, if another thread found the scratch table in
    /// use. Called when a thread has used the table, and by allocations that miss.
    #[inline]
    pub fn make_due(&self, census: &Census<'_>) {
        if self.reports.due.any() {
            self.make_due_report(census);
        }
    }

    #[cold]
    #[inline(never)]
    fn make_due_report(&self, census: &Census<'_>) {
        // Another one may become due meanwhile. If another thread has the table, it makes the
        // report.
        while self.reports.due.any()
            && self.books.with_tally(self.platform, |tally| {
                if let Some(shortage) = self.reports.due.take() {
                    self.print_shortage(census, tally, shortage);
                }
            })
        {}
    }

    #[inline(never)]
    fn print_shortage(&self, census: &Census<'_>, tally: &mut Tally<'_>, shortage: Shortage) {
        let Shortage { bytes, tag, group } = shortage;
        if group == ObjcgId::ROOT {
            self.books.record(self.platform, census, self.groups, tally, reason::OUT_OF_MEMORY);
            let what = format_args!("out of memory: no {bytes} bytes");
            return self.print_top(what, "Memory allocations", tally, tag);
        }
        census.each(|held, _| {
            if self.groups.is_below(held.objcg, group) {
                tally.add(held.tag, held.bytes, held.calls);
            }
        });
        let path = GroupPath(self.groups, group);
        let what = format_args!("the group {path} is at its max: no {bytes} bytes");
        self.print_top(what, "Memory allocations of the group", tally, tag);
    }

    /// Returns whether the last report was long enough ago. If so, notes that one is made now.
    fn may_report(&self) -> bool {
        let now = self.platform.now_ms().max(1);
        let last = self.reports.last.load(Ordering::Relaxed);
        let long_ago = last == 0 || now.wrapping_sub(last) >= INTERVAL_MS;
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        long_ago && self.reports.last.compare_exchange(last, now, done, failed).is_ok()
    }

    fn print_top(&self, what: fmt::Arguments<'_>, title: &str, tally: &Tally<'_>, tag: TagId) {
        let (sites, maps) = (&self.books.sites, self.read_mappings());
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
