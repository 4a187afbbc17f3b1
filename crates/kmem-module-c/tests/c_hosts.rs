//! Hosts in C, with `libkmem_modules.so` and `libkmem.so`, and modules in C.

use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A library that was built with this test.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let places = [deps.join(name), deps.parent().unwrap().join(name)];
    places.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("no {name} beside"))
}

fn cc(compiler: &str, args: &[&str], sources: &[&Path], output: &Path) {
    let mut cc = Command::new(compiler);
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-I"])
        .arg(format!("{HERE}/../../include"));
    let output = cc.args(args).args(sources).arg("-o").arg(output).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn program(name: &str) -> PathBuf {
    Path::new(HERE).join(format!("tests/programs/{name}"))
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_host_in_c_loads_uses_lists_and_unloads_modules_in_c() {
    let dir = directory();
    for name in ["plugin", "uses"] {
        let module = dir.path().join(format!("{name}.ko"));
        cc("cc", &["-c", "-fPIC"], &[&program(&format!("{name}.c"))], &module);
    }
    let (loader, kmem) = (library("libkmem_modules.so"), library("libkmem.so"));
    let host = dir.path().join("host");
    // -rdynamic exports what modules import from the host.
    let args = ["-rdynamic", "-pthread", "-Wl,--no-as-needed"];
    cc("cc", &args, &[&program("host.c"), &loader, &kmem], &host);
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
    cc("cc", &[], &[&program("absent.c")], &host);
    assert!(Command::new(&host).status().unwrap().success());
    // The header is C++, too.
    let plus = dir.path().join("absent_plus");
    cc("c++", &["-x", "c++"], &[&program("absent.c")], &plus);
    assert!(Command::new(&plus).status().unwrap().success());
}
