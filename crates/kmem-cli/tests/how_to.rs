//! The pages of `docs/how-to`, run as their readers run them.
//!
//! | block of a page | meaning |
//! |---|---|
//! | a language and a name | the file of that name |
//! | `sh` | commands; those of a page are one session |
//! | `text` | lines of the output of the commands since the last such block |
//! | without a language | not run |
//!
//! The output may have other spaces and pids than the page, and other lines between. Numbers may
//! differ by a tenth, since the last record of a killed program is a little older than its end.

mod program;

use std::fs;
use std::path::Path;

use kmem_testing::{Run, is_missing};
use program::{KMEM, directory, library};

/// Line that the session prints behind each block of commands, before the block's number.
const MARK: &str = "== end of block ";

/// A block of a page between fences.
#[derive(Debug, PartialEq)]
struct Block {
    /// Number of the line with the opening fence.
    line: usize,
    kind: Kind,
    text: String,
}

#[derive(Debug, PartialEq)]
enum Kind {
    File(String),
    Commands,
    Output,
}

/// The blocks of a page that this test knows.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, opening)) = lines.next() {
        let Some(info) = opening.strip_prefix("```") else { continue };
        let body = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text: String = body.flat_map(|line| [line, "\n"]).collect();
        let kind = match info.split_once(' ') {
            Some((_, name)) => Kind::File(name.to_owned()),
            None if info == "sh" => Kind::Commands,
            None if info == "text" => Kind::Output,
            None => continue,
        };
        blocks.push(Block { line: at + 1, kind, text });
    }
    blocks
}

/// Returns whether a line of the output is one that the page shows.
fn alike(expected: &str, found: &str) -> bool {
    let (mut expected, mut found) = (expected.split_whitespace(), found.split_whitespace());
    let mut before = "";
    loop {
        match (expected.next(), found.next()) {
            (None, None) => return true,
            (Some(want), Some(have)) => {
                let pid = before.ends_with("pid");
                if want != have && !pid && !close(want, have) {
                    return false;
                }
                before = want;
            }
            _ => return false,
        }
    }
}

/// Returns whether both words are numbers that differ by a tenth at most.
fn close(want: &str, have: &str) -> bool {
    let (Ok(want), Ok(have)) = (want.parse::<f64>(), have.parse::<f64>()) else { return false };
    (want - have).abs() <= want.abs() / 10.0
}

/// The first expected line that the output does not have behind the expected lines before it.
fn missing<'a>(expected: &'a str, output: &str) -> Option<&'a str> {
    let mut output = output.lines();
    expected.lines().find(|line| !output.any(|found| alike(line, found)))
}

/// The commands of a page as one script, which says where the output of each block ends.
fn script(blocks: &[Block]) -> String {
    let mut script = String::from("set -eu -o pipefail\nexec 2>&1\n");
    for (number, block) in blocks.iter().enumerate() {
        if block.kind == Kind::Commands {
            script.push_str(&block.text);
            script.push_str(&format!("echo '{MARK}{number}'\n"));
        }
    }
    script
}

/// Output of the blocks of commands from `from` up to `to`.
fn output_of(whole: &str, from: usize, to: usize) -> String {
    let mut output = String::new();
    let mut rest = whole;
    while let Some((block, after)) = rest.split_once(MARK) {
        let (number, after) = after.split_once('\n').unwrap_or((after, ""));
        let number: usize = number.parse().expect("the number of a block");
        if (from..to).contains(&number) {
            output.push_str(block);
        }
        rest = after;
    }
    output
}

/// Runs the commands of a page in an empty directory, and compares their output.
#[track_caller]
fn follow(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to").join(page);
    let blocks = blocks(&fs::read_to_string(&path).expect("the page"));
    let directory = directory();
    for block in &blocks {
        if let Kind::File(name) = &block.kind {
            fs::write(directory.path().join(name), &block.text).expect("a file of the page");
        }
    }
    let prefix = format!("{}/", directory.path().display());
    let commands = Path::new(KMEM).parent().expect("the command is in a directory");
    let search = std::env::var("PATH").unwrap_or_default();
    let session = format!("cd '{}' && . ./session", directory.path().display());
    fs::write(directory.path().join("session"), script(&blocks)).expect("the session");
    let outcome = Run::new("bash")
        .without_preload()
        .args(&["-c", &session])
        .env("PATH", format!("{}:{search}", commands.display()))
        .env("KMEM_LIBRARY", library())
        .run();
    outcome.assert_success();
    let mut from = 0;
    for (number, block) in blocks.iter().enumerate() {
        if block.kind == Kind::Output {
            let output = output_of(&outcome.stdout, from, number).replace(&prefix, "");
            if let Some(line) = missing(&block.text, &output) {
                panic!("{page}:{}: the output has no line {line:?}:\n{output}", block.line);
            }
            from = number;
        }
    }
    assert!(from > 0, "{page} shows no output");
}

/// The pages. Each has a test.
const PAGES: &[&str] = &[
    "after-an-oom-kill.md",
    "first-hour.md",
    "fleet.md",
    "kernel-memory.md",
    "memory-budget.md",
    "python-service.md",
    "tenants.md",
];

#[test]
fn after_an_oom_kill() {
    follow("after-an-oom-kill.md");
}

#[test]
fn first_hour() {
    follow("first-hour.md");
}

#[test]
fn fleet() {
    follow("fleet.md");
}

#[test]
fn kernel_memory() {
    follow("kernel-memory.md");
}

#[test]
fn memory_budget() {
    follow("memory-budget.md");
}

#[test]
fn python_service() {
    if !is_missing("python3") {
        follow("python-service.md");
    }
}

#[test]
fn tenants() {
    follow("tenants.md");
}

#[test]
fn every_page_has_a_test() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to");
    let entries = fs::read_dir(directory).expect("the pages");
    let name = |path: std::path::PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    let mut pages: Vec<String> =
        entries.filter_map(|entry| name(entry.expect("a page").path())).collect();
    pages.sort();
    assert_eq!(pages, PAGES);
}

/// Tests of the reader of pages.
mod reader {
    use super::*;

    #[test]
    fn blocks_are_files_commands_and_output() {
        let page = "```c a.c\nint x;\n```\n```sh\ncc a.c\n```\n```text\nok\n```\n```\nno\n```\n";
        let kinds: Vec<Kind> = blocks(page).into_iter().map(|block| block.kind).collect();
        assert_eq!(kinds, [Kind::File("a.c".into()), Kind::Commands, Kind::Output]);
        assert_eq!(blocks(page)[1].line, 4);
    }

    #[test]
    fn numbers_may_differ_a_little() {
        assert!(alike("2000 a.c:3", "1995 a.c:3") && !alike("2000", "1700"));
        assert!(!alike("a.c:3", "a.c:4") && !alike("a", "a 1"));
    }

    #[test]
    fn a_line_that_is_not_there_or_not_in_order_is_found() {
        let output = "a (pid 17)  1\nother\nb 2\n";
        assert_eq!(missing("a (pid 3642) 1\nb  2\n", output), None);
        assert_eq!(missing("b 2\na (pid 1) 1\n", output), Some("a (pid 1) 1"));
        assert_eq!(missing("b 3\n", output), Some("b 3"));
        assert_eq!(missing("b 2 3\n", output), Some("b 2 3"));
    }
}
