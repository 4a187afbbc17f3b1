//! Memory pressure: time that tasks wait for memory, as the kernel tells it
//! (`Documentation/accounting/psi.rst` in Linux).
//!
//! A trigger wakes the watch when the time exceeds a threshold. Where the kernel refuses one, the
//! sums of the file are read and compared. Without rights the kernel takes a trigger only for
//! windows of whole two seconds.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Windows of a trigger, in seconds.
const WINDOWS: [u32; 2] = [1, 2];
/// Least time between two readings of the sums. Within less, a single wait would be pressure.
const SECOND: Duration = Duration::from_millis(900);

/// A file with the memory pressure of a control group or of the machine.
pub(super) struct Pressure {
    path: PathBuf,
    /// Time within a second that counts as pressure.
    stall: Duration,
    source: Source,
}

enum Source {
    /// The kernel tells. The file has the trigger as long as it is open.
    Trigger(File),
    /// The last sum of all waits, and the time at which it was read.
    Sums(Duration, Instant),
}

impl Pressure {
    /// Opens the file. None where there is no such file.
    pub(super) fn open(path: &Path, stall: Duration) -> Option<Self> {
        let source = WINDOWS
            .iter()
            .find_map(|&window| trigger(path, stall * window, window).ok())
            .map(Source::Trigger);
        let source = match source {
            Some(source) => source,
            None => Source::Sums(total(&fs::read_to_string(path).ok()?)?, Instant::now()),
        };
        Some(Self { path: path.to_owned(), stall, source })
    }

    /// The file to wait for, by POLLPRI.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.source {
            Source::Trigger(file) => Some(file),
            Source::Sums(..) => None,
        }
    }

    /// Reads the sums where there is no trigger, once in a second. Returns whether the pressure
    /// exceeded the threshold since the last reading.
    pub(super) fn look(&mut self) -> bool {
        let Source::Sums(before, at) = &mut self.source else { return false };
        let elapsed = at.elapsed();
        if elapsed < SECOND {
            return false;
        }
        let Some(now) = fs::read_to_string(&self.path).ok().as_deref().and_then(total) else {
            return false;
        };
        let waited = now.saturating_sub(*before);
        (*before, *at) = (now, Instant::now());
        waited.as_secs_f64() >= self.stall.as_secs_f64() * elapsed.as_secs_f64()
    }

    /// The pressure in words.
    pub(super) fn what(&self) -> String {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let some = text.lines().find(|line| line.starts_with("some ")).unwrap_or_default();
        let (ms, path) = (self.stall.as_millis(), self.path.display());
        format!(
            "is under memory pressure: tasks waited {ms} ms of a second or more ({path}: {some})"
        )
    }
}

/// Sets a trigger on a file. The trigger ends when the file is closed.
fn trigger(path: &Path, stall: Duration, window: u32) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let mut file = options.open(path)?;
    let text = format!("some {} {}\0", stall.as_micros(), u64::from(window) * 1_000_000);
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Time that some task waited, in the text of the file.
fn total(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let field = some.split(' ').find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(field.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "some avg10=0.00 avg60=1.50 avg300=0.31 total=1234567\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";

    #[test]
    fn the_sum_of_waits_is_that_of_some_task() {
        assert_eq!(total(TEXT), Some(Duration::from_micros(1_234_567)));
        assert_eq!(total("full avg10=0.00 total=1\n"), None);
        assert_eq!(total("some avg10=0.00 total=x\n"), None);
    }

    #[test]
    fn without_a_trigger_the_sums_are_compared() {
        let dir = kmem_testing::directory();
        let path = dir.path().join("memory.pressure");
        let write = |total: u64| fs::write(&path, format!("some avg10=0.00 total={total}\n"));
        assert!(Pressure::open(&path, Duration::from_millis(150)).is_none(), "no file");
        let stall = Duration::from_millis(150);
        let look = |before: u64, seconds: u64, now: u64| {
            write(now).unwrap();
            let at = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            let source = Source::Sums(Duration::from_micros(before), at);
            let mut pressure = Pressure { path: path.clone(), stall, source };
            [pressure.look(), pressure.look()]
        };
        assert_eq!(look(1000, 1, 1000), [false, false], "no task has waited");
        // 900 ms in 2 seconds, and in 20; they do not count again.
        assert_eq!(look(1000, 2, 901_000), [true, false]);
        assert_eq!(look(1000, 20, 901_000), [false, false]);
        assert_eq!(look(1000, 0, 901_000), [false, false], "it is too early");
    }
}
