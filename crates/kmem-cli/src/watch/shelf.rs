//! The directory of reports: their names, and how many are kept.
//!
//! A report is called `NAME.PID.WHEN.CAUSE.txt`, or with the ending of its format. WHEN is in UTC,
//! so that names of one process are in order of time.

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

/// A directory of reports.
pub(super) struct Shelf {
    dir: PathBuf,
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
    pub(super) fn open(dir: &Path, keep: usize, format: Option<Format>) -> Result<Self, Failure> {
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
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            Ok(()) | Err(_) => {}
        }
        let probe = dir.join(format!(".{PROBE}.{}.{}", std::process::id(), now_ns()));
        let made = File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
        made.map_err(failed)?;
        Ok(Self { dir: dir.to_owned(), keep, ending: ending(format) })
    }

    /// Writes a report as a whole, and removes the oldest ones beyond the most that are kept.
    /// Returns its path.
    ///
    /// # Errors
    ///
    /// Errors of writing the report. Then there is no part of it.
    pub(super) fn put(
        &self,
        (name, pid): (&str, u32),
        (time_ns, cause): (u64, Cause),
        text: &[u8],
    ) -> io::Result<PathBuf> {
        let (name, when, cause) = (safe(name), when(time_ns), cause.name());
        let path = self.dir.join(format!("{name}.{pid}.{when}.{cause}.{}", self.ending));
        let to = Destination::open(Some(&path), Destination::Stdout);
        let to = to.map_err(|_| io::Error::other("it cannot be made"))?;
        to.write(|out| out.write_all(text))?;
        self.sweep();
        Ok(path)
    }

    /// Removes the oldest reports beyond the most that are kept. Other files stay.
    fn sweep(&self) {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut reports: Vec<(String, PathBuf)> = files
            .filter_map(|file| {
                let name = file.file_name();
                Some((time_of(name.to_str()?)?.to_owned(), file.path()))
            })
            .collect();
        reports.sort();
        let beyond = reports.len().saturating_sub(self.keep);
        for (_, path) in &reports[..beyond] {
            let _ = fs::remove_file(path);
        }
    }
}

/// The time in the name of a report; none for another file.
fn time_of(name: &str) -> Option<&str> {
    let mut parts = name.split('.');
    let (first, pid, when, cause) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    parts.next()?;
    let is_time = |text: &str| {
        let lengths = text.split('-').map(str::len);
        lengths.eq([8, 6, 3]) && text.bytes().all(|b| b.is_ascii_digit() || b == b'-')
    };
    let is_cause = || Cause::ALL.iter().any(|known| known.name() == cause);
    (!first.is_empty() && pid.parse::<u32>().is_ok() && is_time(when) && is_cause()).then_some(when)
}

/// A time in nanoseconds since 1970, as `20261123-224001-123`.
fn when(time_ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(time_ns);
    let text = humantime::format_rfc3339_millis(time).to_string();
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let part = |at: std::ops::Range<usize>| digits.get(at).unwrap_or_default();
    format!("{}-{}-{}", part(0..8), part(8..14), part(14..17))
}

/// The name of a process as part of a file's name. A process gives itself any name.
fn safe(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).take(MAX_NAME).collect();
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

    #[test]
    fn a_name_has_the_process_the_time_and_the_cause() {
        let dir = kmem_testing::directory();
        let shelf = Shelf::open(dir.path(), 9, None).unwrap();
        let time = 1_000_000_000 * SECOND + 7_000_000;
        let path = shelf.put(("../a b\n", 12), (time, Cause::OomKill), b"text").unwrap();
        assert_eq!(path, dir.path().join("___a_b_.12.20010909-014640-007.oom-kill.txt"));
        assert_eq!(fs::read(&path).unwrap(), b"text");
        assert!(time_of(path.file_name().unwrap().to_str().unwrap()).is_some());
    }

    #[test]
    fn the_oldest_reports_make_room_and_other_files_stay() {
        let dir = kmem_testing::directory();
        let others = ["a.1.20010909-014640-007.other.txt", "a.1.2001.exit.txt", "notes.txt"];
        others.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        let shelf = Shelf::open(dir.path(), 2, Some(Format::Pprof)).unwrap();
        // The order is that of the times, not that of writing or of the names.
        for (name, seconds) in [("z", 3), ("a", 1), ("b", 4), ("c", 2)] {
            shelf.put((name, 1), (seconds * SECOND, Cause::Exit), b"").unwrap();
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
        Shelf::open(&dir.path().join("new"), 1, None).unwrap();
        assert_eq!(names(dir.path()), ["new"]);
        assert_eq!(names(&dir.path().join("new")), [""; 0]);
        fs::write(dir.path().join("file"), "").unwrap();
        for name in ["absent/new", "file", "file/new"] {
            let path = dir.path().join(name);
            let Err(Failure::Trouble(text)) = Shelf::open(&path, 1, None) else {
                panic!("{name} is opened")
            };
            assert!(text.starts_with("no report can be written to /"), "{text}");
        }
    }
}
