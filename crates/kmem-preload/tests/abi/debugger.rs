//! Programs under a debugger. The kernel aborts a restartable section after every trap, so none
//! commits while a debugger steps through a program.

use kmem_testing::is_missing;

use crate::harness::{CONFIGURATIONS, Run, is_not_kmem, library, must_work_in, program};

#[test]
fn every_operation_ends_while_a_debugger_steps_through_it() {
    let path = program("stepping.c");
    // The others close the fast paths, and fill much memory byte by byte.
    let configurations = &CONFIGURATIONS[..5];
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

/// gdb adds one to the semaphores of the probes, as every tracer does, and reads their arguments
/// where their notes say.
#[test]
fn probes_for_memory_profilers_are_reached_with_samples_and_their_frees() {
    if is_not_kmem() || is_missing("gdb") {
        return;
    }
    let library = library().expect("a library to test");
    // As the kernel finds the calls for a tracer. Frame pointers of other machines are true ones.
    let frames = match cfg!(target_arch = "x86_64") {
        true => "info symbol *(long *)($rbp + 8)\n info symbol *(long *)(*(long *)$rbp + 8)",
        false => "",
    };
    let script = format!(
        "set environment LD_PRELOAD {}\n\
         break main\n\
         run\n\
         break -probe-stap otel_memory:alloc\n\
         commands\n silent\n printf \"sample %lu bytes for %lu\\n\", $_probe_arg1, $_probe_arg2\n \
         backtrace\n {frames}\n continue\n end\n\
         break -probe-stap otel_memory:free\n\
         commands\n silent\n printf \"freed\\n\"\n continue\n end\n\
         continue\n",
        library.display()
    );
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("script");
    std::fs::write(&path, script).expect("a script");
    let outcome = Run::new("gdb")
        .without_preload()
        .args(&["-batch", "-nx", "-x", path.to_str().expect("a path"), "--args"])
        .arg(program("sampled.c"))
        .run();
    outcome.assert_success();
    let lines_with = |text| outcome.stdout.lines().filter(|line| line.contains(text)).count();
    // There are 38 samples on average.
    let samples = lines_with("sample 1024 bytes for 524288");
    assert!((15..=65).contains(&samples), "{samples} samples\n{}", outcome.story());
    assert_eq!(lines_with("freed"), samples, "{}", outcome.story());
    assert_eq!(lines_with(" in grow ()"), samples, "{}", outcome.story());
    for function in ["grow + ", "main + "].iter().filter(|_| !frames.is_empty()) {
        let found = outcome.stdout.lines().filter(|line| line.starts_with(*function)).count();
        assert_eq!(found, samples, "{function}: {}", outcome.story());
    }
}
