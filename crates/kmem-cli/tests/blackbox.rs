//! The command on black boxes made by hand.

#[path = "../../kmem-snapshot/tests/fake_box/mod.rs"]
mod fake_box;

use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Output};

use fake_box::{CALLER, CHAIN, FakeBox, GROUPS, STATIC};
use kmem_layout::blackbox::{BoxHeader, BoxRecord, BoxSite};
use kmem_layout::group::group_state;
use serde_json::Value;

fn kmem(args: &[&str], fake: &FakeBox) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kmem"));
    let Output { status, stdout, stderr } =
        command.args(args).arg("--blackbox").arg(fake.path()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

fn recorded() -> FakeBox {
    let fake = FakeBox::new(64, 2);
    let rows = [(CALLER, 7000, 7), (STATIC, 600, 3), (CHAIN, 50, 1)];
    fake.put_record(1, &rows, (10_000, 20));
    fake
}

#[test]
fn dump_names_the_moment_and_the_sum_is_exact() {
    let fake = recorded();
    let (code, out, errors) = kmem(&["dump"], &fake);
    assert_eq!(code, Some(0), "{errors}");
    let rows: Vec<&str> = out.lines().skip(2).collect();
    assert!(out.starts_with("allocinfo - version: 2.0\n"), "{out}");
    // The caller and the innermost call of the chain share a place.
    assert!(rows[0].starts_with("        7050        8 "), "{out}");
    assert!(rows[0].ends_with(" func:fake_box_caller "), "{out}");
    assert_eq!(rows[1], "         600        3 src/plug.c:12 [libplug.so] func:plug_open ");
    assert_eq!(rows[2], "        2350        9 kmem:0 func:other_sites ");
    assert_eq!(rows.len(), 3);
    assert!(errors.contains("kmem: peak of process 4711 ("), "{errors}");
    assert!(errors.contains(") at 2001-09-09T01:46:40Z: 1.0 MiB in use"), "{errors}");
    assert!(errors.contains("7.5 KiB of 9.8 KiB live bytes (76.5 %)"), "{errors}");
    // A black box does not record resident memory.
    assert!(!errors.contains("resident"), "{errors}");
    fake.put_record(2, &[(CALLER, 1, 1)], (1, 1));
    assert!(kmem(&["dump"], &fake).2.contains("kmem: out of memory: the books of process"));
    fake.put_record(3, &[(CALLER, 1, 1)], (1, 1));
    assert!(kmem(&["dump"], &fake).2.contains("kmem: exit of process"));
}

#[test]
fn the_peak_is_shown_on_request() {
    let fake = recorded();
    fake.put_record(2, &[(CALLER, 1000, 1)], (1000, 1));
    assert!(kmem(&["dump"], &fake).1.contains("        1000        1 "));
    let (code, out, errors) = kmem(&["dump", "--peak"], &fake);
    assert!(out.contains("        2350        9 kmem:0 func:other_sites "), "{out}");
    assert_eq!(code, Some(0), "{errors}");
    assert!(kmem(&["top", "--once", "--peak"], &fake).1.contains("9.8 KiB in 20 live objects"));
    let live =
        Command::new(env!("CARGO_BIN_EXE_kmem")).args(["dump", "--peak", "-p", "1"]).output();
    assert_eq!(live.unwrap().status.code(), Some(2));
}

#[test]
fn top_and_json() {
    let fake = recorded();
    let (code, out, errors) = kmem(&["top", "--once", "-n", "1"], &fake);
    assert_eq!(code, Some(0), "{errors}");
    assert!(out.contains("(pid 4711): 9.8 KiB in 20 live objects"), "{out}");
    assert!(out.contains("   6.9 KiB         8  fake_box_caller "), "{out}");
    assert!(!out.contains("tracked"), "{out}");
    let json: Value = serde_json::from_str(&kmem(&["dump", "--json"], &fake).1).unwrap();
    assert_eq!(json["accounting"], Value::Null);
    assert_eq!(json["totals"]["bytes"], 10_000);
    assert_eq!(json["moment"]["reason"], "peak");
    assert_eq!(json["moment"]["time"], "2001-09-09T01:46:40Z");
    assert_eq!(json["moment"]["named_bytes"], 7650);
}

#[test]
fn cumulative_counts_on_request() {
    let fake = recorded();
    fake.put_counter(0, CALLER, [10, 1000, 0, 0]);
    fake.put_counter(1, CALLER, [5, 500, 12, 1200]);
    fake.put_counter(1, CHAIN, [1, 50, 0, 0]);
    fake.put_counter(0, STATIC, [3, 600, 3, 600]);
    let (code, out, errors) = kmem(&["dump", "--cumulative"], &fake);
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("since its start at 2001-09-09T01:46:40Z"), "{errors}");
    let rows: Vec<&str> = out.lines().skip(2).collect();
    assert!(rows[0].starts_with("         350        4 "), "{out}");
    assert!(rows[0].ends_with(" func:fake_box_caller total_bytes:1550 total_calls:16 "), "{out}");
    assert_eq!(
        rows[1],
        "           0        0 src/plug.c:12 [libplug.so] func:plug_open total_bytes:600 \
         total_calls:3 "
    );
    assert_eq!(rows.len(), 2);
    let (_, json, _) = kmem(&["dump", "--cumulative", "--json"], &fake);
    let json: Value = serde_json::from_str(&json).unwrap();
    let row = &json["rows"][0];
    for (field, value) in
        [("allocated_bytes", 1550), ("allocations", 16), ("freed_bytes", 1200), ("frees", 12)]
    {
        assert_eq!(row[field], value, "{field}");
    }
    assert_eq!((&row["bytes"], &row["calls"]), (&350.into(), &4.into()));
    assert!(!kmem(&["dump"], &fake).1.contains("total_bytes"));
    let (code, out, errors) = kmem(&["dump", "--cumulative", "--format", "1.0"], &fake);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
}

#[test]
fn what_is_absent_and_what_is_wrong() {
    let empty = FakeBox::new(64, 0);
    for (args, what) in [
        (&["dump"][..], "no record in it is whole"),
        (&["dump", "--cumulative"], "it has no counters"),
    ] {
        let (code, out, errors) = kmem(args, &empty);
        assert_eq!((code, out.as_str()), (Some(3), ""), "{errors}");
        assert!(errors.contains(what), "{errors}");
    }
    empty.u64(0, 0x1234);
    let (code, _, errors) = kmem(&["dump"], &empty);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("not a black box"), "{errors}");
    let fake = recorded();
    std::fs::remove_file(fake.path()).unwrap();
    assert_eq!(kmem(&["dump"], &fake).0, Some(3));
    // Only a black box has counters.
    for args in [&["dump", "--cumulative", "-p", "1"][..], &["dump", "-p", "1"]] {
        assert_eq!(kmem(args, &recorded()).0, Some(2));
    }
}

#[test]
fn a_row_with_a_tag_that_cannot_be_is_left_out_and_told() {
    let fake = FakeBox::new(64, 0);
    let rows = [(CALLER, 7000, 7), (u32::MAX, 600, 3), (1 << 17, 50, 1)];
    fake.put_record(1, &rows, (10_000, 20));
    for args in [&["dump"][..], &["top", "--once"], &["dump", "--json"], &["group", "ls"]] {
        let (code, _, errors) = kmem(args, &fake);
        assert_eq!(code, Some(0), "{errors}");
        assert!(errors.contains("2 rows of record 1 have a tag above 131071"), "{errors}");
    }
    let (_, out, errors) = kmem(&["dump"], &fake);
    assert!(errors.contains("are of the 1 sites that the record names"), "{errors}");
    let rows: Vec<&str> = out.lines().skip(2).collect();
    assert!(rows[0].ends_with(" func:fake_box_caller "), "{out}");
    assert_eq!(rows[1], "        3000       13 kmem:0 func:other_sites ");
    assert_eq!(rows.len(), 2);
}

#[test]
fn names_in_a_hostile_box_reach_no_terminal() {
    let fake = recorded();
    let text = fake.site(STATIC) + offset_of!(BoxSite, text);
    fake.bytes(text + 10, b"\x1b[2J\n1 x ");
    fake.bytes(offset_of!(BoxHeader, exe), b"\x1b]0;x\x07");
    for args in [&["dump"][..], &["top"]] {
        let (code, out, errors) = kmem(args, &fake);
        assert_eq!(code, Some(0), "{errors}");
        assert!(!out.contains('\x1b') && !errors.contains('\x1b'), "{out}{errors}");
    }
    assert_eq!(kmem(&["dump"], &fake).1.lines().count(), 5);
}

#[test]
fn groups_are_billed_as_in_the_record_and_bad_ones_are_refused() {
    let fake = recorded();
    for (parent, state, name, slab) in [
        (0, group_state::LIVE, "", 100),
        (0, group_state::LIVE, "tenants", 20),
        (1, group_state::LIVE, "a", 3),
        // A deleted group: its parent pays.
        (1, group_state::DYING, "gone", 1000),
        // A group whose ancestors do not end at the root.
        (5, group_state::LIVE, "ring", 7),
        (4, group_state::LIVE, "ring", 0),
        // A free entry.
        (77, group_state::FREE, "free", 0),
    ] {
        fake.put_group(1, parent, state, name, slab);
    }
    let (code, out, errors) = kmem(&["group", "ls", "--json"], &fake);
    assert_eq!(code, Some(0), "{errors}");
    let json: Value = serde_json::from_str(&out).unwrap();
    let groups = json["copies"][0]["groups"].as_array().unwrap();
    let of = |path: &str| {
        let group = groups.iter().find(|group| group["group"] == path);
        group.map(|group| (group["current"].as_u64().unwrap(), group["own"].as_u64().unwrap()))
    };
    assert_eq!(of("/tenants/a"), Some((3, 3)), "{out}");
    assert_eq!(of("/tenants"), Some((1023, 1020)), "{out}");
    assert_eq!(of("/"), Some((1130, 100)), "{out}");
    let (code, out, errors) = kmem(&["group", "ls"], &fake);
    assert_eq!((code, out.lines().count()), (Some(0), 6), "{errors}");

    let groups = fake.record(0) + offset_of!(BoxRecord, groups);
    for (at, word, what) in [
        (groups, GROUPS + 1, "groups, above group_capacity 8"),
        (offset_of!(BoxHeader, groups), u32::MAX, "truncated: 7 groups at offset"),
        (offset_of!(BoxHeader, group_size), 8, "group_size is 8, expected"),
        (offset_of!(BoxHeader, group_capacity), 1 << 15, "group_capacity is 32768, above 16384"),
    ] {
        let mut before = [0; 4];
        fake.file.read_exact_at(&mut before, at as u64).unwrap();
        fake.u32(at, word);
        let (code, out, errors) = kmem(&["group", "ls"], &fake);
        assert!(code != Some(0) && out.is_empty() && errors.contains(what), "{out}{errors}");
        fake.bytes(at, &before);
    }
    fake.u32(fake.record(0) + offset_of!(BoxRecord, groups_beyond), 9);
    assert!(kmem(&["group", "ls"], &fake).2.contains("9 groups have no place in the record"));
}

#[test]
fn hostile_rows_of_mapped_memory_harm_no_command() {
    let fake = recorded();
    let all = u64::MAX;
    let rows = [(all, all, all), (u64::from(STATIC), all, 0), (0, 1, 1), (63, 1, 1), (1, 9, 10)];
    fake.put_mappings(0, &rows, (all, all));
    for args in [
        &["dump"][..],
        &["dump", "--peak", "-s", "s"],
        &["dump", "--json"],
        &["dump", "--format", "folded"],
        &["dump", "--format", "speedscope"],
        &["top", "--once"],
        &["top", "--once", "--tree"],
        &["top", "--json"],
    ] {
        let (code, out, errors) = kmem(args, &fake);
        assert_eq!(code, Some(0), "{args:?}: {errors}");
        assert!(errors.contains("2 rows of mappings in record 1 make no sense"), "{errors}");
        assert!(!out.is_empty());
    }
    let (_, out, _) = kmem(&["dump"], &fake);
    let row = format!("{:12} {:8} ", i64::MAX, 1);
    assert!(out.lines().any(|line| line.starts_with(&row)), "{out}");
    assert!(out.contains(&format!("[libplug.so] func:plug_open mapped:{all} ")), "{out}");
    // The heap's own rows are as before.
    assert!(out.contains("         600        3 src/plug.c:12 [libplug.so] func:plug_open \n"));
    assert!(!kmem(&["dump", "--no-mmap"], &fake).1.contains("mapped:"));
}
