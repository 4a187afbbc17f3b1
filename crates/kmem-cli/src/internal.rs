//! The report of a panic. It is a fault of kmem itself, whatever the input was: a reader returns an
//! error for what it cannot read.
//!
//! The hook ends the process. So it works in a released build, where a panic unwinds nothing, and
//! on every thread.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::env;
use std::ffi::OsString;
use std::panic::{self, PanicHookInfo};
use std::process;

use crate::failure::say_all;
use crate::quote::quoted;

/// Exit code for a fault of kmem itself: `EX_SOFTWARE` of sysexits(3).
const INTERNAL: u8 = 70;

/// Reports a panic on stderr, and ends the process with [`INTERNAL`].
pub(crate) fn report_panics() {
    panic::set_hook(Box::new(|info| {
        let backtrace = Backtrace::capture();
        let backtrace =
            (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        say_all(&report(info, env::args_os(), backtrace));
        process::exit(INTERNAL.into());
    }));
}

/// Lines of the report: the fault and its place, and how to make it happen again.
fn report(
    info: &PanicHookInfo<'_>,
    command: impl Iterator<Item = OsString>,
    backtrace: Option<String>,
) -> Vec<String> {
    let what = info.payload_as_str().unwrap_or("a panic without a message");
    let place = info.location().map_or_else(String::new, |place| format!(" ({place})"));
    let words: Vec<String> = command.map(|word| quoted(&word)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let mut lines = vec![
        format!("internal error: {what}{place}"),
        format!("this is a fault of kmem {version}, please report it with these lines"),
        format!("the command was: {}", words.join(" ")),
    ];
    match backtrace {
        Some(trace) => lines.extend(trace.lines().map(str::to_owned)),
        None => lines.push(
            "if it happens again, RUST_BACKTRACE=1 shows where; add the file that was read, if you \
             may share it"
                .to_owned(),
        ),
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Panics in another thread, as a program of its own: a hook is that of a whole process.
    #[test]
    #[ignore = "the other test runs it"]
    fn panics() {
        report_panics();
        let number = env::args().count() - 1;
        thread::spawn(move || ["a\x1b[31m"; 1][number]).join().ok();
    }

    #[test]
    fn a_panic_on_any_thread_is_told_with_its_place_and_the_command() {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "internal::tests::panics", "--ignored", "--nocapture"]);
        for backtrace in ["0", "1"] {
            let output = command.env("RUST_BACKTRACE", backtrace).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(INTERNAL.into()), "{said}");
            for what in [
                "kmem: internal error: index out of bounds: the len is 1 but the index is 4 (",
                "internal.rs:",
                concat!("fault of kmem ", env!("CARGO_PKG_VERSION")),
                "--exact internal::tests::panics --ignored --nocapture\n",
            ] {
                assert!(said.contains(what), "{what}: {said}");
            }
            assert_eq!(said.contains("kmem::internal::tests::panics"), backtrace == "1", "{said}");
            assert!(said.lines().all(|line| line.starts_with("kmem: ")), "{said}");
        }
    }
}
