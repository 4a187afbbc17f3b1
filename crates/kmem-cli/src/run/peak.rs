//! How near the rows of a report are to the peak, and to the memory of the process.

use kmem_snapshot::blackbox::BlackBox;
use kmem_snapshot::books::{Accounting, Parts, Peak};
use kmem_snapshot::report::size_u;

const PAGE: u64 = 4096;
/// Least difference of tracked and resident memory that is worth a warning, in bytes.
const MUCH: u64 = 16 << 20;

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

/// The highest use that a black box has a record of. `mmap`: memory that the program mapped counts.
pub(super) fn highest_in(of: &BlackBox, mmap: bool) -> Option<String> {
    let moment = of.peak()?;
    let at = seconds(moment.time_ns.saturating_sub(of.started_ns()) / 1_000_000);
    let bytes = size_u(moment.used);
    if mmap && moment.mapped_resident != 0 {
        let mapped = size_u(moment.mapped_resident);
        return Some(format!(
            "highest: {bytes} of pages in use and {mapped} mapped at {at}; sites as of that record"
        ));
    }
    Some(format!(
        "highest: {bytes} of pages in use at {at}; sites as of that record, within 3 % or 256 KiB"
    ))
}

/// A time since the start, as `1.2 s`.
fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// A warning where little of the resident memory is tracked, with what shows the rest.
pub(super) fn untracked(of: &Accounting) -> Option<String> {
    let rest = of.resident.saturating_sub(of.tracked);
    if of.tracked >= of.resident / 2 || rest < MUCH {
        return None;
    }
    let Parts { mappings, stacks, code, files } = of.parts.unwrap_or_default();
    let unknown = match of.parts {
        Some(_) => 0,
        None => u64::try_from(of.unaccounted()).unwrap_or(0),
    };
    let terms = [
        (
            of.cached,
            "free memory that kmem keeps. --background-thread 1 gives it back while it is idle",
        ),
        (of.overhead, "kmem's own. kmem dump --metadata has rows for it"),
        (
            mappings,
            "mapped by the program itself. The rows outside of the heap name its callers, and -n \
             shows more of them",
        ),
        (stacks, "stacks of threads. The rows outside of the heap have them"),
        (code, "code and variables of programs. The rows outside of the heap name the files"),
        (files, "mapped files. The rows outside of the heap name them, and -n shows more"),
        (unknown, "outside of the heap. Without --no-mmap there are rows for it"),
    ];
    let (bytes, what) = terms.into_iter().max_by_key(|(bytes, _)| *bytes)?;
    Some(format!(
        "{} of {} resident are tracked; {} are {what}",
        size_u(of.tracked),
        size_u(of.resident),
        size_u(bytes)
    ))
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
    fn memory_that_is_not_tracked_is_named_with_what_shows_it() {
        const M: u64 = 1 << 20;
        let parts = Some(Parts { mappings: 50 * M, code: 8 * M, ..Parts::default() });
        let of = Accounting { tracked: 10 * M, resident: 70 * M, parts, ..Accounting::default() };
        let text = untracked(&of).expect("a warning");
        let begin = "10.0 MiB of 70.0 MiB resident are tracked; 50.0 MiB are mapped by the program";
        assert!(text.starts_with(begin), "{text}");
        let text = untracked(&Accounting { parts: None, ..of }).expect("a warning");
        assert!(text.contains("60.0 MiB are outside of the heap. Without --no-mmap"), "{text}");
        let text = untracked(&Accounting { cached: 55 * M, ..of }).expect("a warning");
        assert!(text.contains("--background-thread 1"), "{text}");
        assert_eq!(untracked(&Accounting { tracked: 35 * M, ..of }), None);
        let small = Accounting { tracked: M, resident: 12 * M, ..of };
        assert_eq!(untracked(&small), None);
    }
}
