//! A warning where little of the memory of a process is tracked.

use kmem_snapshot::books::{Accounting, Parts};
use kmem_snapshot::report::size_u;

/// Least difference of tracked and resident memory that is worth a warning, in bytes.
const MUCH: u64 = 16 << 20;

/// A warning where little of the resident memory is tracked, with what shows the rest.
pub(crate) fn untracked(of: &Accounting) -> Option<String> {
    rest_of(of.tracked, of.resident)?;
    let Parts { mappings, stacks, code, files } = of.parts.unwrap_or_default();
    let unknown = match of.parts {
        Some(_) => 0,
        None => u64::try_from(of.unaccounted()).unwrap_or(0),
    };
    let terms = [
        (
            of.cached,
            "free memory that kmem keeps. kmem run --background-thread 1 gives it back while it is \
             idle",
        ),
        (of.overhead, "kmem's own. kmem dump --metadata has rows for it"),
        (
            mappings,
            "mapped by the program itself. Rows of mapped memory name its callers, and -n shows \
             more of them",
        ),
        (stacks, "stacks of threads. Rows of mapped memory show them"),
        (code, "code and variables of programs. Rows of mapped memory name the files"),
        (files, "mapped files. Rows of mapped memory name them, and -n shows more"),
        (unknown, "outside of the heap. Without --no-mmap there are rows for it"),
    ];
    let (bytes, what) = terms.into_iter().max_by_key(|(bytes, _)| *bytes)?;
    Some(warning(of.tracked, of.resident, bytes, what))
}

/// [`untracked`] of a process that has ended, in bytes at one moment: live, in memory, and in
/// memory that it mapped. `mmap`: the latter has rows.
pub(crate) fn untracked_then(
    (tracked, resident, mapped): (u64, u64, u64),
    mmap: bool,
) -> Option<String> {
    let rest = rest_of(tracked, resident)?;
    let mapped = mapped.min(rest);
    let (bytes, what) = match (mapped > rest - mapped, mmap) {
        (true, true) => (mapped, "mapped by the program itself. -n shows more rows of it"),
        (true, false) => (mapped, "mapped by the program itself. Without --no-mmap it has rows"),
        (false, _) => (
            rest - mapped,
            "stacks, code, files and free memory. kmem top has rows for them while it runs",
        ),
    };
    Some(warning(tracked, resident, bytes, what))
}

/// Bytes that are not tracked, where they are many enough for a warning.
fn rest_of(tracked: u64, resident: u64) -> Option<u64> {
    let rest = resident.saturating_sub(tracked);
    (tracked < resident / 2 && rest >= MUCH).then_some(rest)
}

fn warning(tracked: u64, resident: u64, bytes: u64, what: &str) -> String {
    let [tracked, resident, bytes] = [tracked, resident, bytes].map(size_u);
    format!("{tracked} of {resident} resident are tracked; {bytes} are {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let killed = |mapped, mmap| untracked_then((10 * M, 70 * M, mapped), mmap).expect("one");
        let begin = "10.0 MiB of 70.0 MiB resident are tracked; ";
        let (text, end) = (killed(50 * M, true), "50.0 MiB are mapped by the program itself. -n ");
        assert!(text.starts_with(&format!("{begin}{end}")), "{text}");
        assert!(killed(50 * M, false).ends_with(" Without --no-mmap it has rows"));
        let (text, end) = (killed(20 * M, true), "40.0 MiB are stacks, code, files and free ");
        assert!(text.starts_with(&format!("{begin}{end}")), "{text}");
        assert_eq!(untracked_then((40 * M, 70 * M, 0), true), None);
        assert_eq!(untracked_then((0, 0, 0), true), None);
        let small = Accounting { tracked: M, resident: 12 * M, ..of };
        assert_eq!(untracked(&small), None);
    }
}
