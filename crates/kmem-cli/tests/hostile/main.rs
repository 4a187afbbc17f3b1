//! Targets that would take any amount of memory and time. The command ends in bounded memory, shows
//! what is sound, and says what it left out.

mod elf;
#[path = "../../../kmem-snapshot/tests/fake/mod.rs"]
mod fake;
#[path = "../../../kmem-snapshot/tests/fake_box/mod.rs"]
mod fake_box;
#[path = "../program/mod.rs"]
mod program;
mod terminal;

use std::path::Path;

use elf::{Elf, RANGES};
use fake::Target;
use fake_box::{CALLER, FakeBox};
use kmem_testing::{Compiler, Outcome, Run};
use program::{KMEM, Program, directory, preload};
use serde_json::Value;

/// Most address space of the command, in KiB: the budget of a reading, and the command itself.
const MOST: u32 = 3 << 20;

/// Most time of a CPU for the command, in seconds. Other work on the machine does not count.
const LONGEST: u32 = 20;

/// Runs the command in bounded memory and time. It succeeds.
#[track_caller]
fn kmem(args: &[&str]) -> Outcome {
    let limited = format!("ulimit -v {MOST}; ulimit -t {LONGEST}; exec \"$@\"");
    let run = Run::new("/bin/sh").without_preload().args(&["-c", &limited, "sh", KMEM]);
    let outcome = run.args(args).run();
    outcome.assert_success();
    outcome
}

/// Live bytes and objects by tag, as JSON has them.
fn rows(out: &str) -> Vec<(u32, i64, u64)> {
    let json: Value = serde_json::from_str(out).unwrap();
    let of = |row: &Value| {
        let tag = row["tags"][0].as_u64().unwrap() as u32;
        (tag, row["bytes"].as_i64().unwrap(), row["calls"].as_u64().unwrap())
    };
    json["rows"].as_array().unwrap().iter().map(of).collect()
}

/// Sum of the live bytes of a process made by hand.
fn bytes(target: &Target) -> i64 {
    target.totals.values().map(|of| of.0).sum()
}

#[test]
fn planted_root_blocks_neither_add_up_nor_take_all_memory() {
    let target = Target::start("planted");
    let pid = target.pid().to_string();
    let outcome = kmem(&["dump", "--no-mmap", "--json", "-p", &pid]);
    // The root block of the library is older than any that the program plants.
    let sum: i64 = rows(&outcome.stdout).iter().map(|row| row.1).sum();
    assert_eq!(sum, bytes(&target), "{}", outcome.story());
    let json: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let notes: Vec<&str> =
        json["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    let said = &outcome.stderr;
    for what in ["its zone at 0x", "more root blocks cannot be followed", "copies of kmem in"] {
        assert!(said.contains(what), "{said}");
        assert!(notes.iter().any(|note| note.contains(what)), "{notes:?}");
    }
    assert!(said.lines().count() < 40, "{said}");
    let outcome = kmem(&["buddyinfo", "-p", &pid]);
    assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.story());
}

#[test]
fn a_vast_zone_that_was_never_touched_takes_no_time() {
    let target = Target::start("zone-vast");
    let pid = target.pid().to_string();
    for args in
        [&["dump", "--no-mmap", "--json"][..], &["top", "--once"], &["slabinfo"], &["buddyinfo"]]
    {
        let outcome = kmem(&[args, &["-p", &pid]].concat());
        if args.contains(&"--json") {
            let sum: i64 = rows(&outcome.stdout).iter().map(|row| row.1).sum();
            assert_eq!(sum, bytes(&target));
        }
    }
}

/// Dumps a black box whose executable is a hostile file. Its row is there, whatever the file does.
fn dump_named_by(path: &Path) -> Outcome {
    let fake = FakeBox::new(64, 0);
    fake.put_record(1, &[(CALLER, 7000, 7)], (10_000, 20));
    let path = path.to_str().unwrap();
    let (box_path, exe) = (fake.path().to_str().unwrap(), path);
    let outcome = kmem(&["dump", "--no-mmap", "--json", "--blackbox", box_path, "--exe", exe]);
    let rows = rows(&outcome.stdout);
    assert_eq!(rows[0], (CALLER, 7000, 7), "{}", outcome.story());
    assert_eq!(rows[1].1, 3000);
    outcome
}

#[test]
fn sections_that_expand_without_bound_are_left_out_and_told() {
    let dir = directory();
    let path = dir.path().join("bombs");
    Elf::bombs(400 << 20).write(&path);
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
    let outcome = dump_named_by(&path);
    let said = "its names are above the budget of a reading, 2.0 GiB of memory";
    assert!(outcome.stderr.contains(said), "{}", outcome.story());
}

#[test]
fn sparse_sections_are_left_out_and_told() {
    let dir = directory();
    let path = dir.path().join("sparse");
    Elf::sparse(1 << 30).write(&path);
    let outcome = dump_named_by(&path);
    let said = "its names are above the budget of a reading, 2.0 GiB of memory";
    assert!(outcome.stderr.contains(said), "{}", outcome.story());
}

#[test]
fn any_number_of_symbols_with_one_long_name_takes_no_time() {
    let dir = directory();
    let path = dir.path().join("symbols");
    // More than the test program has bytes of code.
    Elf::symbols(1 << 21).write(&path);
    let outcome = dump_named_by(&path);
    assert!(outcome.stdout.contains(&"f".repeat(3999)), "{}", outcome.story());
    assert!(!outcome.stdout.contains(&"f".repeat(4000)), "{}", outcome.story());
}

#[test]
fn units_that_share_one_list_of_ranges_cost_no_names_of_other_files() {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(
        path("plugin.c"),
        "#include <stdlib.h>\nvoid *plugin(void) { return malloc(3000); }\n",
    )
    .unwrap();
    std::fs::write(
        path("host.c"),
        "#include <dlfcn.h>\n#include <stdlib.h>\n#include <unistd.h>\nvoid *volatile kept[2];\n\
         __attribute__((noinline)) static void own(void) { kept[0] = malloc(5000); }\n\
         int main(int argc, char **argv) {\n\
         void *(*of)(void) = dlsym(dlopen(argv[argc - 1], RTLD_NOW), \"plugin\");\n\
         kept[1] = of(); own(); write(1, \"ready\\n\", 6); return read(0, kept, 1) < 0; }\n",
    )
    .unwrap();
    let plugin = Compiler::c().args(["-O1", "-shared", "-fPIC"]).arg(path("plugin.c"));
    let plugin = plugin.compile(path("plugin.so"));
    let mut objcopy = std::process::Command::new("objcopy");
    for (name, contents) in elf::shared_ranges(RANGES) {
        let file = path(name.trim_start_matches('.'));
        std::fs::write(&file, contents).unwrap();
        objcopy.arg("--add-section").arg(format!("{name}={}", file.display()));
    }
    assert!(objcopy.arg(&plugin).status().unwrap().success());
    let host = Compiler::c().args(["-g", "-O1"]).arg(path("host.c")).compile(path("host"));
    let mut command = std::process::Command::new(host);
    command.arg(&plugin);
    preload(&mut command, "", dir.path());
    let program = Program::run(command, dir);
    let outcome = kmem(&["dump", "--no-mmap", "-p", &program.pid().to_string()]);
    let out = &outcome.stdout;
    assert!(out.contains("host.c:5 func:own "), "{}", outcome.story());
    // The symbol table still names it.
    assert!(out.contains(" [plugin.so] func:plugin "), "{}", outcome.story());
    let said = "plugin.so: its names are above the budget of a reading";
    assert!(outcome.stderr.contains(said), "{}", outcome.story());
}
