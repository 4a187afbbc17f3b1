//! Refused requests in the report of `kmem run`.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod program;

use std::path::Path;
use std::process::Command;

use program::{KMEM, compile, directory, library, text};

const SOURCE: &str = include_str!("programs/refused.c");

/// The report on the program, which ends in this way.
fn report(end: &str) -> String {
    let dir = directory();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let program = compile("refused", &["-I", include.to_str().unwrap()], dir.path());
    let mut command = Command::new(KMEM);
    command.arg("run").arg("--library").arg(library()).arg("--").arg(program).arg(end);
    command.env_remove("LD_PRELOAD").env_remove("KMEM_CONF");
    text(&command.output().unwrap().stderr)
}

#[test]
fn the_report_names_the_lines_whose_requests_were_refused() {
    let line = |mark: &str| 1 + SOURCE.lines().position(|line| line.contains(mark)).unwrap();
    // The last count that an aborted program wrote is a power of two.
    for (end, count) in [("exit", "3 requests"), ("abort", "2 or more requests")] {
        let report = report(end);
        let refused: Vec<_> = report.lines().filter(|l| l.contains(" refused")).collect();
        let [.., group, large] = refused[..] else { panic!("{report}") };
        let begin = format!("kmem: {count} were refused, the last for 4.0 MiB in ask_in_group at ");
        let end = format!("refused.c:{}: the group /tenant was at its max", line("/* in group"));
        assert!(group.starts_with(&begin) && group.ends_with(&end), "{report}");
        let begin = "kmem: a request for 1.0 PiB was refused in ask_too_much at ";
        let end = format!("refused.c:{}: there was no memory", line("/* too much"));
        assert!(large.starts_with(begin) && large.ends_with(&end), "{report}");
    }
}
