//! Lines of Python as call sites, with every CPython on this machine that kmem knows.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../program/mod.rs"]
mod program;

mod kinds;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kmem_testing::{Compiler, Coprocess, Run, not_run};
use program::{KMEM, Program, directory, json, library, text};
use serde_json::Value;

/// The system's Python.
const SYSTEM: &str = "/usr/bin/python3";

/// Directory of pyenv.
fn pyenv() -> PathBuf {
    Path::new(&std::env::var("HOME").unwrap_or_default()).join(".pyenv")
}

/// A Python that is newer than those of pyenv: `scripts/install-test-tools.sh` unpacks it.
const NEWEST: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-tools/python3.14/bin/python3");

/// The system's Python, those that pyenv has built, and the newest. An absent version is recorded.
fn pythons() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from(SYSTEM)];
    for minor in 8..=13 {
        let versions = std::fs::read_dir(pyenv().join("versions"));
        let names = versions.into_iter().flatten().map(|entry| entry.unwrap().path());
        let prefix = format!("3.{minor}.");
        let before = found.len();
        found.extend(names.filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let python = path.join("bin/python3");
            (name.starts_with(&prefix) && python.exists()).then_some(python)
        }));
        if found.len() == before {
            not_run(&format!("tests of Python 3.{minor}"), "pyenv has no such version");
        }
    }
    match std::fs::canonicalize(NEWEST) {
        Ok(newest) => found.push(newest),
        Err(_) => not_run("tests of Python 3.14", "scripts/newest-python.sh has not unpacked it"),
    }
    eprintln!("with {found:?}");
    found
}

/// Returns whether a Python is that of [`NEWEST`]. A script of the shell runs its program.
fn is_newest(python: &Path) -> bool {
    std::fs::canonicalize(NEWEST).is_ok_and(|newest| newest == python)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}

/// A command under the library, with objects that are kmem's own.
fn under(python: &Path, conf: &str, dir: &Path) -> Command {
    let mut command = Command::new(python);
    program::preload(&mut command, conf, dir);
    command.env("PYTHONMALLOC", "malloc").current_dir(dir);
    command
}

/// Bytes, objects, line, function and file of the lines that `books.py` tells.
type Told = (i64, i64, i64, String, String);

/// Starts `books.py`. Returns the lines that it tells, too.
fn books(python: &Path, conf: &str) -> (Coprocess, tempfile::TempDir, Vec<Told>) {
    let dir = directory();
    let mut command = under(python, conf, dir.path());
    let (process, told) = tell(command.arg(script("books.py")));
    assert!(told.len() > 100, "{told:?}");
    (process, dir, told)
}

/// Starts a command. Returns the lines that it tells, too.
#[track_caller]
fn tell(command: &mut Command) -> (Coprocess, Vec<Told>) {
    let mut process = Coprocess::start(command);
    let told = told_by(&process.wait_for("ready"));
    (process, told)
}

fn told_by(lines: &[String]) -> Vec<Told> {
    let told = lines.iter().map(|line| {
        let words: Vec<&str> = line.split('\t').collect();
        let [bytes, objects, number, function, file] = words[..] else { panic!("{line}") };
        let number_of = |text: &str| text.parse().unwrap();
        let (function, file) = (function.to_owned(), file.to_owned());
        (number_of(bytes), number_of(objects), number_of(number), function, file)
    });
    told.collect()
}

fn dump_of(pid: u32) -> Value {
    json(Command::new(KMEM).args(["dump", "--json", "-p", &pid.to_string()]))
}

/// The dump of a program that says when it is ready, and then waits.
fn dump_of_program(python: &Path, program: &str) -> Value {
    let dir = directory();
    let file = dir.path().join("app.py");
    std::fs::write(&file, program).unwrap();
    let mut process = Coprocess::start(under(python, "", dir.path()).arg(&file));
    process.wait_for("ready");
    dump_of(process.pid())
}

fn rows(dump: &Value) -> &[Value] {
    dump["rows"].as_array().unwrap()
}

/// Checks that a dump has exactly the memory of each line that was told.
#[track_caller]
fn has_all(dump: &Value, told: &[Told], python: &Path) {
    has_all_and(0, dump, told, python);
}

/// [`has_all`], where each line may hold some objects more.
#[track_caller]
fn has_all_and(more: i64, dump: &Value, told: &[Told], python: &Path) {
    for (bytes, objects, line, function, file) in told {
        let found: Vec<_> = rows(dump)
            .iter()
            .filter(|row| {
                row["line"] == *line && row["file"] == **file && row["function"] == **function
            })
            .map(|row| (row["bytes"].as_i64().unwrap(), row["calls"].as_i64().unwrap()))
            .collect();
        // In an interpreter that is new, a line may be the first to need something of it.
        let is_new = file == "<string>" || file == "<script>";
        let more = if is_new { more.max(2) } else { more };
        let [(held, count)] = found[..] else {
            panic!("{found:?} of {line}, {}", python.display())
        };
        if (1..=more).contains(&(count - objects)) && held - bytes < 4096 {
            continue;
        }
        assert_eq!(found, [(*bytes, *objects)], "{file}:{line} {function}, {}", python.display());
    }
}

#[test]
fn lines_hold_exactly_what_the_program_knows() {
    for python in pythons() {
        let (process, _dir, told) = books(&python, "");
        has_all(&dump_of(process.pid()), &told, &python);
    }
}

#[test]
fn lines_agree_with_tracemalloc() {
    for python in pythons() {
        let dir = directory();
        let sizes = dir.path().join("sizes");
        let mut trace = Command::new(&python);
        trace.env("PYTHONMALLOC", "malloc").env("PYTHONHASHSEED", "0");
        let done = trace.arg(script("traced.py")).arg("trace").arg(&sizes).status().unwrap();
        assert!(done.success(), "{}", python.display());
        let mut command = under(&python, "", dir.path());
        command.env("PYTHONHASHSEED", "0").arg(script("traced.py")).arg("books").arg(&sizes);
        let (process, told) = tell(&mut command);
        let dump = dump_of(process.pid());
        let (of_lists, exact): (Vec<_>, Vec<_>) = told.into_iter().partition(|it| it.3 == "reuse");
        assert_eq!((exact.len(), of_lists.len()), (6, 2), "{}", python.display());
        // From 3.14 on whole numbers are in such a list, too, of 100 at most.
        let more = if is_newest(&python) { 100 } else { 0 };
        has_all_and(more, &dump, &exact, &python);
        for (bytes, objects, line, function, _) in of_lists {
            let row = rows(&dump)
                .iter()
                .find(|row| row["line"] == line && row["function"] == *function)
                .expect("a row");
            let more = objects - row["calls"].as_i64().unwrap();
            // The longest such list.
            assert!(more.abs() <= 80, "{row}, not {objects}");
            let more = bytes - row["bytes"].as_i64().unwrap();
            assert!(more.abs() <= 80 * 256, "{row}, not {bytes}");
        }
    }
}

#[test]
fn lines_hold_the_same_while_calls_are_watched() {
    let python = PathBuf::from(SYSTEM);
    for conf in ["cumulative:1,blackbox:DIR/box", "debug:1", "init_on_alloc:1"] {
        let (process, _dir, told) = books(&python, conf);
        has_all(&dump_of(process.pid()), &told, &python);
    }
}

#[test]
fn code_in_arenas_of_the_interpreter_is_known_again_without_the_kernel_and_not_confused() {
    for python in pythons() {
        let dir = directory();
        let mut command = under(&python, "", dir.path());
        command.env("PYTHONMALLOC", "pymalloc").arg(script("arenas.py"));
        let mut process = Coprocess::start(&mut command);
        process.wait_for("ready");
        let dump = dump_of(process.pid());
        let calls = |function: &str, file: &str| {
            let named = |row: &&Value| {
                row["function"] == function && row["file"].as_str().is_some_and(|at| at == file)
            };
            rows(&dump).iter().filter(named).map(|row| row["calls"].as_i64().unwrap()).sum::<i64>()
        };
        for number in 0..200 {
            let file = format!("<page {number:03}>");
            assert_eq!(calls("make", &file), 1, "{file}, {}: {dump}", python.display());
        }
        let file = script("arenas.py").display().to_string();
        assert_eq!(calls("fill", &file), 1000, "{}: {dump}", python.display());
    }
}

#[test]
fn an_exception_at_the_limit_of_a_group_can_be_handled() {
    for python in pythons() {
        // Handlers of earlier versions ask for nothing.
        let new = "import sys; sys.exit(sys.version_info < (3, 11))";
        if !Command::new(&python).args(["-c", new]).status().unwrap().success() {
            continue;
        }
        let run = Run::new(&python).arg(script("limit.py")).env("PYTHONMALLOC", "malloc");
        let outcome = run.within(Duration::from_secs(60)).run();
        assert_eq!(outcome.assert_success().stdout, "4\n", "{}", python.display());
    }
}

#[test]
fn a_core_names_the_lines() {
    for python in pythons() {
        let dir = directory();
        let mut command = under(&python, "", dir.path());
        command.arg(script("books.py"));
        let mut process = Program::run(command, dir);
        let Some(core) = process.die(b'a') else { return };
        let dump = json(Command::new(KMEM).args(["dump", "--json", "--core"]).arg(core));
        let has = |function: &str| rows(&dump).iter().any(|row| row["function"] == function);
        assert!(has("zeroes") && has("numbers") && has("work"), "{dump}");
    }
}

#[test]
fn the_black_box_of_a_killed_process_names_the_lines() {
    for python in pythons() {
        let (mut process, dir, told) = books(&python, "blackbox:DIR/box");
        let status = process.kill();
        assert!(status.to_string().contains("SIGKILL"), "{status}");
        let dump = json(
            Command::new(KMEM).args(["dump", "--json", "--blackbox"]).arg(dir.path().join("box")),
        );
        let (bytes, _, line, _, file) = &told[3];
        let row = rows(&dump).iter().find(|row| row["function"] == "work").expect("a row");
        assert!(row["line"] == *line && row["file"] == **file, "{row}");
        // The last record comes before some of the program's last allocations.
        assert!(row["bytes"].as_i64().unwrap() > bytes / 2, "{row}");
    }
}

#[test]
fn frames_that_make_no_sense_cost_a_name_and_not_the_process() {
    let dir = directory();
    let module = dir.path().join("torment.so");
    Compiler::c().args(["-O1", "-shared", "-fPIC"]).arg(script("torment.c")).compile(&module);
    for python in pythons() {
        let mut command = under(&python, "", dir.path());
        command.arg(script("torment.py")).arg(&module);
        let mut process = Coprocess::start(&mut command);
        let told = process.wait_for("ready");
        let count: u32 = told.last().expect("a count").parse().unwrap();
        assert!(count > 5000, "{count} of {}", python.display());
    }
}

/// A dump of a program that allocates in its own code, and says to be a CPython of a version.
fn dump_of_interpreter(version: &str) -> (String, String) {
    let dir = directory();
    let source = format!(
        "#include <stdlib.h>\n#include <stdio.h>\n\
         unsigned long _PyRuntime[1000], PyCode_Type[100];\n\
         const unsigned long Py_Version = {version};\n\
         int Py_InitializeFromConfig(void) {{ return 0; }}\n\
         void *Py_NewRef(void *it) {{ return it; }}\n\
         void *kept[100];\n\
         void __attribute__((noinline)) hold(void) {{\n\
         for (int i = 0; i < 100; i++) kept[i] = malloc(100); }}\n\
         int main(void) {{ hold(); puts(\"ready\"); fflush(stdout); getchar(); return 0; }}\n"
    );
    let file = dir.path().join("interpreter.c");
    std::fs::write(&file, source).unwrap();
    let path =
        Compiler::c().args(["-g", "-O1", "-rdynamic"]).arg(file).compile(dir.path().join("it"));
    let mut command = Command::new(path);
    program::preload(&mut command, "", dir.path());
    let errors = dir.path().join("errors");
    command.stderr(Stdio::from(std::fs::File::create(&errors).unwrap()));
    let mut process = Coprocess::start(&mut command);
    process.wait_for("ready");
    let output = Command::new(KMEM).args(["dump", "-p", &process.pid().to_string()]).output();
    (text(&output.unwrap().stdout), std::fs::read_to_string(errors).unwrap())
}

#[test]
fn a_version_that_is_not_known_has_call_sites_of_c_and_a_line_says_why() {
    for version in ["0x030f00f0", "0x030d00a1", "0x040000f0", "0", "0x030d00f0", "0x030e00f0"] {
        let (dump, errors) = dump_of_interpreter(version);
        assert!(dump.contains(" func:hold "), "{version}: {dump}");
        let said = "kmem: python: lines are not named: ";
        assert!(errors.starts_with(said) && errors.lines().count() == 1, "{version}: {errors}");
    }
    // Without a thread that holds the interpreter.
    let (dump, errors) = dump_of_interpreter("0x030b02f0");
    assert!(dump.contains(" func:hold ") && errors.is_empty(), "{errors}");
}

#[test]
fn what_the_interpreter_calls_in_a_library_has_its_line_and_the_librarys_name() {
    let program = "import sys, zlib\n\nheld = [zlib.compressobj() for _ in range(50)]\n\
        print('ready', flush=True)\nsys.stdin.read(1)\n";
    for (variable, has_arenas) in [("malloc", false), ("pymalloc", true)] {
        let dir = directory();
        let file = dir.path().join("app.py");
        std::fs::write(&file, program).unwrap();
        let mut command = under(Path::new(SYSTEM), "", dir.path());
        command.arg(&file).env("PYTHONMALLOC", variable);
        let mut process = Coprocess::start(&mut command);
        process.wait_for("ready");
        let dump = dump_of(process.pid());
        let row = rows(&dump)
            .iter()
            .find(|row| {
                row["line"] == 3 && row["module"].as_str().is_some_and(|m| m.contains("libz"))
            })
            .unwrap_or_else(|| panic!("{dump}"));
        assert!(row["bytes"].as_i64().unwrap() > 50 * 200_000, "{row}");
        assert_eq!(row["file"], file.to_str().unwrap());
        // Arenas hold objects of many lines, so they are of none.
        let arenas = text(
            &Command::new(KMEM)
                .args(["dump", "-p", &process.pid().to_string()])
                .output()
                .unwrap()
                .stdout,
        );
        assert_eq!(arenas.contains("(pymalloc\\040arenas)"), has_arenas, "{arenas}");
    }
}

/// One call of C maps for several lines, as that in the allocator of a library does.
#[test]
fn each_line_has_what_it_lets_a_library_map() {
    let program = "import ctypes, sys\n\
        libc = ctypes.PyDLL(None)\n\
        kinds = ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long\n\
        libc.mmap.argtypes, libc.mmap.restype = kinds, ctypes.c_void_p\n\
        args = 0, 4 << 20, 3, 0x22, -1, 0\n\
        one = libc.mmap(*args)\n\
        for _ in range(3):\n  libc.mmap(*args)\n\
        print('ready', flush=True)\nsys.stdin.read(1)\n";
    for python in pythons() {
        let dump = dump_of_program(&python, program);
        for (line, mapped) in [(6, 4_i64 << 20), (8, 12 << 20)] {
            let of_line = |row: &&Value| row["line"] == line && row["kind"] == "mapping";
            let sum: i64 =
                rows(&dump).iter().filter(of_line).filter_map(|row| row["mapped"].as_i64()).sum();
            assert_eq!(sum, mapped, "{}: line {line}: {dump}", python.display());
        }
    }
}

/// As in `numpy.zeros`, which asks for its memory while others run lines.
#[test]
fn a_thread_that_has_let_the_interpreter_go_has_the_line_that_it_stays_in() {
    let program = "import ctypes, sys, threading\n\
        libc = ctypes.CDLL(None)\n\
        def let_go():\n  for _ in range(100):\n    libc.malloc(ctypes.c_size_t(5000))\n\
        threads = [threading.Thread(target=let_go) for _ in range(4)]\n\
        [thread.start() for thread in threads]\n\
        while any(thread.is_alive() for thread in threads): pass\n\
        let_go()\n\
        print('ready', flush=True)\nsys.stdin.read(1)\n";
    for python in pythons() {
        let dump = dump_of_program(&python, program);
        let is_told = |row: &&Value| {
            let is_held = row["calls"] == 500 && row["bytes"] == 500 * 5120;
            is_held && row["line"] == 5 && row["function"] == "let_go"
        };
        assert_eq!(rows(&dump).iter().filter(is_told).count(), 1, "{}: {dump}", python.display());
    }
}

#[test]
fn the_option_off_leaves_call_sites_of_c() {
    let (process, _dir, _) = books(Path::new(SYSTEM), "python:off");
    let dump = dump_of(process.pid());
    assert!(!rows(&dump).iter().any(|row| row["function"] == "zeroes"), "{dump}");
}

#[test]
fn run_takes_the_objects_from_the_interpreters_own_allocator() {
    let run = |variable: Option<&str>, options: &[&str]| {
        let mut command = Command::new(KMEM);
        command.arg("run").args(options).arg("--library").arg(library());
        command.args(["--", SYSTEM, "-c"]);
        command.arg("import os; print(os.environ.get('PYTHONMALLOC'))");
        command.env_remove("LD_PRELOAD").env_remove("KMEM_CONF").env_remove("PYTHONMALLOC");
        if let Some(value) = variable {
            command.env("PYTHONMALLOC", value);
        }
        text(&command.output().unwrap().stdout)
    };
    assert_eq!(run(None, &[]), "malloc\n");
    assert_eq!(run(Some("pymalloc"), &[]), "pymalloc\n");
    assert_eq!(run(None, &["--python", "off"]), "None\n");
}

#[test]
fn arenas_are_reported_with_what_shows_their_objects() {
    let script = "small = [{str(i): i} for i in range(50000)]\n\
        print('ready', flush=True)\n\
        import sys; sys.stdin.read(1)\n";
    for python in pythons() {
        let dir = directory();
        let mut run = Command::new(KMEM);
        run.arg("run").arg("--library").arg(library()).arg("--").arg(&python).args(["-c", script]);
        run.env_remove("KMEM_CONF").env_remove("LD_PRELOAD").stdin(Stdio::null());
        let advice = " are arenas of Python, whose objects are not in the books; run it with \
                      PYTHONMALLOC=malloc";
        let report = |run: &mut Command| text(&run.output().unwrap().stderr);
        let with_arenas = report(run.env("PYTHONMALLOC", "pymalloc"));
        assert!(with_arenas.contains(advice), "{}: {with_arenas}", python.display());
        let with_malloc = report(run.env_remove("PYTHONMALLOC"));
        assert!(!with_malloc.contains(advice), "{}: {with_malloc}", python.display());
        let mut command = under(&python, "", dir.path());
        command.env("PYTHONMALLOC", "pymalloc").args(["-c", script]);
        let program = Program::run(command, dir);
        let said = text(&program.kmem(&["dump"]).stderr);
        assert!(said.contains(advice), "{}: {said}", python.display());
    }
}
