//! Rows that a file lists, against random files.

use std::fs::{self, File};
use std::path::PathBuf;

use kmem_snapshot::allocinfo::{self, Version};
use kmem_snapshot::diff::{Change, Diff, Held};
use kmem_snapshot::output::{self, Choice, Format, folded_changes};
use kmem_snapshot::sites::total;
use kmem_snapshot::stacks::{By, Stacks};
use kmem_snapshot::{Query, ReadFailure, Reading, Site, Target};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use proptest::prelude::*;
use tempfile::TempDir;

/// Reads a file with this content.
fn read(content: &[u8]) -> Result<Reading, ReadFailure> {
    let (_dir, path) = file(content);
    let query = Query { empty: true, metadata: true, mappings: true, ..Query::default() };
    Target::List(path).read(&query)
}

fn file(content: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list");
    fs::write(&path, content).unwrap();
    (dir, path)
}

/// Allocinfo text of a reading.
fn written(reading: &Reading) -> Vec<u8> {
    let mut out = Vec::new();
    allocinfo::write_header(&mut out, Version::V2).unwrap();
    let Reading { sites, metadata, mappings, .. } = reading;
    for site in [&sites[..], metadata, mappings].concat() {
        let tag = site.origin.tag();
        let mapped = site.mapped.map(|bytes| ("mapped", bytes));
        allocinfo::write_row_with(&mut out, site.bytes, site.calls, &tag, mapped).unwrap();
    }
    out
}

fn sums(reading: &Reading) -> [(i64, u64); 3] {
    [&reading.sites, &reading.metadata, &reading.mappings].map(|sites| total(sites))
}

/// Lines of rows, such as kernels and `kmem dump` write.
const ROW: &str = "-?[0-9]{1,9} (18446744073709551615|[0-9]{1,5}) \
                   (mm/a\\.c:[1-3]|lib\\.so\\+0x[0-9a-f]{1,3}:0|kmem:0|/usr/lib/x:0)( \\[m\\])? \
                   func:(f|g|not_tagged|other_sites|zone_tables|stack|code|lib\\.so\\+0x1)\
                   ( mapped:[0-9]{1,6})?( accurate:no)? \n";

/// Logs: heads and rows in any order.
const LOG: &str = "(\\[ 1\\.0\\] )?(Memory allocations:|[0-9]{1,30}(\\.[0-9]{0,4})? [KMGE]?i?B \
                   [0-9]{1,21} a\\.c:[0-9]{0,11} (\\[m\\] )?func:f|[ -~]{0,20})\n";

/// JSON of the right shape, with any values.
const JSON: &str = "\\{\"bytes\":-?[1-9][0-9]{0,19},\"calls\":[1-9][0-9]{0,19},\
                    \"kind\":\"(caller|chain|static|mapping|stack|code|metadata|unknown|x)\",\
                    \"function\":(null|\"[a-z]{0,3}\"),\"file\":(null|\"/[a-z]\"),\
                    \"line\":(null|[1-9]{1,11}),\"tags\":\\[[1-9]{0,11}\\],\
                    \"chains\":\\[(\\{\"tag\":1,\"bytes\":1,\"calls\":1,\
                    \"frames\":\\[\\]\\})?\\]\\}";

proptest! {
    #[test]
    fn what_is_read_and_written_again_keeps_its_sums(
        rows in proptest::collection::vec(ROW, 0..40),
    ) {
        let text = format!("allocinfo - version: 2.0\n{}", rows.concat());
        let first = read(text.as_bytes()).unwrap();
        let bytes = rows.iter().map(|row| row.split(' ').next().unwrap().parse::<i64>().unwrap());
        let read_bytes: i64 = sums(&first).iter().map(|sum| sum.0).sum();
        prop_assert_eq!(read_bytes, bytes.sum::<i64>());
        let text = written(&first);
        let second = read(&text).unwrap();
        prop_assert_eq!(sums(&second), sums(&first));
        prop_assert_eq!(Diff::of(&first.sites, &second.sites).changes, vec![]);
        prop_assert_eq!(String::from_utf8(written(&second)), String::from_utf8(text));
    }

    #[test]
    fn changes_add_up_to_the_difference_of_the_sums(
        before in proptest::collection::vec(ROW, 0..30),
        after in proptest::collection::vec(ROW, 0..30),
    ) {
        let [before, after] = [before, after].map(|rows| {
            let text = format!("allocinfo - version: 1.0\n{}", rows.concat());
            let Reading { sites, metadata, mappings, .. } = read(text.as_bytes()).unwrap();
            [sites, metadata, mappings].concat()
        });
        let diff = Diff::of(&before, &after);
        let sum: Held = diff.changes.iter().map(Change::delta).sum();
        prop_assert_eq!(sum, diff.delta());
        let bytes = |sites: &[Site]| sites.iter().map(|site| i128::from(site.bytes)).sum::<i128>();
        prop_assert_eq!(sum.bytes, bytes(&after) - bytes(&before));
        let [old, new] = [&before, &after].map(|sites| Stacks::of(sites, By::Name));
        let folded = folded_changes(&old, &new);
        let bytes: i128 = folded.iter().map(|of| of.after - of.before).sum();
        prop_assert_eq!(sum.bytes, bytes);
    }

    #[test]
    fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(&bytes);
        for head in ["allocinfo - version: 1.0\n", "{\"rows\":[", "Memory allocations:\n"] {
            let content = [head.as_bytes(), &bytes].concat();
            let _ = read(&content);
        }
        bytes.retain(|&byte| byte != 0);
        let _ = Target::recognise(&file(&bytes).1);
    }

    #[test]
    fn logs_of_the_right_shape_are_survived(lines in proptest::collection::vec(LOG, 0..40)) {
        if let Ok(reading) = read(lines.concat().as_bytes()) {
            prop_assert!(reading.sites.len() <= 10);
            prop_assert!(reading.sites.iter().all(|site| site.bytes >= 0));
        }
    }

    #[test]
    fn json_of_the_right_shape_is_survived(rows in proptest::collection::vec(JSON, 0..10)) {
        let _ = read(format!("{{\"rows\":[{}]}}", rows.join(",")).as_bytes());
    }
}

#[test]
fn sums_beyond_a_number_are_an_error_and_not_another_sum() {
    let row = format!("{} 1 a.c:1 func:f \n", i64::MAX);
    let error = read(format!("allocinfo - version: 1.0\n{row}{row}").as_bytes()).unwrap_err();
    assert!(error.to_string().contains("more than a 64-bit number"), "{error}");
}

#[test]
fn negative_counts_of_a_kernel_are_added_up() {
    let rows = "-128 18446744073709551615 a.c:1 func:f \n 128 2 a.c:1 func:f \n 5 1 b.c:1 func:g\n";
    let reading = read(format!("allocinfo - version: 1.0\n{rows}").as_bytes()).unwrap();
    let found: Vec<_> = reading.sites.iter().map(|site| (site.bytes, site.calls)).collect();
    assert_eq!((found, reading.totals()), (vec![(0, 1), (5, 1)], (5, 2)));
    let note = reading.notes[0].to_string();
    assert!(note.ends_with("3 lines are 2 rows: lines of one place are added up"), "{note}");
}

/// The rows of a reading in this format.
fn output(format: Format, reading: &Reading) -> Vec<u8> {
    let mut out = Vec::new();
    output::write(&mut out, format, reading, &Choice::default()).unwrap();
    out
}

/// Columns of a Parquet file, as text, by row.
fn columns<const N: usize>(content: Vec<u8>, names: [&str; N]) -> Vec<[String; N]> {
    let (_dir, path) = file(&content);
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let of = |row: parquet::record::Row, name: &str| {
        let (_, field) = row.into_columns().into_iter().find(|(column, _)| column == name).unwrap();
        if let Field::Str(text) = field { text } else { field.to_string() }
    };
    let rows = file.get_row_iter(None).unwrap().map(Result::unwrap);
    rows.map(|row| names.map(|name| of(row.clone(), name))).collect()
}

#[test]
fn a_row_that_the_kernel_marks_as_not_accurate_stays_marked() {
    let rows = "           1        1 a.c:1 func:f accurate:no \n           \
                2        1 b.c:1 func:g \n";
    let text = format!("allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n{rows}");
    let reading = read(text.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(output(Format::V2, &reading)).unwrap(), text);
    assert!(!String::from_utf8(output(Format::V1, &reading)).unwrap().contains("accurate"));
    let marks = |reading: &Reading| columns(output(Format::Parquet, reading), ["func", "accurate"]);
    let marked = [["f", "false"], ["g", "true"]];
    assert_eq!(marks(&reading), marked);
    let json = String::from_utf8(output(Format::Json, &reading)).unwrap();
    assert_eq!(json.matches("\"accurate\":false").count(), 1);
    assert_eq!(json.matches("accurate\":").count(), 1);
    assert_eq!(marks(&read(json.as_bytes()).unwrap()), marked);
}

#[test]
fn a_sum_is_accurate_if_all_its_rows_are() {
    for (rows, accurate) in [
        ("1 1 a.c:1 func:f accurate:no \n 1 1 a.c:1 func:f \n", false),
        ("1 1 a.c:1 func:f \n 1 1 a.c:1 func:f accurate:no \n", false),
        ("1 1 a.c:1 func:f \n 1 1 a.c:1 func:f accurate:yes \n", true),
    ] {
        let reading = read(format!("allocinfo - version: 2.0\n{rows}").as_bytes()).unwrap();
        assert_eq!(reading.sites[0].accurate, accurate, "{rows}");
    }
}

#[test]
fn rows_of_json_keep_their_machine_and_their_time() {
    let row = "{\"bytes\":1,\"calls\":1,\"kind\":\"not_tagged\"}";
    let json = format!("{{\"host\":\"far.away\",\"time_ns\":5,\"rows\":[{row}]}}");
    let reading = read(json.as_bytes()).unwrap();
    let found = columns(output(Format::Parquet, &reading), ["host", "ts_ns"]);
    assert_eq!(found, [["far.away", "5"]]);
    // Other files have the time of their last write, and no machine.
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for content in ["{\"rows\":[]}", "allocinfo - version: 2.0\n"] {
        let (_dir, path) = file(content.as_bytes());
        let written = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(7_000_000_001);
        File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        let of = Target::List(path).read(&Query::default()).unwrap().provenance;
        assert_eq!((&*of.host, of.time_ns), (own.trim_end(), 7_000_000_001), "{content}");
    }
}

#[test]
fn rows_of_json_by_group_are_added_up_with_a_note() {
    let row = |group| {
        format!("{{\"group\":\"{group}\",\"bytes\":3,\"calls\":1,\"kind\":\"not_tagged\"}}")
    };
    let json = |rows: [String; 2]| format!("{{\"rows\":[{}]}}", rows.join(","));
    let reading = read(json([row("/a"), row("/b")]).as_bytes()).unwrap();
    assert_eq!((reading.sites.len(), reading.totals()), (1, (6, 2)));
    let note = reading.notes[0].to_string();
    assert!(note.ends_with("2 rows are 1 rows: rows of one place are added up"), "{note}");
    let other = row("/a").replace("not_tagged", "other_sites");
    assert!(read(json([row("/a"), other]).as_bytes()).unwrap().notes.is_empty());
}
