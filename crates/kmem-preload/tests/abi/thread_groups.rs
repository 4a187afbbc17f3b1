//! `KMEM_CONF=group-by:thread-name`: programs that know nothing of groups have one per thread.

use std::collections::HashMap;
use std::process::Command;

use kmem_testing::is_missing;

use crate::harness::{
    Outcome, Run, is_not_kmem, is_reference_run, library, no_cxx, program, shared_library,
};

const BY_NAME: &str = "group-by:thread-name";

#[test]
fn every_thread_works_in_the_group_of_its_name_whoever_gave_it_until_it_ends() {
    let path = program("thread_groups.c");
    for conf in [BY_NAME, "group-by:thread-name,rseq:off"] {
        Run::new(&path).env("KMEM_CONF", conf).run().assert_success();
    }
}

#[test]
fn operator_new_follows_a_name_that_another_thread_gave() {
    if no_cxx() {
        return;
    }
    let path = program_in_cxx();
    Run::new(path).env("KMEM_CONF", BY_NAME).run().assert_quiet_success();
}

/// The harness names what it compiles after the source's stem.
fn program_in_cxx() -> std::path::PathBuf {
    crate::harness::program_with_libraries("thread_groups.cc", "thread_groups_cxx", &[])
}

#[test]
fn without_the_option_names_mean_nothing() {
    let path = program("thread_groups.c");
    for conf in ["", "group-by:nothing"] {
        Run::new(&path).arg("off").env("KMEM_CONF", conf).run().assert_quiet_success();
    }
    let never = "group-by:thread-name,mem_profiling:never";
    let outcome = Run::new(&path).arg("off").env("KMEM_CONF", never).run();
    outcome.assert_success();
    if !is_reference_run() {
        assert!(outcome.messages()[0].contains("no group-by without books"), "{}", outcome.story());
    }
}

/// Runs an unmodified program with a group per thread; (current, peak) at its end by name.
fn reported(run: Run, groups: &[&str]) -> (Outcome, HashMap<String, (u64, u64)>) {
    let mut preload = library().expect("a library to test").into_os_string();
    preload.push(":");
    preload.push(shared_library("group_report.c"));
    let run = run.without_preload().env("LD_PRELOAD", preload).env("KMEM_CONF", BY_NAME);
    let outcome = run.env("GROUP_REPORT", groups.join(",")).run();
    outcome.assert_success();
    let lines = outcome.stderr.lines().filter_map(|line| {
        let mut words = line.rsplitn(3, ' ');
        let (peak, current) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((words.next()?.to_owned(), (current, peak)))
    });
    let found = lines.collect();
    (outcome, found)
}

/// The interpreter itself, where `python3` is a script that finds it.
fn python() -> Option<String> {
    let ask = ["-c", "import sys; print(sys.executable)"];
    let output = Command::new("python3").args(ask).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn threads_of_python_that_name_themselves_pay_apart() {
    if is_not_kmem() || is_missing("python3") {
        return;
    }
    let python = python().expect("an interpreter");
    // Objects of a thread are its group's after it ended, and after another one freed half of them.
    const SCRIPT: &str = "
import ctypes, threading
libc = ctypes.CDLL(None)
held = {}
def work(name, size):
    libc.prctl(15, name.encode(), 0, 0, 0)
    held[name] = [bytes(size) for _ in range(100)]
for name, size in ('reader', 100_000), ('writer', 300_000), ('reader', 50_000):
    thread = threading.Thread(target=work, args=(name, size))
    thread.start()
    thread.join()
del held['writer'][::2]
libc.exit(0)
";
    let run = Run::new(python).arg("-c").arg(SCRIPT).env("PYTHONMALLOC", "malloc");
    let (outcome, groups) = reported(run, &["reader", "writer"]);
    let (now, peak) = groups["reader"];
    assert!((5_000_000..6_000_000).contains(&now), "{}", outcome.story());
    assert!((15_000_000..17_000_000).contains(&peak), "{}", outcome.story());
    let (now, peak) = groups["writer"];
    assert!((15_000_000..16_500_000).contains(&now), "{}", outcome.story());
    assert!((30_000_000..32_000_000).contains(&peak), "{}", outcome.story());
}

#[test]
fn threads_of_redis_pay_apart() {
    if is_not_kmem() || is_missing("redis-server") || is_missing("redis-cli") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("socket");
    // A thread in the background frees keys that the main thread made: the main thread is credited.
    const SCRIPT: &str = r#"
preload=$LD_PRELOAD; unset LD_PRELOAD
LD_PRELOAD=$preload redis-server --port 0 --unixsocket "$1" --save '' \
    --enable-debug-command yes >/dev/null &
until [ "$(redis-cli -s "$1" ping 2>/dev/null)" = PONG ]; do :; done
redis-cli -s "$1" debug populate 100000 key 200 >/dev/null
redis-cli -s "$1" flushall async >/dev/null
until redis-cli -s "$1" info memory | grep -q 'lazyfree_pending_objects:0'; do :; done
redis-cli -s "$1" eval \
    'for i = 1, 1000 do redis.call("set", "text" .. i, string.rep("x", 10000)) end' 0 >/dev/null
redis-cli -s "$1" shutdown nosave
wait $!
"#;
    let run = Run::new("sh").arg("-c").arg(SCRIPT).arg("sh").arg(&socket);
    let names = ["redis-server", "bio_close_file", "bio_aof_fsync", "bio_aof", "bio_lazy_free"];
    let (outcome, groups) = reported(run, &names);
    let (now, peak) = groups["redis-server"];
    assert!(peak > 20_000_000 && now > 10_000_000 && now < 20_000_000, "{}", outcome.story());
    assert!(groups.contains_key("bio_close_file"), "{}", outcome.story());
    assert!(groups.contains_key("bio_lazy_free"), "{}", outcome.story());
    let background = groups["bio_lazy_free"].0;
    assert!(background < 1_000_000, "{}", outcome.story());
}
