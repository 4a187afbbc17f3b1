//! The command on rows that others counted: texts of a kernel and of itself, and the kernel.

mod program;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kmem_testing::is_not_root;
use program::{KMEM, Program, directory, for_another_user, json, text};
use serde_json::Value;

const LOG: &str = "\
[    1.000000] Memory allocations:
[    1.000001]     1.00 KiB        1 mm/a.c:1 func:early
[   41.207768] Memory allocations (profiling is currently turned on):
[   41.207789]     40.5 MiB     5184 mm/slub.c:2478 func:alloc_slab_page
[   41.207809]     33.0 MiB     8448 drivers/net/veth.c:310 [veth] func:veth_alloc_queues
";

/// `/proc/allocinfo` of a Linux 6.12.
fn kernel() -> PathBuf {
    let data = "../kmem-snapshot/tests/data/allocinfo-6.12.txt";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(data)
}

fn kmem(args: &[&str], path: &Path) -> Output {
    Command::new(KMEM).args(args).arg(path).output().unwrap()
}

/// Output of a command that succeeds.
#[track_caller]
fn said(args: &[&str], path: &Path) -> String {
    let output = kmem(args, path);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Message of a command that fails with this exit code.
#[track_caller]
fn refusal(args: &[&str], path: &Path, code: i32) -> String {
    let output = kmem(args, path);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(text(&output.stdout), "");
    said
}

/// Bytes of all rows in allocinfo text.
fn sum(allocinfo: &str) -> i64 {
    let rows = allocinfo.lines().skip(2);
    rows.map(|row| row.split_whitespace().next().unwrap().parse::<i64>().unwrap()).sum()
}

#[test]
fn a_kernels_text_is_dumped_sorted_and_filtered() {
    let file = kernel();
    let source = fs::read_to_string(&file).unwrap();
    let dump = said(&["dump", "--allocinfo"], &file);
    assert_eq!(sum(&dump), sum(&source));
    // Lines of one place are one row.
    assert!(dump.lines().count() < source.lines().count());
    let top = said(&["dump", "-s", "s", "-n", "2", "--allocinfo"], &file);
    let sizes: Vec<i64> = top.lines().skip(2).map(|row| sum(&format!("\n\n{row}"))).collect();
    assert!(sizes.len() == 2 && sizes[0] >= sizes[1], "{top}");
    let slub = said(&["dump", "--file", "mm/slub.c", "--allocinfo"], &file);
    let expected = source.lines().filter(|row| row.contains(" mm/slub.c:")).map(str::trim_start);
    let expected: Vec<&str> = expected.collect();
    let found: Vec<&str> = slub.lines().skip(2).map(str::trim_start).collect();
    assert!(!found.is_empty() && found.iter().all(|row| expected.contains(row)), "{slub}");
    let live = ["dump", "--no-empty", "--allocinfo"];
    assert!(
        said(&live, &file).lines().skip(2).all(|row| !row.starts_with("           0        0"))
    );
}

#[test]
fn a_kernels_text_is_shown_as_a_table_as_json_and_as_stacks() {
    let file = kernel();
    let top = said(&["top", "-n", "3", "--allocinfo"], &file);
    let head = top.lines().next().unwrap();
    assert!(head.contains("allocinfo-6.12.txt: ") && head.contains(" call sites"), "{top}");
    assert_eq!(top.lines().filter(|line| line.contains(" MiB  ")).count(), 4, "{top}");
    let tree = said(&["top", "--tree", "-n", "3", "--allocinfo"], &file);
    assert!(tree.contains("CALL TREE"), "{tree}");
    let tree = said(&["top", "--tree=source", "-n", "60", "--allocinfo"], &file);
    let names = tree.lines().skip_while(|line| !line.contains("SOURCE TREE")).skip(1);
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().nth(3)).collect();
    let at = |name: &str| names.iter().position(|&other| other == name);
    let (module, directory, file_name) = (at("(main)"), at("mm"), at("slub.c"));
    assert!(module.is_some() && module < directory && directory < file_name, "{tree}");
    let value: Value =
        serde_json::from_str(&said(&["dump", "--json", "--allocinfo"], &file)).unwrap();
    let rows = value["rows"].as_array().unwrap();
    let bytes: i64 = rows.iter().map(|row| row["bytes"].as_i64().unwrap()).sum();
    assert_eq!((Some(bytes), &value["pid"]), (value["totals"]["bytes"].as_i64(), &Value::Null));
    let folded = said(&["dump", "--format", "folded", "--allocinfo"], &file);
    let sizes = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap());
    assert_eq!(sizes.sum::<i64>(), bytes);
}

#[test]
fn a_dump_that_is_read_prints_the_rows_that_were_written() {
    let live = Program::start("books", &[], &["wait"], "");
    for format in ["1.0", "2.0"] {
        let dump = text(&live.kmem(&["dump", "--format", format]).stdout);
        let file = live.dir.path().join(format);
        fs::write(&file, &dump).unwrap();
        assert_eq!(said(&["dump", "--format", format, "--allocinfo"], &file), dump);
    }
    let written = live.json(&["dump", "--json", "--metadata"]);
    let file = live.dir.path().join("json");
    fs::write(&file, written.to_string()).unwrap();
    let args = ["dump", "--json", "--metadata", "--allocinfo"];
    let read = json(Command::new(KMEM).args(args).arg(&file));
    for part in ["rows", "totals", "pid", "exe", "host", "time_ns"] {
        assert_eq!(read[part], written[part], "{part}");
    }
}

#[test]
fn a_pipe_by_name_is_opened_once() {
    let dir = directory();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // More than a pipe holds, so that the writer meets a reader that closes too early.
    let mut writer = Command::new("sh");
    writer.args(["-c", "exec cat \"$1\" > \"$0\""]).arg(&pipe).arg(kernel());
    let mut writer = writer.spawn().unwrap();
    let mut command = Command::new("timeout");
    command.args(["60", KMEM, "diff"]).arg(&pipe).arg(kernel());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("(no change)"), "{}", text(&output.stdout));
    assert!(writer.wait().unwrap().success());
}

#[test]
fn rows_of_a_cut_dump_are_a_part_and_the_message_says_so() {
    let live = Program::start("books", &[], &["wait"], "");
    let file = live.dir.path().join("json");
    fs::write(&file, live.kmem(&["dump", "--json", "-n", "1", "-s", "s"]).stdout).unwrap();
    let output = kmem(&["dump", "--allocinfo"], &file);
    let message = text(&output.stderr);
    assert!(message.contains("a part of the rows: 3.0 MiB in 1 live objects, of "), "{message}");
}

#[test]
fn questions_that_a_list_cannot_answer_are_refused_by_name() {
    let file = kernel();
    for (args, what) in [
        (&["dump", "--group", "/a", "--allocinfo"][..], "has no groups"),
        (&["dump", "--by", "group,site", "--allocinfo"], "has no groups"),
        (&["dump", "--by", "node", "--allocinfo"], "has no nodes"),
        (&["top", "--by", "group", "--allocinfo"], "has no groups"),
        (&["top", "--by", "pinned", "--allocinfo"], "has no slabs"),
        (&["dump", "--exe", "x", "--allocinfo"], "cannot be used with"),
        (&["dump", "--peak", "--allocinfo"], "cannot be used with"),
        (&["dump", "--list", "1", "--allocinfo"], "cannot be used with"),
        (&["dump", "--cumulative", "--allocinfo"], "cannot be used with"),
    ] {
        let said = refusal(args, &file, 2);
        assert!(said.contains(what), "{args:?}: {said}");
    }
}

#[test]
fn files_of_other_kinds_are_named() {
    let dir = directory();
    let said = refusal(&["dump", "--allocinfo"], Path::new(KMEM), 2);
    assert!(said.contains("an ELF program or library, not the core file"), "{said}");
    for (content, what) in [
        (&b""[..], "empty file"),
        (b"kmem box", "a black box of kmem: read it with --blackbox"),
        (b"{\"pid\":1}", "not the JSON of kmem dump: missing field `rows`"),
        (b"{\"rows\":[{\"bytes\":1,\"calls\":1,\"kind\":\"x\"}]}", "row 0: unknown kind \"x\""),
        (b"allocinfo - version: 3.0\n", "version \"3.0\""),
        (b"allocinfo - version: 2.0\n 1 1 a.c func:f \n", "line 2: no line number"),
        (b"\x7fELF\0\xff", "an ELF program"),
        (b"\x01\0\x02", "begins with the bytes 01 00 02"),
    ] {
        let file = dir.path().join("file");
        fs::write(&file, content).unwrap();
        let said = refusal(&["dump", "--allocinfo"], &file, 2);
        assert!(said.contains(what) && said.contains("/file: "), "{said}");
    }
    let said = refusal(&["dump", "--allocinfo"], &dir.path().join("none"), 3);
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn the_list_of_a_kernel_without_memory_is_read_out_of_its_log() {
    let dir = directory();
    let log = dir.path().join("dmesg");
    fs::write(&log, LOG).unwrap();
    let output = kmem(&["dump", "--kernel-log"], &log);
    let rows = "    42467328     5184 mm/slub.c:2478 func:alloc_slab_page \n    34603008     8448 \
                drivers/net/veth.c:310 [veth] func:veth_alloc_queues \n";
    assert!(text(&output.stdout).ends_with(&format!("<tag info>\n{rows}")));
    let note = "list 2 of 2: its 2 largest sites, with sizes that are rounded to three digits";
    assert!(text(&output.stderr).contains(note), "{}", text(&output.stderr));
    let first = said(&["dump", "--list", "1", "--kernel-log"], &log);
    assert!(first.ends_with("        1024        1 mm/a.c:1 func:early \n"), "{first}");
    let note = text(&kmem(&["dump", "--list", "1", "--kernel-log"], &log).stderr);
    assert!(note.contains("list 1 of 2: its 1 largest"), "{note}");
    let third = refusal(&["dump", "--list", "3", "--kernel-log"], &log, 3);
    assert!(third.contains("2 lists") && third.contains("no list 3"), "{third}");
    fs::write(&log, "no lists\n").unwrap();
    refusal(&["dump", "--kernel-log"], &log, 3);
}

/// Runs `kmem dump --kernel` where these files are `/proc`. With `user`, another user runs it.
fn with_proc(files: &[(&str, &str)], mount: &str, user: bool) -> Option<Output> {
    kmem_with_proc("dump --kernel", files, mount, user)
}

/// Runs the command where these files are `/proc`. With `user`, another user runs it.
fn kmem_with_proc(args: &str, files: &[(&str, &str)], mount: &str, user: bool) -> Option<Output> {
    if is_not_root("mount another /proc") {
        return None;
    }
    let (_copy, command) = for_another_user()?;
    let dir = directory();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    }
    let user = if user { "setpriv --reuid=65534 --clear-groups" } else { "" };
    let script = format!("set -e; {mount}; exec {user} \"$1\" {args}");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", &script]).arg(dir.path()).arg(command);
    Some(shell.output().unwrap())
}

/// The exit code, and the message on stderr.
fn outcome(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), text(&output.stderr))
}

const BIND: &str = "mount --bind \"$0\" /proc";
const ROWS: &str = "allocinfo - version: 1.0\n        4096        1 mm/a.c:1 func:a \n";
const ZERO: &str = "allocinfo - version: 1.0\n           0        0 mm/a.c:1 func:a \n";

#[test]
fn the_kernels_own_rows_are_read() {
    let files = [("allocinfo", ROWS), ("sys/vm/mem_profiling", "1\n")];
    let Some(output) = with_proc(&files, BIND, false) else { return };
    assert_eq!(outcome(&output), (Some(0), String::new()));
    assert!(text(&output.stdout).ends_with("        4096        1 mm/a.c:1 func:a \n"));
    // It was on, and is off now.
    let files = [("allocinfo", ROWS), ("sys/vm/mem_profiling", "0\n")];
    let Some(output) = with_proc(&files, BIND, false) else { return };
    let (code, said) = outcome(&output);
    assert!(code == Some(0) && said.contains("profiling is off"), "{said}");
}

#[test]
fn four_reasons_for_a_kernel_without_rows_are_told_apart() {
    let on = ("sys/vm/mem_profiling", "1\n");
    let off = ("sys/vm/mem_profiling", "0\n");
    let null = "mount --bind \"$0\" /proc; mount --bind /dev/null /proc/allocinfo";
    let processes = "mount -t proc -o subset=pid proc /proc";
    for (files, mount, user, code, what) in [
        (&[("sys/vm/swappiness", "60\n")][..], BIND, false, 3, "built without"),
        (&[off], BIND, false, 3, "is off: boot with sysctl.vm.mem_profiling=1"),
        (&[("allocinfo", ZERO), off], BIND, false, 3, "is off"),
        (&[("allocinfo", ROWS), on], BIND, true, 4, "permission denied: only root"),
        (&[("allocinfo", ROWS), on], null, false, 3, "hidden by a container"),
        (&[("allocinfo", ""), on], BIND, false, 3, "hidden by a container"),
        (&[], processes, false, 3, "hidden by a container"),
    ] {
        let Some(output) = with_proc(files, mount, user) else { return };
        let (found, said) = outcome(&output);
        assert_eq!(found, Some(code), "{files:?} {mount}: {said}");
        assert!(said.starts_with("kmem: /proc/allocinfo: ") && said.contains(what), "{said}");
    }
}

#[test]
fn the_account_of_a_kernel_joins_call_sites_slabs_and_zones() {
    let allocinfo = fs::read_to_string(kernel()).unwrap();
    let slabinfo = fs::read_to_string(kernel().with_file_name("slabinfo-6.12.txt")).unwrap();
    let zoneinfo = "Node 0, zone   Normal\n  pages free     1000\n        managed  16384\n  \
                    pagesets\n    cpu: 0\n              count:    24\n";
    let files = [("allocinfo", &*allocinfo), ("slabinfo", &slabinfo), ("zoneinfo", zoneinfo)];
    let Some(output) = kmem_with_proc("kernel --json", &files, BIND, false) else { return };
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| json[name].as_i64().unwrap();
    assert_eq!((of("managed"), of("free")), (16384 << 12, 1024 << 12));
    assert_eq!(of("managed"), of("free") + of("in_use"));
    assert_eq!(of("in_use"), of("tracked") + of("slab_free") + of("not_tracked"));
    // All rows, but for the pages of slabs, whose objects are counted at their own call sites.
    let pages = allocinfo.lines().filter(|row| row.contains("func:alloc_slab_page"));
    let pages = sum(&format!("\n\n{}", pages.collect::<Vec<_>>().join("\n")));
    assert!(pages > 0 && pages <= of("slab"));
    assert_eq!((of("slab_tracked"), of("tracked") + pages), (pages, sum(&allocinfo)));
    assert_eq!((of("slabs"), of("slab"), of("slab_free")), (773, 5_332_992, 5_332_992 - 5_243_176));
    let output = kmem_with_proc("kernel", &files, BIND, false).unwrap();
    assert!(
        text(&output.stdout).starts_with("managed 64.0 MiB = free 4.0 MiB + in use 60.0 MiB\n")
    );
    // Each file may be missing, and a user may not read it.
    let output = kmem_with_proc("kernel", &files[..2], BIND, false).unwrap();
    assert_eq!(outcome(&output).0, Some(3));
    assert!(outcome(&output).1.contains("/proc/zoneinfo: No such file"), "{output:?}");
    let output = kmem_with_proc("kernel", &files[1..], BIND, false).unwrap();
    assert!(outcome(&output).1.contains("/proc/allocinfo: hidden by a container"), "{output:?}");
    let output = kmem_with_proc("kernel", &files, BIND, true).unwrap();
    assert_eq!(outcome(&output).0, Some(4));
}

/// Bytes and calls of the lines of the kernel's text that hold something.
fn lines_of_kernel() -> Vec<(i64, i64)> {
    let text = fs::read_to_string(kernel()).unwrap();
    let numbers = |line: &str| {
        let mut words = line.split_whitespace().map(|word| word.parse::<i64>().unwrap());
        let row = (words.next().unwrap(), words.next().unwrap());
        (row != (0, 0)).then_some(row)
    };
    let is_row = |line: &&str| line.starts_with(' ');
    let cut = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    text.lines().filter(is_row).filter_map(|line| numbers(&cut(line))).collect()
}

#[test]
fn the_flags_of_alloctop_keep_their_meaning() {
    let mut lines = lines_of_kernel();
    let rows = |args: &[&str]| -> Vec<(i64, i64)> {
        let args = [&["top", "--json", "-o"], args, &["--allocinfo"]].concat();
        let json: Value = serde_json::from_str(&said(&args, &kernel())).unwrap();
        let number = |row: &Value, name: &str| row[name].as_i64().unwrap();
        let rows = json["rows"].as_array().unwrap().iter();
        rows.map(|row| (number(row, "bytes"), number(row, "calls"))).collect()
    };
    // -n takes a number of lines, and -s the letters s (size), c (calls) and t (tag).
    lines.sort_by_key(|&(bytes, calls)| std::cmp::Reverse((bytes, calls)));
    assert_eq!(rows(&["-n", "7"]), lines[..7]);
    assert_eq!(rows(&["-n", "7", "-s", "s"]), lines[..7]);
    // -m takes the least size.
    let least = lines[20].0;
    let large = rows(&["-n", "1000000", "-m", &least.to_string()]);
    assert_eq!(large.len(), lines.iter().filter(|line| line.0 >= least).count());
    assert!(large.iter().all(|row| row.0 >= least));
    lines.sort_by_key(|&(bytes, calls)| std::cmp::Reverse((calls, bytes)));
    assert_eq!(rows(&["-n", "7", "-s", "c"]), lines[..7]);
    let by_tag = said(&["top", "-o", "-n", "1000000", "-s", "t", "--allocinfo"], &kernel());
    let names = by_tag.lines().skip_while(|line| !line.contains("FUNCTION")).skip(1);
    let names: Vec<&str> = names.map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert!(names.len() > 100 && names.is_sorted(), "{by_tag}");
    // -t shows a tree.
    let tree = said(&["top", "-o", "-t", "-n", "3", "--allocinfo"], &kernel());
    assert!(tree.contains("CALL TREE"), "{tree}");
}

/// The data of a page of `kmem report`.
fn data_of(page: &str) -> Value {
    let begin = page.find("{\"title\":").expect("data");
    serde_json::Deserializer::from_str(&page[begin..]).into_iter().next().unwrap().unwrap()
}

#[test]
fn a_report_of_a_kernel_has_the_sites_of_its_text_and_of_its_recording() {
    let page = data_of(&said(&["report"], &kernel()));
    assert!(page["title"].as_str().unwrap().contains("allocinfo-6.12.txt"), "{}", page["title"]);
    let names = |page: &Value| -> Vec<String> {
        let sites = page["sites"].as_array().unwrap().iter();
        let mut names: Vec<_> =
            sites.map(|of| format!("{} {}", of["function"], of["where"])).collect();
        names.sort();
        names
    };
    let json = json(
        Command::new(KMEM).args(["dump", "--no-empty", "--json", "--allocinfo"]).arg(kernel()),
    );
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(names(&page).len(), rows.len());
    for row in rows.iter().take(20) {
        let function = row["function"].to_string();
        assert!(names(&page).iter().any(|name| name.starts_with(&function)), "{function}");
    }
    let dir = directory();
    let file = dir.path().join("rec");
    let mut record = Command::new(KMEM);
    record.args(["record", "--every", "1ms", "--for", "20ms", "-o"]).arg(&file);
    let output = record.arg("--allocinfo").arg(kernel()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let recorded = data_of(&said(&["report"], &file));
    assert_eq!(names(&recorded), names(&page));
}
