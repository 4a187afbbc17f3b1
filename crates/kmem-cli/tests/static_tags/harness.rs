//! Builds the programs of `tests/programs/tags`, runs them under `libkmem.so`, and compares the
//! books with the rows that they print; see `expect.h`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kmem_testing::library::{LIBRARY, built};
use kmem_testing::{Compiler, Coprocess, Outcome, Run};
pub(crate) use kmem_testing::{include, is_missing};
use serde_json::Value;

pub(crate) const KMEM: &str = env!("CARGO_BIN_EXE_kmem");

/// Path of the library that the command finds by itself.
pub(crate) fn library() -> PathBuf {
    built(LIBRARY)
}

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/tags").join(name)
}

/// Runs a compiler on sources of the tests. A warning is a failure.
#[track_caller]
pub(crate) fn compile(compiler: &str, args: &[&str], sources: &[&str], to: &Path) {
    let compiler = Compiler::new(compiler).strict().arg("-pthread").include();
    // Libraries come after the sources that need them.
    compiler.args(sources.iter().map(|name| source(name))).args(args).arg("-ldl").compile(to);
}

/// The source and the line in which a call is marked.
#[track_caller]
fn place_of(files: &[&str], mark: &str) -> (String, u64) {
    let mark = format!("/* at {mark} */");
    let mut places = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(source(file)).unwrap();
        let lines = (1..).zip(text.lines()).filter(|(_, line)| line.contains(&mark));
        places.extend(lines.map(|(line, _)| ((*file).to_owned(), line)));
    }
    assert_eq!(places.len(), 1, "{mark} in {files:?}: {places:?}");
    places.remove(0)
}

/// A row of the books: file, line, function and module; bytes and calls.
pub(crate) type Rows = BTreeMap<(String, u64, String), (u64, u64)>;

/// A running program under the library.
pub(crate) struct Program {
    process: Coprocess,
    /// Names of the source files that marks are looked up in.
    files: &'static [&'static str],
    /// Bytes and calls without a tag, as the program knows them.
    pub(crate) untagged: (u64, u64),
}

/// Result of reading on to the next check of a program.
pub(crate) enum Said {
    /// All rows of the program.
    Check(Rows),
    /// The program ended.
    End,
}

impl Program {
    pub(crate) fn start(
        program: &Path,
        args: &[&str],
        conf: &str,
        files: &'static [&'static str],
    ) -> Self {
        let mut command = Command::new(program);
        command.args(args).env("LD_PRELOAD", library()).env("KMEM_CONF", conf);
        let process = Coprocess::start(command.stderr(Stdio::piped()));
        Self { process, files, untagged: (0, 0) }
    }

    /// Reads on to the next check.
    pub(crate) fn next(&mut self) -> Said {
        let mut rows = Rows::new();
        self.untagged = (0, 0);
        loop {
            let Some(line) = self.process.line() else { return Said::End };
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["row", mark, function, bytes, calls] => {
                    let (file, line) = place_of(self.files, mark);
                    let who = (file, line, function.to_owned());
                    let what = (bytes.parse().unwrap(), calls.parse().unwrap());
                    assert_eq!(rows.insert(who, what), None, "{mark} twice");
                }
                ["untagged", bytes, calls] => {
                    self.untagged = (bytes.parse().unwrap(), calls.parse().unwrap());
                }
                ["same", same] => assert_eq!(same, "1", "loaded at another address"),
                ["check"] => return Said::Check(rows),
                _ => panic!("{line:?}"),
            }
        }
    }

    pub(crate) fn go_on(&mut self) {
        self.process.write(b"\n");
    }

    /// The rows of a dump as allocinfo text, for one module.
    pub(crate) fn dump_text(&self, module: &str, args: &[&str]) -> String {
        let pid = self.process.pid().to_string();
        let mut command = Command::new(KMEM);
        let output =
            command.args(["dump", "--no-mmap", "-p", &pid, "--module", module]).args(args).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn dump(&self) -> Value {
        let pid = self.process.pid().to_string();
        let output =
            Command::new(KMEM).args(["dump", "--json", "--no-empty", "-p", &pid]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Compares the books with the program's rows at every check until the program ends. Other rows
    /// may only be calls of libraries; with `alone` there must be none. Returns its stderr.
    #[track_caller]
    pub(crate) fn agrees_with_the_books(mut self, alone: bool) -> String {
        let mut checks = 0;
        while let Said::Check(expected) = self.next() {
            checks += 1;
            let dump = self.dump();
            assert_eq!(rows_of(&dump, self.files), expected, "check {checks}: {dump:#}");
            assert_eq!(untagged_of(&dump), self.untagged, "check {checks}: {dump:#}");
            let libraries = of_libraries(&dump);
            assert!(!alone || libraries == 0, "check {checks}: {dump:#}");
            let own = expected.values().map(|row| row.0).sum::<u64>() + self.untagged.0;
            assert_eq!(dump["accounting"]["tracked"], own + libraries, "check {checks}: {dump:#}");
            self.go_on();
        }
        let (success, stderr) = self.end();
        assert!(success && checks > 0, "{stderr}");
        stderr
    }

    /// Reads its stderr until it ends, for a message.
    pub(crate) fn stderr(&mut self) -> String {
        self.process.stderr()
    }

    /// Lets it end. Returns whether it succeeded, and its stderr.
    pub(crate) fn end(mut self) -> (bool, String) {
        let stderr = self.stderr();
        (self.process.wait().success(), stderr)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Rows of these source files, by names without directories.
#[track_caller]
pub(crate) fn rows_of(dump: &Value, files: &[&str]) -> Rows {
    let mut rows = Rows::new();
    for row in dump["rows"].as_array().unwrap() {
        let path = text(&row["file"]);
        let Some(file) = files.iter().find(|&&file| path.rsplit('/').next() == Some(file)) else {
            continue;
        };
        assert_eq!(row["kind"], "static", "{row:#}");
        let who = ((*file).to_owned(), row["line"].as_u64().unwrap(), text(&row["function"]));
        let what = (row["bytes"].as_u64().unwrap(), row["calls"].as_u64().unwrap());
        assert_eq!(rows.insert(who, what), None, "two rows of one site: {dump:#}");
    }
    rows
}

/// Bytes that calls in shared libraries hold.
fn of_libraries(dump: &Value) -> u64 {
    let rows = dump["rows"].as_array().unwrap().iter();
    // A call in a library, which may be billed to the program's call of the library.
    let of_library = |row: &&Value| match row["kind"].as_str() {
        Some("caller") => text(&row["module"]).contains(".so"),
        Some("chain") => text(&row["chains"][0]["frames"][0]["module"]).contains(".so"),
        _ => false,
    };
    rows.filter(of_library).map(|row| row["bytes"].as_u64().unwrap()).sum()
}

/// Live bytes and calls without a tag.
fn untagged_of(dump: &Value) -> (u64, u64) {
    let rows = dump["rows"].as_array().unwrap().iter();
    let of_zero = |row: &&Value| row["tags"].as_array().is_some_and(|t| t.contains(&0.into()));
    rows.filter(of_zero).fold((0, 0), |sum, row| {
        (sum.0 + row["bytes"].as_u64().unwrap(), sum.1 + row["calls"].as_u64().unwrap())
    })
}

/// Runs a program alone, with or without the library.
pub(crate) fn run(program: &Path, args: &[&str], preload: bool) -> Outcome {
    let run = Run::new(program).args(args).without_preload();
    if preload { run.env("LD_PRELOAD", library()).run() } else { run.run() }
}
