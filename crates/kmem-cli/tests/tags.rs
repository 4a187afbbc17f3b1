//! The command on a process with known static tags and chains: the fake process of the reader's
//! tests.

#[path = "../../kmem-snapshot/tests/fake/mod.rs"]
mod fake;
mod program;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use fake::sites::*;
use fake::{CACHE_LEN, Target};
use kmem_snapshot::books::Root;
use kmem_snapshot::control::Setting;
use kmem_snapshot::memory::Memory;
use program::{KMEM, text};
use serde_json::Value;

fn kmem(target: &Target, args: &[&str]) -> Output {
    Command::new(KMEM).args(args).args(["-p", &target.pid().to_string()]).output().unwrap()
}

fn json(target: &Target, args: &[&str]) -> Value {
    program::json(Command::new(KMEM).args(args).args(["-p", &target.pid().to_string()]))
}

fn total(target: &Target) -> i64 {
    target.totals.values().map(|row| row.0).sum()
}

fn setting(target: &Target) -> Setting {
    target.process().control().unwrap().settings().unwrap()[0]
}

/// True when the target's cache holds zeroes only.
fn cache_is_empty(target: &Target) -> bool {
    let memory = Memory::Live(target.process().memory());
    let (addr, len) = Root::read(&memory, setting(target).root).unwrap().cache;
    assert_eq!(len, CACHE_LEN as u64);
    let mut bytes = vec![0; CACHE_LEN];
    memory.read(addr, &mut bytes).unwrap();
    bytes.iter().all(|&byte| byte == 0)
}

#[test]
fn json_rows_have_kinds_and_frames() {
    let target = Target::start("");
    let json = json(&target, &["dump", "--json"]);
    let rows = json["rows"].as_array().unwrap();
    let row = |tag: u32| {
        let has = |row: &&Value| row["tags"].as_array().unwrap().contains(&tag.into());
        rows.iter().find(has).unwrap()
    };
    let plug = row(STATIC_MODULE);
    assert_eq!(plug["kind"], "static");
    assert_eq!(
        (&plug["file"], &plug["line"], &plug["function"], &plug["module"], &plug["offset"]),
        (&"plug.c".into(), &12.into(), &"plug_open".into(), &"libplug.so".into(), &Value::Null)
    );
    assert_eq!(row(STATIC)["module"], Value::Null);
    assert_eq!(row(CALLER)["kind"], "caller");
    assert!(row(CALLER).get("chains").is_none());
    let inner = row(CHAIN);
    assert_eq!(inner["kind"], "chain");
    let chain = &inner["chains"][0];
    assert_eq!((&chain["tag"], &chain["bytes"]), (&CHAIN.into(), &target.totals[&CHAIN].0.into()));
    let frames = chain["frames"].as_array().unwrap();
    let functions: Vec<_> = frames
        .iter()
        .map(|frame| frame["function"].as_str().unwrap().rsplit("::").next().unwrap())
        .collect();
    assert_eq!(functions, ["app_inner", "app_middle", "app_outer"]);
    assert!(frames[0]["file"].as_str().unwrap().ends_with("fake/sites.rs"), "{frames:?}");
    assert!(frames[0]["line"].as_u64().unwrap() > 0);
}

#[test]
fn collapsed_stacks_add_up_to_what_is_tracked() {
    let target = Target::start("");
    let output = kmem(&target, &["dump", "--format", "folded", "--no-mmap"]);
    let folded = text(&output.stdout);
    let mut sum = 0;
    for line in folded.lines() {
        let (stack, bytes) = line.split_once(' ').unwrap();
        assert!(stack.split(';').all(|frame| !frame.is_empty()), "{line}");
        sum += bytes.parse::<i64>().unwrap();
    }
    assert_eq!(sum, total(&target));
    let chain = format!("::app_inner {}\n", target.totals[&CHAIN].0);
    assert!(folded.contains(&format!("::app_middle;tags::fake::sites{chain}")), "{folded}");
    assert!(!folded.contains('\x1b'));
    // Only the largest node is shown.
    let output = kmem(&target, &["dump", "--format", "folded", "--no-mmap", "-s", "s", "-n", "3"]);
    let sizes: Vec<i64> = text(&output.stdout)
        .lines()
        .map(|line| line.split_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(sizes.len() == 3 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
}

#[test]
fn speedscope_holds_all_bytes() {
    let target = Target::start("");
    let json = json(&target, &["dump", "--format", "speedscope", "--no-mmap"]);
    let profile = &json["profiles"][0];
    assert_eq!((&profile["type"], &profile["unit"]), (&"sampled".into(), &"bytes".into()));
    let weights = profile["weights"].as_array().unwrap();
    assert_eq!(weights.iter().map(|w| w.as_i64().unwrap()).sum::<i64>(), total(&target));
    assert_eq!(profile["endValue"], total(&target));
    let frames = json["shared"]["frames"].as_array().unwrap().len() as u64;
    let samples = profile["samples"].as_array().unwrap();
    assert_eq!(samples.len(), weights.len());
    assert!(
        samples.iter().flat_map(|s| s.as_array().unwrap()).all(|f| f.as_u64().unwrap() < frames)
    );
    let output = kmem(&target, &["dump", "--format", "speedscope", "--json"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn top_shows_a_tree_of_callers() {
    let target = Target::start("");
    let top = text(&kmem(&target, &["top", "--once", "-t", "-n", "100"]).stdout);
    let lines: Vec<&str> = top.lines().skip_while(|line| !line.ends_with("CALL TREE")).collect();
    let at = |depth: usize, name: &str| {
        let indent = " ".repeat(2 + 2 * depth);
        // Columns of 10 and 9 characters, then the indentation.
        let fits =
            |line: &str| line.get(20..).is_some_and(|l| l.starts_with(&format!("{indent}{name}")));
        lines.iter().position(|line| fits(line)).unwrap_or_else(|| panic!("{depth} {name}: {top}"))
    };
    let outer = at(0, "tags::fake::sites::app_outer");
    let middle = at(1, "tags::fake::sites::app_middle");
    let inner = at(2, "tags::fake::sites::app_inner");
    assert!(outer < middle && middle < inner, "{top}");
    at(31, "tags::fake::sites::app_inner");
    // -n bounds the lines; JSON shows the whole tree.
    let top = text(&kmem(&target, &["top", "--once", "-t", "-n", "2"]).stdout);
    assert!(top.lines().last().unwrap().contains(" more nodes)"), "{top}");
    let json = json(&target, &["top", "--once", "--tree", "--json", "-n", "1000", "--no-mmap"]);
    let roots = json["tree"].as_array().unwrap();
    assert_eq!(roots.iter().map(|n| n["bytes"].as_i64().unwrap()).sum::<i64>(), total(&target));
    let tags = [CHAIN, CHAIN_OTHER, CHAIN_LIBRARY, CHAIN_DEEP];
    let expected: i64 = tags.iter().map(|tag| target.totals[tag].0).sum();
    let is_outer = |n: &&Value| n["function"].as_str().unwrap().ends_with("::app_outer");
    let outer = roots.iter().find(is_outer).unwrap();
    assert_eq!(outer["bytes"], expected);
    assert_eq!(outer["children"].as_array().unwrap().len(), 3);
}

#[test]
fn filters_choose_among_stacks_and_in_the_tree() {
    let target = Target::start("");
    let sum = |tags: &[u32]| tags.iter().map(|tag| target.totals[tag].0).sum::<i64>();
    let folded = |args: &[&str]| {
        let output = kmem(&target, &[&["dump", "--format", "folded"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let sizes: Vec<i64> = text(&output.stdout)
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        (sizes, text(&output.stderr))
    };
    // The filter looks at the call that a chain counts for, and keeps its callers.
    let inner = ["--function", "*::app_inner"];
    let (sizes, says) = folded(&inner);
    assert_eq!(sizes.iter().sum::<i64>(), sum(&[CALLER_INNER, CHAIN, CHAIN_OTHER, CHAIN_DEEP]));
    assert_eq!(sizes.len(), 4);
    assert!(says.contains("a filter is on: "), "{says}");
    // The filter looks at the sizes of stacks, of which a row has several.
    let largest = *sizes.iter().max().unwrap();
    let least = largest.to_string();
    assert_eq!(folded(&[&inner[..], &["--min", &least]].concat()).0, [largest]);
    let below = (largest - 1).to_string();
    assert_eq!(folded(&[&inner[..], &["--max", &below]].concat()).0.len(), 3);

    let roots = |args: &[&str]| {
        let json =
            json(&target, &[&["top", "--once", "--tree", "--json", "-n", "1000"], args].concat());
        json["tree"].as_array().unwrap().clone()
    };
    let chosen = roots(&inner);
    assert_eq!(chosen.len(), 2, "{chosen:?}");
    let bytes = |nodes: &[Value]| nodes.iter().map(|n| n["bytes"].as_i64().unwrap()).sum::<i64>();
    assert_eq!(bytes(&chosen), sizes.iter().sum::<i64>());
    // A caller of several small stacks is large.
    let outer = sum(&[CHAIN, CHAIN_OTHER, CHAIN_DEEP]);
    let large = roots(&[&inner[..], &["--min", &outer.to_string()]].concat());
    assert_eq!((large.len(), bytes(&large)), (1, outer), "{large:?}");
    for args in [["--max", "1M"], ["--by", "pinned"]] {
        let output = kmem(&target, &[&["top", "--once", "--tree"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(args[0]), "{}", text(&output.stderr));
    }
}

#[test]
fn the_allocators_own_memory_is_in_trees_and_stacks() {
    let target = Target::start("");
    let of = |json: &Value| json["accounting"]["overhead"].as_i64().unwrap();
    let args = ["top", "-o", "--tree", "--metadata", "--json", "-n", "1000", "--no-mmap"];
    let tree = json(&target, &args);
    let roots = tree["tree"].as_array().unwrap();
    let all: i64 = roots.iter().map(|n| n["bytes"].as_i64().unwrap()).sum();
    assert_eq!(all, total(&target) + of(&tree));
    assert!(roots.iter().any(|n| n["function"] == "zone_tables" && n["location"] == "(kmem)"));
    let folded =
        text(&kmem(&target, &["dump", "--format", "folded", "--metadata", "--no-mmap"]).stdout);
    assert!(folded.lines().any(|l| l.starts_with("zone_tables ")), "{folded}");
}

#[test]
fn a_context_begins_is_shown_and_ends() {
    let target = Target::start("");
    let shown = |target: &Target| text(&kmem(target, &["context"]).stdout);
    assert_eq!(shown(&target), "profiling: on\ndepth: 1\ncontext: off\n");
    assert!(!cache_is_empty(&target));

    let output = kmem(&target, &["context", "app_other", "--depth", "12"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("telling 12 callers apart at tag:28 "));
    assert_eq!((setting(&target).deep_tag, setting(&target).deep_depth), (CALLER, 12));
    assert!(cache_is_empty(&target));
    let shown_now = shown(&target);
    assert!(shown_now.contains("context: 12 callers at tag:28 tags::fake::sites::app_other "));

    // Naming another site is refused; naming the chosen one is not.
    let output = kmem(&target, &["context", "--off", "tag:9"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(setting(&target).deep_tag, CALLER);
    let output = kmem(&target, &["context", "app_other", "--off"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!((setting(&target).deep_tag, setting(&target).deep_depth), (0, 0));
    assert_eq!(shown(&target), "profiling: on\ndepth: 1\ncontext: off\n");
    assert_eq!(kmem(&target, &["context", "tag:9"]).status.code(), Some(0));
    assert_eq!((setting(&target).deep_tag, setting(&target).deep_depth), (9, 8));
    assert_eq!(kmem(&target, &["context", "--off"]).status.code(), Some(0));
    assert_eq!(setting(&target).deep_tag, 0);
}

#[test]
fn a_site_that_is_not_clear_is_an_error_with_candidates() {
    let target = Target::start("");
    for (site, what) in [
        ("nothing_like_it", "names no call site; the largest are:"),
        ("app_o", "names no call site; alike are:"),
        // The callers of a chain are told apart already. A static tag has no callers.
        ("app_middle", "names no call site"),
        ("plug_open", "names no call site"),
        ("tag:34", "names no call site"),
    ] {
        let output = kmem(&target, &["context", site]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{site}: {error}");
        assert!(error.contains(what), "{site}: {error}");
        assert!(error.lines().any(|l| l.starts_with("kmem:   tag:")), "{site}: {error}");
        assert!(error.lines().count() <= 12, "{site}: {error}");
    }
    assert_eq!(setting(&target).deep_tag, 0);
    assert!(!cache_is_empty(&target));
    for depth in ["1", "33", "x"] {
        assert_eq!(kmem(&target, &["context", "tag:9", "--depth", depth]).status.code(), Some(2));
    }
}

#[test]
fn what_cannot_be_written_is_told_by_exit_codes() {
    let output = kmem(&Target::start("none-mapped"), &["context", "x"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let output = kmem(&Target::start("never"), &["context", "x"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let output = kmem(&Target::start("cache-read-only"), &["context", "tag:9"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("not in the process's writable memory"));

    let Some((_dir, kmem)) = program::for_another_user() else { return };
    let target = Target::start("");
    let mut command = Command::new(kmem);
    command.args(["context", "tag:9", "-p", &target.pid().to_string()]);
    let output = command.uid(65534).gid(65534).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert_eq!(setting(&target).deep_tag, 0);
}
