//! Ways in which a program comes to an interpreter: environments, copies, embedding, forks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_testing::{Compiler, Coprocess, copy_program, not_run, this_test};

use super::program::{directory, text};
use super::{
    dump_of, has_all, has_all_and, is_newest, pyenv, pythons, rows, script, tell, told_by, under,
};

/// Checks that a command which runs `books.py` has exactly the lines that it tells.
#[track_caller]
fn has_books(command: &mut Command, python: &Path) {
    let (process, told) = tell(command);
    assert!(told.len() > 100, "{told:?}");
    has_all(&dump_of(process.pid()), &told, python);
}

/// Output of a command. `None`, and recorded, where it fails or cannot be started.
fn output_of(command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(output) if output.status.success() => return Some(text(&output.stdout)),
        Ok(output) => not_run(&this_test(), &format!("{command:?}: {}", output.status)),
        Err(error) => not_run(&this_test(), &format!("{command:?}: {error}")),
    }
    None
}

#[test]
fn a_virtual_environment_has_lines() {
    for python in pythons() {
        let dir = directory();
        let mut make = Command::new(&python);
        make.args(["-m", "venv", "--without-pip"]).arg(dir.path().join("venv"));
        if output_of(&mut make).is_none() {
            continue;
        }
        let mut command = under(&dir.path().join("venv/bin/python3"), "", dir.path());
        has_books(command.arg(script("books.py")), &python);
    }
}

/// A script of bash, which becomes another one, which becomes the interpreter.
#[test]
fn a_shim_of_pyenv_has_lines() {
    let shim = pyenv().join("shims/python3");
    let of_pyenv = |python: &PathBuf| shim.exists() && python.starts_with(pyenv());
    let Some(python) = pythons().into_iter().rfind(of_pyenv) else {
        not_run(&this_test(), "there is no pyenv with a shim and a version");
        return;
    };
    let version = python.ancestors().nth(2).and_then(Path::file_name).unwrap();
    let dir = directory();
    let mut command = under(&shim, "", dir.path());
    has_books(command.env("PYENV_VERSION", version).arg(script("books.py")), &python);
}

/// A directory with a program, its library and links to its modules, which are its own prefix.
#[test]
fn a_copy_in_another_directory_has_lines() {
    for python in pythons() {
        if is_newest(&python) {
            not_run(&this_test(), "Python 3.14 is not a program with a prefix of its own");
            continue;
        }
        let dir = directory();
        let program = fs::canonicalize(&python).unwrap();
        let [copy, bin, lib] = ["copy", "copy/bin", "copy/lib"].map(|name| dir.path().join(name));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir(&lib).unwrap();
        copy_program(&program, bin.join("python3"));
        let from = program.ancestors().nth(2).unwrap().join("lib");
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let name = entry.file_name();
            match name.to_str().unwrap() {
                name if name.starts_with("libpython") => {
                    fs::copy(entry.path(), lib.join(name)).unwrap();
                }
                name if name.starts_with("python3") => {
                    symlink(entry.path(), lib.join(name)).unwrap();
                }
                _ => {}
            }
        }
        let copied = bin.join("python3");
        let mut command = Command::new(&copied);
        command.env("LD_LIBRARY_PATH", &lib).args(["-c", "import sys; print(sys.prefix)"]);
        let prefix = output_of(&mut command).expect("a copy runs");
        assert_eq!(Path::new(prefix.trim_end()), copy);
        let mut command = under(&copied, "", dir.path());
        has_books(command.env("LD_LIBRARY_PATH", &lib).arg(script("books.py")), &python);
    }
}

/// Compiles a source of this directory with the flags of a Python.
fn embed(source: &str, flags: &str, more: &[&str], to: &Path) {
    // Libraries come after what needs them.
    Compiler::c().args(["-O1", "-g"]).args(more).arg(script(source)).args(words(flags)).compile(to);
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Checks that a command which runs `embedded.c` has lines of Python, and calls of C where no line
/// runs. A line that leads to a call in `module` has its name; a program's own calls have none.
#[track_caller]
fn has_books_and_calls(command: &mut Command, python: &Path, module: Option<&Path>) {
    let (process, told) = tell(command);
    let dump = dump_of(process.pid());
    // This interpreter is not the first one: lines of it may be the first to need something.
    has_all_and(2, &dump, &told, python);
    let held = |is_it: &dyn Fn(&serde_json::Value) -> bool| {
        rows(&dump).iter().filter(|row| is_it(row)).map(|row| row["calls"].as_i64().unwrap()).sum()
    };
    let calls: i64 = held(&|row| row["function"] == "keep_in_c");
    assert_eq!(calls, 100, "{}: {dump}", python.display());
    let name = module.map(|module| module.file_name().unwrap().to_str().unwrap());
    let calls: i64 = held(&|row| {
        let is_there =
            row["file"] == "<string>" && row["line"] == 2 && row["bytes"].as_i64() >= Some(512_000);
        is_there && row["module"].as_str() == name
    });
    assert!((100..=102).contains(&calls), "{}: {dump}", python.display());
}

#[test]
fn a_program_or_a_plugin_that_embeds_an_interpreter_has_lines() {
    for python in pythons() {
        let config = python.with_file_name("python3-config");
        let ask = |flag: &str| output_of(Command::new(&config).args([flag, "--embed"]));
        let (Some(include), Some(libraries)) = (ask("--includes"), ask("--ldflags")) else {
            continue;
        };
        let dir = directory();
        let flags = format!("{include} {libraries}");
        let [program, plugin, host] = ["embeds", "plugin.so", "host"].map(|it| dir.path().join(it));
        embed("embedded.c", &flags, &[], &program);
        embed("embedded.c", &flags, &["-DPLUGIN", "-shared", "-fPIC"], &plugin);
        Compiler::c().arg(script("loads.c")).arg("-ldl").compile(&host);
        let mut command = under(&program, "", dir.path());
        has_books_and_calls(command.arg(script("books.py")), &python, None);
        let mut command = under(&host, "", dir.path());
        has_books_and_calls(command.arg(&plugin).arg(script("books.py")), &python, Some(&plugin));
    }
}

/// The linker takes only the files of an archive that the program needs: not that of `python3`.
#[test]
fn a_program_with_the_interpreter_linked_into_it_has_lines() {
    // From 3.12 on, a linker changes the code that leads to the thread state.
    let ask = "import os, sys, sysconfig as s\n\
               sys.exit(0) if sys.version_info >= (3, 12) else None\n\
               v = s.get_config_var\n\
               print(os.path.join(v('LIBPL'), v('LIBRARY')))\n\
               print('-I' + s.get_path('include'), v('LINKFORSHARED'), v('LIBS'), v('MODLIBS'), \
               v('SYSLIBS'))";
    let mut has_run = false;
    for python in pythons() {
        let answer = output_of(Command::new(&python).args(["-c", ask])).expect("it runs");
        let Some((archive, flags)) = answer.split_once('\n') else { continue };
        let dir = directory();
        let program = dir.path().join("embeds");
        let compiler = Compiler::c().args(["-O1", "-g", "-w", "-no-pie"]);
        let compiler = compiler.arg(script("embedded.c")).arg(archive).args(words(flags));
        if !Path::new(archive).exists() || !compiler.can_compile(&program) {
            continue;
        }
        has_run = true;
        let mut command = under(&program, "", dir.path());
        command.env("PYTHONHOME", prefix_of(&python)).arg(script("books.py"));
        has_books_and_calls(&mut command, &python, None);
    }
    if !has_run {
        not_run(&this_test(), "no Python here can be linked into a program");
    }
}

/// Where an installation is.
fn prefix_of(python: &Path) -> PathBuf {
    python.ancestors().nth(2).unwrap().to_owned()
}

#[test]
fn workers_have_lines_of_their_own_and_of_the_process_that_they_are_forks_of() {
    for python in pythons() {
        for method in
            ["fork", "multiprocessing.fork", "multiprocessing.spawn", "multiprocessing.forkserver"]
        {
            let dir = directory();
            let mut command = under(&python, "", dir.path());
            let mut process = Coprocess::start(command.arg(script("workers.py")).arg(method));
            let mut lines = process.wait_for("ready");
            let worker: u32 = lines.pop().expect("a number").parse().unwrap();
            assert_ne!(worker, process.pid());
            let told = told_by(&lines);
            assert_eq!(told.len(), if method.ends_with("fork") { 2 } else { 1 }, "{method}");
            eprintln!("{method}");
            has_all(&dump_of(worker), &told, &python);
        }
    }
}

#[test]
fn interpreters_in_threads_that_run_at_once_have_lines() {
    for python in pythons() {
        let dir = directory();
        let (process, told) = tell(under(&python, "", dir.path()).arg(script("interpreters.py")));
        // Each interpreter may need something at the line.
        has_all_and(8, &dump_of(process.pid()), &told, &python);
    }
}
