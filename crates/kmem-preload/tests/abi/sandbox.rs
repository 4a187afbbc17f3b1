//! Programs in sandboxes: filters that end the process at a system call that is not on their list.

use std::path::PathBuf;

use crate::harness::{CONFIGURATIONS, Environment, Run, is_not_kmem, must_work_in, program};

/// Options that change which system calls kmem makes, beside those of [`CONFIGURATIONS`].
const OPTIONS: &[&str] = &[
    "decay_ms:0",
    "depth:8",
    "debug",
    "debug_pagealloc:1",
    "page_poison:1,init_on_alloc:1",
    "init_on_free:1",
    "peak:1",
    "group-by:thread-name",
    "group-by:thread-name,rseq:off",
    "report:no-reader",
];

fn sandbox() -> PathBuf {
    program("sandbox.c")
}

/// Runs the program in a sandbox, in every configuration.
#[track_caller]
fn works_in(filter: &str, how: &str) {
    if is_not_kmem() {
        return;
    }
    let path = sandbox();
    let run = || Run::new(&path).args(&[filter, how]);
    must_work_in(CONFIGURATIONS, run);
}

/// Runs the program with every option, which come after `first`.
#[track_caller]
fn works_with_options(filter: &str, how: &str, first: &str) {
    if is_not_kmem() {
        return;
    }
    let path = sandbox();
    for option in OPTIONS {
        let run = Run::new(&path).args(&[filter, how]);
        let outcome = run.env("KMEM_CONF", format!("{first}{option}")).run();
        outcome.assert_success();
        // That option reports allocations without a tag, which the program makes.
        assert!(*option == "debug" || outcome.messages().is_empty(), "{}", outcome.story());
    }
}

#[test]
fn inside_a_sandbox_only_calls_of_the_c_librarys_malloc_are_made() {
    works_in("malloc", "prctl");
    works_in("malloc", "seccomp");
}

#[test]
fn inside_a_sandbox_no_option_adds_a_call() {
    works_with_options("malloc", "seccomp", "");
    works_with_options("threads", "prctl", "");
}

#[test]
fn inside_a_sandbox_a_black_box_is_written_to() {
    if is_not_kmem() {
        return;
    }
    let directory = kmem_testing::directory();
    let conf = format!("cumulative:1,blackbox:{}/%p.box", directory.path().display());
    let run = Run::new(sandbox()).args(&["threads", "prctl"]).env("KMEM_CONF", conf);
    run.run().assert_quiet_success();
    let boxes = std::fs::read_dir(directory.path()).expect("the directory");
    assert_eq!(boxes.count(), 1);
}

#[test]
fn forked_child_that_enters_a_sandbox_at_once_makes_no_black_box() {
    if is_not_kmem() {
        return;
    }
    let directory = kmem_testing::directory();
    let conf = format!("boxes:{}", directory.path().display());
    let run = Run::new(sandbox()).args(&["malloc", "seccomp", "child"]).env("KMEM_CONF", conf);
    run.run().assert_quiet_success();
    let boxes = std::fs::read_dir(directory.path()).expect("the directory");
    assert_eq!(boxes.count(), 1);
}

#[test]
fn sandbox_of_sshd() {
    works_in("sshd", "prctl");
}

#[test]
fn sandbox_of_chromium() {
    works_in("chromium", "seccomp");
}

#[test]
fn sandbox_of_firefox() {
    works_in("firefox", "seccomp");
}

#[test]
fn sandbox_of_bubblewrap() {
    works_in("bubblewrap", "exec");
}

#[test]
fn sandbox_of_systemd_services() {
    works_in("system-service", "exec");
}

/// The filter was there before the program was, so kmem cannot see it.
#[test]
fn option_says_that_the_program_starts_in_a_sandbox() {
    const OPTION: Environment = &[("KMEM_CONF", "sandbox:1")];
    if is_not_kmem() {
        return;
    }
    let path = sandbox();
    for filter in ["system-service", "systemd-strict", "bubblewrap"] {
        let run = Run::new(&path).args(&[filter, "exec"]).configured(OPTION);
        run.run().assert_quiet_success();
    }
    works_with_options("systemd-strict", "exec", "sandbox:1,");
}

/// The calls without which kmem has a second way, each refused by itself. Such a filter is there
/// before the program, or comes later without the library's knowledge. Where `rseq` is refused
/// later, glibc ends the program.
#[test]
fn a_single_call_that_is_refused_leaves_the_books_balanced() {
    const CALLS: &[&str] = &["rseq", "membarrier", "madvise", "process_vm_readv"];
    if is_not_kmem() {
        return;
    }
    let path = program("refused_call.c");
    for call in CALLS {
        for error in [libc::EPERM, libc::ENOSYS].map(|error| error.to_string()) {
            let whens: &[&str] = if *call == "rseq" { &["start"] } else { &["start", "later"] };
            for when in whens {
                let run = Run::new(&path).args(&[*call, error.as_str(), *when]);
                run.run().assert_quiet_success();
            }
        }
    }
}
