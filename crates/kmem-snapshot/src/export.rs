//! Processes and the kernel as metrics and profiles over HTTP.
//!
//! ```text
//! process  the families of one process
//! kernel   the families of the kernel
//! profile  /debug/pprof/heap and /debug/pprof/allocs
//! rows     a bounded number of rows, the others as one
//! text     families as text: OpenMetrics 1.0, and Prometheus 0.0.4
//! ```
//!
//! An [`Exporter`] turns the path of a request into an [`Answer`] with a content type and a body.
//! It knows no sockets, so any server can pass its requests on:
//!
//! ```no_run
//! use kmem_snapshot::export::{Exporter, Selection};
//!
//! let mut exporter = Exporter::new(Selection::this_process());
//! let answer = exporter.answer("/debug/pprof/heap?debug=1", None);
//! assert_eq!(answer.content_type, "text/plain; charset=utf-8");
//! println!("{} bytes", answer.body.len());
//! ```
//!
//! Names of call sites are kept from one answer to the next, see [`Kept`].

mod kernel;
mod process;
mod profile;
mod rows;
mod text;

use std::collections::HashMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::error::ReadError;
use crate::process::Process;
use crate::reading::{Query, ReadFailure, Target};
pub use crate::select::Selection;
use crate::symbols::Kept;
use process::Shown;
use profile::Request;
use rows::Rows;
pub use text::{Exposition, Metric};
use text::{Page, Value, labels};

/// The most that an exporter tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Call sites of a process and of the kernel; the others are summed up as `other`.
    pub sites: usize,
    /// Groups of a process; the others are summed up as `other`.
    pub groups: usize,
    /// Processes; the others are counted.
    pub processes: usize,
}

impl Default for Bounds {
    /// Fewer than 10,000 series together.
    fn default() -> Self {
        Self { sites: 50, groups: 20, processes: 20 }
    }
}

/// Content of an answer over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Content type, with its parameters.
    pub content_type: &'static str,
    /// Body.
    pub body: Vec<u8>,
}

impl Answer {
    fn text(status: u16, body: impl Display) -> Self {
        let body = format!("{body}\n").into_bytes();
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }
}

/// The state of an answer.
#[derive(Debug)]
pub enum Progress {
    /// The answer is there.
    Done(Answer),
    /// Part of the answer is read, the rest is wanted after a time.
    Wait(Duration, Pending),
}

/// The first half of a profile of a difference.
#[derive(Debug)]
pub struct Pending(profile::Before);

/// Reasons for which a process or the kernel is missing in a scrape.
const REASONS: [&str; 3] = ["absent", "permission", "other"];

fn reason(error: &ReadError) -> usize {
    if error.is_absent() {
        0
    } else if error.is_permission() {
        1
    } else {
        2
    }
}

/// Names and choices of a process that are kept from one scrape to the next.
#[derive(Debug, Default)]
struct Known {
    start_time: u64,
    names: Kept,
    shown: Shown,
}

/// Answers requests about some processes and the kernel.
#[derive(Debug)]
pub struct Exporter {
    selection: Selection,
    bounds: Bounds,
    by_group: bool,
    known: HashMap<u32, Known>,
    kernel: Rows,
    errors: [u64; REASONS.len()],
    failures: Vec<String>,
}

impl Exporter {
    /// Exports the selection, within the default bounds.
    #[must_use]
    pub fn new(selection: Selection) -> Self {
        Self {
            selection,
            bounds: Bounds::default(),
            by_group: false,
            known: HashMap::new(),
            kernel: Rows::default(),
            errors: [0; REASONS.len()],
            failures: Vec::new(),
        }
    }

    /// Sets the bounds.
    #[must_use]
    pub fn within(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Tells call sites apart by the group that pays, with the label `group`.
    #[must_use]
    pub fn by_group(self, by_group: bool) -> Self {
        Self { by_group, ..self }
    }

    /// Messages on what the last scrape could not read.
    #[must_use]
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Answers a GET of this path, which may have a query. Waits, where the query asks for a
    /// difference over some seconds.
    ///
    /// `accept` is the header field of that name.
    pub fn answer(&mut self, path: &str, accept: Option<&str>) -> Answer {
        match self.begin(path, accept) {
            Progress::Done(answer) => answer,
            Progress::Wait(time, pending) => {
                std::thread::sleep(time);
                self.finish(pending)
            }
        }
    }

    /// True for a path that asks for a difference over some seconds: its answer has to wait.
    #[must_use]
    pub fn is_difference(path: &str) -> bool {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        matches!(Request::parse(path, query), Some(Ok(request)) if request.is_difference())
    }

    /// Begins an answer, and does not wait.
    pub fn begin(&mut self, path: &str, accept: Option<&str>) -> Progress {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        match path {
            "/metrics" => {
                let exposition = Exposition::accepted(accept);
                let content_type = exposition.content_type();
                let body = self.scrape(exposition).into_bytes();
                Progress::Done(Answer { status: 200, content_type, body })
            }
            // pprof sends addresses without a name here. There are no names that it does not have.
            "/debug/pprof/symbol" => Progress::Done(Answer::text(200, "num_symbols: 0")),
            "/" => Progress::Done(Answer::text(200, INDEX)),
            _ => match Request::parse(path, query) {
                Some(Ok(request)) => self.profile(&request),
                Some(Err(answer)) => Progress::Done(answer),
                None => Progress::Done(Answer::text(404, "no such page; / lists all")),
            },
        }
    }

    /// Ends an answer that had to wait.
    pub fn finish(&mut self, pending: Pending) -> Answer {
        let Pending(before) = pending;
        match self.known(before.pid()) {
            Ok(known) if known.start_time != before.start_time() => Answer::text(
                404,
                format_args!("process {} has ended, another one has its number", before.pid()),
            ),
            Ok(known) => before.answer(&mut known.names),
            Err(error) => failed(&error.into()),
        }
    }

    /// Reads all of the selection, and writes its metrics.
    pub fn scrape(&mut self, exposition: Exposition) -> String {
        let start = Instant::now();
        let mut page = Page::default();
        self.failures.clear();
        let selected = self.selection.processes().unwrap_or_else(|error| {
            self.fail(&error);
            Vec::new()
        });
        let (all, most) = (selected.len(), self.bounds.processes);
        let mut exported = 0_u64;
        for &pid in selected.iter().take(most) {
            let read = Instant::now();
            match self.process(pid, &mut page) {
                Ok(labels) => {
                    exported += 1;
                    page.add(Metric::ReadSeconds, labels, seconds(read));
                }
                Err(failure) => self.fail(&failure.error),
            }
        }
        self.known.retain(|pid, _| selected.contains(pid));
        if self.selection.has_kernel() {
            let read = Instant::now();
            match kernel::write(&Target::Kernel, &mut self.kernel, self.bounds.sites, &mut page) {
                Ok(()) => {
                    let labels = labels(&[("pid", "0"), ("name", "kernel")]);
                    page.add(Metric::ReadSeconds, labels, seconds(read));
                }
                Err(failure) => self.fail(&failure.error),
            }
        }
        page.add(Metric::Processes, String::new(), Value::Count(exported));
        let beyond = Value::Count(all.saturating_sub(most) as u64);
        page.add(Metric::ProcessesLeftOut, String::new(), beyond);
        for (name, count) in REASONS.into_iter().zip(self.errors) {
            page.add(Metric::ScrapeErrors, labels(&[("reason", name)]), Value::Count(count));
        }
        let version = labels(&[("version", env!("CARGO_PKG_VERSION"))]);
        page.add(Metric::BuildInfo, version, Value::Count(1));
        page.add(Metric::ScrapeSeconds, String::new(), seconds(start));
        page.write(exposition)
    }

    fn fail(&mut self, error: &ReadError) {
        self.errors[reason(error)] += 1;
        self.failures.push(error.to_string());
    }

    /// Opens a process, and returns what is kept of it.
    fn known(&mut self, pid: u32) -> Result<&mut Known, ReadError> {
        let start_time = Process::open(pid)?.start_time();
        let known = self.known.entry(pid).or_default();
        if known.start_time != start_time {
            *known = Known { start_time, ..Known::default() };
        }
        Ok(known)
    }

    /// Writes the families of a process, and returns its labels.
    fn process(&mut self, pid: u32, page: &mut Page) -> Result<String, ReadFailure> {
        let (bounds, by_group) = (self.bounds, self.by_group);
        let known = self.known(pid)?;
        let query = Query { by: process::keys(by_group), ..Query::default() };
        let reading = Target::Process(pid).read_again(&query, &mut known.names)?;
        Ok(process::write(&reading, bounds, &mut known.shown, page))
    }

    /// Begins a profile of the process that is named, or of the only one.
    fn profile(&mut self, request: &Request) -> Progress {
        let selected = match self.selection.processes() {
            Ok(selected) => selected,
            Err(error) => return Progress::Done(failed(&error.into())),
        };
        let pid = match (request.pid, &selected[..]) {
            (Some(pid), all) if all.contains(&pid) => pid,
            (None, [one]) => *one,
            (_, all) => return Progress::Done(profile::choose(request.pid, all)),
        };
        match self.known(pid) {
            Ok(known) => request.begin(pid, known.start_time, &mut known.names),
            Err(error) => Progress::Done(failed(&error.into())),
        }
    }
}

/// The answer for a failed reading.
fn failed(failure: &ReadFailure) -> Answer {
    const STATUS: [u16; REASONS.len()] = [404, 403, 500];
    Answer::text(STATUS[reason(&failure.error)], &failure.error)
}

fn seconds(since: Instant) -> Value {
    Value::Seconds(since.elapsed().as_secs_f64())
}

const INDEX: &str = "\
kmem export

/metrics                      OpenMetrics 1.0, or Prometheus text 0.0.4
/debug/pprof/heap             live objects, for pprof
/debug/pprof/allocs           all allocations since the start, for pprof

The profiles take ?pid=N, ?seconds=N for a difference, and ?debug=1 for text.";
