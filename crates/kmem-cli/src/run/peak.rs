//! How near the rows of a report are to the peak, and to the memory of the process.

use kmem_layout::blackbox::{MAPPED_PART, PEAK_PART};
use kmem_layout::site::PEAK_PAGES;
use kmem_snapshot::Snapshot;
use kmem_snapshot::blackbox::BlackBox;
use kmem_snapshot::books::{Mappings, Peak};
use kmem_snapshot::report::size_u;

const PAGE: u64 = 4096;

/// The highest use of a process, and the moment that its rows are of. `is_exit`: they are those at
/// the exit.
pub(super) fn highest(peak: &Peak, is_exit: bool) -> String {
    let (pages, at_ms) = peak.highest;
    let bytes = size_u(pages.saturating_mul(PAGE));
    let at = seconds(at_ms);
    if is_exit {
        return format!("highest: {bytes} of pages in use at {at}; sites as of the exit");
    }
    let below = pages.saturating_sub(peak.used_pages).saturating_mul(100);
    let percent = below.div_ceil(pages.max(1));
    let record = seconds(peak.written_ms);
    format!(
        "highest: {bytes} of pages in use at {at}; sites as of the record at {record}, within \
         {percent} %"
    )
}

/// The moment that rows are of, as the highest use of heap and mapped memory that is known.
pub(super) struct Moment<'a> {
    /// Bytes of pages in use.
    pub(super) used: u64,
    /// Bytes in memory that the program mapped.
    pub(super) mapped: u64,
    /// The time, in words.
    pub(super) at: String,
    /// The moment of the rows, in words.
    pub(super) sites: &'a str,
    /// Higher use is recorded when it exceeds this moment by one in this many parts. None: mapped
    /// memory counts for records, and is not in this moment.
    pub(super) part: Option<u64>,
}

impl<'a> Moment<'a> {
    /// That of a snapshot. `mmap`: memory that the program mapped counts.
    pub(super) fn of(snapshot: &Snapshot, mmap: bool, at: String, sites: &'a str) -> Self {
        let pages = snapshot.books.iter().map(|books| books.used_pages);
        let used = pages.fold(0, u64::saturating_add).saturating_mul(PAGE);
        let mapped = snapshot.mappings.as_ref().map_or(0, Mappings::of_calls);
        let part = (mmap || mapped == 0).then_some(PEAK_PART);
        Self { used, mapped: if mmap { mapped } else { 0 }, at, sites, part }
    }

    /// This moment, of a program that was killed. While it mapped memory, it recorded less often.
    pub(super) fn of_killed(self) -> Self {
        let part = if self.mapped == 0 { self.part } else { Some(MAPPED_PART) };
        Self { part, ..self }
    }

    /// The line of the report: how near the rows are to the highest use.
    pub(super) fn line(&self) -> String {
        let Self { used, mapped, ref at, sites, part } = *self;
        let all = used.saturating_add(mapped).max(1);
        let percent = |part: u64| {
            let step = (all / part).max(PEAK_PAGES * PAGE);
            step.saturating_mul(100).div_ceil(all).min(100)
        };
        let bound = match part {
            Some(part) => format!("within {} %", percent(part)),
            None => "without a bound: mappings count for records, too".to_owned(),
        };
        let mapped = match mapped {
            0 => String::new(),
            mapped => format!(" and {} mapped", size_u(mapped)),
        };
        let used = size_u(used);
        format!("highest: {used} of pages in use{mapped} {at}; sites as of {sites}, {bound}")
    }
}

/// The time of a moment in nanoseconds since 1970, as `at 1.2 s` since the start.
pub(super) fn at(time_ns: u64, of: &BlackBox) -> String {
    format!("at {}", seconds(time_ns.saturating_sub(of.started_ns()) / 1_000_000))
}

/// A time since the start, as `1.2 s`.
fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(used_pages: u64, highest: (u64, u64)) -> Peak {
        Peak { used_pages, written_ms: 2000, highest, rows: Vec::new(), torn: false }
    }

    #[test]
    fn the_highest_use_is_told_from_the_record_of_its_sites() {
        assert_eq!(
            highest(&peak(9600, (10_000, 2150)), false),
            "highest: 39.1 MiB of pages in use at 2.1 s; sites as of the record at 2.0 s, within \
             4 %"
        );
        let whole = highest(&peak(0, (0, 0)), false);
        assert!(whole.ends_with("within 0 %"), "{whole}");
        let exit = highest(&peak(9600, (10_000, 2150)), true);
        assert!(exit.ends_with("at 2.1 s; sites as of the exit"), "{exit}");
    }

    #[test]
    fn a_peak_with_mapped_memory_has_the_bound_of_its_record() {
        let at = || "at 0.2 s".to_owned();
        let moment = |used, mapped| {
            let part = Some(PEAK_PART);
            Moment { used, mapped, at: at(), sites: "the exit", part }
        };
        assert_eq!(
            moment(17 << 20, 100 << 20).line(),
            "highest: 17.0 MiB of pages in use and 100.0 MiB mapped at 0.2 s; sites as of the \
             exit, within 4 %"
        );
        let killed = moment(17 << 20, 100 << 20).of_killed().line();
        assert!(killed.ends_with(", within 13 %"), "{killed}");
        // A program that mapped nothing records as often as one that ends by itself.
        let heap = moment(17 << 20, 0).of_killed().line();
        let end = "17.0 MiB of pages in use at 0.2 s; sites as of the exit, within 4 %";
        assert!(heap.ends_with(end), "{heap}");
        // Growth by less than 256 KiB makes no record.
        assert!(moment(1 << 20, 0).line().ends_with(", within 25 %"));
        assert!(moment(0, 0).line().ends_with(", within 100 %"));
        let heap = Moment { part: None, ..moment(1 << 20, 0) }.line();
        assert!(heap.contains("; sites as of the exit, without a bound: "), "{heap}");
    }
}
