//! Options that several commands share: which process to read, and which rows to show.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use kmem_snapshot::recording::At;
use kmem_snapshot::sites::Order;
use kmem_snapshot::{Filter, Pattern, Selection, Target, When};

use crate::failure::Failure;
use crate::process::Named;

/// Least time between two readings.
const LEAST: Duration = Duration::from_millis(1);
/// Most time between two readings.
const MOST: Duration = Duration::from_secs(86_400);
/// The sources that are no black box.
pub(crate) const NO_BOX: [&str; 9] =
    ["pid", "name", "cgroup", "all", "core", "allocinfo", "kernel", "kernel_log", "recording"];
/// The sources that have no rows of kmem's own tables, and the filter that these rows never pass.
pub(crate) const NO_METADATA: [&str; 5] =
    ["blackbox", "kernel", "kernel_log", "recording", "group"];
/// The sources that are no file of a process.
const NOT_DEAD: [&str; 8] =
    ["pid", "name", "cgroup", "all", "allocinfo", "kernel", "kernel_log", "recording"];
/// The sources that are no log.
const NO_LOG: [&str; 9] =
    ["pid", "name", "cgroup", "all", "core", "blackbox", "allocinfo", "kernel", "recording"];

/// A process, its core file or its black box, with names of call sites; several processes; or rows
/// that others counted.
#[derive(clap::Args)]
pub(crate) struct From {
    #[command(flatten)]
    one: One,
    /// Add up the rows of all processes with this name, those of later, too; may be repeated
    #[arg(long, value_name = "NAME", group = "source")]
    name: Vec<String>,
    /// Add up the rows of all processes in this control group or below it, those of later, too; may
    /// be repeated
    #[arg(long, value_name = "PATH", group = "source")]
    cgroup: Vec<String>,
    /// Add up the rows of all processes under kmem
    #[arg(long, group = "source")]
    all: bool,
    /// Read the rows in this file: allocinfo text of a kernel or of kmem dump, or JSON of kmem dump
    #[arg(long, value_name = "FILE", group = "source")]
    allocinfo: Option<PathBuf>,
    /// Read the rows of the kernel of this machine, in /proc/allocinfo
    #[arg(long, group = "source")]
    kernel: bool,
    /// Read the list of largest sites that a kernel without memory wrote to this log, such as the
    /// output of dmesg
    #[arg(long, value_name = "FILE", group = "source")]
    kernel_log: Option<PathBuf>,
    /// Read a moment of this recording, a file of kmem record
    #[arg(long, value_name = "FILE", group = "source")]
    recording: Option<PathBuf>,
    /// Choose the moment of the recording: first, last, peak, or a time after the first one
    #[arg(long, value_name = "MOMENT", default_value = "last", requires = "recording")]
    at: At,
    /// Read the N-th list of the log, from 1, instead of the last one
    #[arg(long, value_name = "N", conflicts_with_all = NO_LOG)]
    list: Option<NonZeroUsize>,
    /// Take this executable for that of the core file or black box, if it was moved
    #[arg(long, value_name = "PATH", conflicts_with_all = NOT_DEAD)]
    exe: Option<PathBuf>,
    /// Read the record of the peak in the black box, instead of the newest one
    #[arg(long, conflicts_with_all = NO_BOX)]
    peak: bool,
}

impl From {
    /// The target that was named.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        let exe = self.exe.clone();
        if let Some(path) = &self.allocinfo {
            return Ok(Target::List(path.clone()));
        }
        if let Some(path) = &self.kernel_log {
            return Ok(Target::KernelLog { path: path.clone(), list: self.list });
        }
        if let Some(path) = &self.recording {
            return Ok(Target::Recording { path: path.clone(), at: self.at });
        }
        if self.kernel {
            return Ok(Target::Kernel);
        }
        if self.all || !self.name.is_empty() || !self.cgroup.is_empty() {
            let (names, cgroups, all) = (self.name.clone(), self.cgroup.clone(), self.all);
            let selection = Selection { names, cgroups, all, ..Selection::default() };
            return Ok(Target::Processes(selection));
        }
        let one = self.one.target().map_err(|failure| match failure {
            Failure::Choice { what, candidates } => {
                let what = format!("{what}, or add them up with --name");
                Failure::Choice { what, candidates }
            }
            other => other,
        });
        Ok(match one? {
            Target::Core { path, .. } => Target::Core { path, exe },
            Target::BlackBox { path, .. } => {
                let when = if self.peak { When::Peak } else { When::Newest };
                Target::BlackBox { path, exe, when }
            }
            live => live,
        })
    }
}

/// A process, its core file or its black box. The parser takes exactly one.
#[derive(clap::Args)]
#[group(id = "source", required = true, multiple = false)]
pub(crate) struct One {
    /// Read the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Option<Named>,
    /// Read this core file
    #[arg(long, value_name = "FILE")]
    core: Option<PathBuf>,
    /// Read this black box, a file that KMEM_CONF=blackbox:FILE writes
    #[arg(long, value_name = "FILE")]
    blackbox: Option<PathBuf>,
}

impl One {
    /// The target that was named.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        match (&self.pid, &self.core, &self.blackbox) {
            (Some(named), ..) => Ok(Target::Process(named.pid()?)),
            (_, Some(path), _) => Ok(Target::Core { path: path.clone(), exe: None }),
            (.., Some(path)) => {
                let (path, when) = (path.clone(), When::Newest);
                Ok(Target::BlackBox { path, exe: None, when })
            }
            _ => Err(Failure::Trouble(
                "nothing to read: give one of -p, --core and --blackbox".to_owned(),
            )),
        }
    }
}

/// A process or its core file, for commands that need memory. The parser takes exactly one.
#[derive(clap::Args)]
#[group(id = "whole", required = true, multiple = false)]
pub(crate) struct Whole {
    /// Read the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Option<Named>,
    /// Read this core file
    #[arg(long, value_name = "FILE")]
    core: Option<PathBuf>,
}

impl Whole {
    /// The target that was named.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        match (&self.pid, &self.core) {
            (Some(named), _) => Ok(Target::Process(named.pid()?)),
            (_, Some(path)) => Ok(Target::Core { path: path.clone(), exe: None }),
            _ => Err(Failure::Trouble("nothing to read: give one of -p and --core".to_owned())),
        }
    }
}

/// Processes under kmem. The parser takes at least one of these.
#[derive(clap::Args)]
#[group(id = "chosen", required = true, multiple = true)]
pub(crate) struct Chosen {
    /// Choose the process with this number; may be repeated
    #[arg(short, long, value_name = "PID")]
    pid: Vec<u32>,
    /// Choose all processes with this name, those of later, too; may be repeated
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Choose all processes in this control group or below it, those of later, too; may be repeated
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// Choose all processes under kmem
    #[arg(long)]
    all: bool,
}

impl Chosen {
    /// The selection that these options form, without the kernel.
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            pids: self.pid.clone(),
            names: self.name.clone(),
            cgroups: self.cgroup.clone(),
            all: self.all,
            kernel: false,
        }
    }
}

/// Order of rows, with the letters of alloctop.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// by size
    #[value(name = "s", alias = "size")]
    Size,
    /// by number of live objects
    #[value(name = "c", aliases = ["objects", "calls"])]
    Calls,
    /// by function and place
    #[value(name = "t", alias = "tag")]
    Tag,
}

impl Sort {
    pub(crate) fn order(self) -> Order {
        match self {
            Self::Size => Order::Size,
            Self::Calls => Order::Calls,
            Self::Tag => Order::Tag,
        }
    }
}

/// Which rows to print. All options given must hold; of the values of one option any may.
/// Texts match as a whole, as allocinfo shows them, or by `*` and `?`.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Filters")]
#[group(skip)]
pub(crate) struct Filters {
    /// Show only memory that this group, such as /tenants/a, or a group below it pays for
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Show only rows of this module or program, by its base name; may be repeated
    #[arg(long, value_name = "GLOB")]
    module: Vec<String>,
    /// Show only rows of this source file; may be repeated
    #[arg(long, value_name = "GLOB")]
    file: Vec<String>,
    /// Show only rows of this function; may be repeated
    #[arg(long, value_name = "GLOB")]
    function: Vec<String>,
    /// Show only rows of this line; may be repeated
    #[arg(long, value_name = "N")]
    line: Vec<u32>,
    /// Leave out rows, stacks and nodes of a tree below this size
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    min: Option<i64>,
    /// Leave out rows and stacks above this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max: Option<i64>,
}

impl Filters {
    /// The filter that these options form.
    pub(crate) fn filter(&self) -> Filter {
        let patterns = |texts: &[String]| texts.iter().map(|t| Pattern::new(t)).collect();
        Filter {
            module: patterns(&self.module),
            file: patterns(&self.file),
            function: patterns(&self.function),
            line: self.line.clone(),
            min: self.min,
            max: self.max,
            group: self.group.clone(),
        }
    }

    /// The filter without its sizes, for stacks and trees, whose sizes are not those of rows.
    pub(crate) fn names(&self) -> Filter {
        Filter { min: None, max: None, ..self.filter() }
    }

    /// True when a group is given.
    pub(crate) fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Least and largest size, in bytes.
    pub(crate) fn sizes(&self) -> (Option<i64>, Option<i64>) {
        (self.min, self.max)
    }

    /// Least size, in bytes.
    pub(crate) fn least(&self) -> Option<i64> {
        self.min
    }
}

/// Parses a time between two readings.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (LEAST..=MOST).contains(&time) {
        Ok(time)
    } else {
        Err("a time from 1ms to 1day is needed".to_owned())
    }
}

/// Parses `10`, `64K`, `1.5MiB`, `2g` into bytes.
pub(crate) fn parse_size(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size such as 4096, 64K or 1.5MiB"))?;
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{text:?}: unknown unit, expected K, M, G or T")),
    };
    let bytes = number * (1_u64 << shift) as f64;
    if bytes >= i64::MAX as f64 {
        return Err(format!("{text:?} is too large"));
    }
    Ok(bytes as i64)
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("1.5MiB", 1_572_864),
            ("2g", 2 << 30),
            ("7 B", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "x", "-1", "1x", "1e9", "99999999999999T", "1.2.3"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
