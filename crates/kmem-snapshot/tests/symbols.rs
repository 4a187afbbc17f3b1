//! Call sites of small programs, compiled here with the usual options.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_snapshot::Budget;
use kmem_snapshot::Process;
use kmem_snapshot::symbols::{Modules, Place, Symbols};
use kmem_testing::{Compiler, Coprocess, is_missing};

struct Program {
    process: Coprocess,
    addresses: HashMap<String, u64>,
}

impl Program {
    fn start(path: &Path) -> Self {
        let mut process = Coprocess::start(&mut Command::new(path));
        let mut addresses = HashMap::new();
        while let Some(line) = process.line() {
            let Some((name, address)) = line.split_once(' ') else {
                break;
            };
            addresses.insert(name.to_owned(), u64::from_str_radix(address, 16).unwrap());
        }
        Self { process, addresses }
    }

    fn modules(&self) -> Modules {
        let process = Process::open(self.process.pid()).unwrap();
        let addresses: Vec<u64> = self.addresses.values().copied().collect();
        Modules::open(&process, &process.maps().unwrap(), &addresses, &Budget::default())
    }

    fn place(&self, name: &str) -> Place {
        Symbols::new(&self.modules()).resolve(self.addresses[name])
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn compile(dir: &Path, compiler: &str, from: &str, to: &str, flags: &[&str]) -> PathBuf {
    Compiler::new(compiler).arg(source(from)).args(flags).compile(dir.join(to))
}

#[track_caller]
fn assert_place(place: &Place, function: &str, file: &str, line: u32) {
    assert_eq!(place.function.as_deref(), Some(function), "{place:?}");
    let (path, at) = place.source.clone().unwrap_or_default();
    assert!(path.ends_with(file) && at == line, "{place:?}");
}

#[test]
fn dwarf_in_executables_of_every_kind() {
    let dir = tempfile::tempdir().unwrap();
    for (i, flags) in [
        &["-g", "-O2"][..],
        &["-g", "-O0"],
        &["-g", "-O2", "-no-pie"],
        &["-g", "-O2", "-gz"],
        &["-gdwarf-4", "-O2"],
        &["-g", "-O2", "-static"],
        &["-g", "-O2", "-Wl,-z,noseparate-code"],
    ]
    .iter()
    .enumerate()
    {
        let path = compile(dir.path(), "cc", "sites.c", &format!("sites{i}"), flags);
        let program = Program::start(&path);
        assert_place(&program.place("in_static"), "in_static", "sites.c", 10);
        // The innermost frame is inlined and has no code of its own.
        assert_place(&program.place("outer"), "inlined", "sites.c", 16);
        assert!(program.place("outer").main);
    }
}

#[test]
fn shared_objects_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let library = compile(
        dir.path(),
        "cc",
        "sites.c",
        "libsites.so",
        &["-g", "-O2", "-shared", "-fPIC", "-DSHARED"],
    );
    let flags = ["-g", "-O2", "-DWITH_LIBRARY", library.to_str().unwrap()];
    let program = Program::start(&compile(dir.path(), "cc", "sites.c", "sites", &flags));
    let place = program.place("in_library");
    assert_place(&place, "in_library", "sites.c", 43);
    assert_eq!((place.module.as_str(), place.main), ("libsites.so", false));
}

#[test]
fn without_dwarf_the_symbol_table_speaks() {
    let dir = tempfile::tempdir().unwrap();
    let program = Program::start(&compile(dir.path(), "cc", "sites.c", "plain", &["-O2"]));
    let place = program.place("outer");
    assert_eq!((place.function.as_deref(), &place.source), (Some("outer"), &None));
    assert!(place.location().starts_with("plain+0x"), "{place:?}");

    // A stripped program keeps its dynamic symbols.
    let program = Program::start(&compile(
        dir.path(),
        "cc",
        "sites.c",
        "dynamic",
        &["-O2", "-s", "-rdynamic"],
    ));
    assert_eq!(program.place("outer").function.as_deref(), Some("outer"));

    let program = Program::start(&compile(dir.path(), "cc", "sites.c", "stripped", &["-O2", "-s"]));
    let place = program.place("outer");
    assert_eq!((&place.function, &place.source), (&None, &None));
    // The offset is the address for addr2line in the file before it was stripped.
    let program = Program::start(&compile(dir.path(), "cc", "sites.c", "whole", &["-g", "-O2"]));
    assert_eq!(program.place("outer").offset, place.offset);
}

#[test]
fn separate_debug_files_are_found_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = compile(dir.path(), "cc", "sites.c", "split", &["-g", "-O2"]);
    let debug = dir.path().join("split.debug");
    let objcopy = || Command::new("objcopy");
    run(objcopy().arg("--only-keep-debug").arg(&path).arg(&debug));
    run(objcopy().arg("--strip-all").arg(&path));
    run(objcopy().arg(format!("--add-gnu-debuglink={}", debug.display())).arg(&path));
    let program = Program::start(&path);
    assert_place(&program.place("outer"), "inlined", "sites.c", 16);
    // A different file of that name has a different checksum.
    std::fs::write(&debug, b"not it").unwrap();
    assert_eq!(program.place("outer").source, None);
}

#[test]
fn library_code_gives_way_to_its_caller() {
    if is_missing("c++") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (i, std) in ["-std=c++17", "-std=c++20"].iter().enumerate() {
        let path =
            compile(dir.path(), "c++", "library_code.cc", &format!("cc{i}"), &["-g", "-O2", std]);
        let program = Program::start(&path);
        // std::make_unique is inlined into the function, which holds the call.
        assert_place(&program.place("unique"), "app::Index::reserve", "library_code.cc", 24);
        // Library code that is not inlined names itself: its caller is unknown.
        let function = program.place("pushed").function.unwrap();
        assert!(function.starts_with("std::") || function == "app::Index::build", "{function}");
    }
    let path = compile(dir.path(), "c++", "library_code.cc", "plain", &["-O2"]);
    assert_eq!(
        Program::start(&path).place("unique").function.as_deref(),
        Some("app::Index::reserve")
    );
}

#[test]
fn symbols_outlive_the_process_and_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = compile(dir.path(), "cc", "sites.c", "gone", &["-g", "-O2"]);
    let program = Program::start(&path);
    let modules = program.modules();
    let address = program.addresses["outer"];
    std::fs::remove_file(&path).unwrap();
    drop(program);
    assert_place(&Symbols::new(&modules).resolve(address), "inlined", "sites.c", 16);
}

#[test]
fn a_file_that_was_replaced_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let path = compile(dir.path(), "cc", "sites.c", "replaced", &["-g", "-O2"]);
    let program = Program::start(&path);
    let other = compile(dir.path(), "cc", "sites.c", "other", &["-g", "-O0"]);
    std::fs::rename(other, &path).unwrap();
    let place = program.place("in_static");
    // Names are those of the mapped file, or none; never those of the new file.
    if place.source.is_some() {
        assert_place(&place, "in_static", "sites.c", 10);
    } else {
        assert_eq!(place.function, None);
    }
}

#[test]
fn code_made_at_run_time_and_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(&compile(dir.path(), "cc", "sites.c", "any", &["-g"]));
    let process = Process::open(program.process.pid()).unwrap();
    let maps = process.maps().unwrap();
    let stack = maps.all().iter().find(|m| m.path == "[stack]").unwrap();
    program.addresses.insert("stack".into(), stack.start + 0x101);
    program.addresses.insert("null".into(), 1);
    let map = format!("/tmp/perf-{}.map", program.process.pid());
    std::fs::write(&map, format!("{:x} 200 jit:f a.js:1\n", stack.start)).unwrap();
    let place = program.place("stack");
    let nowhere = program.place("null");
    std::fs::remove_file(&map).unwrap();
    assert_eq!(place.function.as_deref(), Some("jit:f a.js:1"));
    assert_eq!(nowhere.location(), "0x0");
}

#[test]
fn damaged_files_give_no_symbols_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = compile(dir.path(), "cc", "sites.c", "whole", &["-g", "-O2"]);
    let program = Program::start(&path);
    let bytes = std::fs::read(&path).unwrap();
    // Each round damages a copy at random places.
    let mut state = 1_u64;
    for _ in 0..60 {
        let copy = dir.path().join("copy");
        let mut damaged = bytes.clone();
        for _ in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The part that the loader needs stays intact.
            let at = 0x2000 + (state >> 33) as usize % (bytes.len() - 0x2000);
            damaged[at] = (state >> 20) as u8;
        }
        std::fs::write(&copy, &damaged).unwrap();
        let _ = kmem_snapshot::symbols::probe(&copy, program.addresses["outer"] & 0xffff);
    }
    for len in (0..bytes.len()).step_by(997) {
        let copy = dir.path().join("copy");
        std::fs::write(&copy, &bytes[..len]).unwrap();
        let _ = kmem_snapshot::symbols::probe(&copy, 0x1100);
    }
}
