//! `kmem.h` in C++ programs.

use crate::harness::{Program, Said, compile, is_missing, library};

#[test]
fn scopes_of_cplusplus_nest_end_with_exceptions_and_belong_to_threads() {
    if is_missing("g++") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("scopes");
    for args in [["-std=c++11", "-O0"], ["-std=c++17", "-O2"], ["-std=c++20", "-O2"]] {
        let library = library();
        let args = [&args[..], &[library.to_str().unwrap()]].concat();
        compile("g++", &args, &["scopes.cc", "scopes_other.cc"], &program);
        let said = Program::start(&program, &[], "", &["scopes.h", "scopes.cc"])
            .agrees_with_the_books(false);
        assert_eq!(said, "", "{args:?}");
    }
}

#[test]
fn a_plugin_in_cplusplus_is_unloaded_with_its_tags() {
    if is_missing("g++") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (program, plugin) = (dir.path().join("host"), dir.path().join("plugin.so"));
    compile("cc", &[], &["host.c"], &program);
    // g++ makes the variables of inline functions unique in the process, which keeps the plugin
    // loaded, unless it is told not to.
    let args = ["-shared", "-fPIC", "-fno-gnu-unique"];
    compile("g++", &args, &["plugin.cc"], &plugin);
    let mut running = Program::start(&program, &["once", plugin.to_str().unwrap()], "", &[]);
    while let Said::Check(_) = running.next() {
        running.go_on();
    }
    let (success, said) = running.end();
    assert!(success, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "kmem: plugin.so is unloaded, and memory it allocated is in use:");
    assert_eq!(lines.len(), 3, "{said}");
    for (line, name) in lines[1..].iter().zip(["inline", "plain"]) {
        assert!(line.ends_with(&format!("[plugin.so] func:{name}")), "{said}");
        assert!(line.trim_start().starts_with("112 B        1 "), "{said}");
    }
}
