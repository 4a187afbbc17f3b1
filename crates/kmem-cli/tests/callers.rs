//! Callers of one allocating function, told apart in a real program; and programs whose frame
//! pointers are invalid.

mod program;

use program::{Program, text};
use serde_json::Value;

/// Live bytes of one round through `load` and through `build`, in the classes 112 and 1024.
const LOAD: i64 = 300 * 112;
const BUILD: i64 = 200 * 1024;
const FRAMES: [&str; 2] = ["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];

/// Nodes of the tree with this function, each with the names of its callers.
fn nodes(json: &Value, function: &str) -> Vec<(String, i64)> {
    fn walk(nodes: &Value, path: &str, function: &str, found: &mut Vec<(String, i64)>) {
        for node in nodes.as_array().unwrap() {
            let name = node["function"].as_str().unwrap();
            let path = format!("{path}{name}");
            if name == function {
                found.push((path.clone(), node["bytes"].as_i64().unwrap()));
            }
            walk(&node["children"], &format!("{path};"), function, found);
        }
    }
    let mut found = Vec::new();
    walk(&json["tree"], "", function, &mut found);
    found.sort();
    found
}

fn tree(program: &Program) -> Value {
    program.json(&["top", "--once", "--tree", "--json", "-n", "1000", "--module", "callers"])
}

fn folded(program: &Program) -> Vec<String> {
    let output = program.kmem(&["dump", "--format", "folded", "--function", "make"]);
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn depth_tells_two_callers_of_one_function_apart() {
    let mut program = Program::start("callers", &FRAMES, &[], "depth:8");
    program.tell(b'x');
    let json = tree(&program);
    let found = nodes(&json, "make");
    assert_eq!(found.len(), 2, "{json:#}");
    assert!(found[0].0.ends_with("main;both;build;make") && found[0].1 == BUILD, "{found:?}");
    assert!(found[1].0.ends_with("main;both;load;make") && found[1].1 == LOAD, "{found:?}");
    // Their caller calls them from two lines; the caller of that one holds all bytes.
    assert_eq!(nodes(&json, "both").len(), 2, "{json:#}");
    let main = nodes(&json, "main");
    assert_eq!(main.iter().map(|node| node.1).collect::<Vec<_>>(), [BUILD + LOAD], "{main:?}");
    let lines = folded(&program);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with(&format!("main;both;build;make {BUILD}")), "{lines:?}");
    assert!(lines[1].ends_with(&format!("main;both;load;make {LOAD}")), "{lines:?}");
    // Both callers are in one row.
    let rows = text(&program.kmem(&["dump", "--function", "make"]).stdout);
    let row: Vec<&str> = rows.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(row[..2], [(BUILD + LOAD).to_string(), "500".into()], "{rows}");
}

#[test]
fn a_context_is_begun_and_ended_while_the_program_runs() {
    let mut program = Program::start("callers", &FRAMES, &[], "");
    program.tell(b'x');
    let all = BUILD + LOAD;
    assert_eq!(folded(&program), [format!("make {all}")]);

    let output = program.kmem(&["context", "make", "--depth", "3", "--wait", "0"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = |program: &Program| text(&program.kmem(&["context"]).stderr);
    assert!(shown(&program).contains("nothing is told apart: no object"), "{}", shown(&program));
    program.tell(b'x');
    assert!(shown(&program).contains("kmem: 2 callers are told apart;"), "{}", shown(&program));
    let apart = [
        format!("both;build;make {BUILD}"),
        format!("both;load;make {LOAD}"),
        format!("make {all}"),
    ];
    assert_eq!(folded(&program), apart);
    let found: Vec<i64> = nodes(&tree(&program), "make").iter().map(|node| node.1).collect();
    assert_eq!(found, [BUILD, LOAD, all]);

    let output = program.kmem(&["context", "--off"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    program.tell(b'x');
    assert_eq!(folded(&program), [apart[0].clone(), apart[1].clone(), format!("make {}", 2 * all)]);
}

#[test]
fn a_context_may_be_of_a_call_that_goes_through_a_wrapper() {
    let mut program = Program::start("callers", &[&FRAMES[..], &["-DWRAPPED"]].concat(), &[], "");
    program.tell(b'x');
    let all = BUILD + LOAD;
    assert_eq!(folded(&program), [format!("make;xmalloc {all}")]);
    let refused = program.kmem(&["context", "xmalloc"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));

    let output = program.kmem(&["context", "make", "--depth", "2", "--wait", "0"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    program.tell(b'x');
    let shown = text(&program.kmem(&["context"]).stderr);
    assert!(shown.contains("kmem: 2 callers are told apart;"), "{shown}");
    let apart = [
        format!("build;make;xmalloc {BUILD}"),
        format!("load;make;xmalloc {LOAD}"),
        format!("make;xmalloc {all}"),
    ];
    assert_eq!(folded(&program), apart);
    // Their callers are told apart already.
    let again = program.kmem(&["context", "make", "--depth", "3", "--wait", "0"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));

    assert_eq!(program.kmem(&["context", "--off"]).status.code(), Some(0));
    program.tell(b'x');
    assert_eq!(folded(&program)[2], format!("make;xmalloc {}", 2 * all));
}

#[test]
fn a_context_that_tells_nothing_apart_says_so() {
    let mut program = Program::start("callers", &FRAMES, &[], "");
    program.tell(b'x');
    let idle = text(&program.kmem(&["context", "make"]).stderr);
    assert!(idle.contains("no object that is still in use came through"), "{idle}");

    let mut program = Program::start("callers", &[&FRAMES[..], &["-DONE"]].concat(), &[], "");
    program.tell(b'x');
    let begun = program.kmem(&["context", "make", "--depth", "2", "--wait", "0"]);
    assert_eq!(begun.status.code(), Some(0), "{}", text(&begun.stderr));
    program.tell(b'x');
    for args in [&["context"][..], &["context", "--off"]] {
        let said = text(&program.kmem(args).stderr);
        assert!(said.contains("all 300 objects have one caller within 2 calls"), "{said}");
    }
}

#[test]
fn frame_pointers_that_lead_nowhere_change_neither_the_program_nor_its_sums() {
    for conf in ["depth:32", "depth:32,rseq:off", "depth:2,mem_profiling:0", ""] {
        let mut program = Program::start("frames", &[], &[], conf);
        let base = program.json(&["dump", "--json"]);
        let mut calls = 0;
        loop {
            let more = program.tell(b'x');
            calls += 1000;
            if more.is_empty() {
                break;
            }
        }
        // Run again, on a thread.
        calls += 1000;
        assert!(calls > 30_000, "{calls}");
        let json = program.json(&["dump", "--json"]);
        let of = |json: &Value, wanted: &dyn Fn(&Value) -> bool| {
            let rows = json["rows"].as_array().unwrap();
            rows.iter().filter(|row| wanted(row)).fold((0, 0), |(bytes, calls), row| {
                (bytes + row["bytes"].as_i64().unwrap(), calls + row["calls"].as_i64().unwrap())
            })
        };
        let expected = (112 * calls, calls);
        if conf.contains("mem_profiling:0") {
            let untagged = |row: &Value| row["kind"] == "not_tagged";
            let before = of(&base, &untagged);
            let now = of(&json, &untagged);
            assert!(now.1 - before.1 >= calls, "{before:?} {now:?}");
        } else {
            let here = |row: &Value| row["function"] == "with_frame";
            assert_eq!(of(&json, &here), expected, "{conf}");
        }
    }
}
