//! Several processes that are read as one.

mod program;

use std::process::Command;

use kmem_testing::copy_program;
use program::terminal::Terminal;
use program::{KMEM, Program, compile, directory, json, preload, text};
use serde_json::Value;

/// Starts `books wait` twice, by a name that no other program has.
fn twins(name: &str) -> [Program; 2] {
    let dir = directory();
    let path = dir.path().join(name);
    copy_program(compile("books", &[], dir.path()), &path);
    [directory(), dir].map(|dir| {
        let mut command = Command::new(&path);
        command.arg("wait");
        preload(&mut command, "", dir.path());
        Program::run(command, dir)
    })
}

/// Bytes and objects of the row of a function.
fn held(of: &Value, function: &str) -> (i64, i64) {
    let rows = of["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["function"] == function);
    let row = row.unwrap_or_else(|| panic!("no {function}: {of:#}"));
    (row["bytes"].as_i64().unwrap(), row["calls"].as_i64().unwrap())
}

#[test]
fn rows_and_accounts_are_the_sums_of_those_of_each_process() {
    let name = "kmem-twins";
    let [first, mut second] = twins(name);
    let parts = [&first, &second].map(|of| of.json(&["dump", "--json"]));
    let chosen = |args: &[&str]| json(Command::new(KMEM).args(args).args(["--name", name]));
    let sum = chosen(&["dump", "--json"]);
    assert_eq!(held(&sum, "leak"), (224_000, 2000));
    let sums = |path: &str| {
        let of = |value: &Value| value.pointer(path).unwrap().as_i64().unwrap();
        (of(&sum), parts.iter().map(of).sum::<i64>())
    };
    for path in ["/totals/bytes", "/totals/calls", "/accounting/tracked", "/used_pages"] {
        let (sum, parts) = sums(path);
        assert_eq!(sum, parts, "{path}");
    }
    let of = |term: &str| sum["accounting"][term].as_i64().unwrap();
    let heap = of("tracked") + of("cached") + of("overhead") - of("untouched") - of("swapped");
    assert_eq!(heap + of("unaccounted"), of("resident"));
    let mapped = |row: &Value| !row["mapped"].is_null();
    let rows = sum["rows"].as_array().unwrap();
    let outside: i64 =
        rows.iter().filter(|r| mapped(r)).map(|r| r["bytes"].as_i64().unwrap()).sum();
    assert_eq!(outside + sum["accounting"]["parts"]["other"].as_i64().unwrap(), of("unaccounted"));
    // The one that was started first may have the higher pid.
    let pids = sum["processes"].as_array().unwrap().iter().map(|of| of["pid"].as_u64().unwrap());
    let pids: Vec<u64> = pids.collect();
    assert!(pids.len() == 2 && pids.contains(&first.pid().into()), "{sum:#}");
    assert_eq!(sum["pid"], Value::Null);
    let top = Command::new(KMEM).args(["top", "--once", "--name", name]).output().unwrap();
    let head = text(&top.stdout).lines().next().unwrap().to_owned();
    assert!(head.contains("/kmem-twins (2 processes): 6.2 MiB in "), "{head}");
    // They are chosen anew each time, and the name of none is said.
    second.kill();
    let sum = chosen(&["dump", "--json"]);
    assert_eq!(held(&sum, "leak"), (112_000, 1000));
    drop((first, second));
    let none = Command::new(KMEM).args(["top", "--name", name]).output().unwrap();
    assert_eq!(none.status.code(), Some(3));
    let said = "kmem: no process called kmem-twins runs under kmem, or it is another user's; `kmem \
                ls` lists those that do\n";
    assert_eq!(text(&none.stderr), said);
}

#[test]
fn the_screen_has_a_row_for_each_process() {
    let name = "kmem-pair";
    let all = twins(name);
    let Some(mut terminal) = Terminal::start((24, 80), &format!("top --name {name}"), "") else {
        return;
    };
    let has = |lines: &[String], text: &str| lines.iter().any(|line| line.contains(text));
    let lines = terminal.wait_for(|lines| has(lines, " leak "));
    assert!(lines[0].starts_with("kmem-pair (2 processes): "), "{lines:#?}");
    terminal.press(b'g');
    let lines = terminal.wait_for(|lines| has(lines, " PROCESS"));
    for of in &all {
        let row = format!("(pid {})", of.pid());
        assert!(lines.iter().any(|line| line.contains("3.1 MiB") && line.ends_with(&row)), "{row}");
    }
    terminal.quit();
}

#[test]
fn programs_that_start_and_end_while_they_are_listed_are_no_failure() {
    let dir = directory();
    // A name that no other program has.
    let name = "kmem-successors";
    let path = dir.path().join(name);
    copy_program(compile("successors", &[], dir.path()), &path);
    let mut all = ["150"; 3].map(|times| {
        let mut command = Command::new(&path);
        preload(command.arg(times), "", dir.path());
        command.spawn().unwrap()
    });
    let mut are_running = true;
    while are_running {
        are_running = all.iter_mut().any(|child| child.try_wait().unwrap().is_none());
        for args in [&["ls"][..], &["dump", "--name", name]] {
            let output = Command::new(KMEM).args(args).output().unwrap();
            let (code, errors) = (output.status.code(), text(&output.stderr));
            // None of them may be there yet, or any longer.
            let is_none = code == Some(3) && errors.contains("runs under kmem");
            assert!(code == Some(0) || is_none, "{args:?}: {code:?}: {errors}");
            let of_others = args == ["ls"];
            assert!(of_others || !errors.contains("root block"), "{args:?}: {errors}");
        }
    }
    for mut child in all {
        assert!(child.wait().unwrap().success());
    }
}
