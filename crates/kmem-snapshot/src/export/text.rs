//! Families of metrics as text: OpenMetrics 1.0, and Prometheus' text format 0.0.4.
//!
//! Sources: the OpenMetrics 1.0 specification; Prometheus' page on exposition formats.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use crate::escape::printable;

/// Most bytes of the value of a label; a longer one keeps its end.
const MAX_VALUE: usize = 160;

/// Format of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Exposition {
    /// Chooses by the header field `Accept`. OpenMetrics comes first where both are accepted alike,
    /// and must be named.
    ///
    /// ```
    /// use kmem_snapshot::export::Exposition;
    ///
    /// let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    /// assert_eq!(Exposition::accepted(Some(accept)), Exposition::OpenMetrics);
    /// assert_eq!(Exposition::accepted(Some("*/*")), Exposition::Prometheus);
    /// ```
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let (mut open, mut plain) = (0.0_f32, 0.0_f32);
        for range in accept.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut is_ours) = (1.0_f32, true);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => is_ours = value.trim().trim_matches('"') == "1.0.0",
                    _ => {}
                }
            }
            match &*kind {
                "application/openmetrics-text" if is_ours => open = open.max(quality),
                "text/plain" | "text/*" | "*/*" => plain = plain.max(quality),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Content type with its version.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Info,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $kind:ident, $help:literal;)*) => {
        /// A family of metrics.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric {
            $(#[doc = $help] $id,)*
        }

        impl Metric {
            /// All families, in the order of the text.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$id),*];

            /// Name of its samples.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$id => $name,)* }
            }

            /// The family in one sentence.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$id => $help,)* }
            }

            fn kind(self) -> Kind {
                match self { $(Self::$id => Kind::$kind,)* }
            }
        }
    };
}

metrics! {
    SiteBytes = "kmem_callsite_live_bytes", Gauge,
        "Live bytes of a call site; all sites of a process add up to its live bytes.";
    SiteObjects = "kmem_callsite_live_objects", Gauge, "Live objects of a call site.";
    GroupOwnBytes = "kmem_group_own_bytes", Gauge,
        "Memory charged to a group itself; all groups of a process add up.";
    GroupOwnObjects = "kmem_group_own_objects", Gauge,
        "Live objects charged to a group itself; all groups of a process add up.";
    GroupBytes = "kmem_group_current_bytes", Gauge,
        "Memory charged to a group and to all groups below it.";
    GroupPeakBytes = "kmem_group_peak_bytes", Gauge,
        "Highest charge of a group so far, with its stock on CPUs.";
    GroupLimitBytes = "kmem_group_limit_bytes", Gauge,
        "A limit of a group: max, high or low; absent without a limit.";
    GroupEvents = "kmem_group_events_total", Counter,
        "Events of a group: low, high, max and oom, as in memory.events of cgroup v2.";
    Tracked = "kmem_tracked_bytes", Gauge, "Live objects and page allocations of a process.";
    Cached = "kmem_cached_bytes", Gauge, "Free memory that kmem keeps for reuse.";
    Overhead = "kmem_overhead_bytes", Gauge, "Memory of kmem's own tables.";
    Untouched = "kmem_untouched_bytes", Gauge,
        "Memory in use or kept that the program never touched, and which is not resident.";
    Swapped = "kmem_swapped_bytes", Gauge, "Memory in use or kept that is in swap.";
    Unaccounted = "kmem_unaccounted_bytes", Gauge,
        "Resident memory outside of the heap: mappings, stacks, code, files.";
    Resident = "kmem_resident_bytes", Gauge, "Resident memory of a process.";
    PageTables = "kmem_page_table_bytes", Gauge,
        "Page tables of a process, which are not resident memory.";
    KernelBytes = "kernel_allocinfo_bytes", Gauge, "Live bytes of a call site of the kernel.";
    KernelObjects = "kernel_allocinfo_objects", Gauge,
        "Live objects of a call site of the kernel.";
    Processes = "kmem_processes", Gauge, "Processes in this scrape.";
    ProcessesLeftOut = "kmem_processes_left_out", Gauge,
        "Processes that were selected, and are beyond the most that are exported.";
    ReadSeconds = "kmem_read_duration_seconds", Gauge,
        "Time that it took to read a process or the kernel.";
    ScrapeSeconds = "kmem_scrape_duration_seconds", Gauge, "Time that this scrape took.";
    ScrapeErrors = "kmem_scrape_errors_total", Counter,
        "Processes and kernels that could not be read, in all scrapes, by reason.";
    BuildInfo = "kmem_build_info", Info, "Version of kmem.";
}

impl Metric {
    /// Name of the family. In OpenMetrics it is without the suffix of its samples.
    fn family(self, exposition: Exposition) -> &'static str {
        let name = self.name();
        match (exposition, self.kind()) {
            (Exposition::OpenMetrics, Kind::Counter) => name.trim_end_matches("_total"),
            (Exposition::OpenMetrics, Kind::Info) => name.trim_end_matches("_info"),
            _ => name,
        }
    }

    fn kind_name(self, exposition: Exposition) -> &'static str {
        match (self.kind(), exposition) {
            (Kind::Counter, _) => "counter",
            (Kind::Info, Exposition::OpenMetrics) => "info",
            (Kind::Info | Kind::Gauge, _) => "gauge",
        }
    }

    /// Unit, which is the suffix of the family's name.
    fn unit(self) -> Option<&'static str> {
        ["bytes", "seconds", "objects"].into_iter().find(|unit| self.name().ends_with(unit))
    }
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    Count(u64),
    Signed(i64),
    Seconds(f64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(number) => number.fmt(f),
            Self::Signed(number) => number.fmt(f),
            Self::Seconds(number) => write!(f, "{number:.6}"),
        }
    }
}

/// Labels of a sample, with braces. Values come from other processes: they are escaped, and of
/// bounded length. A label without a value is left out.
pub(super) fn labels(all: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in all.iter().filter(|(_, value)| !value.is_empty()) {
        let begin = if text.is_empty() { '{' } else { ',' };
        let _ = write!(text, "{begin}{name}=\"{}\"", escaped(value));
    }
    if !text.is_empty() {
        text.push('}');
    }
    text
}

fn escaped(value: &str) -> Cow<'_, str> {
    let value = printable(value);
    let cut = value.len().saturating_sub(MAX_VALUE);
    if cut == 0 && !value.contains(['"', '\\', '\n']) {
        return value;
    }
    let end = value.char_indices().find(|&(at, _)| at >= cut).map_or("", |(at, _)| &value[at..]);
    let begin = if cut == 0 { "" } else { ".." };
    let end = end.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    Cow::Owned(format!("{begin}{end}"))
}

/// Samples by family.
#[derive(Debug, Default)]
pub(super) struct Page {
    samples: [Vec<(String, Value)>; Metric::ALL.len()],
}

impl Page {
    /// Adds a sample. Its labels have braces, or are empty.
    pub(super) fn add(&mut self, metric: Metric, labels: String, value: Value) {
        self.samples[metric as usize].push((labels, value));
    }

    pub(super) fn write(&self, exposition: Exposition) -> String {
        let mut text = String::new();
        for (metric, samples) in Metric::ALL.into_iter().zip(&self.samples) {
            if samples.is_empty() {
                continue;
            }
            let (family, name) = (metric.family(exposition), metric.name());
            let _ = writeln!(text, "# TYPE {family} {}", metric.kind_name(exposition));
            if let (Exposition::OpenMetrics, Some(unit)) = (exposition, metric.unit()) {
                let _ = writeln!(text, "# UNIT {family} {unit}");
            }
            let _ = writeln!(text, "# HELP {family} {}", metric.help());
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        if exposition == Exposition::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_one_that_is_accepted_most() {
        let of = |accept| Exposition::accepted(Some(accept));
        let prometheus = "application/openmetrics-text;version=1.0.0,\
                          application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(of(prometheus), Exposition::OpenMetrics);
        for plain in [
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0.2, text/plain",
            "application/openmetrics-text;q=0",
            "text/html",
            "",
            ";;=,q=;,",
        ] {
            assert_eq!(of(plain), Exposition::Prometheus, "{plain}");
        }
        assert_eq!(Exposition::accepted(None), Exposition::Prometheus);
    }

    #[test]
    fn hostile_labels_stay_within_their_quotes() {
        let text = labels(&[("a", "x\"} 1\nb{c=\"\\"), ("empty", ""), ("d", "\u{202e}")]);
        assert_eq!(text, "{a=\"x\\\"} 1\\\\x0ab{c=\\\"\\\\\",d=\"\\\\u{202e}\"}");
        let long = labels(&[("a", &"\u{e9}".repeat(1000))]);
        assert!(long.len() <= MAX_VALUE + 10 && long.starts_with("{a=\"..\u{e9}"), "{long}");
        assert_eq!(labels(&[]), "");
    }

    #[test]
    fn the_two_texts_differ_as_their_formats_do() {
        let mut page = Page::default();
        page.add(Metric::ScrapeErrors, "{reason=\"absent\"}".to_owned(), Value::Count(2));
        page.add(Metric::Resident, String::new(), Value::Signed(-1));
        page.add(Metric::BuildInfo, String::new(), Value::Count(1));
        let open = page.write(Exposition::OpenMetrics);
        let resident = Metric::Resident.help();
        let begin = "# TYPE kmem_resident_bytes gauge\n# UNIT kmem_resident_bytes bytes\n";
        assert!(open.starts_with(&format!("{begin}# HELP kmem_resident_bytes {resident}\n")));
        assert!(open.contains("# TYPE kmem_scrape_errors counter\n"), "{open}");
        assert!(open.contains("\nkmem_scrape_errors_total{reason=\"absent\"} 2\n"), "{open}");
        assert!(open.contains("# TYPE kmem_build info\n") && open.ends_with("# EOF\n"), "{open}");
        let plain = page.write(Exposition::Prometheus);
        assert!(plain.contains("# TYPE kmem_scrape_errors_total counter\n"), "{plain}");
        assert!(plain.contains("# TYPE kmem_build_info gauge\n"), "{plain}");
        assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"), "{plain}");
    }
}
