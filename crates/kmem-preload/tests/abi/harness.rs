//! The programs of `tests/programs`, and the configurations that they run in.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub(crate) use kmem_testing::library::{
    is_not_kmem, is_reference_run, released as released_library, under_test as library,
};
use kmem_testing::{Compiler, compile_once, is_missing};
pub(crate) use kmem_testing::{Environment, Outcome, Run, SIGABRT, SIGBUS, SIGSEGV, thorough};

/// Configurations under which every legitimate program must work.
pub(crate) const CONFIGURATIONS: &[(&str, Environment)] = &[
    ("default", &[]),
    ("rseq off by KMEM_CONF", &[("KMEM_CONF", "rseq:off")]),
    ("rseq off by glibc", &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]),
    ("profiling off", &[("KMEM_CONF", "mem_profiling:0")]),
    ("profiling never", &[("KMEM_CONF", "mem_profiling:never")]),
    ("hardened", &[("KMEM_CONF", "hardened")]),
    ("guard", &[("KMEM_CONF", "guard")]),
];

/// [`CONFIGURATIONS`] in which a small block takes little time and memory.
pub(crate) const LIGHT_CONFIGURATIONS: &[(&str, Environment)] = CONFIGURATIONS.split_at(6).0;

/// [`CONFIGURATIONS`] in which memory of one interface may be freed by another.
pub(crate) const MIXED_CONFIGURATIONS: &[(&str, Environment)] = &[
    CONFIGURATIONS[0],
    CONFIGURATIONS[1],
    CONFIGURATIONS[2],
    CONFIGURATIONS[3],
    CONFIGURATIONS[4],
    ("hardened", &[("KMEM_CONF", "hardened,check_interfaces:0")]),
    ("guard", &[("KMEM_CONF", "guard,check_interfaces:0")]),
];

/// Configurations in which a wrong free must be recognised, and sizes are those of the default.
pub(crate) const CHECKED_CONFIGURATIONS: &[(&str, Environment)] = &[
    CONFIGURATIONS[0],
    CONFIGURATIONS[1],
    CONFIGURATIONS[2],
    ("quarantine", &[("KMEM_CONF", "quarantine_kb:256,check_caches:1")]),
];

/// Compiles `source` of `tests/programs` with extra arguments, once per process.
#[track_caller]
fn compile(source: &str, output: &str, extra: &[OsString]) -> PathBuf {
    compile_once(output, |path| {
        let is_cxx = source.ends_with(".cc");
        let compiler = if is_cxx { Compiler::cxx().arg("-std=c++17") } else { Compiler::c() };
        compiler
            .args(["-O1", "-g", "-w", "-fno-builtin", "-pthread", "-Wl,-z,now"])
            .include()
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source))
            .args(extra)
            .compile(path);
    })
}

/// True, and recorded, when the machine has no C++ compiler.
pub(crate) fn no_cxx() -> bool {
    is_missing("c++")
}

/// The compiled program of a source file.
pub(crate) fn program(source: &str) -> PathBuf {
    compile(source, source.split('.').next().expect("a name"), &[])
}

/// The compiled program of a source file, with further options of the compiler.
pub(crate) fn program_with_options(source: &str, output: &str, options: &[&str]) -> PathBuf {
    compile(source, output, &options.iter().map(OsString::from).collect::<Vec<_>>())
}

/// The compiled program of a source file, linked against libraries given by path, which are found
/// again at run time.
pub(crate) fn program_with_libraries(source: &str, output: &str, libraries: &[&Path]) -> PathBuf {
    program_linked(source, output, &[], libraries)
}

/// The compiled program, with further options of the compiler, linked against libraries.
pub(crate) fn program_linked(
    source: &str,
    output: &str,
    options: &[&str],
    libraries: &[&Path],
) -> PathBuf {
    let mut extra: Vec<_> = options.iter().map(OsString::from).collect();
    extra.extend(link_options(libraries));
    compile(source, output, &extra)
}

/// Options that link a program against libraries, and let it find them when it runs.
pub(crate) fn link_options(libraries: &[&Path]) -> Vec<OsString> {
    let mut options = vec!["-Wl,--no-as-needed".into()];
    for library in libraries {
        let mut run_path = OsString::from("-Wl,-rpath,");
        run_path.push(library.parent().expect("a library is in a directory"));
        options.extend([library.as_os_str().to_owned(), run_path]);
    }
    options
}

/// The shared library of a source file.
pub(crate) fn shared_library(source: &str) -> PathBuf {
    let name = source.split('.').next().expect("a name");
    compile(source, &format!("lib{name}.so"), &["-shared".into(), "-fPIC".into()])
}

/// Runs a program in every given configuration.
#[track_caller]
pub(crate) fn in_configurations(
    configurations: &[(&str, Environment)],
    run: impl Fn() -> Run,
    check: impl Fn(&Outcome),
) {
    for (_, environment) in configurations {
        check(&run().configured(environment).run());
    }
}

/// Runs a legitimate program in the checked configurations: it must succeed; the library may speak.
#[track_caller]
pub(crate) fn must_succeed(path: &Path, arguments: &[&str]) {
    in_configurations(
        CHECKED_CONFIGURATIONS,
        || Run::new(path).args(arguments),
        |outcome| {
            outcome.assert_success();
        },
    );
}

/// Runs a legitimate program in every configuration: it must succeed without a message of the
/// library.
#[track_caller]
pub(crate) fn must_work(source: &str, arguments: &[&str]) {
    if source.ends_with(".cc") && no_cxx() {
        return;
    }
    let path = program(source);
    must_work_in(CONFIGURATIONS, || Run::new(&path).args(arguments));
}

/// Runs a legitimate program in these configurations: it must succeed without a message of the
/// library.
#[track_caller]
pub(crate) fn must_work_in(configurations: &[(&str, Environment)], run: impl Fn() -> Run) {
    in_configurations(configurations, run, |outcome| {
        outcome.assert_quiet_success();
    });
}
