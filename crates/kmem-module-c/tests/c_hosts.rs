//! Hosts in C, with `libkmem_modules.so` and `libkmem.so`, and modules in C.

use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_testing::library::{LIBRARY, built};
use kmem_testing::{Compiler, directory, is_missing};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[track_caller]
fn compile(compiler: Compiler, args: &[&str], sources: &[&Path], output: &Path) {
    let compiler = compiler.strict().args(["-O1", "-g"]).include();
    compiler.args(args).args(sources).compile(output);
}

fn program(name: &str) -> PathBuf {
    Path::new(HERE).join(format!("tests/programs/{name}"))
}

#[test]
fn a_host_in_c_loads_uses_lists_and_unloads_modules_in_c() {
    let dir = directory();
    for name in ["plugin", "uses"] {
        let module = dir.path().join(format!("{name}.ko"));
        compile(Compiler::c(), &["-c", "-fPIC"], &[&program(&format!("{name}.c"))], &module);
    }
    let (loader, kmem) = (built("libkmem_modules.so"), built(LIBRARY));
    let host = dir.path().join("host");
    // -rdynamic exports what modules import from the host.
    let args = ["-rdynamic", "-pthread", "-Wl,--no-as-needed"];
    compile(Compiler::c(), &args, &[&program("host.c"), &loader, &kmem], &host);
    let packed =
        Command::new("gzip").arg("-kc").arg(dir.path().join("plugin.ko")).output().unwrap();
    // Not where requests by name would find it.
    std::fs::create_dir(dir.path().join("packed")).unwrap();
    let packed_at = dir.path().join("packed/plugin.ko.gz");
    std::fs::write(&packed_at, packed.stdout).unwrap();
    let libraries =
        format!("{}:{}", loader.parent().unwrap().display(), kmem.parent().unwrap().display());
    let mut run = Command::new(&host);
    let output = run.arg(dir.path()).env("LD_LIBRARY_PATH", libraries).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"done\n", "{:?} {said}", output.status);
    assert_eq!(said, "");
}

#[test]
fn without_the_library_every_function_says_so() {
    let dir = directory();
    let host = dir.path().join("absent");
    compile(Compiler::c(), &[], &[&program("absent.c")], &host);
    assert!(Command::new(&host).status().unwrap().success());
    // The header is C++, too.
    if is_missing("c++") {
        return;
    }
    let plus = dir.path().join("absent_plus");
    compile(Compiler::cxx(), &["-x", "c++"], &[&program("absent.c")], &plus);
    assert!(Command::new(&plus).status().unwrap().success());
}
