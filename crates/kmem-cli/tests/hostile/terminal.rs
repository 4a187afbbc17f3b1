//! Names that a terminal would obey, in all places that a reader takes names from. No command
//! prints them as they are.

use std::fs;
use std::path::Path;
use std::process::Command;

use kmem_testing::{Compiler, Coprocess, Run, copy_program, is_missing};
use serde_json::json;

use super::fake::Target;
use super::program::{KMEM, directory};

/// Clears a screen, in 7 and in 8 bits; rings; deletes; turns text around; ends a line.
const NAME: &str = "x\x1b[2J\u{9b}2J\x07\x7f\u{202e}\u{2028}\ny";
/// All formats of `kmem dump` that are text.
const TEXTS: [&str; 9] =
    ["1.0", "2.0", "table", "json", "jsonl", "csv", "folded", "speedscope", "dhat"];

/// The first character in an output that a terminal obeys, or that turns text around.
fn obeyed(text: &str) -> Option<char> {
    let text = text.replace("\r\n", "\n");
    text.chars().find(|&c| {
        let turns = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
        c.is_control() && c != '\n' && c != '\t' || turns
    })
}

/// Runs the command, and looks at all that it prints. Returns its standard output.
#[track_caller]
fn prints(args: &[&str]) -> String {
    let outcome = Run::new(KMEM).without_preload().args(args).run();
    for text in [&outcome.stdout, &outcome.stderr] {
        assert_eq!(obeyed(text), None, "{args:?}: {text:?}");
    }
    assert!(outcome.stdout.len() + outcome.stderr.len() != 0, "{args:?} prints nothing");
    outcome.stdout
}

/// Reads a list in every way. Returns the length of what is printed.
#[track_caller]
fn prints_list(option: &str, path: &Path) -> usize {
    let path = path.to_str().unwrap();
    let formats = TEXTS.map(|format| prints(&["dump", "--format", format, option, path]).len());
    let more = [&["top", "--once"][..], &["top", "--once", "--tree"], &["top", "--once", "--json"]];
    let more = more.map(|args| prints(&[args, &[option, path]].concat()).len());
    formats.iter().chain(&more).sum()
}

#[test]
fn names_in_lists_are_escaped_in_every_format() {
    let dir = directory();
    let frame = json!({ "file": NAME, "function": NAME, "line": 1, "module": NAME, "offset": 16 });
    let row = |kind: &str| {
        json!({
            "kind": kind, "bytes": 512, "calls": 1, "mapped": 4096, "tags": [9], "line": 3,
            "file": NAME, "function": NAME, "module": NAME, "offset": 16, "group": NAME,
            "chains": [{ "bytes": 512, "calls": 1, "tag": 9, "frames": [frame.clone(), frame] }],
        })
    };
    let rows = ["static", "caller", "chain", "mapping"].map(row);
    let list = json!({ "pid": 7, "exe": NAME, "host": NAME, "notes": [NAME], "rows": rows });
    let json = dir.path().join("dump.json");
    fs::write(&json, list.to_string()).unwrap();
    assert!(prints_list("--allocinfo", &json) > 5000);

    let octal = "x\\033[2J\\302\\2332J\\007\\177\\342\\200\\256\\012y";
    let raw = NAME.replace('\n', " ");
    let text = dir.path().join("text");
    let lines =
        [octal, &raw].map(|name| format!("  64  1 {name}:1 [{name}] func:{name} k:{name}\n"));
    fs::write(&text, format!("allocinfo - version: 2.0\n{}", lines.concat())).unwrap();
    prints_list("--allocinfo", &text);
    fs::write(&text, format!("Memory allocations:\n 1.0 KiB 1 {octal}:1 func:{raw}\n")).unwrap();
    prints_list("--kernel-log", &text);
    fs::write(&text, format!("{{\"rows\":[{{\"kind\":\"{raw}\"}}]}}")).unwrap();
    prints_list("--allocinfo", &text);

    let (before, after) = (json.to_str().unwrap(), dir.path().join(NAME.replace('\n', "")));
    fs::write(&after, list.to_string().replace("512", "900")).unwrap();
    for format in [&[][..], &["--json"], &["--format", "folded"]] {
        prints(&[&["diff"], format, &[before, after.to_str().unwrap()]].concat());
    }
}

#[test]
fn names_in_a_process_are_escaped_by_every_command() {
    // One of its static tags has a hostile file and function.
    let target = Target::start("");
    let pid = target.pid().to_string();
    let of = ["-p", &pid];
    for format in TEXTS {
        let printed = prints(&[&["dump", "--format", format], &of[..]].concat());
        // Collapsed stacks have functions alone.
        assert!(format == "folded" || printed.contains("evil"), "{format}: {printed}");
    }
    for args in [
        &["top", "--once"][..],
        &["top", "--once", "--by", "group"],
        &["slabinfo"],
        &["buddyinfo"],
        &["group", "ls"],
        &["group", "ls", "--json"],
        &["sysctl"],
        &["lsmod"],
        &["modstats"],
        &["context", "evil*"],
    ] {
        let (command, rest) = args.split_at(if args[0] == "group" { 2 } else { 1 });
        prints(&[command, &of[..], rest].concat());
    }
    prints(&["ls"]);
    prints(&["ls", "--json"]);
}

#[test]
fn names_of_programs_and_files_are_escaped_in_errors() {
    let dir = directory();
    let program = dir.path().join(NAME);
    copy_program("/bin/cat", &program);
    let process = Coprocess::start(Command::new(&program).args(["-", NAME]));
    let pid = process.pid().to_string();
    for command in ["attach", "dump", "top", "lsmod", "leaks", "slabinfo", "sysctl"] {
        prints(&[command, "-p", &pid]);
    }
    let path = program.to_str().unwrap();
    for args in [
        &["dump", "--core", path][..],
        &["dump", "--blackbox", path],
        &["dump", "--recording", path],
        &["dump", "--allocinfo", path],
        &["dump", "--core", NAME],
        &["diff", path, path],
        &["modinfo", path],
        &["report", path, "-o", path],
        &["top", "-p", NAME],
    ] {
        prints(args);
    }
}

#[test]
fn a_module_is_described_on_a_terminal_without_what_it_would_obey() {
    if is_missing("script") {
        return;
    }
    let dir = directory();
    let source = dir.path().join("module.c");
    let info = "__attribute__((section(\".modinfo\"), used)) static const char";
    let entries =
        ["license=GPL", "name=module", "au\\x1b[2Jthor=a\\x1b[2Jb", "parm=n\\x1b[2J:t\\x1b[2J"];
    let lines = (0..).zip(entries).map(|(n, entry)| format!("{info} e{n}[] = \"{entry}\";\n"));
    fs::write(&source, lines.collect::<String>()).unwrap();
    let module = Compiler::c().args(["-c"]).arg(&source).compile(dir.path().join("module.ko"));
    let command = format!("{KMEM} modinfo {}", module.display());
    let run = Run::new("/usr/bin/script").without_preload().args(&["-qec", &command, "/dev/null"]);
    let outcome = run.run();
    outcome.assert_success();
    assert!(outcome.stdout.contains("a\\x1b[2Jb"), "{}", outcome.story());
    assert_eq!(obeyed(&outcome.stdout), None, "{:?}", outcome.stdout);
}
