//! Programs under a debugger. The kernel aborts a restartable section after every trap, so none
//! commits while a debugger steps through a program.

use kmem_testing::is_missing;

use crate::harness::{CONFIGURATIONS, Run, is_not_kmem, library, must_work_in, program};

#[test]
fn every_operation_ends_while_a_debugger_steps_through_it() {
    let path = program("stepping.c");
    // The last one closes the fast paths, and fills much memory byte by byte.
    let (_, configurations) = CONFIGURATIONS.split_last().expect("configurations");
    must_work_in(configurations, || Run::new(&path));
}

/// Without watch registers, gdb steps through the program and compares.
#[test]
fn watchpoint_of_gdb_is_reached() {
    if is_not_kmem() || is_missing("gdb") {
        return;
    }
    let library = library().expect("a library to test");
    let preload = format!("set environment LD_PRELOAD {}", library.display());
    let commands =
        ["set can-use-hw-watchpoints 0", "break few", "run", "watch done", "continue", "kill"];
    let mut run = Run::new("gdb").without_preload().args(&["-batch", "-nx", "-ex", &preload]);
    for command in commands {
        run = run.args(&["-ex", command]);
    }
    let outcome = run.arg("--args").arg(program("stepping.c")).arg("alone").run();
    outcome.assert_success();
    assert!(outcome.stdout.contains("New value = 1"), "{}", outcome.story());
}
