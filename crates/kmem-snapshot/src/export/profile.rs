//! `/debug/pprof/heap` and `/debug/pprof/allocs`: profiles of one process, for pprof.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::{Answer, Pending, Progress, failed};
use crate::blackbox::BlackBox;
use crate::diff::Diff;
use crate::error::ReadError;
use crate::output::{self, Choice, Format};
use crate::process::Process;
use crate::reading::{Query, ReadFailure, Reading, Target, When};
use crate::report;
use crate::sites::{Order, Site};
use crate::symbols::Kept;

/// Longest time between the two readings of a difference, in seconds.
const MAX_SECONDS: u64 = 300;
/// Most files among a process's mappings that may be its black box.
const MAX_BOXES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Live objects.
    Heap,
    /// All allocations since the start.
    Allocs,
}

/// A request for a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    kind: Kind,
    /// The process; none for the only one.
    pub(super) pid: Option<u32>,
    seconds: u64,
    /// True for a table in place of a profile.
    text: bool,
}

/// The first reading of a difference.
#[derive(Debug)]
pub(super) struct Before {
    request: Request,
    pid: u32,
    /// With the pid, the process: a pid is used again.
    start_time: u64,
    sites: Vec<Site>,
}

impl Request {
    /// The request of a path and its query; none for another path.
    pub(super) fn parse(path: &str, query: &str) -> Option<Result<Self, Answer>> {
        let kind = match path {
            "/debug/pprof/heap" => Kind::Heap,
            "/debug/pprof/allocs" => Kind::Allocs,
            _ => return None,
        };
        let mut this = Self { kind, pid: None, seconds: 0, text: false };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = value.parse::<u64>().ok();
            match (name, number) {
                ("pid", Some(pid)) if u32::try_from(pid).is_ok() => this.pid = Some(pid as u32),
                ("seconds", Some(seconds)) if seconds <= MAX_SECONDS => this.seconds = seconds,
                ("debug", Some(debug)) => this.text = debug != 0,
                // Go's own handler collects garbage first. Here there is none.
                ("gc", _) => {}
                _ => {
                    let most = MAX_SECONDS;
                    let what = format!("expected pid=N, seconds=N up to {most}, or debug=1");
                    return Some(Err(Answer::text(400, what)));
                }
            }
        }
        if this.kind == Kind::Allocs && this.seconds != 0 {
            let what =
                "allocs counts since the start: two profiles and -diff_base show a difference";
            return Some(Err(Answer::text(400, what)));
        }
        Some(Ok(this))
    }

    pub(super) fn is_difference(&self) -> bool {
        self.seconds != 0
    }

    fn read(&self, pid: u32, kept: &mut Kept) -> Result<Reading, ReadFailure> {
        match self.kind {
            Kind::Heap => Target::Process(pid).read_again(&Query::default(), kept),
            Kind::Allocs => {
                let query = Query { cumulative: true, ..Query::default() };
                black_box(pid)?.read(&query)
            }
        }
    }

    /// Reads the process for the first time.
    pub(super) fn begin(&self, pid: u32, start_time: u64, kept: &mut Kept) -> Progress {
        let reading = match self.read(pid, kept) {
            Ok(reading) => reading,
            Err(failure) => return Progress::Done(failed(&failure)),
        };
        if !self.is_difference() {
            return Progress::Done(self.write(&reading));
        }
        let before = Before { request: self.clone(), pid, start_time, sites: reading.sites };
        Progress::Wait(Duration::from_secs(self.seconds), Pending(before))
    }

    fn write(&self, reading: &Reading) -> Answer {
        let (format, content_type) = if self.text {
            (Format::Table, "text/plain; charset=utf-8")
        } else {
            (Format::Pprof, "application/octet-stream")
        };
        let order = self.text.then_some(Order::Size);
        let mut body = Vec::new();
        match output::write(&mut body, format, reading, &Choice { order, ..Choice::default() }) {
            Ok(()) => Answer { status: 200, content_type, body },
            Err(error) => Answer::text(500, error),
        }
    }
}

impl Before {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time of the process, in clock ticks since boot.
    pub(super) fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Reads the process again, and answers with the difference.
    pub(super) fn answer(self, kept: &mut Kept) -> Answer {
        match self.request.read(self.pid, kept) {
            Ok(after) if self.request.text => table(&Diff::of(&self.sites, &after.sites)),
            Ok(mut after) => {
                subtract(&mut after.sites, self.sites);
                self.request.write(&after)
            }
            Err(failure) => failed(&failure),
        }
    }
}

/// The changes as a table, one row for each place that changed.
fn table(diff: &Diff) -> Answer {
    let mut body = Vec::new();
    match report::write_diff(&mut body, &diff.changes, usize::MAX) {
        Ok(()) => Answer { status: 200, content_type: "text/plain; charset=utf-8", body },
        Err(error) => Answer::text(500, error),
    }
}

/// Subtracts rows: equal stacks are added up when they are written.
fn subtract(after: &mut Vec<Site>, before: Vec<Site>) {
    let negative = before.into_iter().map(|mut site| {
        site.bytes = site.bytes.wrapping_neg();
        site.calls = site.calls.wrapping_neg();
        for chain in &mut site.chains {
            chain.bytes = chain.bytes.wrapping_neg();
            chain.calls = chain.calls.wrapping_neg();
        }
        site
    });
    after.extend(negative);
}

/// The black box that a live process writes, among the files that it has mapped.
fn black_box(pid: u32) -> Result<Target, ReadError> {
    let process = Process::open(pid)?;
    let maps = process.maps()?;
    let files = maps.all().iter().filter(|of| of.is_file() && of.writable && !of.deleted);
    let paths: BTreeSet<&str> = files.map(|of| of.path.as_str()).collect();
    let own = process.inner_pid();
    for path in paths.into_iter().take(MAX_BOXES) {
        let path = process.in_root(Path::new(path));
        if BlackBox::open(&path).is_ok_and(|of| of.pid() == own || of.pid() == pid) {
            return Ok(Target::BlackBox { path, exe: None, when: When::Newest });
        }
    }
    Err(ReadError::NothingRecorded {
        path: format!("process {pid}"),
        what: "it does not count all allocations: start it with \
               KMEM_CONF=blackbox:FILE,cumulative:1"
            .to_owned(),
    })
}

/// The answer that asks for one of several processes.
pub(super) fn choose(asked: Option<u32>, all: &[u32]) -> Answer {
    let list: String = all.iter().map(|pid| format!("\n?pid={pid}")).collect();
    match asked {
        Some(pid) => Answer::text(404, format!("process {pid} is not exported{list}")),
        None if all.is_empty() => Answer::text(404, "no process is exported now"),
        None => Answer::text(400, format!("several processes: name one of them{list}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Origin;

    fn parse(query: &str) -> Result<Request, u16> {
        let request = Request::parse("/debug/pprof/heap", query).expect("a profile");
        request.map_err(|answer| answer.status)
    }

    #[test]
    fn a_difference_as_text_has_a_row_for_each_place_that_changed() {
        let of = |origin, bytes, calls| Site { bytes, calls, ..Site::new(origin) };
        let before = [of(Origin::NotTagged, 6144, 3), of(Origin::OtherSites, 7, 1)];
        let after = [of(Origin::NotTagged, 1024, 1), of(Origin::OtherSites, 7, 1)];
        let text = table(&Diff::of(&before, &after)).body;
        let text = String::from_utf8(text).expect("text");
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|row| row.split_whitespace().take(3).collect()).collect();
        assert_eq!(rows, [["-5.0", "KiB", "-2"]], "{text}");
        assert_eq!(table(&Diff::of(&after, &after)).body, b"  (no change)\n");
    }

    #[test]
    fn queries_are_parsed_or_refused() {
        let plain = Request { kind: Kind::Heap, pid: None, seconds: 0, text: false };
        assert_eq!(parse("gc=1&"), Ok(plain.clone()));
        let full = Request { pid: Some(7), seconds: 5, text: true, ..plain };
        assert_eq!(parse("pid=7&seconds=5&debug=2"), Ok(full));
        for bad in ["seconds=301", "pid=x", "pid=4294967296", "pid", "frobnicate=1", "seconds=-1"] {
            assert_eq!(parse(bad), Err(400), "{bad}");
        }
        let allocs = Request::parse("/debug/pprof/allocs", "seconds=1").expect("a profile");
        assert_eq!(allocs.unwrap_err().status, 400);
        assert_eq!(Request::parse("/debug/pprof/heaps", ""), None);
    }
}
