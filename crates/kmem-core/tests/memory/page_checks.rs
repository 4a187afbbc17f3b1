//! Options of `KMEM_CONF` that check pages, each with a program that misuses its memory.

use crate::instance::{case, forked, free_all, pin, run_child, said_by_child};
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Kmem};
use kmem_layout::word::EXT_LIVE;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

static A: Kmem = Kmem::new();
const PAGE: Order = Order(0);
const HUGE: Order = Order(9);

fn alloc(order: Order) -> *mut u8 {
    let at = A.alloc_pages(order, Gfp::KERNEL, Caller::at(0x1234_5678));
    assert!(!at.is_null());
    at
}

fn free(at: *mut u8, order: Order) {
    // SAFETY: live, given up. Later misuse of it is what the case tests.
    unsafe { A.free_pages(at, order) }
}

/// Allocates and frees `count` blocks, none of which is `not`.
fn others(order: Order, count: usize, not: *mut u8) {
    let all: Vec<_> = (0..count).map(|_| alloc(order)).collect();
    assert!(!all.contains(&not), "the bad block was handed out");
    all.into_iter().for_each(|at| free(at, order));
}

/// Checks the counts: `bad` blocks of `pages` pages are out of use, and no other page is used.
fn at_the_end(bad: u64, pages: u64) {
    A.drain();
    assert_eq!(A.validate(), Ok(()));
    let stats = A.stats();
    assert_eq!((stats.bad_pages, stats.used), (bad, bad * pages * 4096));
}

fn mark_as_allocated(at: *mut u8) {
    A.page_words(at).expect("a page").0.fetch_or(EXT_LIVE, Ordering::Relaxed);
}

fn write_after_free(order: Order) {
    let at = alloc(order);
    free(at, order);
    // SAFETY: a stray write to a freed page, which is still mapped.
    unsafe { at.add(100).write(1) };
    others(order, 40, at);
    at_the_end(1, 1 << order.0);
}

fn marked_in_zone(order: Order) {
    let at = alloc(order);
    free(at, order);
    A.drain();
    mark_as_allocated(at);
    others(order, 40, at);
    at_the_end(1, 1 << order.0);
}

/// Marks a page inside of a free block.
fn marked_inside(order: Order, bad: bool) {
    let at = alloc(order);
    free(at, order);
    A.drain();
    mark_as_allocated(at.wrapping_add(order.pages().bytes() - 4096));
    let all: Vec<_> = (0..20).map(|_| alloc(order)).collect();
    assert_eq!(!all.contains(&at), bad);
    all.into_iter().for_each(|at| free(at, order));
    at_the_end(u64::from(bad), 1 << order.0);
}

fn marked_on_cpu(order: Order, bad: bool) {
    let at = alloc(order);
    free(at, order);
    mark_as_allocated(at);
    let next = alloc(order);
    assert_eq!(next != at, bad);
    free(next, order);
    at_the_end(u64::from(bad), 1 << order.0);
}

/// Allocates `count` runs or objects of `size` bytes, and writes all of each.
fn written(size: usize, count: usize) -> Vec<*mut u8> {
    let one = || {
        let at = A.alloc(size, Caller::at(0x1234_5678));
        assert!(!at.is_null());
        // SAFETY: a live allocation of that size.
        unsafe { at.write_bytes(0x55, size) };
        at
    };
    (0..count).map(|_| one()).collect()
}

/// Frees a written run that is longer than one pageblock. Objects and short runs take its pages.
fn reuse_of_a_long_run(size: usize) {
    let long = written(size, 1);
    let pages = long[0]..long[0].wrapping_add(size);
    free_all(&A, long);
    // A CPU keeps runs of up to 960 pages.
    A.drain();
    let objects = written(1000, 1000);
    let runs = written(100 << 10, 40);
    for (kind, all) in [("object", &objects), ("run", &runs)] {
        assert!(all.iter().any(|at| pages.contains(at)), "no {kind} got pages of the long run");
    }
    free_all(&A, objects);
    free_all(&A, runs);
    at_the_end(0, 0);
}

/// Forks while pages are taken, on arrays of the CPU, and not used yet. The child frees what is
/// taken and allocates more than that.
fn reuse_in_a_child() {
    let pages = |count: usize| -> Vec<_> {
        let all: Vec<_> = (0..count).map(|_| alloc(PAGE)).collect();
        // SAFETY: live pages.
        all.iter().for_each(|&at| unsafe { at.write_bytes(0x55, 4096) });
        all
    };
    let (kept, freed) = (pages(300), pages(300));
    let (kept_runs, freed_runs) = (written(100 << 10, 8), written(100 << 10, 8));
    freed.iter().for_each(|&at| free(at, PAGE));
    free_all(&A, freed_runs.iter().copied());
    let work = || {
        kept.iter().for_each(|&at| free(at, PAGE));
        free_all(&A, kept_runs.iter().copied());
        let (all, runs) = (pages(2000), written(100 << 10, 40));
        let again = [kept[0], freed[0]].iter().all(|at| all.contains(at))
            && [kept_runs[0], freed_runs[0]].iter().all(|at| runs.contains(at) || all.contains(at));
        all.into_iter().for_each(|at| free(at, PAGE));
        free_all(&A, runs);
        free_all(&A, written(1000, 4000));
        A.drain();
        again && A.validate() == Ok(()) && A.stats().bad_pages == 0
    };
    // SAFETY: the child uses this instance and the C library's allocator. Both work in a forked
    // child.
    assert!(unsafe { forked(work) }, "what the child found");
    kept.into_iter().for_each(|at| free(at, PAGE));
    free_all(&A, kept_runs.iter().copied());
    at_the_end(0, 0);
}

/// Forks while CPUs keep blocks of each order, and others are live. The child has all of them.
fn kept_blocks_in_a_child() {
    for order in (4..=8).map(Order) {
        let blocks = || -> Vec<_> { (0..12).map(|_| alloc(order)).collect() };
        let (live, kept) = (blocks(), blocks());
        kept.iter().for_each(|&at| free(at, order));
        let work = || {
            live.iter().for_each(|&at| free(at, order));
            let again: BTreeSet<_> = (0..48).map(|_| alloc(order)).collect();
            let right = again.len() == 48 && live.iter().chain(&kept).all(|at| again.contains(at));
            again.into_iter().for_each(|at| free(at, order));
            A.drain();
            right && A.validate() == Ok(()) && A.stats().used == 0
        };
        // SAFETY: the child uses this instance and the C library's allocator. Both work in a
        // forked child.
        assert!(unsafe { forked(work) }, "what the child found of {order:?}");
        live.into_iter().for_each(|at| free(at, order));
        at_the_end(0, 0);
    }
}

/// Forks, and makes one of the two words of a page older than the other, as a copy during a change
/// has them. The child finds the page free, and gets it.
fn half_copied_words() {
    let half_freed = |at: *mut u8| {
        A.page_words(at).expect("a page").1.store(0, Ordering::Relaxed);
    };
    let half_marked = |at: *mut u8| {
        A.page_words(at).expect("a page").0.fetch_and(!EXT_LIVE, Ordering::Relaxed);
    };
    for tear in [half_freed, half_marked] {
        let all: Vec<_> = (0..100).map(|_| alloc(PAGE)).collect();
        let work = || {
            all.iter().for_each(|&at| tear(at));
            let again: Vec<_> = (0..2000).map(|_| alloc(PAGE)).collect();
            let right = all.iter().all(|at| again.contains(at));
            again.into_iter().for_each(|at| free(at, PAGE));
            A.drain();
            let stats = A.stats();
            right && A.validate() == Ok(()) && stats.bad_pages == 0 && stats.used == 0
        };
        // SAFETY: the child uses this instance and the C library's allocator. Both work in a
        // forked child.
        assert!(unsafe { forked(work) }, "what the child found");
        all.into_iter().for_each(|at| free(at, PAGE));
    }
    at_the_end(0, 0);
}

/// Forks while other threads allocate and free. Each child allocates more than they had.
fn forks_beside_threads() {
    let end = AtomicBool::new(false);
    let (small, large) = (|| alloc(PAGE), || A.alloc(100 << 10, Caller::at(0x1234_5678)));
    let both = |count: usize| -> (Vec<_>, Vec<_>) {
        ((0..count).map(|_| small()).collect(), (0..count / 10).map(|_| large()).collect())
    };
    let free_both = |(pages, runs): (Vec<_>, Vec<_>)| {
        pages.into_iter().for_each(|at| free(at, PAGE));
        free_all(&A, runs);
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    free_both(both(500));
                }
            });
        }
        let work = || {
            free_both(both(3000));
            A.stats().bad_pages == 0
        };
        // SAFETY: the child uses this instance and the C library's allocator. Both work in a
        // forked child.
        let bad = (0..50).filter(|_| !unsafe { forked(work) }).count();
        end.store(true, Ordering::Relaxed);
        assert_eq!(bad, 0, "of 50 children");
    });
    at_the_end(0, 0);
}

/// A page that was freed comes back on the CPU that it was freed on.
fn stay_on_this_cpu() {
    // SAFETY: takes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    assert!(pin(0, cpu as usize));
}

/// The program: one case, in a process of its own.
#[test]
fn child() {
    let Some(case) = case() else { return };
    stay_on_this_cpu();
    let fill = |at: *mut u8| {
        // SAFETY: a live page.
        unsafe { at.write_bytes(0x55, 4096) }
    };
    let is_zero = |at: *mut u8| {
        // SAFETY: mapped; no other code uses the page after it was freed.
        unsafe { std::slice::from_raw_parts(at, 4096) }.iter().all(|&byte| byte == 0)
    };
    match case.as_str() {
        "write" => write_after_free(PAGE),
        "write huge" => write_after_free(HUGE),
        "write run" => {
            let at = A.alloc(100 << 10, Caller::at(0x1234_5678));
            // SAFETY: live, given up; then a stray write.
            unsafe {
                A.free(at);
                at.add(5000).write(1);
            }
            let other = A.alloc(100 << 10, Caller::at(0x1234_5678));
            assert_ne!(other, at);
            // SAFETY: live, given up.
            unsafe { A.free(other) };
            A.drain();
            assert_eq!((A.validate(), A.stats().bad_pages), (Ok(()), 1));
        }
        "reuse of 2.5 MiB" => reuse_of_a_long_run(5 << 19),
        "reuse of 4.5 MiB" => reuse_of_a_long_run(9 << 19),
        "reuse in a child" => reuse_in_a_child(),
        "kept blocks in a child" => kept_blocks_in_a_child(),
        "half copied words" => half_copied_words(),
        "forks beside threads" => forks_beside_threads(),
        "marked" => marked_in_zone(PAGE),
        "marked huge" => marked_in_zone(HUGE),
        "marked inside, every" => marked_inside(Order(3), true),
        "marked inside huge, every" => marked_inside(HUGE, true),
        "marked inside, refill" => marked_inside(Order(3), false),
        "marked inside huge, refill" => marked_inside(HUGE, false),
        "marked on cpu, every" => marked_on_cpu(PAGE, true),
        "marked on cpu, refill" => marked_on_cpu(PAGE, false),
        "marked, off" => {
            let at = alloc(PAGE);
            free(at, PAGE);
            A.drain();
            mark_as_allocated(at);
            let all: Vec<_> = (0..40).map(|_| alloc(PAGE)).collect();
            assert!(all.contains(&at));
        }
        "freed twice" => {
            let at = alloc(PAGE);
            free(at, PAGE);
            free(at, PAGE);
        }
        "read" => {
            let at = alloc(PAGE);
            fill(at);
            let again = alloc(PAGE);
            free(again, PAGE);
            assert_eq!(alloc(PAGE), again);
            fill(again);
            free(at, PAGE);
            println!("before");
            // SAFETY: none; the read must end the program.
            println!("after {}", unsafe { at.read_volatile() });
        }
        "read never used" => {
            // The lowest pages of a fresh pageblock of 2 MiB are used first.
            let at = alloc(PAGE);
            fill(at);
            let last = (at as usize | 0x1f_ffff) as *const u8;
            println!("before");
            // SAFETY: none; the read must end the program.
            println!("after {}", unsafe { last.read_volatile() });
        }
        "zero on alloc" => {
            let at = alloc(PAGE);
            fill(at);
            free(at, PAGE);
            assert!(!is_zero(at));
            assert_eq!(alloc(PAGE), at);
            assert!(is_zero(at));
        }
        "zero on free" => {
            let at = alloc(PAGE);
            fill(at);
            free(at, PAGE);
            assert!(is_zero(at));
        }
        "order of blocks" => {
            for order in (0..=9).map(Order) {
                let all: Vec<_> = (0..64).map(|_| alloc(order)).collect();
                println!("order {} in order: {}", order.0, all.is_sorted());
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 64);
                all.into_iter().for_each(|at| free(at, order));
                A.drain();
            }
            at_the_end(0, 0);
        }
        other => panic!("no case {other}"),
    }
}

/// A configuration in which no page goes back during a case.
fn without_decay(conf: &str) -> String {
    format!("decay_ms:3600000,{conf}")
}

fn run(conf: &str, case: &str) -> Output {
    run_child(child, &without_decay(conf), case)
}

/// Lines that kmem printed in a case that succeeded.
fn said(conf: &str, case: &str) -> Vec<String> {
    said_by_child(child, &without_decay(conf), case)
}

/// Checks that kmem reported one bad page, in a block of that order.
fn one(said: &[String], order: u32, what: &str) {
    let right = |line: &String| {
        line.starts_with("kmem: bad page: frame ")
            && line.contains(&format!("(order {order})"))
            && line.contains(what)
            && line.contains("last allocated by the call that returns to 0x12345678")
            && line.ends_with("; taken out of use")
    };
    assert!(said.len() == 1 && right(&said[0]), "{said:?}");
}

#[test]
fn a_write_to_a_free_page_is_found_when_it_is_allocated_again() {
    let written = "was written to while it was free, at offset 100";
    one(&said("page_poison:1", "write"), 0, written);
    one(&said("page_poison:1,rseq:off", "write"), 0, written);
    one(&said("page_poison:1", "write huge"), 9, written);
    one(&said("page_poison:1", "write run"), 5, "at offset 904");
}

#[test]
fn no_page_of_a_freed_long_run_is_bad_when_it_is_allocated_again() {
    for conf in ["page_poison:1", "page_poison:1,rseq:off"] {
        // A CPU keeps the shorter run. The longer one ends inside a pageblock.
        for case in ["reuse of 2.5 MiB", "reuse of 4.5 MiB"] {
            assert_eq!(said(conf, case), [""; 0], "{conf}");
        }
    }
}

#[test]
fn no_page_is_bad_in_a_forked_child() {
    for conf in ["page_poison:1", "page_poison:1,rseq:off"] {
        assert_eq!(said(conf, "reuse in a child"), [""; 0], "{conf}");
    }
}

#[test]
fn a_forked_child_has_the_blocks_that_cpus_kept() {
    for conf in ["", "shuffle:1", "check_pages:every", "rseq:off"] {
        assert_eq!(said(conf, "kept blocks in a child"), [""; 0], "{conf}");
    }
}

#[test]
fn a_forked_child_finds_no_bad_page_where_threads_were_allocating() {
    for conf in ["", "check_pages:every", "page_poison:1", "rseq:off"] {
        assert_eq!(said(conf, "half copied words"), [""; 0], "{conf}");
    }
    for conf in ["", "check_pages:every"] {
        assert_eq!(said(conf, "forks beside threads"), [""; 0], "{conf}");
    }
}

#[test]
fn a_free_page_that_is_marked_as_allocated_is_found_when_it_leaves_the_zone() {
    let marked = "is free but marked as allocated";
    one(&said("", "marked"), 0, marked);
    one(&said("rseq:off", "marked"), 0, marked);
    one(&said("check_pages:every", "marked"), 0, marked);
    one(&said("", "marked huge"), 9, marked);
    assert_eq!(said("check_pages:off", "marked, off"), [""; 0]);
}

#[test]
fn all_pages_of_a_block_are_looked_at_where_every_page_is() {
    let marked = "is free but marked as allocated";
    for conf in ["check_pages:every", "check_pages:every,rseq:off"] {
        one(&said(conf, "marked inside, every"), 3, marked);
        one(&said(conf, "marked inside huge, every"), 9, marked);
    }
    // A refill looks at first pages.
    assert_eq!(said("check_pages:refill", "marked inside, refill"), [""; 0]);
    assert_eq!(said("check_pages:refill", "marked inside huge, refill"), [""; 0]);
}

#[test]
fn a_page_on_a_cpu_is_looked_at_where_every_page_is() {
    one(&said("check_pages:every", "marked on cpu, every"), 0, "marked as allocated");
    assert_eq!(said("check_pages:refill", "marked on cpu, refill"), [""; 0]);
}

#[test]
fn a_page_freed_twice_ends_the_program_with_its_name() {
    let double = "kmem: double free: 0x";
    for (conf, what) in [
        ("", double),
        ("check_pages:off", double),
        ("check_pages:every", double),
        ("page_poison:1", double),
        ("rseq:off", double),
        // Without books the allocator does not know that it was allocated.
        ("mem_profiling:never", "was never allocated"),
    ] {
        let output = run(conf, "freed twice");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.signal(), Some(6), "{conf}: {text}");
        assert!(text.contains(what), "{conf}: {text}");
    }
}

#[test]
fn a_free_page_cannot_be_read_where_that_is_asked_for() {
    for case in ["read", "read never used"] {
        let output = run("debug_pagealloc:1", case);
        assert_eq!(output.status.signal(), Some(11), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("before"));
        assert!(run("", case).status.success());
    }
}

#[test]
fn pages_are_zeroed_when_that_is_asked_for() {
    assert_eq!(said("init_on_alloc:1", "zero on alloc"), [""; 0]);
    assert_eq!(said("init_on_free:1", "zero on free"), [""; 0]);
    assert!(!run("", "zero on alloc").status.success());
    assert!(!run("", "zero on free").status.success());
}

#[test]
fn blocks_that_cpus_keep_come_in_random_order_when_that_is_asked_for() {
    let said = |conf| String::from_utf8_lossy(&run(conf, "order of blocks").stdout).into_owned();
    let (plain, shuffled) = (said(""), said("shuffle:1"));
    for order in 0..=9 {
        assert!(plain.contains(&format!("order {order} in order: true")), "{plain}");
        assert!(shuffled.contains(&format!("order {order} in order: false")), "{shuffled}");
    }
}
