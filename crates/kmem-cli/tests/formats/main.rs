//! The formats of rows, read by the programs that they are for.

#[path = "../../../kmem-snapshot/tests/fake/mod.rs"]
mod fake;
#[path = "../../../kmem-snapshot/tests/fake_box/mod.rs"]
mod fake_box;
#[path = "../program/mod.rs"]
mod program;
mod readers;
mod symbolize;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fake::Target;
use fake_box::{CALLER, CHAIN, FakeBox, STATIC};
use program::{KMEM, Program, directory, text};
use readers::{Sum, csv, dhat, duckdb, pprof, pprof_total, speedscope};
use serde_json::Value;

/// Runs `kmem dump` with a source, which must succeed.
fn dump(source: &[&str], args: &[&str]) -> String {
    let output = Command::new(KMEM).arg("dump").args(source).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Writes rows in a format to a file of that name.
fn write(source: &[&str], format: &str, args: &[&str], dir: &Path) -> PathBuf {
    let file = dir.join(format!("rows.{format}"));
    let to = file.to_str().unwrap();
    assert_eq!(dump(source, &[&["--format", format, "-o", to], args].concat()), "");
    file
}

fn lines(json: &str) -> Vec<Value> {
    json.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Sums of the fields `bytes` and `calls` of rows.
fn sum(rows: &[Value]) -> Sum {
    let of = |field: &str| rows.iter().map(|row| row[field].as_i64().unwrap()).sum();
    (of("bytes"), Some(of("calls")))
}

/// Sums over the columns `bytes` and `calls`, or over the first two words of the lines of a text.
fn sum_of_words<'a>(lines: impl Iterator<Item = &'a str>) -> Sum {
    lines.fold((0, Some(0)), |(bytes, calls), line| {
        let mut words = line.split_whitespace().map(|word| word.parse::<i64>().unwrap());
        (bytes + words.next().unwrap(), calls.map(|calls| calls + words.next().unwrap()))
    })
}

fn refused(output: &Output, what: &[&str]) {
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{errors}");
    assert!(what.iter().all(|what| errors.contains(what)), "{what:?}: {errors}");
}

#[test]
fn every_format_adds_up_to_the_rows() {
    let target = Target::start("");
    let dir = directory();
    let pid = target.pid().to_string();
    let source = ["-p", &pid, "--no-mmap"];
    let (bytes, calls) = target
        .totals
        .values()
        .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + i64::try_from(row.1).unwrap()));
    let all: Sum = (bytes, Some(calls));
    for format in ["1.0", "2.0"] {
        let allocinfo = dump(&source, &["--format", format]);
        let rows = allocinfo.lines().skip(2).map(|line| line.get(..21).unwrap());
        assert_eq!(sum_of_words(rows), all, "{format}");
    }
    let json: Value = serde_json::from_str(&dump(&source, &["--format", "json"])).unwrap();
    assert_eq!(sum(json["rows"].as_array().unwrap()), all);
    let rows = lines(&dump(&source, &["--format", "jsonl"]));
    assert_eq!((sum(&rows), rows.len()), (all, json["rows"].as_array().unwrap().len()));
    assert!(rows.iter().all(|row| row["pid"] == target.pid() && row["exe"] == json["exe"]));
    if let Some(rows) = csv(&write(&source, "csv", &[], dir.path())) {
        let cells = rows[1..].iter().map(|row| format!("{} {}", row[0], row[1]));
        assert_eq!(sum_of_words(cells.collect::<Vec<_>>().iter().map(String::as_str)), all);
    }
    let folded = dump(&source, &["--format", "folded"]);
    let sizes = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    assert_eq!(sizes.map(|size| size.parse::<i64>().unwrap()).sum::<i64>(), bytes);
    let file = write(&source, "speedscope", &[], dir.path());
    speedscope(&file);
    let file: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let weights = file["profiles"][0]["weights"].as_array().unwrap();
    assert_eq!(weights.iter().map(|weight| weight.as_i64().unwrap()).sum::<i64>(), bytes);
    let profile = write(&source, "pprof", &[], dir.path());
    for (kind, all) in [("inuse_space", bytes), ("inuse_objects", calls)] {
        assert!(pprof_total(kind, &[], &profile).is_none_or(|total| total == all), "{kind}");
    }
    if let Some((total, page)) = dhat(&write(&source, "dhat", &[], dir.path())) {
        assert_eq!(total, all);
        let innermost = page.find("app_inner (").expect(&page);
        assert!(page[innermost..].find("app_outer (").is_some(), "{page}");
    }
    let file = write(&source, "parquet", &[], dir.path());
    let question = "select sum(live_bytes)::bigint, sum(live_objects)::bigint from FILE";
    if let Some(rows) = duckdb(question, &file) {
        assert_eq!(rows, [[Value::from(bytes), calls.into()]]);
    }
}

#[test]
fn the_table_has_the_largest_rows_and_the_sum_of_the_others() {
    let target = Target::start("");
    let pid = target.pid().to_string();
    let args = ["--no-mmap", "--no-empty", "-s", "s"];
    let all = dump(&["-p", &pid], &[&["--format", "table"], &args[..]].concat());
    assert!(all.starts_with("      SIZE   OBJECTS  FUNCTION "), "{all}");
    let cut = dump(&["-p", &pid], &[&["--format", "table", "-n", "1"], &args[..]].concat());
    let rows = lines(&dump(&["-p", &pid], &[&["--format", "jsonl"], &args[..]].concat()));
    assert!(cut.contains(&format!("(in {} more rows)", rows.len() - 1)), "{cut}");
}

#[test]
fn pprof_shows_functions_and_compares_two_readings() {
    let mut program = Program::start("rounds", &[], &[], "depth:8");
    let dir = directory();
    let pid = program.pid().to_string();
    let source = ["-p", &pid, "--no-mmap"];
    program.tell(b'a');
    let before = sum(&lines(&dump(&source, &["--format", "jsonl"]))).0;
    let base = write(&source, "pprof", &[], dir.path());
    let kept = dir.path().join("base");
    fs::rename(base, &kept).unwrap();
    program.tell(b'a');
    let after = sum(&lines(&dump(&source, &["--format", "jsonl"]))).0;
    assert!(after >= before + 100_000, "{before} {after}");
    let profile = write(&source, "pprof", &[], dir.path());
    let row = |top: &str| -> Vec<String> {
        let line = top.lines().find(|line| line.ends_with(" allocate")).expect(top);
        line.split_whitespace().map(str::to_owned).collect()
    };
    let Some(top) = pprof(&["-top"], &profile) else { return };
    assert!(top.contains("\nType: inuse_space\n"), "{top}");
    let flat = &row(&top)[0];
    let of_rows = lines(&dump(&source, &["--format", "jsonl", "--function", "allocate"]));
    assert_eq!(*flat, format!("{}B", sum(&of_rows).0), "{top}");
    let base = format!("-diff_base={}", kept.display());
    let top = pprof(&["-top", &base], &profile).unwrap();
    let change = format!("Showing nodes accounting for {}B, ", after - before);
    assert!(top.contains(&change), "{change}: {top}");
    assert_eq!(row(&top)[0], format!("{}B", after - before), "{top}");
    let objects = pprof(&["-top", &base, "-sample_index=inuse_objects"], &profile).unwrap();
    // -unit=B is for numbers of objects, too.
    assert_eq!(row(&objects)[0], "1000B", "{objects}");

    // The program is the first mapping, with the build id that its file has.
    let raw = pprof(&["-raw"], &profile).unwrap();
    let (_, mappings) = raw.split_once("\nMappings\n").expect(&raw);
    let file = program.dir.path().join("rounds");
    let notes = text(&Command::new("readelf").arg("-n").arg(file).output().unwrap().stdout);
    let (_, id) = notes.split_once("Build ID: ").expect(&notes);
    let first = mappings.lines().next().unwrap();
    assert!(first.starts_with("1: 0x") && first.contains("/rounds "), "{first}");
    assert!(first.contains(id.split_whitespace().next().unwrap()), "{first} {notes}");
}

#[test]
fn pprof_leaves_out_functions_that_only_allocate() {
    let mut program = Program::start("callers", &["-Dmake=zalloc", "-fno-builtin"], &[], "depth:8");
    program.tell(b'x');
    let dir = directory();
    let source = ["-p", &program.pid().to_string(), "--no-mmap"];
    let folded = dump(&source, &["--format", "folded"]);
    assert!(folded.contains(";load;zalloc "), "{folded}");
    let Some(top) = pprof(&["-top"], &write(&source, "pprof", &[], dir.path())) else { return };
    let size = |name: &str| {
        let line = top.lines().find(|line| line.ends_with(&format!(" {name}")))?;
        line.split_whitespace().next().map(str::to_owned)
    };
    assert_eq!(size("zalloc"), None, "{top}");
    assert!(size("load").is_some_and(|size| size != "0"), "{top}");
}

fn counted() -> FakeBox {
    let fake = FakeBox::new(64, 2);
    fake.put_record(1, &[(CALLER, 7000, 7), (STATIC, 600, 3), (CHAIN, 50, 1)], (10_000, 20));
    fake.put_counter(0, CALLER, [10, 1000, 0, 0]);
    fake.put_counter(1, CALLER, [5, 500, 12, 1200]);
    fake.put_counter(1, CHAIN, [1, 50, 0, 0]);
    fake.put_counter(0, STATIC, [3, 600, 3, 600]);
    fake
}

#[test]
fn all_allocations_since_the_start_are_in_formats_with_room_for_them() {
    let fake = counted();
    let dir = directory();
    let source = ["--cumulative", "--blackbox", fake.path().to_str().unwrap()];
    let rows = lines(&dump(&source, &["--format", "jsonl"]));
    let of = |field: &str| rows.iter().map(|row| row[field].as_i64().unwrap()).sum::<i64>();
    assert_eq!((of("allocated_bytes"), of("allocations"), of("frees")), (2150, 19, 15));
    if let Some(rows) = csv(&write(&source, "csv", &[], dir.path())) {
        let column = rows[0].iter().position(|name| name == "allocated_bytes").unwrap();
        let cells: Vec<&str> = rows[1..].iter().map(|row| row[column].as_str()).collect();
        assert_eq!(cells, ["1550", "600"]);
    }
    let profile = write(&source, "pprof", &[], dir.path());
    let totals =
        [("alloc_objects", 19), ("alloc_space", 2150), ("inuse_objects", 4), ("inuse_space", 350)];
    for (kind, all) in totals {
        assert!(pprof_total(kind, &[], &profile).is_none_or(|total| total == all), "{kind}");
    }
    let file = write(&source, "parquet", &[], dir.path());
    let question = "select live_bytes, alloc_bytes_total, alloc_objects_total, ts_ns, pid \
                    from FILE order by live_bytes";
    if let Some(rows) = duckdb(question, &file) {
        let rest = [Value::from(fake_box::TIME + 1), fake_box::PID.into()];
        let row = |row: [u64; 3]| [&row.map(Value::from)[..], &rest].concat();
        assert_eq!(rows, [row([0, 600, 3]), row([350, 1550, 16])]);
    }
    for format in ["1.0", "table", "folded", "speedscope", "dhat"] {
        let mut dump = Command::new(KMEM);
        let output = dump.arg("dump").args(source).args(["--format", format]).output().unwrap();
        refused(&output, &["--cumulative cannot", format, "parquet, pprof"]);
    }
}

#[test]
fn parquet_has_the_columns_of_the_layout_sorted_and_compressed() {
    let target = Target::start("");
    let dir = directory();
    let pid = target.pid().to_string();
    let file = write(&["-p", &pid, "--no-mmap"], "parquet", &[], dir.path());
    let Some(columns) = duckdb("select column_name, column_type from (describe from FILE)", &file)
    else {
        return;
    };
    let columns: Vec<String> = columns
        .iter()
        .map(|row| format!("{} {}", row[0].as_str().unwrap(), row[1].as_str().unwrap()))
        .collect();
    let expected = "ts_ns BIGINT, host VARCHAR, pid UINTEGER, exe VARCHAR, build_id VARCHAR, \
        kind VARCHAR, group VARCHAR, module VARCHAR, file VARCHAR, line UINTEGER, func VARCHAR, \
        addr_rel UBIGINT, live_bytes BIGINT, live_objects UBIGINT, alloc_bytes_total UBIGINT, \
        alloc_objects_total UBIGINT, peak_bytes BIGINT, accurate BOOLEAN, node UINTEGER, \
        cause VARCHAR";
    assert_eq!(columns.join(", "), expected);
    let rows = duckdb("select module, file, line, pid, build_id is null from FILE", &file).unwrap();
    let keys: Vec<(Option<&str>, Option<&str>, Option<u64>)> =
        rows.iter().map(|row| (row[0].as_str(), row[1].as_str(), row[2].as_u64())).collect();
    assert!(keys.is_sorted() && keys.len() > 2, "{keys:?}");
    assert!(rows.iter().all(|row| row[3] == target.pid()));
    let own = rows.iter().filter(|row| row[0].as_str().is_some_and(|m| m.starts_with("formats-")));
    assert!(own.clone().count() != 0 && own.clone().all(|row| row[4] == false), "{rows:?}");
    let compressed = "select distinct compression from parquet_metadata(FILE)";
    assert_eq!(duckdb(compressed, &file).unwrap(), [[Value::from("ZSTD")]]);
    let strings = "select bool_and(dictionary_page_offset is not null) from parquet_metadata(FILE) \
                   where type = 'BYTE_ARRAY' and path_in_schema in ('host', 'exe', 'kind', 'func')";
    assert_eq!(duckdb(strings, &file).unwrap(), [[Value::from(true)]]);
}

#[test]
fn csv_is_one_line_for_each_row_whatever_the_names_are() {
    let target = Target::start("");
    let dir = directory();
    let pid = target.pid().to_string();
    let source = ["-p", &pid, "--no-mmap"];
    let file = write(&source, "csv", &[], dir.path());
    let bytes = fs::read_to_string(&file).unwrap();
    let rows = lines(&dump(&source, &["--format", "jsonl"]));
    assert_eq!(bytes.matches("\r\n").count(), rows.len() + 1);
    assert_eq!(bytes.matches(['\r', '\n', '\x1b']).count(), 2 * (rows.len() + 1));
    let Some(read) = csv(&file) else { return };
    assert!(read.iter().all(|row| row.len() == 17), "{read:?}");
    for (read, row) in read[1..].iter().zip(&rows) {
        let same = |column: usize, field: &str| {
            let value = &row[field];
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let value = if value == "null" { String::new() } else { value };
            assert!(read[column] == value || value.contains(char::is_control), "{read:?} {row}");
        };
        ["bytes", "calls", "kind", "function", "file", "line", "module", "offset"]
            .iter()
            .enumerate()
            .for_each(|(column, field)| same(column, field));
    }
}

/// Allocinfo text with these rows.
fn list(dir: &Path, rows: &str) -> PathBuf {
    let file = dir.join("allocinfo");
    fs::write(&file, format!("allocinfo - version: 1.0\n#     <size>  <calls> <tag info>\n{rows}"))
        .unwrap();
    file
}

#[test]
fn json_has_no_character_that_a_terminal_obeys_and_the_names_as_they_are() {
    let dir = directory();
    // U+009B, DEL and U+202E, each in UTF-8.
    let names = ["\u{9b}31mred", "del\u{7f}", "right\u{202e}tfel"];
    let octal = ["\\302\\23331mred", "del\\177", "right\\342\\200\\256tfel"];
    let rows = octal.map(|name| format!("64 1 {name}.c:1 [{name}] func:{name}\n")).concat();
    let file = list(dir.path(), &rows);
    let file = file.to_str().unwrap();
    let empty = dir.path().join("empty");
    fs::write(&empty, "allocinfo - version: 1.0\n").unwrap();
    let empty = empty.to_str().unwrap();
    for args in [
        &["dump", "--format", "json", "--allocinfo", file][..],
        &["dump", "--format", "jsonl", "--allocinfo", file],
        &["dump", "--format", "speedscope", "--allocinfo", file],
        &["top", "--json", "--allocinfo", file],
        &["top", "--json", "--tree", "--allocinfo", file],
        &["diff", "--json", empty, file],
    ] {
        let output = Command::new(KMEM).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        let out = String::from_utf8(output.stdout).unwrap();
        let bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!out.contains(bad), "{args:?}: {out:?}");
        let all = Value::Array(lines(&out)).to_string();
        // speedscope shows names to people.
        assert!(args[2] == "speedscope" || names.iter().all(|name| all.contains(name)), "{all}");
    }
}

#[test]
fn a_row_of_minus_one_object_is_the_last_by_objects() {
    let dir = directory();
    let rows = "64 1 a.c:1 func:a\n-64 18446744073709551615 b.c:1 func:b\n128 2 c.c:1 func:c\n";
    let file = list(dir.path(), rows);
    let source = ["--allocinfo", file.to_str().unwrap(), "-s", "c"];
    let order = |lines: &str| -> Vec<String> {
        lines.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
    };
    assert_eq!(order(&dump(&source, &["--format", "folded"])), ["c", "a", "b"]);
    let rows = lines(&dump(&source, &["--format", "jsonl"]));
    let names: Vec<&str> = rows.iter().map(|row| row["function"].as_str().unwrap()).collect();
    assert_eq!(names, ["c", "a", "b"]);
    let profile = write(&source, "pprof", &[], dir.path());
    // pprof takes the sum of 1, -1 and 2 without their signs.
    assert!(pprof_total("inuse_objects", &[], &profile).is_none_or(|total| total == 4));
}

#[test]
fn a_link_to_standard_output_stays_and_the_rows_go_between_other_lines() {
    let dir = directory();
    let file = list(dir.path(), "64 1 a.c:1 func:a\n");
    let link = dir.path().join("stdout");
    std::os::unix::fs::symlink("/proc/self/fd/1", &link).unwrap();
    let script = "echo first; \"$0\" dump --format folded --allocinfo \"$1\" -o \"$2\"; echo last";
    let run = |out: Stdio| {
        let mut sh = Command::new("sh");
        sh.args(["-c", script, KMEM]).args([&file, &link]);
        let output = sh.stdout(out).output().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(run(Stdio::piped()), "first\na 64\nlast\n");
    let rows = dir.path().join("rows");
    run(File::create(&rows).unwrap().into());
    assert_eq!(fs::read_to_string(&rows).unwrap(), "first\na 64\nlast\n");
    // The link, the list and the rows.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn a_choice_of_rows_is_the_same_in_every_format() {
    let target = Target::start("");
    let dir = directory();
    let pid = target.pid().to_string();
    let source = ["-p", &pid, "--no-mmap", "-s", "s", "-n", "2", "--min", "1"];
    let (bytes, calls) = sum(&lines(&dump(&source, &["--format", "jsonl"])));
    let allocinfo = dump(&source, &[]);
    let rows = allocinfo.lines().skip(2).map(|line| line.get(..21).unwrap());
    assert_eq!(sum_of_words(rows), (bytes, calls));
    let of_csv = dump(&source, &["--format", "csv"]);
    assert_eq!(of_csv.lines().count(), 3, "{of_csv}");
    let folded = dump(&source, &["--format", "folded"]);
    assert_eq!(folded.lines().count(), 2, "{folded}");
    let sizes = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    let stacks: i64 = sizes.map(|size| size.parse::<i64>().unwrap()).sum();
    let profile = write(&source, "pprof", &[], dir.path());
    let total = pprof_total("inuse_space", &[], &profile);
    assert!(total.is_none_or(|total| total == stacks), "{total:?} {stacks}");
    if let Some((total, _)) = dhat(&write(&source, "dhat", &[], dir.path())) {
        assert_eq!(total.0, stacks);
    }
    let parquet = ["--format", "parquet", "-n", "1", "--no-mmap", "-p", &pid];
    let one = dir.path().join("one.parquet");
    dump(&parquet, &["-o", one.to_str().unwrap()]);
    let rows = duckdb("select count(*) from FILE", &one);
    assert!(rows.is_none_or(|rows| rows == [[Value::from(1)]]));
    let sorted = Command::new(KMEM).arg("dump").args(parquet).args(["-s", "s"]).output().unwrap();
    refused(&sorted, &["--sort cannot be combined with --format parquet", "csv"]);
}

#[test]
fn options_that_a_format_has_no_room_for_are_refused_by_name() {
    let run =
        |args: &[&str]| Command::new(KMEM).args(["dump", "-p", "1"]).args(args).output().unwrap();
    for (option, formats) in [
        ("--by node", &["1.0", "table", "pprof", "folded", "speedscope", "dhat"][..]),
        ("--by group,site", &["1.0"]),
    ] {
        for format in formats {
            let args: Vec<&str> = option.split(' ').chain(["--format", format]).collect();
            let what = format!("{option} cannot be combined with --format {format}");
            refused(&run(&args), &[&what, "these have: 2.0, "]);
        }
    }
    refused(&run(&["--json", "--format", "csv"]), &["--json", "--format"]);
}

#[test]
fn rows_of_own_tables_are_refused_for_a_kernel_which_has_none() {
    for source in [&["--kernel"][..], &["--kernel-log", "log"]] {
        for command in ["dump", "top"] {
            let mut kmem = Command::new(KMEM);
            let output = kmem.arg(command).args(source).arg("--metadata").output().unwrap();
            refused(&output, &["--metadata", "cannot be used with", source[0]]);
        }
    }
}

#[test]
fn a_format_that_is_no_text_does_not_go_to_a_terminal() {
    let target = Target::start("");
    if kmem_testing::is_missing("script") {
        return;
    }
    for format in ["pprof", "parquet"] {
        let line = format!("{KMEM} dump -p {} --format {format}", target.pid());
        let terminal =
            |line: &str| Command::new("script").args(["-qec", line, "/dev/null"]).output().unwrap();
        let output = terminal(&line);
        let what = format!("--format {format} is not text and cannot go to a terminal");
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stdout).contains(&what), "{}", text(&output.stdout));
        let output = terminal(&format!("{line} 2>&1 | head -c 4 | od -An -tx1"));
        let magic = if format == "pprof" { "1f 8b 08" } else { "50 41 52 31" };
        assert!(text(&output.stdout).contains(magic), "{}", text(&output.stdout));
    }
}

#[test]
fn top_passes_its_largest_rows_on() {
    let target = Target::start("");
    let pid = target.pid().to_string();
    let top =
        |args: &[&str]| Command::new(KMEM).args(["top", "-p", &pid]).args(args).output().unwrap();
    let rows = lines(&dump(&["-p", &pid, "--no-mmap", "-s", "s"], &["--format", "jsonl"]));
    let output = top(&["--format", "jsonl", "-n", "2"]);
    let largest = lines(&text(&output.stdout));
    assert_eq!(largest.len(), 2, "{}", text(&output.stderr));
    for (one, other) in largest.iter().zip(&rows) {
        assert_eq!((&one["bytes"], &one["tags"]), (&other["bytes"], &other["tags"]));
    }
    let folded = text(&top(&["--format", "folded", "-n", "1"]).stdout);
    assert_eq!(folded.lines().count(), 1, "{folded}");
    refused(&top(&["--format", "csv", "--tree"]), &["--tree", "--format"]);
    refused(&top(&["--format", "csv", "--by", "pinned"]), &["--by pinned", "--format"]);
    refused(&top(&["--format", "1.0", "--by", "group,site"]), &["--by group,site", "--format 1.0"]);
    refused(&top(&["--format", "parquet", "-s", "c"]), &["--sort", "--format parquet"]);
}

#[test]
fn run_writes_the_rows_of_the_end_in_place_of_the_report() {
    let dir = directory();
    let program = program::compile("ends", &["-w"], dir.path());
    let file = dir.path().join("rows");
    let run = |args: &[&str]| {
        let mut kmem = Command::new(KMEM);
        kmem.args(["run", "--no-mmap", "-o", file.to_str().unwrap(), "--format"]);
        kmem.env_remove("KMEM_CONF").args(args).output().unwrap()
    };
    let held = |rows: &[Value]| -> i64 {
        let own = rows.iter().filter(|row| row["function"] == "hold");
        own.map(|row| row["calls"].as_i64().unwrap()).sum()
    };
    let path = program.to_str().unwrap();
    let output = run(&["jsonl", "--", path, "3000", "exit"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1, "only the number of the program");
    assert!(!text(&output.stderr).contains("At exit"), "{}", text(&output.stderr));
    let rows = lines(&fs::read_to_string(&file).unwrap());
    assert_eq!(held(&rows), 3001, "{rows:?}");
    // The program says its number.
    assert_eq!(rows[0]["pid"].to_string(), text(&output.stdout).trim());
    let output = run(&["jsonl", "-n", "1", "--", path, "3000", "exit"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 1);

    // A signal leaves the rows of the last record.
    let output = run(&["json", "--", path, "30000", "abort"]);
    assert_eq!(output.status.code(), Some(134), "{}", text(&output.stderr));
    let json: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(held(json["rows"].as_array().unwrap()) > 1000, "{json}");
    assert_ne!(json["moment"], Value::Null);

    // Without rows the file stays as it was.
    let before = fs::read(&file).unwrap();
    let output = run(&["csv", "--mem_profiling", "never", "--", path, "30", "exit"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("never"), "{}", text(&output.stderr));
    assert_eq!(fs::read(&file).unwrap(), before);
}
