//! `guard`: each block ends in front of an inaccessible page, and is inaccessible once it is freed.

use crate::instance::{case, lines, run_child};
use crate::vmalloc::is_writable;
use kmem_core::class::MAX_OBJECT;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Kmem};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const SITE: Caller = Caller::at(0x1234_5678);

static A: Kmem = Kmem::new();

fn alloc(size: usize) -> *mut u8 {
    let at = A.alloc(size, SITE);
    assert!(!at.is_null(), "{size}");
    at
}

fn free(at: *mut u8) {
    // SAFETY: live, given up. Later misuse of it is what the case tests.
    unsafe { A.free(at) }
}

fn usable(at: *mut u8) -> usize {
    // SAFETY: live.
    unsafe { A.usable_size(at) }
}

/// Asserts that a block has its size, and ends in front of an inaccessible page but for what its
/// alignment takes.
fn check(at: *mut u8, size: usize, align: usize) {
    assert!(at.addr().is_multiple_of(align) && usable(at) == size, "{size} at {align}");
    let end = at.addr() + size;
    let gap = end.next_multiple_of(PAGE) - end;
    assert!(gap < align.min(PAGE), "{gap} bytes behind {size} at {align}");
    // SAFETY: live, and that long.
    unsafe { at.write_bytes(0x11, size) };
    assert!(!is_writable(at.wrapping_add(size + gap)), "behind {size} at {align}");
}

/// Live bytes and calls of all sites.
fn live() -> (u64, u64) {
    let mut found = (0, 0);
    A.census(|_, bytes, calls| found = (found.0 + bytes, found.1 + calls));
    found
}

fn at_rest() {
    A.trim();
    assert_eq!((A.stats().used, live(), A.validate()), (0, (0, 0), Ok(())));
    let stats = A.vmalloc_stats();
    assert_eq!((stats.guards, stats.stuck), (0, 0));
}

fn places() {
    let sizes = [1, 15, 16, 17, 64, 4080, 4096, 4097, MAX_OBJECT, MAX_OBJECT + 1, 1_000_000];
    for size in sizes {
        for align in (0..=14).map(|shift| 1 << shift) {
            let at = A.alloc_aligned(size, align, SITE);
            check(at, size, align.max(16));
            assert_eq!(live(), ((size.next_multiple_of(PAGE)) as u64, 1), "{size}");
            free(at);
        }
        let at = A.alloc_zeroed(size, SITE);
        // SAFETY: live, and that long.
        assert!(unsafe { std::slice::from_raw_parts(at, size) }.iter().all(|&byte| byte == 0));
        check(at, size, 16);
        let mut at = at;
        for other in [size / 2 + 1, size + 1, size + 5000] {
            // SAFETY: live, replaced.
            at = unsafe { A.realloc(at, other, SITE) };
            check(at, other, 16);
        }
        free(at);
    }
    at_rest();
}

fn after_free() {
    let blocks: Vec<_> = (0..500).map(|_| alloc(100)).collect();
    for &at in &blocks {
        free(at);
        assert!(!is_writable(at), "a freed block");
    }
    // None of them is used again at once.
    let others: Vec<_> = (0..500).map(|_| alloc(100)).collect();
    assert!(others.iter().all(|at| !blocks.contains(at)));
    assert!(blocks.iter().all(|&at| !is_writable(at)));
    others.into_iter().for_each(free);
    // There are places for 32,768. So addresses come again.
    let mut addresses = std::collections::BTreeSet::new();
    for _ in 0..100_000 {
        let at = alloc(100);
        addresses.insert(at.addr());
        free(at);
    }
    println!("addresses: {}", (32_768..40_000).contains(&addresses.len()));
    at_rest();
}

/// Blocks of pages go back to their zone, and its decay comes round several times meanwhile.
fn after_decay() {
    let at = alloc(100);
    free(at);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        let pages = A.alloc_pages(Order(10), Gfp::KERNEL, SITE);
        // SAFETY: live, given up.
        unsafe { A.free_pages(pages, Order(10)) };
    }
    assert!(!is_writable(at), "fewer blocks than there are places were freed");
    at_rest();
}

fn caches() {
    let small = A.cache_create(b"small", 100, 0, None, SITE).expect("a cache");
    let large = A.cache_create(b"large", 40_000, 0, None, SITE).expect("a cache");
    for cache in [small, large] {
        // SAFETY: live until the end of the loop.
        let of = unsafe { cache.as_ref() };
        let object = A.cache_alloc(of, Gfp::KERNEL, SITE);
        check(object, of.size(), 16);
        // SAFETY: an object of the cache, then the cache, given up.
        unsafe {
            A.cache_free(of, object);
            assert!(A.cache_destroy(cache));
        }
    }
    at_rest();
}

fn in_a_child() {
    let (kept, freed) = (alloc(100), alloc(100));
    free(freed);
    // SAFETY: the child uses the instance and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            assert!(is_writable(kept) && !is_writable(kept.wrapping_add(112)));
            free(kept);
            let blocks: Vec<_> = (0..2000).map(|n| alloc(n + 1)).collect();
            blocks.iter().enumerate().for_each(|(n, &at)| check(at, n + 1, 16));
            blocks.into_iter().for_each(free);
            at_rest();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0, "of the child");
    }
    free(kept);
    at_rest();
}

/// The program: one case, in a process of its own.
#[test]
fn child() {
    let Some(case) = case() else { return };
    match case.as_str() {
        "places" => places(),
        "after free" => after_free(),
        "after decay" => after_decay(),
        "caches" => caches(),
        "in a child" => in_a_child(),
        "areas" => {
            let at = A.vmalloc(5000, Gfp::KERNEL, SITE);
            assert!(at.addr().is_multiple_of(PAGE) && usable(at) == 2 * PAGE);
            assert!(A.find_area(at.addr()).is_some_and(|area| area.pages.bytes() == 2 * PAGE));
            // Blocks are no areas, whatever their size.
            for block in [alloc(100), alloc(PAGE)] {
                assert_eq!(A.find_area(block.addr()), None);
                free(block);
            }
            // SAFETY: live, and given up.
            unsafe {
                let at = A.vrealloc(at, 50_000, Gfp::KERNEL, SITE);
                at.write_bytes(1, 50_000);
                A.vfree(at);
            }
            assert!(!is_writable(at));
            at_rest();
        }
        "twice" | "twice, released between" => {
            let (at, live) = (alloc(40), alloc(50));
            println!("{at:p}");
            free(at);
            if case != "twice" {
                A.trim();
            }
            free(at);
            free(live);
        }
        "behind" | "in front" => {
            let (at, offset) = (alloc(40), if case == "behind" { 43 } else { -1 });
            println!("{at:p}");
            // SAFETY: none, except that these bytes are mapped.
            unsafe { at.offset(offset).write(b'A') };
            free(at);
        }
        other => panic!("no case {other}"),
    }
}

/// Output of a case that succeeded, in which kmem printed nothing.
#[track_caller]
fn quiet(case: &str) -> String {
    let run = |conf| {
        let output = run_child(child, conf, case);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !text.contains("kmem: "), "{conf}, {case}: {text}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run("hardened,guard");
    run("guard")
}

#[test]
fn each_block_ends_in_front_of_an_inaccessible_page() {
    quiet("places");
}

#[test]
fn a_freed_block_is_inaccessible_until_many_others_are_freed() {
    assert!(quiet("after free").contains("addresses: true"));
}

#[test]
fn a_freed_block_stays_inaccessible_while_free_memory_decays() {
    quiet("after decay");
}

#[test]
fn objects_of_caches_have_fences() {
    quiet("caches");
}

#[test]
fn a_forked_child_has_fences_and_uses_what_its_parent_freed() {
    quiet("in a child");
}

#[test]
fn areas_begin_at_their_first_page_beside_fences() {
    quiet("areas");
}

#[test]
fn bytes_around_a_block_are_looked_at_when_it_is_freed() {
    for (case, place, offset, found) in
        [("behind", "right", 43, "41 cc cc cc cc"), ("in front", "left", -1, "41")]
    {
        let output = run_child(child, "guard", case);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{case}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let at = said.split_whitespace().rfind(|word| word.starts_with("0x")).expect("an address");
        let wanted = format!(
            "kmem: {place} redzone overwritten: {at} is a 4096-byte object of 40 bytes, allocated \
             by the call that returns to 0x12345678; at offset {offset} found {found}"
        );
        assert_eq!(lines(&output), [wanted]);
    }
}

#[test]
fn a_second_free_is_named_while_the_block_is_held_and_afterwards() {
    for (case, what) in [
        ("twice", "is a free 40-byte block"),
        ("twice, released between", "is a free page allocation"),
    ] {
        let output = run_child(child, "guard", case);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{case}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let at = said.split_whitespace().rfind(|word| word.starts_with("0x")).expect("an address");
        let (start, end) = (
            format!("kmem: double free: {at} {what}"),
            "last allocated by the call that returns to 0x12345678",
        );
        let lines = lines(&output);
        let [line] = &lines[..] else { panic!("{case}: {lines:?}") };
        assert!(line.starts_with(&start) && line.ends_with(end), "{case}: {line}");
    }
}
