//! Little address space, few descriptors, failing system calls, and very many blocks.

use kmem_testing::{Outcome, is_missing, not_run, this_test};

use crate::harness::{
    CONFIGURATIONS, LIGHT_CONFIGURATIONS, Run, in_configurations, must_work, must_work_in, no_cxx,
    program,
};

#[test]
fn programs_start_in_128_mebibytes_of_address_space() {
    for (command, arguments) in [("/bin/ls", &["/"][..]), ("/usr/bin/python3", &["-c", "print(1)"])]
    {
        if !is_missing(command) {
            let run = || Run::after_shell("ulimit -v 131072", command).args(arguments);
            must_work_in(CONFIGURATIONS, run);
        }
    }
}

#[test]
fn threads_work_in_256_mebibytes_of_address_space() {
    let path = program("few_resources.c");
    Run::after_shell("ulimit -v 262144", path).arg("nothing").run().assert_quiet_success();
}

#[test]
fn exhausted_address_space_gives_null_and_comes_back() {
    let path = program("exhaust.c");
    for (kilobytes, mebibytes) in [("131072", "128"), ("524288", "512")] {
        let run = || {
            Run::after_shell(&format!("ulimit -v {kilobytes}"), &path)
                .args(&["inherited", mebibytes])
        };
        in_configurations(&CONFIGURATIONS[..2], run, |outcome| {
            outcome.assert_success_out_of_memory();
        });
    }
}

#[test]
fn nine_tenths_of_a_limited_address_space_can_be_allocated() {
    let path = program("address_space.c");
    for arguments in [&["one"][..], &["many", "3145728"], &["many", "1500000"], &["many", "100000"]]
    {
        Run::after_shell("ulimit -v 1048576", &path).args(arguments).run().assert_success();
    }
}

#[test]
fn a_limit_of_address_space_set_at_run_time_leaves_room_for_threads_and_libraries() {
    for arguments in [&["later"][..], &["later", "prlimit"]] {
        Run::new(program("address_space.c")).args(arguments).run().assert_success();
    }
}

#[test]
fn pages_that_were_never_touched_take_no_memory_when_their_block_moves() {
    Run::new(program("overcommit.c")).arg("move").run().assert_quiet_success();
}

#[test]
fn more_than_the_machine_has_is_refused_where_the_kernel_would() {
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if mode.trim() == "1" {
        not_run(&this_test(), "the kernel grants everything (vm.overcommit_memory is 1)");
        return;
    }
    Run::new(program("overcommit.c")).arg("too_much").run().assert_success();
}

#[test]
fn limits_of_other_resources_change_nothing() {
    let limits = [
        "core=0",
        "fsize=0",
        "locks=0",
        "memlock=0",
        "msgqueue=0",
        "nice=0",
        "nofile=8",
        "rtprio=0",
        "sigpending=0",
        "stack=65536",
        "cpu=5",
    ];
    if is_missing("/bin/bash") || is_missing("/usr/bin/prlimit") {
        return;
    }
    for limit in limits {
        let run = || {
            let script = "a=$(printf %065536d 1); for i in 1 2 3; do (: $a); done";
            Run::after_shell(&format!("prlimit --pid $$ --{limit}"), "/bin/bash")
                .args(&["-c", script])
        };
        in_configurations(&CONFIGURATIONS[..2], run, |outcome| {
            outcome.assert_quiet_success();
        });
    }
}

#[test]
fn small_programs_start_in_4_mebibytes_of_data() {
    for (command, arguments) in [("/bin/ls", &["/"][..]), ("/bin/bash", &["-c", "echo 1"])] {
        if !is_missing(command) {
            let run = Run::after_shell("ulimit -d 4096", command).args(arguments);
            run.run().assert_quiet_success();
        }
    }
}

#[test]
fn a_small_program_is_charged_for_8_mebibytes_at_most() {
    let path = program("start_memory.c");
    must_work_in(LIGHT_CONFIGURATIONS, || Run::new(&path));
}

#[test]
fn no_memory_that_faults_is_handed_out_when_there_are_too_many_mappings() {
    for conf in ["", "debug_pagealloc:1"] {
        let run = Run::new(program("many_mappings.c")).env("KMEM_CONF", conf);
        run.run().assert_quiet_success();
    }
}

#[test]
fn the_heap_grows_when_there_are_too_many_mappings() {
    Run::new(program("many_mappings.c")).arg("grow").run().assert_quiet_success();
}

#[test]
fn exhausted_data_segment_gives_null_and_comes_back() {
    Run::after_shell("ulimit -d 131072", program("exhaust.c"))
        .args(&["inherited", "128"])
        .run()
        .assert_success_out_of_memory();
}

#[test]
fn exhausted_64_mebibytes_give_null_and_come_back() {
    Run::after_shell("ulimit -v 65536", program("exhaust.c"))
        .args(&["inherited", "64", "100000"])
        .run()
        .assert_success_out_of_memory();
}

#[test]
fn large_blocks_fit_in_64_mebibytes_where_small_ones_were() {
    Run::after_shell("ulimit -v 65536", program("exhaust.c"))
        .args(&["inherited", "64"])
        .run()
        .assert_success_out_of_memory();
}

/// Runs the program that uses up its memory with small blocks: each time a report must say who
/// holds it, unless there are no books.
#[track_caller]
fn must_run_out(arguments: &[&str]) {
    let path = program("exhaust.c");
    for (name, environment) in LIGHT_CONFIGURATIONS {
        let outcome = Run::new(&path).args(arguments).configured(environment).run();
        if *name == "profiling never" {
            outcome.assert_quiet_success();
        } else {
            outcome.assert_success_out_of_memory();
        }
    }
}

#[test]
fn limit_of_address_space_set_at_run_time_binds() {
    must_run_out(&["address_space", "128"]);
}

#[test]
fn limit_of_data_set_at_run_time_leaves_most_of_it_usable() {
    must_run_out(&["data", "128"]);
}

#[test]
fn few_descriptors() {
    must_work("few_resources.c", &["descriptors"]);
}

#[test]
fn no_locked_memory() {
    must_work("few_resources.c", &["locked_memory"]);
}

#[test]
fn no_file_may_grow() {
    must_work("few_resources.c", &["file_size"]);
}

#[test]
fn small_process_stack() {
    let run = || Run::after_shell("ulimit -s 64", program("few_resources.c")).arg("nothing");
    must_work_in(&CONFIGURATIONS[..3], run);
}

#[test]
fn closed_standard_descriptors() {
    if no_cxx() {
        return;
    }
    let path = program("containers.cc");
    for closed in ["exec 0<&-", "exec 1>&-", "exec 2>&-", "exec 0<&- 1>&- 2>&-"] {
        Run::after_shell(closed, &path).run().assert_success();
    }
}

#[test]
fn hundred_thousand_blocks_of_200_kilobytes() {
    Run::new(program("many_blocks.c")).args(&["100000", "200000"]).run().assert_quiet_success();
}

#[test]
fn hundred_thousand_blocks_of_20_kilobytes() {
    Run::new(program("many_blocks.c")).args(&["100000", "20000"]).run().assert_quiet_success();
}

#[track_caller]
fn with_failing(error: &str, calls: &[&str]) {
    each_with_failing(error, calls, |outcome| {
        outcome.assert_quiet_success();
    });
}

#[track_caller]
fn each_with_failing(error: &str, calls: &[&str], check: impl Fn(&Outcome)) {
    let path = program("failing_calls.c");
    let run = || Run::new(&path).arg(error).args(calls);
    in_configurations(&CONFIGURATIONS[..2], run, check);
}

#[test]
fn mmap_fails() {
    with_failing("ENOMEM", &["mmap"]);
}

#[test]
fn munmap_fails() {
    with_failing("ENOMEM", &["munmap"]);
}

#[test]
fn the_heap_grows_where_mprotect_fails() {
    with_failing("ENOMEM", &["mprotect"]);
    with_failing("EPERM", &["mprotect"]);
}

#[test]
fn madvise_fails() {
    with_failing("ENOMEM", &["madvise"]);
    with_failing("EINVAL", &["madvise"]);
}

#[test]
fn mremap_fails() {
    with_failing("ENOMEM", &["mremap"]);
    with_failing("ENOSYS", &["mremap"]);
}

#[test]
fn all_memory_calls_fail() {
    let calls = ["mmap", "munmap", "mprotect", "madvise", "mremap"];
    // No way is left to commit memory: where blocks lie decides whether what there is suffices.
    each_with_failing("ENOMEM", &calls, |outcome| {
        outcome.assert_success_if_out_of_memory();
    });
}

#[test]
fn all_but_the_calls_of_a_steady_state_fail() {
    with_failing("EPERM", &["others"]);
}
