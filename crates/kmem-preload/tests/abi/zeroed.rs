//! `init_on_alloc` and `init_on_free`: new memory of every size and kind reads as zero.

use std::path::PathBuf;

use crate::harness::{Run, is_not_kmem, library, program_with_libraries};

/// Free memory stays in the process for an hour, so that it comes back with what it held.
const KEEP: &str = "decay_ms:3600000";

fn zeroed() -> PathBuf {
    let library = library().expect("there is a library to test");
    program_with_libraries("zeroed.c", "zeroed", &[&library])
}

/// The ways to allocate that gave memory with old contents, each with a size: `malloc/64`.
fn stale(conf: &str) -> Vec<String> {
    let outcome = Run::new(zeroed()).env("KMEM_CONF", format!("{KEEP},{conf}")).run();
    outcome.assert_quiet_success();
    let lines = outcome.stdout.lines().map(|line| line.split_once(' ').expect("way and bytes"));
    lines.filter(|(_, bytes)| *bytes != "0").map(|(way, _)| way.to_owned()).collect()
}

/// Asserts that all memory reads as zero, but for ways with this prefix.
#[track_caller]
fn all_zero_but(prefix: &str, conf: &str) {
    if is_not_kmem() {
        return;
    }
    let mut found = stale(conf);
    found.retain(|way| prefix.is_empty() || !way.starts_with(prefix));
    assert_eq!(found, [""; 0], "{conf}");
}

#[test]
fn without_the_options_memory_of_every_kind_has_old_contents() {
    if is_not_kmem() {
        return;
    }
    let found = stale("rseq:on");
    let ways = [
        "malloc/8",
        "malloc/64",
        "malloc/32768",
        "malloc/100000",
        "malloc/3145728",
        "memalign/64",
        "realloc/200",
        "kmalloc/24",
        "kmalloc_node/64",
        "krealloc/200",
        "kmem_cache_alloc/64",
        "alloc_pages/4096",
        "alloc_pages_exact/100000",
        "vmalloc/5000",
        "vrealloc/100000",
        "vmap_alloc_page/4096",
        "mempool_alloc/200",
        "group/64",
        "thread/64",
        "sheaves/64",
        "regrow/64",
        "regrow/100000",
        "vregrow/8192",
        "vregrow/100000",
    ];
    let missing: Vec<_> = ways.iter().filter(|way| !found.iter().any(|at| at == *way)).collect();
    assert!(missing.is_empty(), "{missing:?} are zero anyway: {found:?}");
}

#[test]
fn memory_of_every_size_is_zeroed_when_it_is_allocated() {
    for conf in ["", ",mem_profiling:0", ",mem_profiling:never", ",rseq:off", ",depth:4"] {
        all_zero_but("", &format!("init_on_alloc:1{conf}"));
    }
}

#[test]
fn memory_of_every_size_is_zeroed_when_it_is_freed() {
    // Bytes that a block gives up itself are zeroed by the other option, as in krealloc.
    for conf in ["", ",mem_profiling:0", ",mem_profiling:never", ",rseq:off", ",depth:4"] {
        all_zero_but("regrow", &format!("init_on_free:1{conf}"));
    }
}

#[test]
fn zeroes_go_together_with_checks_of_objects() {
    let checks = ["redzone:1", "quarantine_kb:256", "check_caches:1", "shuffle:1", "debug:1"];
    for check in checks {
        all_zero_but("", &format!("init_on_alloc:1,{check}"));
        all_zero_but("regrow", &format!("init_on_free:1,{check}"));
    }
    let all = checks.join(",");
    all_zero_but("", &format!("init_on_alloc:1,init_on_free:1,{all}"));
}
