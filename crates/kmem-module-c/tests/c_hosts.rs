//! Hosts in C, with `libkmem_modules.so` and `libkmem.so`, and modules in C.

use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_testing::library::{LIBRARY, built};
use kmem_testing::{Compiler, directory, is_missing, not_run};

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
fn a_host_in_c_verifies_signatures_by_certificates_or_by_its_own_function() {
    if is_missing("openssl") {
        return;
    }
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    compile(Compiler::c(), &["-c", "-fPIC"], &[&program("uses_not.c")], &path("plain.ko"));
    let loader = built("libkmem_modules.so");
    let args = ["-rdynamic", "-Wl,--no-as-needed"];
    compile(Compiler::c(), &args, &[&program("verifies.c"), &loader], &path("verifies"));
    let openssl = |args: &str| {
        let mut command = Command::new("openssl");
        let output = command.args(args.split(' ')).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    for name in ["right", "wrong"] {
        let key = "req -x509 -nodes -newkey rsa:2048 -subj /CN=me -set_serial 1";
        openssl(&format!("{key} -keyout {name}.key -out {name}.pem"));
        let sign = "cms -sign -binary -noattr -nocerts -md sha256 -in plain.ko -outform DER";
        openssl(&format!("{sign} -signer {name}.pem -inkey {name}.key -out {name}.p7s"));
        let [module, signature] =
            ["plain.ko", &*format!("{name}.p7s")].map(|name| std::fs::read(path(name)).unwrap());
        let size = (signature.len() as u32).to_be_bytes();
        let record = [&[0, 0, 2, 0, 0, 0, 0, 0][..], &size].concat();
        let all = [&module, &signature, &record[..], b"~Module signature appended~\n"].concat();
        std::fs::write(path(&format!("{name}.ko")), all).unwrap();
    }
    let mut odd = std::fs::read(path("right.ko")).unwrap();
    let size = u32::from_be_bytes(*odd[..odd.len() - 28].last_chunk().unwrap()) as usize;
    let at = odd.len() - 40 - size;
    odd[at] = 0;
    std::fs::write(path("odd.ko"), odd).unwrap();
    let run = |first: &str| {
        let mut run = Command::new(path("verifies"));
        run.arg(first).args(["right.ko", "wrong.ko", "plain.ko", "odd.ko"]);
        run.current_dir(dir.path()).env("LD_LIBRARY_PATH", loader.parent().unwrap());
        let output = run.output().unwrap();
        assert!(output.status.success(), "{:?}", output.status);
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        run("right.pem"),
        "0 \n-129 the signature is not right\n\
         -129 no signature, and only signed modules are loaded\n\
         -74 the signature is damaged: it is no CMS\n0 calls\n"
    );
    assert_eq!(
        run("-"),
        "0 \n0 \n-129 no signature, and only signed modules are loaded\n\
         -1 the host refuses the signature\n3 calls\n"
    );
}

/// A host and a module for debuggers and profilers, and a command that runs it.
fn traced(dir: &Path, before: &[&str]) -> Command {
    let module = dir.join("traced_module.ko");
    compile(Compiler::c(), &["-c", "-fPIC"], &[&program("traced_module.c")], &module);
    let (loader, host) = (built("libkmem_modules.so"), dir.join("traced"));
    compile(Compiler::c(), &["-Wl,--no-as-needed"], &[&program("traced.c"), &loader], &host);
    let all = before.iter().map(|arg| (*arg).to_owned());
    let mut all: Vec<String> = all.collect();
    all.extend([host.display().to_string(), module.display().to_string()]);
    let mut command = Command::new(&all[0]);
    command.args(&all[1..]).env("LD_LIBRARY_PATH", loader.parent().unwrap());
    command
}

#[test]
fn gdb_stops_in_functions_of_a_module_from_its_init_on_and_knows_its_variables() {
    if is_missing("gdb") {
        return;
    }
    let dir = directory();
    let mut args = vec!["gdb", "-nx", "-batch", "-q"];
    for command in [
        "set breakpoint pending on",
        "set startup-with-shell off",
        "break traced_start",
        "break traced_inner",
        "run",
        "echo first:\\n",
        "info symbol $pc",
        "continue",
        "echo second:\\n",
        "info symbol $pc",
        "print *(int *)&traced_calls",
        "delete",
        "continue",
        "echo third:\\n",
        "info address traced_inner",
    ] {
        args.extend(["-ex", command]);
    }
    args.push("--args");
    let output = traced(dir.path(), &args).stdin(std::process::Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let after = |mark: &str| said.split(mark).nth(1).unwrap_or_else(|| panic!("{said}"));
    // module_init gives the function a second name.
    let names = ["traced_start", "init_module"];
    assert!(names.iter().any(|name| after("first:\n").starts_with(name)), "{said}");
    assert!(after("second:\n").starts_with("traced_inner"), "{said}");
    assert!(after("second:\n").contains("= 40\n"), "{said}");
    // Unloaded, and the process has ended.
    assert!(said.contains("exited normally"), "{said}");
    let rest = String::from_utf8_lossy(&output.stderr);
    assert!(rest.contains("No symbol \"traced_inner\""), "{said}{rest}");
}

#[test]
fn the_map_for_perf_has_the_functions_of_modules() {
    let dir = directory();
    let mut command = traced(dir.path(), &[]);
    let mut host = kmem_testing::Coprocess::start(command.env("TRACED_MAP", "1"));
    assert_eq!(host.line().as_deref(), Some("42"));
    let path = format!("/tmp/perf-{}.map", host.pid());
    let map = std::fs::read_to_string(&path).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", host.pid())).unwrap();
    assert!(host.wait().success());
    std::fs::remove_file(&path).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    for name in ["traced_inner", "traced_work", "traced_start", "traced_stop"] {
        let line = map.lines().find(|line| line.ends_with(&format!(" {name} [traced_module]")));
        let mut words = line.unwrap_or_else(|| panic!("{name}: {map}")).split(' ');
        let (start, size) = (hex(words.next().unwrap()), hex(words.next().unwrap()));
        assert!(size > 0 && size < 4096, "{map}");
        // Code of init is not mapped any more.
        let is_code = maps.lines().any(|line| {
            let (range, rest) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            hex(from) <= start && start + size <= hex(to) && rest.starts_with("r-x")
        });
        assert!(is_code || name == "traced_start", "{name}: {map}{maps}");
    }
}

#[test]
fn perf_names_functions_of_a_module_by_the_map() {
    if is_missing("perf") {
        return;
    }
    let dir = directory();
    let recorded = dir.path().join("perf.data");
    let recorded = recorded.to_str().unwrap();
    let before = ["perf", "record", "-q", "-e", "cpu-clock", "-o", recorded, "--"];
    // The host works until it has used CPU time for a few hundred samples.
    let mut command = traced(dir.path(), &before);
    command.envs([("TRACED_WORKS", "1"), ("TRACED_MAP", "1")]).stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        not_run("perf_names_functions_of_a_module_by_the_map", &format!("perf record: {why}"));
        return;
    }
    let mut script = Command::new("perf");
    let output = script.args(["script", "-i", recorded, "-F", "pid,ip,sym"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let named = said.lines().find(|line| line.ends_with(" traced_inner [traced_module]"));
    let named = named.unwrap_or_else(|| panic!("{said}"));
    let pid = named.split_whitespace().next().unwrap();
    std::fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap();
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
