//! Examples of every command, and its exit codes, for `--help` and the manual.

use clap::{Command, CommandFactory as _};

use crate::Cli;

/// Exit codes of all commands.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  found: growth over a threshold, a check that fails, a leak
  2  wrong usage, or trouble
  3  the source is absent: no process, no file, no books in it
  4  no permission
  70 a fault of kmem itself, which its message asks to report

`kmem run` ends with the code of the command, or with 128 and the number of its signal.";

/// Commands by their paths, with examples.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "run",
        &[
            "kmem run -- ./server --port 8080",
            "kmem run --leaks -- ./unit-tests",
            "kmem run --depth 8 --format pprof -o heap.pb.gz -- make",
            "kmem run --blackbox /var/tmp/server.box -- ./server",
        ],
    ),
    ("library", &["LD_PRELOAD=$(kmem library) ./server"]),
    ("ls", &["kmem ls", "kmem ls --json | jq '.processes[].pid'"]),
    (
        "top",
        &[
            "kmem top -p redis-server",
            "kmem top -p 1234 --once -n 5 --by group",
            "kmem top --core core.1234 --tree",
            "kmem top --kernel",
        ],
    ),
    (
        "dump",
        &[
            "kmem dump -p 1234 > before",
            "kmem dump -p 1234 --format pprof -o heap.pb.gz",
            "kmem dump --blackbox /var/tmp/server.box --peak --sort s",
        ],
    ),
    ("diff", &["kmem diff before 1234", "kmem diff main.box branch.box --fail-on-growth 64K"]),
    (
        "record",
        &[
            "kmem record -o server.rec -- ./server",
            "kmem record -o redis.rec -p redis-server --every 1s --for 1h",
        ],
    ),
    ("report", &["kmem report server.rec -o server.html", "kmem report -o now.html redis-server"]),
    (
        "export",
        &[
            "kmem export -p 1234",
            "kmem export --name redis-server --cgroup /system.slice/web.service",
            "kmem export --all --kernel --listen 127.0.0.1:9999",
        ],
    ),
    (
        "watch",
        &[
            "kmem watch -p 1234 -o /var/tmp/reports",
            "kmem watch --cgroup /system.slice/web.service -o reports --interval 500ms",
            "kmem watch --all -o reports --format pprof --keep 20",
        ],
    ),
    ("attach", &["kmem attach -p 1234"]),
    ("doctor", &["kmem doctor", "kmem doctor --json | jq '.checks[].state'"]),
    ("leaks", &["kmem leaks -p 1234", "kmem leaks -p server --json | jq .direct.bytes"]),
    (
        "symbolize",
        &[
            "kmem symbolize rows.json --format table",
            "kmem symbolize server.rec@peak --debug-dir ./debug -o peak.json",
            "DEBUGINFOD_URLS=https://debuginfod.debian.net kmem symbolize rows.json",
        ],
    ),
    ("kernel", &["kmem kernel"]),
    ("buddyinfo", &["kmem buddyinfo -p 1234 --index"]),
    ("context", &["kmem context -p 1234 pool_new --depth 3", "kmem context -p 1234 --off"]),
    ("sysctl", &["kmem sysctl -p 1234", "kmem sysctl -p 1234 vm.mem_profiling=0"]),
    ("modinfo", &["kmem modinfo hello.ko"]),
    ("modload", &["kmem modload hello.ko"]),
    ("lsmod", &["kmem lsmod -p 1234"]),
    ("modstats", &["kmem modstats -p 1234"]),
    ("group ls", &["kmem group ls -p 1234"]),
    ("group show", &["kmem group show -p 1234 /tenants/a memory.current"]),
    ("group set", &["kmem group set -p 1234 /tenants/a memory.max=100M"]),
    ("group create", &["kmem group create -p 1234 /tenants/a memory.max=100M"]),
    ("group rm", &["kmem group rm -p 1234 /tenants/a"]),
    ("mount", &["kmem mount /mnt/kmem"]),
    ("slabinfo", &["kmem slabinfo -p 1234"]),
    (
        "completions",
        &[
            "kmem completions bash > /etc/bash_completion.d/kmem",
            "kmem completions zsh > ~/.zfunc/_kmem",
        ],
    ),
    ("man", &["kmem man | man -l -", "kmem man /usr/local/share/man/man1"]),
];

/// The parser, with examples and exit codes in its help.
pub(crate) fn command() -> Command {
    let mut command = Cli::command().after_help(EXIT_CODES);
    for (path, examples) in EXAMPLES {
        let text = format!("Examples:\n  {}", examples.join("\n  "));
        command = match path.split_once(' ') {
            Some((outer, inner)) => command
                .mut_subcommand(outer, |of| of.mut_subcommand(inner, |of| of.after_help(text))),
            None => command.mut_subcommand(path, |of| of.after_help(text)),
        };
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(command: &Command, path: &str, out: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            if sub.has_subcommands() {
                leaves(sub, &path, out);
            } else {
                out.push(path.trim_start().to_owned());
            }
        }
    }

    #[test]
    fn every_command_has_examples_which_the_parser_takes() {
        let mut all = Vec::new();
        leaves(&Cli::command(), "", &mut all);
        for path in all {
            let of = EXAMPLES.iter().find(|(of, _)| *of == path);
            let (_, examples) = of.unwrap_or_else(|| panic!("no examples of {path}"));
            for example in examples.iter().filter(|example| example.starts_with("kmem ")) {
                let own = example.split([';', '|', '>']).next().unwrap_or_default();
                let words = own.split_whitespace();
                let parsed = command().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
                assert!(own.starts_with(&format!("kmem {path}")), "{example} is of {path}");
            }
        }
    }
}
