//! Options of `KMEM_CONF` that check objects of slabs, each with a program that misuses its memory.

use crate::instance::{case, lines, run_child};
use kmem_core::class::{SIZES, SizeClass};
use kmem_core::memcg::GroupId;
use kmem_core::units::Gfp;
use kmem_core::{Caller, Elements, Kmem};
use kmem_layout::group::Limit;
use std::os::unix::process::ExitStatusExt;
use std::ptr::NonNull;

static A: Kmem = Kmem::new();

fn alloc(size: usize) -> *mut u8 {
    let at = A.alloc(size, Caller::at(0x1234_5678));
    assert!(!at.is_null());
    at
}

fn free(at: *mut u8) {
    // SAFETY: live, given up. Later misuse of it is what the case tests.
    unsafe { A.free(at) }
}

/// Prints the address that the case misuses.
fn announce(at: *mut u8) -> *mut u8 {
    println!("{at:p}");
    at
}

/// A stray write.
fn spoil(at: *mut u8, offset: isize, bytes: &[u8]) {
    // SAFETY: none, except that the bytes beside an object are mapped.
    unsafe { at.offset(offset).copy_from(bytes.as_ptr(), bytes.len()) };
}

fn usable(at: *mut u8) -> usize {
    // SAFETY: live.
    unsafe { A.usable_size(at) }
}

fn fill(at: *mut u8, byte: u8, len: usize) {
    // SAFETY: a live allocation of that size.
    unsafe { at.write_bytes(byte, len) };
}

fn holds(at: *mut u8, byte: u8, len: usize) -> bool {
    // SAFETY: a live allocation of that size.
    unsafe { std::slice::from_raw_parts(at, len) }.iter().all(|&found| found == byte)
}

/// Two neighbours in a slab, of `size` bytes each.
fn neighbours(size: usize) -> (*mut u8, *mut u8) {
    let step = SIZES[SizeClass::of(size + 8).0 as usize] as usize;
    let mut all: Vec<_> = (0..100).map(|_| alloc(size)).collect();
    all.sort();
    let at = all.windows(2).position(|two| two[1] as usize - two[0] as usize == step);
    let at = at.expect("objects beside each other");
    (all[at], all[at + 1])
}

fn cache(name: &str, size: usize) -> &'static kmem_core::Cache {
    let cache = A.cache_create(name.as_bytes(), size, 0, None, Caller::at(0x2345_6789));
    // SAFETY: never destroyed.
    unsafe { cache.expect("a cache").as_ref() }
}

/// An object of one cache.
fn of(cache: &'static kmem_core::Cache) -> *mut u8 {
    let at = A.cache_alloc(cache, Gfp::KERNEL, Caller::at(0x1234_5678));
    assert!(!at.is_null());
    at
}

/// Every way to allocate, with its guarantees.
fn all_kinds() {
    for size in (0..3000).chain((3000..40_000).step_by(313)).chain(32_700..32_800) {
        let at = alloc(size);
        let room = usable(at);
        assert!(room >= size, "{size}");
        fill(at, 0x11, room);
        // SAFETY: live, replaced.
        let grown = unsafe { A.realloc(at, size + 5, Caller::at(0x3456_0000 + 1)) };
        assert!(holds(grown, 0x11, size) && usable(grown) >= size + 5, "{size}");
        fill(grown, 0x22, size + 5);
        // SAFETY: live, replaced.
        let shrunk = unsafe { A.realloc(grown, size / 3 + 1, Caller::at(0x3456_0000 + 1)) };
        assert!(holds(shrunk, 0x22, size / 3 + 1), "{size}");
        free(shrunk);
        let zeroed = A.alloc_zeroed(size, Caller::at(0x3456_0000 + 2));
        assert!(holds(zeroed, 0, size), "{size}");
        fill(zeroed, 0x33, size);
        free(zeroed);
    }
    for shift in 0..=16 {
        for size in [0, 1, 8, 16, 24, 64, 100, 1000, 4096, 10_000, 32_760, 32_768, 50_000] {
            let at = A.alloc_aligned(size, 1 << shift, Caller::at(0x3456_0000 + 3));
            assert!((at as usize).is_multiple_of(1 << shift) && usable(at) >= size);
            fill(at, 0x44, usable(at));
            free(at);
        }
    }
    let (one, other) = (cache("one", 100), cache("other", 40_000));
    for cache in [one, other] {
        let all: Vec<_> = (0..50).map(|_| of(cache)).collect();
        all.iter().for_each(|&at| fill(at, 0x55, cache.size()));
        // SAFETY: objects of it, given up.
        all.into_iter().for_each(|at| unsafe { A.cache_free(cache, at) });
        assert_eq!(cache.live(), 0);
    }
    // The objects that hold the two caches are left.
    A.drain();
    assert_eq!((A.stats().objects, A.validate()), (2, Ok(())));
}

fn books(quarantine: bool) {
    let live = || {
        let mut found = (0, 0);
        A.census(|_, bytes, calls| found = (found.0 + bytes, found.1 + calls));
        found
    };
    let before = live();
    let all: Vec<_> = (0..1000).map(|_| alloc(100)).collect();
    let size = u64::from(SIZES[SizeClass::of(if quarantine { 108 } else { 100 }).0 as usize]);
    assert_eq!(live(), (before.0 + 1000 * size, before.1 + 1000));
    let used = A.stats().used;
    all.iter().for_each(|&at| free(at));
    assert_eq!(live(), before);
    // The objects are free, and their pages are still in use.
    assert_eq!(A.stats().used, used);
    let again: Vec<_> = (0..100).map(|_| alloc(100)).collect();
    assert_eq!(again.iter().any(|at| all.contains(at)), !quarantine);
    again.into_iter().for_each(free);
    A.drain();
    assert_eq!((A.stats().used, A.validate()), (0, Ok(())));
}

/// The program: one case, in a process of its own.
#[test]
fn child() {
    let Some(case) = case() else { return };
    match case.as_str() {
        "behind" => {
            let at = announce(alloc(40));
            spoil(at, 41, b"AB");
            free(at);
        }
        "one behind" => {
            let at = announce(alloc(24));
            spoil(at, 24, b"\0");
            free(at);
        }
        "behind, resized" => {
            let at = announce(alloc(40));
            spoil(at, 44, b"C");
            // SAFETY: live.
            unsafe { A.realloc(at, 39, Caller::at(0x3456_0000 + 1)) };
        }
        "behind, medium" => {
            let at = announce(alloc(5000));
            spoil(at, 5003, b"D");
            free(at);
        }
        "in front" => {
            let (_, at) = neighbours(40);
            spoil(announce(at), -3, b"EF");
            free(at);
        }
        "behind the whole object" => {
            let (front, at) = neighbours(40);
            spoil(front, 47, b"G");
            free(announce(at));
        }
        "after free" => {
            let at = announce(alloc(40));
            free(at);
            spoil(at, 8, b"HIJ");
            (0..2000).for_each(|_| free(alloc(40)));
        }
        "after free, drained" => {
            let at = announce(alloc(3000));
            free(at);
            spoil(at, 2999, b"K");
            A.drain();
        }
        "behind, after free" => {
            let at = announce(alloc(40));
            free(at);
            spoil(at, 43, b"L");
            A.drain();
        }
        "twice" => {
            let at = announce(alloc(40));
            free(at);
            free(at);
        }
        "wrong cache" => {
            let (inode, dentry) = (cache("inode", 64), cache("dentry", 64));
            // SAFETY: live; that it is of another cache is what is tested.
            unsafe { A.cache_free(inode, announce(of(dentry))) };
        }
        "kmalloc to cache" => {
            let inode = cache("inode", 64);
            // SAFETY: live; that it is of no cache is what is tested.
            unsafe { A.cache_free(inode, announce(alloc(64))) };
        }
        "pages to cache" => {
            let inode = cache("inode", 64);
            // SAFETY: live; that it is of no cache is what is tested.
            unsafe { A.cache_free(inode, announce(alloc(100_000))) };
        }
        "wrong pool" | "wrong pool, full" => {
            let (inode, dentry) = (cache("inode", 64), cache("dentry", 64));
            let pool = A.mempool_create(1, Elements::Slab(inode), Caller::at(0x3456_0000 + 3));
            let pool = pool.unwrap_or_else(|_| panic!("a pool"));
            if case == "wrong pool" {
                // The group may be charged nothing, so it gets the element of the reserve. Then the
                // pool keeps the next element that is freed.
                let group = A.group_create(GroupId::ROOT, b"poor").and_then(|id| A.group(id));
                let group = group.expect("a group");
                group.set(Limit::Max, Some(0)).expect("a living group");
                let _scope = group.enter();
                let caller = Caller::at(0x3456_0000 + 3).here();
                assert!(pool.alloc(Gfp::NOWAIT, caller).is_some());
                assert_eq!(pool.reserved(), 0);
            }
            let other = NonNull::new(announce(of(dentry))).expect("an object");
            // SAFETY: live; that it is of another cache is what is tested.
            unsafe { pool.free(other) };
        }
        "cache's to a pool of bytes" => {
            let pool = A.mempool_create(1, Elements::Kmalloc(64), Caller::at(0x3456_0000 + 3));
            let pool = pool.unwrap_or_else(|_| panic!("a pool"));
            let other = announce(of(cache("dentry", 64)));
            // SAFETY: live; that it is of another cache is what is tested.
            unsafe { pool.free(NonNull::new(other).expect("an object")) };
        }
        "destroyed cache" => {
            let first = NonNull::from(cache("first", 64));
            // SAFETY: has no objects.
            assert!(unsafe { A.cache_destroy(first) });
            let second = cache("second", 64);
            // SAFETY: live, of it.
            unsafe { A.cache_free(second, of(second)) };
        }
        "more caches than are told apart" => {
            let caches: Vec<_> = (0..1100).map(|n| cache(&format!("cache-{n}"), 64)).collect();
            for cache in [caches[0], caches[1022], caches[1023], caches[1099]] {
                // SAFETY: live, of it.
                unsafe { A.cache_free(cache, of(cache)) };
            }
            // SAFETY: live; that it is of another cache is what is tested.
            unsafe { A.cache_free(caches[5], announce(of(caches[1099]))) };
        }
        "all kinds" => all_kinds(),
        "books, quarantine" => books(true),
        "books" => books(false),
        "usable" => println!("usable {} {}", usable(alloc(40)), usable(alloc(100_000))),
        "order" => {
            let all: Vec<_> = (0..500).map(|_| alloc(64) as usize).collect();
            let steps = all.windows(2).filter(|two| two[1] == two[0] + 64).count();
            println!("in order: {}", steps > 400);
            let distinct: std::collections::BTreeSet<_> = all.iter().collect();
            assert_eq!(distinct.len(), 500);
            // From all over the slab, not only from its beginning.
            let far = all.iter().filter(|&&at| at % 65_536 >= 40_000).count();
            println!("spread: {}", far > 50);
            all.into_iter().for_each(|at| free(at as *mut u8));
            A.drain();
            assert_eq!((A.stats().used, A.validate()), (0, Ok(())));
        }
        other => panic!("no case {other}"),
    }
}

/// Output of a case that succeeded, in which kmem printed nothing.
#[track_caller]
fn quiet(conf: &str, case: &str) -> String {
    let output = run_child(child, conf, case);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{conf}, {case}: {text}");
    assert!(!text.contains("kmem: "), "{conf}, {case}: {text}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that a case ends the program with one line: `message`, with the announced address for
/// `AT`. A `*` in it stands for any word.
#[track_caller]
fn ends(conf: &str, case: &str, message: &str) {
    let output = run_child(child, conf, case);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(6), "{conf}, {case}: {text}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = said.split_whitespace().rfind(|word| word.starts_with("0x"));
    let wanted = message.replace("AT", at.expect("an address"));
    let lines = lines(&output);
    let fits = |line: &str| {
        let (found, wanted): (Vec<_>, Vec<_>) =
            (line.split(' ').collect(), wanted.split(' ').collect());
        found.len() == wanted.len()
            && found.iter().zip(&wanted).all(|(found, wanted)| *wanted == "*" || found == wanted)
    };
    assert!(lines.len() == 1 && fits(&lines[0]), "{conf}, {case}: {lines:?} is not {wanted:?}");
}

const BY: &str = "allocated by the call that returns to 0x12345678;";

#[test]
fn a_write_behind_an_object_is_found_when_it_is_freed() {
    let conf = "redzone:1";
    let behind = |size: u32, of: u32, offset: u32, found: &str| {
        format!(
            "kmem: right redzone overwritten: AT is a {size}-byte object of {of} bytes, {BY} at \
             offset {offset} found {found}"
        )
    };
    for conf in [conf, "redzone:1,rseq:off", "redzone:1,quarantine_kb:64,check_caches:1"] {
        ends(conf, "behind", &behind(48, 40, 41, "41 42 cc cc cc cc cc"));
    }
    ends(conf, "one behind", &behind(32, 24, 24, "00 cc cc cc cc cc cc cc"));
    ends(conf, "behind, resized", &behind(48, 40, 44, "43 cc cc cc"));
    ends(conf, "behind, medium", &behind(5120, 5000, 5003, "44 cc cc cc cc cc cc cc"));
    quiet("", "behind");
    quiet("quarantine_kb:64", "one behind");
}

#[test]
fn a_write_in_front_of_an_object_is_found_when_it_is_freed() {
    let front = |offset: &str, found: &str| {
        format!(
            "kmem: left redzone overwritten: AT is a 48-byte object of 40 bytes, {BY} at offset \
             -{offset} found {found}, which is also behind the object at *"
        )
    };
    ends("redzone:1", "in front", &front("3", "45 46 cc"));
    ends("redzone:1", "behind the whole object", &front("1", "47"));
    quiet("", "in front");
}

#[test]
fn a_write_to_a_freed_object_is_found_when_it_leaves_the_quarantine() {
    let free = |what: &str, size: u32, offset: u32, found: &str| {
        format!(
            "kmem: {what} overwritten: AT is a free {size}-byte object, last {BY} at offset \
             {offset} found {found}"
        )
    };
    for conf in ["quarantine_kb:64", "quarantine_kb:64,rseq:off", "quarantine_kb:1"] {
        ends(conf, "after free", &free("poison", 48, 8, "48 49 4a 6b 6b 6b 6b 6b"));
    }
    ends(
        "quarantine_kb:64",
        "after free, drained",
        &free("poison", 3072, 2999, "4b 6b 6b 6b 6b 6b 6b 6b"),
    );
    let with_zones = "quarantine_kb:64,redzone:1";
    ends(with_zones, "after free", &free("poison", 48, 8, "48 49 4a 6b 6b 6b 6b 6b"));
    ends(with_zones, "behind, after free", &free("right redzone", 48, 43, "4c cc cc cc cc"));
    quiet("", "after free");
}

#[test]
fn an_object_in_quarantine_that_is_freed_again_is_a_double_free() {
    let twice = "kmem: double free: AT is a free 48-byte object, last allocated by the call that \
                 returns to 0x12345678";
    ends("quarantine_kb:64", "twice", twice);
}

#[test]
fn an_object_given_to_another_cache_is_found_and_both_are_named() {
    let wrong = |call: &str, is: &str, of: &str| {
        format!("kmem: invalid {call}: AT is a {is}, not of {of}; {BY}")
            .trim_end_matches(';')
            .to_owned()
    };
    let (one, dentry) = ("kmem_cache_free", "64-byte object of the cache dentry");
    let inode = "the cache inode";
    ends("check_caches:1", "wrong cache", &wrong(one, dentry, inode));
    ends("check_caches:1,rseq:off", "wrong cache", &wrong(one, dentry, inode));
    let zoned = "80-byte object of the cache dentry";
    ends("check_caches:1,redzone:1", "wrong cache", &wrong(one, zoned, inode));
    ends("check_caches:1", "kmalloc to cache", &wrong(one, "64-byte object of kmalloc", inode));
    ends("check_caches:1", "pages to cache", &wrong(one, "page allocation of kmalloc", inode));
    for case in ["wrong pool", "wrong pool, full"] {
        ends("check_caches:1", case, &wrong("mempool_free", dentry, inode));
    }
    let bytes = "cache's to a pool of bytes";
    ends("check_caches:1", bytes, &wrong("mempool_free", dentry, "kmalloc"));
    let many = wrong(one, "64-byte object of another cache", "the cache cache-5");
    ends("check_caches:1", "more caches than are told apart", &many);
    quiet("check_caches:1", "destroyed cache");
    quiet("", "wrong cache");
}

#[test]
fn guarded_allocations_keep_all_promises() {
    for conf in [
        "redzone:1",
        "quarantine_kb:256",
        "check_caches:1",
        "redzone:1,quarantine_kb:1024,check_caches:1,shuffle:1",
        "redzone:1,quarantine_kb:64,check_caches:1,rseq:off,page_poison:1,check_pages:every",
        "",
    ] {
        quiet(conf, "all kinds");
    }
}

#[test]
fn what_is_in_quarantine_is_free_in_the_books_and_not_used_again() {
    quiet("redzone:1,quarantine_kb:1024", "books, quarantine");
    quiet("", "books");
}

#[test]
fn red_zones_are_not_usable() {
    assert!(quiet("redzone:1", "usable").contains("usable 40 "));
    assert!(quiet("quarantine_kb:64", "usable").contains("usable 48 "));
}

#[test]
fn objects_come_in_random_order_when_that_is_asked_for() {
    assert!(quiet("", "order").contains("in order: true"));
    for conf in ["shuffle:1", "shuffle:1,rseq:off", "shuffle:1,mem_profiling:never"] {
        let said = quiet(conf, "order");
        assert!(
            said.contains("in order: false") && said.contains("spread: true"),
            "{conf}: {said}"
        );
    }
}

#[test]
fn guards_without_books_are_refused_by_name() {
    let output = run_child(child, "mem_profiling:never,redzone:1", "behind");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = "kmem: configuration: redzone, quarantine_kb, check_caches, check_interfaces and \
                guard need the books\n";
    assert!(output.status.success() && text.contains(said), "{text}");
}
