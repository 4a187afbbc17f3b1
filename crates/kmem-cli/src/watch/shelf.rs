//! The directory of reports: their names, and how many are kept.
//!
//! A report is called `NAME.PID.WHEN.CAUSE.txt`, or with the ending of its format. WHEN is in UTC,
//! so that names of one process are in order of time.
//!
//! Partitioned, a report lies in `dt=DAY/service=NAME/host=HOST/build=ID`. The files of many
//! machines can be put into one such tree, and an engine reads those of a day or a service alone.
//! See "Hive partitioning" in the manuals of DuckDB, ClickHouse and Trino.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use kmem_snapshot::output::Format;

use super::cause::Cause;
use crate::destination::Destination;
use crate::failure::Failure;
use crate::run::boxes::now_ns;

/// Longest name of a process in the name of a report: more than the kernel's short names have.
const MAX_NAME: usize = 32;
/// Name of the file that is made and removed at the start, to see that files can be made.
const PROBE: &str = "kmem-watch";

/// Longest value in the name of a directory: more than a build id of SHA-256 has.
const MAX_VALUE: usize = 80;
/// Names of the directories between that of the reports and a report.
const PARTITIONS: [&str; 4] = ["dt", "service", "host", "build"];

/// The order of reports in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// All next to each other.
    Flat,
    /// In directories by day, service, machine and build.
    Partitioned,
}

/// The facts in the name of a report.
pub(super) struct Name<'a> {
    /// The process's own name.
    pub(super) process: &'a str,
    pub(super) pid: u32,
    /// Time of the occasion, in nanoseconds since 1970.
    pub(super) time_ns: u64,
    pub(super) cause: Cause,
    pub(super) service: &'a str,
    /// Name of the machine.
    pub(super) host: &'a str,
    /// Build id of the executable.
    pub(super) build: Option<&'a str>,
}

/// A directory of reports.
pub(super) struct Shelf {
    dir: PathBuf,
    order: Order,
    /// Most reports in it.
    keep: usize,
    ending: &'static str,
}

impl Shelf {
    /// Opens the directory, and makes it if it is absent. `format`: that of the reports; none for
    /// text.
    ///
    /// # Errors
    ///
    /// [`Failure`] when no file can be made in it.
    pub(super) fn open(
        dir: &Path,
        keep: usize,
        format: Option<Format>,
        order: Order,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            let text = format!(
                "no report can be written to {}: {error}; name another directory with -o",
                dir.display()
            );
            match error.kind() {
                io::ErrorKind::PermissionDenied => Failure::Permission(text),
                _ => Failure::Trouble(text),
            }
        };
        make_directory(dir).map_err(failed)?;
        let probe = dir.join(format!(".{PROBE}.{}.{}", std::process::id(), now_ns()));
        let made = File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
        made.map_err(failed)?;
        Ok(Self { dir: dir.to_owned(), order, keep, ending: ending(format) })
    }

    /// Writes a report as a whole, and removes the oldest ones beyond the most that are kept.
    /// Returns its path.
    ///
    /// # Errors
    ///
    /// Errors of writing the report. Then there is no part of it.
    pub(super) fn put(&self, name: &Name<'_>, text: &[u8]) -> io::Result<PathBuf> {
        let (process, when) = (plain(name.process, "-_", MAX_NAME), when(name.time_ns));
        let (pid, cause) = (name.pid, name.cause.name());
        let file = format!("{process}.{pid}.{when}.{cause}.{}", self.ending);
        // Another machine's watch may remove an empty directory that this one has just made.
        let path = self.write(name, &file, text).or_else(|_| self.write(name, &file, text))?;
        self.sweep(name.host);
        Ok(path)
    }

    fn write(&self, name: &Name<'_>, file: &str, text: &[u8]) -> io::Result<PathBuf> {
        let mut dir = self.dir.clone();
        if self.order == Order::Partitioned {
            for part in name.partitions() {
                dir.push(part);
                make_directory(&dir)?;
            }
        }
        let path = dir.join(file);
        let to = Destination::open(Some(&path), Destination::Stdout);
        let to = to.map_err(|_| io::Error::other("it cannot be made"))?;
        to.write(|out| out.write_all(text))?;
        Ok(path)
    }

    /// Removes the oldest reports of this machine beyond the most that are kept, those of
    /// [`Cause::Interval`] before others. Other files stay.
    fn sweep(&self, host: &str) {
        let mut dirs = vec![self.dir.clone()];
        if self.order == Order::Partitioned {
            let own = partition("host", host);
            for name in PARTITIONS {
                dirs = dirs.iter().flat_map(|dir| directories(dir, name)).collect();
                dirs.retain(|dir| name != "host" || dir.ends_with(&own));
            }
        }
        let files = dirs.iter().flat_map(|dir| entries(dir));
        let mut reports: Vec<(bool, String, PathBuf)> = files
            .filter_map(|(name, path)| {
                let (time, cause) = time_and_cause(&name)?;
                Some((cause != Cause::Interval, time.to_owned(), path))
            })
            .collect();
        reports.sort();
        let beyond = reports.len().saturating_sub(self.keep);
        for (.., path) in &reports[..beyond] {
            let _ = fs::remove_file(path);
            // Those that hold other files stay.
            let partitions = path.ancestors().skip(1).take_while(|dir| *dir != self.dir);
            for dir in partitions.take(PARTITIONS.len()) {
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

impl Name<'_> {
    /// The directories above it in a tree of partitions.
    fn partitions(&self) -> impl Iterator<Item = String> {
        let when = when(self.time_ns);
        let part = |at: std::ops::Range<usize>| when.get(at).unwrap_or_default();
        let day = format!("{}-{}-{}", part(0..4), part(4..6), part(6..8));
        let [service, host, build] = [self.service, self.host, self.build.unwrap_or("none")];
        let values = [day, service.to_owned(), host.to_owned(), build.to_owned()];
        PARTITIONS.iter().zip(values).map(|(name, value)| partition(name, &value))
    }
}

/// Name of the directory of a value.
fn partition(name: &str, value: &str) -> String {
    format!("{name}={}", plain(value, "-_.@", MAX_VALUE))
}

/// Makes a directory if it is absent.
fn make_directory(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Names and paths of all that is in a directory.
fn entries(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> + use<> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// The directories of a partition in a directory.
fn directories(dir: &Path, partition: &str) -> Vec<PathBuf> {
    let is_one = |name: &str| name.strip_prefix(partition).is_some_and(|of| of.starts_with('='));
    entries(dir).filter(|(name, _)| is_one(name)).map(|(_, path)| path).collect()
}

/// The time and the cause in the name of a report; none for another file.
fn time_and_cause(name: &str) -> Option<(&str, Cause)> {
    let mut parts = name.split('.');
    let (first, pid, when, cause) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    parts.next()?;
    let is_time = |text: &str| {
        let lengths = text.split('-').map(str::len);
        lengths.eq([8, 6, 3]) && text.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    };
    let cause = Cause::ALL.into_iter().find(|known| known.name() == cause)?;
    (!first.is_empty() && pid.parse::<u32>().is_ok() && is_time(when)).then_some((when, cause))
}

/// A time in nanoseconds since 1970, as `20261123-224001-123`.
fn when(time_ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(time_ns);
    let text = humantime::format_rfc3339_millis(time).to_string();
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let part = |at: std::ops::Range<usize>| digits.get(at).unwrap_or_default();
    format!("{}-{}-{}", part(0..8), part(8..14), part(14..17))
}

/// A name as part of that of a file or directory: letters, digits and `other`. A process gives
/// itself any name.
fn plain(name: &str, other: &str, most: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || other.contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).take(most).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

/// The ending of names of reports in a format.
fn ending(format: Option<Format>) -> &'static str {
    match format {
        None | Some(Format::Table) => "txt",
        Some(Format::V1 | Format::V2) => "allocinfo",
        Some(Format::Json) => "json",
        Some(Format::Jsonl) => "jsonl",
        Some(Format::Csv) => "csv",
        Some(Format::Parquet) => "parquet",
        Some(Format::Pprof) => "pb.gz",
        Some(Format::Folded) => "folded",
        Some(Format::Speedscope) => "speedscope.json",
        Some(Format::Dhat) => "dhat.json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn names(dir: &Path) -> Vec<String> {
        let files = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn of(process: &str, pid: u32, time_ns: u64, cause: Cause) -> Name<'_> {
        Name { process, pid, time_ns, cause, service: "web", host: "h.1", build: None }
    }

    #[test]
    fn a_partition_has_the_day_the_service_the_machine_and_the_build() {
        let dir = kmem_testing::directory();
        let shelf = Shelf::open(dir.path(), 2, None, Order::Partitioned).unwrap();
        let day = 86_400 * SECOND;
        let put = |days, service, build| {
            let name = Name { service, build, ..of("a", 1, days * day, Cause::Interval) };
            shelf.put(&name, b"").unwrap()
        };
        let old = put(1, "../x=y/", Some("0a1b"));
        let partition = "dt=1970-01-02/service=.._x_y_/host=h.1/build=0a1b";
        assert_eq!(old, dir.path().join(partition).join("a.1.19700102-000000-000.interval.txt"));
        let others = dir.path().join("dt=1970-01-02/notes");
        fs::write(&others, "").unwrap();
        let kept = [put(2, "x", None), put(3, "x", None)];
        assert!(
            kept[0].starts_with(dir.path().join("dt=1970-01-03/service=x/host=h.1/build=none"))
        );
        // The oldest has made room, with the directories that it leaves empty.
        assert!(kept.iter().all(|path| path.exists()));
        assert_eq!(names(others.parent().unwrap()), ["notes"]);
        // Files of other machines are theirs.
        let name = Name { host: "h.2", ..of("a", 1, 4 * day, Cause::Interval) };
        let other = shelf.put(&name, b"").unwrap();
        assert!(kept.iter().chain([&other]).all(|path| path.exists()));
    }

    #[test]
    fn rows_of_an_interval_make_room_for_reports() {
        let dir = kmem_testing::directory();
        let shelf = Shelf::open(dir.path(), 2, None, Order::Flat).unwrap();
        for (seconds, cause) in
            [(1, Cause::OomKill), (2, Cause::Interval), (3, Cause::Interval), (4, Cause::Interval)]
        {
            shelf.put(&of("a", 1, seconds * SECOND, cause), b"").unwrap();
        }
        let expected =
            ["a.1.19700101-000001-000.oom-kill.txt", "a.1.19700101-000004-000.interval.txt"];
        assert_eq!(names(dir.path()), expected);
        // A directory that is gone is not made again: it may be where a disk was.
        fs::remove_dir_all(dir.path()).unwrap();
        assert!(shelf.put(&of("a", 1, 5 * SECOND, Cause::Exit), b"").is_err());
    }

    #[test]
    fn a_name_has_the_process_the_time_and_the_cause() {
        let dir = kmem_testing::directory();
        let shelf = Shelf::open(dir.path(), 9, None, Order::Flat).unwrap();
        let time = 1_000_000_000 * SECOND + 7_000_000;
        let path = shelf.put(&of("../a b\n", 12, time, Cause::OomKill), b"text").unwrap();
        assert_eq!(path, dir.path().join("___a_b_.12.20010909-014640-007.oom-kill.txt"));
        assert_eq!(fs::read(&path).unwrap(), b"text");
        assert!(time_and_cause(path.file_name().unwrap().to_str().unwrap()).is_some());
    }

    #[test]
    fn the_oldest_reports_make_room_and_other_files_stay() {
        let dir = kmem_testing::directory();
        let others = ["a.1.20010909-014640-007.other.txt", "a.1.2001.exit.txt", "notes.txt"];
        others.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        let shelf = Shelf::open(dir.path(), 2, Some(Format::Pprof), Order::Flat).unwrap();
        // The order is that of the times, not that of writing or of the names.
        for (name, seconds) in [("z", 3), ("a", 1), ("b", 4), ("c", 2)] {
            shelf.put(&of(name, 1, seconds * SECOND, Cause::Exit), b"").unwrap();
        }
        let mut expected = others.map(str::to_owned).to_vec();
        expected.push("b.1.19700101-000004-000.exit.pb.gz".to_owned());
        expected.push("z.1.19700101-000003-000.exit.pb.gz".to_owned());
        expected.sort();
        assert_eq!(names(dir.path()), expected);
    }

    #[test]
    fn a_directory_is_made_and_one_that_cannot_be_is_an_error() {
        let dir = kmem_testing::directory();
        let open = |path: &Path| Shelf::open(path, 1, None, Order::Flat);
        open(&dir.path().join("new")).unwrap();
        assert_eq!(names(dir.path()), ["new"]);
        assert_eq!(names(&dir.path().join("new")), [""; 0]);
        fs::write(dir.path().join("file"), "").unwrap();
        for name in ["absent/new", "file", "file/new"] {
            let path = dir.path().join(name);
            let Err(Failure::Trouble(text)) = open(&path) else { panic!("{name} is opened") };
            assert!(text.starts_with("no report can be written to /"), "{text}");
        }
    }
}
