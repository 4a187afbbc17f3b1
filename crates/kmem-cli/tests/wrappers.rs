//! Memory that comes through allocation wrappers is its callers', without any option.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod program;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_testing::{Compiler, is_missing, not_run, this_test};
use program::{KMEM, directory, library, text};
use tempfile::TempDir;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// The report of `kmem run` at the program's end: objects and first line of each function.
fn objects(program: &Path, options: &str) -> BTreeMap<String, u64> {
    objects_of(&[program.as_os_str()], options)
}

/// [`objects`] of a command.
fn objects_of(arguments: &[&OsStr], options: &str) -> BTreeMap<String, u64> {
    let mut command = Command::new(KMEM);
    command.args(["run", "--no-mmap", "-n", "50", "--library"]).arg(library());
    command.arg("--").args(arguments).env("KMEM_CONF", options).env_remove("LD_PRELOAD");
    let output = command.output().unwrap();
    let report = text(&output.stderr);
    assert!(output.status.success(), "{report}");
    let end = report.split("At exit").nth(1).unwrap_or_else(|| panic!("{report}"));
    let mut found = BTreeMap::new();
    for row in end.lines().skip(2).take_while(|line| !line.is_empty()) {
        // 1000.0 KiB      1000  orders    /tmp/a.c:8
        let words: Vec<&str> = row.split_whitespace().collect();
        if let [_, _, count, function, ..] = words[..]
            && let Ok(count) = count.parse::<u64>()
        {
            *found.entry(function.to_owned()).or_default() += count;
        }
    }
    assert!(!found.is_empty(), "{report}");
    found
}

fn is(found: &BTreeMap<String, u64>, expected: &[(&str, u64)]) {
    for (function, count) in expected {
        assert_eq!(found.get(*function), Some(count), "{function}: {found:?}");
    }
}

fn c_program(dir: &TempDir, name: &str, flags: &[&str]) -> PathBuf {
    let compiler = Compiler::c().args(["-O2", "-g", "-fno-optimize-sibling-calls"]).args(flags);
    compiler.arg(source(&format!("{name}.c"))).compile(dir.path().join(name))
}

#[test]
fn functions_that_pass_requests_on_do_not_hold_the_memory() {
    let dir = directory();
    let program = c_program(&dir, "wrappers", &[]);
    let found = objects(&program, "");
    is(&found, &[("by_strdup", 100), ("by_xmalloc", 200), ("pool_take", 300), ("by_line", 1)]);
    let through = ["xmalloc", "strdup", "__strdup", "getline", "_IO_getdelim"];
    assert!(through.iter().all(|name| !found.contains_key(*name)), "{found:?}");
}

#[test]
fn a_program_that_the_dynamic_linker_starts_as_its_argument_is_seen_through() {
    let dir = directory();
    let program = c_program(&dir, "wrappers", &[]);
    let linker = OsStr::new("/lib64/ld-linux-x86-64.so.2");
    let found = objects_of(&[linker, program.as_os_str()], "");
    is(&found, &[("by_strdup", 100), ("by_xmalloc", 200), ("pool_take", 300), ("by_line", 1)]);
    // The program may be told another name.
    let found = objects_of(&[linker, "--argv0".as_ref(), "x".as_ref(), program.as_os_str()], "");
    is(&found, &[("by_strdup", 100), ("by_xmalloc", 200)]);
}

#[test]
fn an_object_may_have_many_thousands_of_wrappers() {
    let dir = directory();
    const COUNT: usize = 6000;
    let mut code = "#include <stdlib.h>\n".to_owned();
    for n in 0..COUNT {
        code += &format!(
            "__attribute__((noipa)) void *xmalloc_{n}(size_t size) {{ \
             char *at = malloc(size); if (at) *at = 1; return at; }}\n"
        );
    }
    code += "void *kept[10];\n__attribute__((noipa)) void holder(void) {\n";
    for n in 0..10 {
        code += &format!("kept[{n}] = xmalloc_{}(100);\n", n * (COUNT - 1) / 9);
    }
    code += "}\nint main(void) { holder(); return 0; }\n";
    let source = dir.path().join("many.c");
    std::fs::write(&source, code).unwrap();
    let program = Compiler::c().arg("-O1").arg(source).compile(dir.path().join("many"));
    is(&objects(&program, ""), &[("holder", 10)]);
}

#[test]
fn functions_that_the_user_names_pass_requests_on() {
    let dir = directory();
    let program = c_program(&dir, "wrappers", &[]);
    let found = objects(&program, "skip:nothing+pool_*");
    is(&found, &[("by_pool", 300), ("by_xmalloc", 200)]);
    assert!(!found.contains_key("pool_take"), "{found:?}");
}

#[test]
fn depth_counts_from_the_caller_of_the_wrappers() {
    let dir = directory();
    let program = c_program(&dir, "wrappers", &[]);
    is(&objects(&program, "depth:2"), &[("by_xmalloc", 200), ("pool_take", 300)]);
}

#[test]
fn several_callers_of_what_holds_most_are_told_apart() {
    let dir = directory();
    let report = |flags: &[&str]| {
        let program = c_program(&dir, "several_callers", flags);
        let mut command = Command::new(KMEM);
        command.args(["run", "--no-mmap", "--library"]).arg(library()).arg("--").arg(program);
        let output = command.env_remove("KMEM_CONF").env_remove("LD_PRELOAD").output().unwrap();
        text(&output.stderr)
    };
    for through in [&[][..], &["-DWRAPPED"]] {
        let several = report(through);
        let rows: Vec<&str> = several.lines().skip_while(|l| !l.contains("node_new")).collect();
        // A row's callers are below it. The first calls may not be told apart.
        for (row, from) in rows[1..].iter().zip(["from parse_list ", "from parse_map "]) {
            assert!(row.contains(from), "{several}");
        }
        let one = report(&[through, &["-DONE"]].concat());
        assert!(one.contains("node_new") && !one.contains("from"), "{one}");
    }
}

#[test]
fn callers_of_a_function_that_makes_few_large_blocks_are_told_apart() {
    let dir = directory();
    let report = |flags: &[&str]| {
        let program = c_program(&dir, "large_blocks", flags);
        objects(&program, "")
    };
    for flags in [&[][..], &["-DWRAPPED"]] {
        let found = report(flags);
        // Rows of callers are below that of the function. A record begins the probe of its calls.
        is(&found, &[("block_new", 12)]);
        let callers = found.get("from").copied().unwrap_or_default();
        assert!((9..=12).contains(&callers), "{flags:?}: {found:?}");
    }
    let found = report(&["-DONE"]);
    assert!(found.get("block_new") == Some(&12) && !found.contains_key("from"), "{found:?}");
}

#[test]
fn without_names_the_c_library_still_passes_requests_on() {
    let dir = directory();
    let program = c_program(&dir, "wrappers", &["-s", "-g0"]);
    // All functions of the program are "?", and none is one of the C library.
    let found = objects(&program, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["?"], "{found:?}");
}

#[test]
fn templates_of_the_cxx_library_do_not_hold_the_memory() {
    if is_missing("c++") {
        return;
    }
    let dir = directory();
    for optimise in ["-O0", "-O2"] {
        let compiler = Compiler::cxx().args([optimise, "-g", "-std=c++17"]);
        let compiler = compiler.arg(source("wrappers.cc"));
        let program = compiler.compile(dir.path().join("wrappers"));
        let found = objects(&program, "");
        // The vector, its strings, and its array. The map, and its nodes.
        is(&found, &[("lines", 502), ("index", 701)]);
    }
}

#[test]
fn an_allocator_that_the_program_has_around_another_one_does_not_hold_the_memory() {
    if is_missing("rustc") {
        return;
    }
    let dir = directory();
    let program = dir.path().join("own_allocator");
    for flags in [
        ["-O", "-Cdebuginfo=2"],
        ["-O", "-Cdebuginfo=line-tables-only"],
        ["-O", "-Cdebuginfo=0"],
        ["-Copt-level=0", "-Cdebuginfo=line-tables-only"],
        ["-Clto=fat", "-Copt-level=3"],
    ] {
        let mut rustc = Command::new("rustc");
        rustc.args(flags).args(["--edition=2021", "-o"]).arg(&program);
        let output = rustc.arg(source("own_allocator.rs")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found = objects(&program, "");
        let lines = ["lines", "own_allocator::lines"].map(|name| found.get(name));
        // The texts and their array.
        assert!(lines.contains(&Some(&501)), "{flags:?}: {found:?}");
    }
}

#[test]
fn the_library_of_rust_does_not_hold_the_memory() {
    if is_missing("rustc") {
        return;
    }
    let dir = directory();
    let program = dir.path().join("wrappers");
    for optimise in [&["-O"][..], &["-Copt-level=0"], &["-O", "-Clto=fat"]] {
        let mut rustc = Command::new("rustc");
        rustc.args(optimise).args(["-g", "--edition=2021", "-o"]).arg(&program);
        let output = rustc.arg(source("wrappers.rs")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found = objects(&program, "");
        // The texts and their array. The boxes and the table.
        is(&found, &[("wrappers::lines", 501), ("wrappers::index", 701)]);
    }
}

/// The report of a program in C on a library: objects of each function. `header` is one of the
/// library's. `None`, and recorded, if the machine does not have it.
fn objects_on(library: &str, header: &str, flags: &[&str]) -> Option<BTreeMap<String, u64>> {
    let dir = directory();
    let empty = dir.path().join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }").unwrap();
    let with_header = Compiler::c().args(["-include", header]).arg(empty).args(flags);
    if !with_header.can_compile(dir.path().join("empty")) {
        not_run(&this_test(), &format!("{library} cannot be built against"));
        return None;
    }
    let source = source(&format!("libraries/{library}.c"));
    let compiler = Compiler::c().args(["-O2", "-g", "-fno-optimize-sibling-calls"]).arg(source);
    Some(objects(&compiler.args(flags).compile(dir.path().join(library)), ""))
}

/// Fails if a function that begins so holds memory.
#[track_caller]
fn none_begins(found: &BTreeMap<String, u64>, prefixes: &[&str]) {
    let through = |name: &&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
    assert_eq!(found.keys().find(through), None, "{found:?}");
}

#[test]
fn glib_does_not_hold_the_memory_that_it_passes_on() {
    if is_missing("pkg-config") {
        return;
    }
    let asked = Command::new("pkg-config").args(["--cflags", "--libs", "glib-2.0"]).output();
    let flags = text(&asked.unwrap().stdout);
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let Some(found) = objects_on("glib", "glib.h", &flags) else { return };
    is(&found, &[("by_malloc", 1000), ("by_realloc", 900), ("by_copy", 800), ("by_print", 700)]);
    none_begins(&found, &["g_"]);
}

#[test]
fn libcrypto_does_not_hold_the_memory_that_it_passes_on() {
    let Some(found) = objects_on("crypto", "openssl/crypto.h", &["-lcrypto"]) else { return };
    is(&found, &[("by_malloc", 1000), ("by_realloc", 900), ("by_copy", 800)]);
    none_begins(&found, &["CRYPTO_"]);
}

// Debian's shared libraries of SQLite and Lua do not name the functions that they do not export.

#[test]
fn sqlites_allocators_do_not_hold_the_memory() {
    let flags = ["-l:libsqlite3.a", "-lm"];
    let Some(found) = objects_on("sqlite", "sqlite3.h", &flags) else { return };
    is(&found, &[("by_malloc", 1000), ("by_print", 900), ("sqlite3VdbeCreate", 500)]);
    none_begins(&found, &["sqlite3_m", "sqlite3_realloc", "sqlite3M", "sqlite3Db", "dbMalloc"]);
    none_begins(&found, &["sqlite3StrAccum", "sqlite3_str", "pcache1Alloc"]);
}

#[test]
fn luas_allocators_do_not_hold_the_memory() {
    let flags = ["-I/usr/include/lua5.4", "-l:liblua5.4.a", "-lm"];
    let Some(found) = objects_on("lua", "lua.h", &flags) else { return };
    // The objects, and the table that they are in. A table has an array beside it.
    is(&found, &[("by_userdata", 1002), ("by_text", 902), ("by_table", 1602)]);
    assert!(found.get("luaV_execute") >= Some(&10_000), "{found:?}");
    none_begins(&found, &["l_alloc", "luaM_", "luaC_", "luaH_", "luaS_", "lua_newuserdata"]);
}
