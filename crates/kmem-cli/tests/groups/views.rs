//! Groups in the tables and texts of `top`, `dump` and `slabinfo`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::program::{Program, text};
use super::readers::{duckdb, pprof};
use super::{prints, refused, tenants};

/// Bytes and objects by group and function.
type Sums = BTreeMap<(String, String), (i64, i64)>;

fn rows(json: &Value) -> Sums {
    let mut sums = Sums::new();
    for row in json["rows"].as_array().unwrap() {
        let text = |field: &str| row[field].as_str().unwrap().to_owned();
        let number = |field: &str| row[field].as_i64().unwrap();
        let sum = sums.entry((text("group"), text("function"))).or_default();
        *sum = (sum.0 + number("bytes"), sum.1 + number("calls"));
    }
    sums
}

/// Last part of a function's name in rows, without its modules.
fn is(name: &str, function: &str) -> bool {
    name == function || name.ends_with(&format!("::{function}"))
}

fn of(sums: &Sums, group: &str, function: &str) -> (i64, i64) {
    let found = sums.iter().filter(|((g, f), _)| g == group && is(f, function));
    found.fold((0, 0), |sum, (_, row)| (sum.0 + row.0, sum.1 + row.1))
}

fn json(program: &Program, args: &[&str]) -> Value {
    program.json(&[args, &["--json"]].concat())
}

#[test]
fn rows_are_told_apart_by_who_pays() {
    let mut program = tenants::start();
    let sums = rows(&json(&program, &["dump", "--by", "group,site"]));
    let pages = tenants::PAGES as i64;
    for (group, function, expected) in [
        ("/tenants/a", "rows", (1000 * 1024, 1000)),
        ("/tenants/a", "buffer", (pages, 1)),
        ("/tenants/a", "index", (0, 0)),
        ("/tenants/b", "rows", (300 * 1024, 300)),
        ("/tenants/b", "index", (200 * 112, 200)),
        ("/tenants", "rows", (0, 0)),
        ("/", "index", (10 * 112, 10)),
        ("/", "rows", (0, 0)),
    ] {
        assert_eq!(of(&sums, group, function), expected, "{group} {function}");
    }
    // The rows of all groups add up to the rows.
    let whole = json(&program, &["dump"]);
    let total: i64 = sums.values().map(|sum| sum.0).sum();
    assert_eq!(whole["totals"]["bytes"], total);
    assert!(whole["rows"][0]["group"].is_null(), "only when asked for");

    // Objects of the deleted group are its parent's.
    program.tell(b'd');
    let after = rows(&json(&program, &["dump", "--by", "group,site"]));
    assert_eq!(of(&after, "/tenants", "index"), (200 * 112, 200));
    assert_eq!(of(&after, "/tenants/b", "index"), (0, 0));
    let below = json(&program, &["dump", "--group", "/tenants"]);
    let bytes: i64 = 1300 * 1024 + 200 * 112 + pages;
    assert_eq!(below["filtered"]["bytes"], bytes);
    let one = json(&program, &["dump", "--group", "/tenants/a", "--function", "*rows"]);
    assert_eq!(one["filtered"]["calls"], 1000);
    refused(&program.kmem(&["dump", "--group", "/absent"]), 3, "has no group /absent");
    refused(&program.kmem(&["dump", "--group", "/", "--metadata"]), 2, "--metadata");
    let old = program.kmem(&["dump", "--by", "group,site", "--format", "1.0"]);
    refused(&old, 2, "--by group,site cannot be combined with --format 1.0");
}

#[test]
fn every_format_has_the_same_groups() {
    let program = tenants::start();
    let mut by_group: BTreeMap<String, i64> = BTreeMap::new();
    for ((group, _), (bytes, _)) in rows(&json(&program, &["dump", "--by", "group,site"])) {
        *by_group.entry(group).or_default() += bytes;
    }
    let say = |args: &[&str]| {
        text(&program.kmem(&[&["dump", "--by", "group,site"], args].concat()).stdout)
    };

    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    for line in say(&[]).lines().skip(2) {
        let bytes: i64 = line.split_whitespace().next().unwrap().parse().unwrap();
        let (_, group) = line.trim_end().rsplit_once(" group:").unwrap();
        *sums.entry(group.to_owned()).or_default() += bytes;
    }
    assert_eq!(sums, by_group);
    assert!(!text(&program.kmem(&["dump"]).stdout).contains("group:"));

    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    for line in say(&["--format", "folded"]).lines() {
        let (stack, bytes) = line.rsplit_once(' ').unwrap();
        let (group, _) = stack.split_once(';').unwrap();
        *sums.entry(group.to_owned()).or_default() += bytes.parse::<i64>().unwrap();
    }
    assert_eq!(sums, by_group);

    let file: Value = serde_json::from_str(&say(&["--format", "speedscope"])).unwrap();
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    let (frames, profile) = (&file["shared"]["frames"], &file["profiles"][0]);
    let samples = profile["samples"].as_array().unwrap();
    for (sample, weight) in samples.iter().zip(profile["weights"].as_array().unwrap()) {
        let outermost = &frames[sample[0].as_u64().unwrap() as usize]["name"];
        *sums.entry(outermost.as_str().unwrap().to_owned()).or_default() +=
            weight.as_i64().unwrap();
    }
    assert_eq!(sums, by_group);

    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    for line in say(&["--format", "jsonl"]).lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let group = row["group"].as_str().unwrap().to_owned();
        *sums.entry(group).or_default() += row["bytes"].as_i64().unwrap();
    }
    assert_eq!(sums, by_group);

    let write = |format: &str| {
        let file = program.dir.path().join(format!("rows.{format}"));
        assert_eq!(say(&["--format", format, "-o", file.to_str().unwrap()]), "");
        file
    };
    if let Some(tags) = pprof(&["-tags"], &write("pprof")) {
        assert!(tags.trim_start().starts_with("group: Total "), "{tags}");
        // The lines are `BYTESB (SHARE%): GROUP`, behind one with the sum.
        let lines = tags.lines().filter_map(|line| line.split_once("%): "));
        let size = |text: &str| text.trim().split_once("B (").unwrap().0.parse::<i64>().unwrap();
        let sums: BTreeMap<String, i64> =
            lines.map(|(bytes, group)| (group.to_owned(), size(bytes))).collect();
        assert_eq!(sums, by_group, "{tags}");
    }
    let question = r#"select "group", sum(live_bytes)::bigint from FILE group by 1"#;
    if let Some(rows) = duckdb(question, &write("parquet")) {
        let sums: BTreeMap<String, i64> = rows
            .iter()
            .map(|row| (row[0].as_str().unwrap().to_owned(), row[1].as_i64().unwrap()))
            .collect();
        assert_eq!(sums, by_group);
    }
    let table = say(&["--format", "table"]);
    assert!(table.lines().next().unwrap().contains("GROUP"), "{table}");
}

#[test]
fn top_shows_groups_and_the_cross_table() {
    let program = tenants::start();
    let top = |args: &[&str]| prints(&program.kmem(&[&["top", "--once"], args].concat()));
    let table = |text: &str, heading: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| !line.contains(heading));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let groups = table(&top(&["--by", "group"]), "OBJECTS  GROUP");
    assert_eq!(
        groups[..3],
        ["SIZE OBJECTS GROUP", "4.0 MiB 1001 /tenants/a", "321.9 KiB 500 /tenants/b"]
    );
    let json = json(&program, &["top", "--once", "--by", "group", "-s", "t"]);
    let paths: Vec<&str> =
        json["groups"].as_array().unwrap().iter().map(|g| g["group"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/", "/tenants/a", "/tenants/b"]);
    let cross = top(&["--by", "group,site", "-n", "3"]);
    let cross = table(&cross, "OBJECTS  GROUP");
    assert!(cross[0].ends_with("GROUP FUNCTION WHERE"), "{cross:?}");
    assert!(
        cross[1].starts_with("3.0 MiB 1 /tenants/a ") && cross[1].contains("buffer"),
        "{cross:?}"
    );
    assert!(cross[2].starts_with("1000.0 KiB 1000 /tenants/a "), "{cross:?}");
    assert!(cross[3].starts_with("300.0 KiB 300 /tenants/b "), "{cross:?}");
    assert!(cross[4].contains("more rows"), "{cross:?}");
    let one = top(&["--group", "/tenants/b"]);
    assert!(one.contains("a filter is on: 321.9 KiB in 500 live objects"), "{one}");
    // The callers of one function.
    let rows = table(&top(&["--by", "group", "--function", "*index"]), "OBJECTS  GROUP");
    assert_eq!(rows[1..], ["21.9 KiB 200 /tenants/b", "1.1 KiB 10 /"]);
    refused(&program.kmem(&["top", "--by", "pinned", "--group", "/tenants"]), 2, "--group");
}

/// Names in the first column of slabinfo, with the numbers of the other columns.
fn numbers(slabinfo: &str) -> BTreeMap<String, Vec<u64>> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next().unwrap().to_owned();
        (name, fields.filter_map(|field| field.parse().ok()).collect())
    };
    slabinfo.lines().skip(2).map(line).collect()
}

fn slabinfo(program: &Program, more: &[&str]) -> BTreeMap<String, Vec<u64>> {
    numbers(&prints(&program.kmem(&[&["slabinfo"], more].concat())))
}

#[test]
fn slabinfo_has_the_kernels_columns_and_a_groups_objects() {
    let program = tenants::start();
    let all = prints(&program.kmem(&["slabinfo"]));
    let mut lines = all.lines();
    assert_eq!(lines.next(), Some("slabinfo - version: 2.1"));
    assert!(lines.next().unwrap().starts_with("# name            <active_objs> <num_objs> "));
    let caches = numbers(&all);
    assert_eq!(caches.len(), 73);
    for (name, numbers) in &caches {
        let [active, room, size, per_slab, pages, limit, batch, 0, active_slabs, slabs, 0] =
            numbers[..]
        else {
            panic!("{name} {numbers:?}");
        };
        // An object of no bytes takes an address of 16.
        let serves = if name == "kmalloc-0" { 0 } else { size };
        assert_eq!((name, size % 16), (&format!("kmalloc-{serves}"), 0));
        assert!(active <= room && room == slabs * per_slab && active_slabs <= slabs, "{name}");
        assert!(active <= active_slabs * per_slab && per_slab * size <= pages * 4096, "{name}");
        assert!((1..=limit).contains(&batch), "{name}");
    }
    // All slabs of this program come from these calls.
    assert_eq!((caches["kmalloc-1024"][0], caches["kmalloc-112"][0]), (1300, 210));
    assert!(caches["kmalloc-1024"][8] >= 1300 / 63 && caches["kmalloc-2048"][9] == 0);
    let of = slabinfo(&program, &["--group", "/tenants/b"]);
    assert_eq!(of.len(), 2, "{of:?}");
    assert_eq!(of["kmalloc-1024"][..2], [300, 300]);
    assert_eq!(of["kmalloc-112"][..2], [200, 200]);
    assert_eq!(of["kmalloc-112"][2..], caches["kmalloc-112"][2..]);
    let above = slabinfo(&program, &["--group", "/tenants"]);
    assert_eq!(above["kmalloc-1024"][0], 1300);
    refused(&program.kmem(&["slabinfo", "--group", "/x"]), 3, "has no group /x");
}

#[test]
fn slabinfo_has_the_caches_that_a_program_named() {
    let mut program = tenants::start();
    let before = slabinfo(&program, &[]);
    assert!(!before.contains_key("users"));
    program.tell(b'c');
    let all = slabinfo(&program, &[]);
    assert_eq!(all.len(), before.len() + 3);
    assert_eq!(all["open_sessions"][..4], [51, 51, 3000, all["kmalloc-3072"][3]]);
    assert_eq!(all["users"][..3], [1, 1, 3000]);
    assert_eq!((all["kmalloc-3072"][0], all["users"][9]), (52, 0));
    // Each large object is a run of 75 pages.
    assert_eq!(all["frames"], [1, 1, 300 << 10, 1, 75, 0, 0, 0, 1, 1, 0]);
    let of_a = program.kmem(&["slabinfo", "--group", "/tenants/a"]);
    assert!(text(&of_a.stderr).contains("KMEM_CONF=check_caches:1 makes it know"));
    assert!(!text(&of_a.stdout).contains("sessions"));
}

#[test]
fn slabinfo_has_a_groups_objects_of_each_cache_where_objects_tell_it() {
    let mut program = tenants::start_with("check_caches:1");
    program.tell(b'c');
    for (group, count) in [("/tenants/a", 40), ("/tenants/b", 10), ("/tenants", 50), ("/", 51)] {
        let of = slabinfo(&program, &["--group", group]);
        assert_eq!(of["open_sessions"][..3], [count, count, 3000], "{group}");
        assert_eq!(of.get("users").map(|of| of[0]), (group == "/").then_some(1), "{group}");
    }
    program.tell(b'd');
    // The nearest living group pays for the objects of a deleted one.
    assert_eq!(slabinfo(&program, &["--group", "/tenants"])["open_sessions"][0], 50);
}
