//! Meanings of tags: static tags, chains of callers, scopes, split blocks and caches.
#![cfg(all(target_os = "linux", not(miri)))]

use kmem_core::task;
use kmem_core::units::{Gfp, Order, TagId};
use kmem_core::{Caller, Kmem, StaticTag, Tagged};
use kmem_layout::word::{TAG_MASK, TAG_NONE, TAG_UNTAGGED};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

/// Bytes and calls by place: `file:line function`, or the number of return addresses.
fn books(kmem: &'static Kmem) -> BTreeMap<String, (u64, u64)> {
    let mut books = BTreeMap::new();
    kmem.census(|tag, bytes, calls| {
        let place = place_of(kmem, tag);
        let entry: &mut (u64, u64) = books.entry(place).or_default();
        *entry = (entry.0 + bytes, entry.1 + calls);
    });
    books
}

fn place_of(kmem: &'static Kmem, tag: TagId) -> String {
    if let Some(names) = kmem.sites().names(tag) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let module = text(names.module);
        return format!("{module}|{}", text(names.function));
    }
    match kmem.sites().frames(tag) {
        [] => format!("tag {}", tag.0),
        frames => format!("{frames:x?}"),
    }
}

fn place(name: &str) -> String {
    format!("|{name}")
}

/// The caller of a call that returns to `ret`, in the scope of the thread.
fn in_scope(ret: usize) -> Caller {
    // SAFETY: the key of a return address.
    unsafe { Caller::of_key(task::caller(ret)) }
}

#[test]
fn static_tags_name_their_place_and_one_call_site_is_one_tag() {
    static A: Kmem = Kmem::new();
    for _ in 0..10 {
        assert!(!kmem_core::alloc!(A, 64).is_null());
    }
    assert!(!kmem_core::alloc!(A, 5000, zeroed).is_null());
    let at = kmem_core::alloc!(A, 100, align = 256);
    assert_eq!(at as usize % 256, 0);
    let mut all: Vec<(u64, u64)> = books(&A).into_values().collect();
    all.sort_unstable();
    // One tag per line; the three lines have one function name, so they are one key here.
    let sum = all.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    assert_eq!(sum, (10 * 64 + 5120 + 256, 12));
    let mut tags = Vec::new();
    A.census(|tag, _, _| tags.push(tag.0));
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), 3);
}

#[test]
fn scopes_nest_and_end_with_their_block() {
    static A: Kmem = Kmem::new();
    let alloc = || assert!(!A.alloc(64, in_scope(0x4242_4242)).is_null());
    alloc();
    {
        let _outer = kmem_core::tag!("outer");
        alloc();
        {
            let _inner = kmem_core::tag!("inner");
            alloc();
            alloc();
        }
        alloc();
        std::thread::spawn(alloc).join().unwrap();
    }
    alloc();
    let books = books(&A);
    assert_eq!(books[&place("outer")], (128, 2));
    assert_eq!(books[&place("inner")], (128, 2));
    // Before, after, and on a thread that is in no scope.
    assert_eq!(books["[42424242]"], (192, 3));
}

/// Allocates once per poll; ready after `polls`.
struct Allocates(&'static Kmem, u32);

impl Future for Allocates {
    type Output = ();
    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        assert!(!self.0.alloc(64, in_scope(0x5151)).is_null());
        self.1 -= 1;
        if self.1 == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn a_tagged_future_is_billed_on_whichever_thread_polls_it() {
    static A: Kmem = Kmem::new();
    static TAG: &StaticTag = kmem_core::static_tag!("query");
    let mut future = Box::pin(Tagged::new(TAG, Allocates(&A, 4)));
    for round in 0..4 {
        let (back, ready) = std::thread::spawn(move || {
            let ready = future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            // Outside the poll the thread has no scope.
            assert!(!A.alloc(64, in_scope(0x5252)).is_null());
            (future, ready)
        })
        .join()
        .unwrap();
        future = back;
        assert_eq!(ready, round == 3);
    }
    let mut other = pin!(Allocates(&A, 1));
    assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    let books = books(&A);
    assert_eq!(books[&place("query")], (256, 4));
    assert_eq!(books["[5252]"], (256, 4));
    assert_eq!(books["[5151]"], (64, 1));
}

#[test]
fn tags_of_an_unloaded_object_keep_their_names_and_come_back_with_it() {
    static A: Kmem = Kmem::new();
    let tags: &'static [StaticTag; 2] = Box::leak(Box::new([
        StaticTag::new(c"plugin.c", c"first", 7),
        StaticTag::new(c"plugin.c", c"second", 9),
    ]));
    let range = tags.as_ptr_range();
    // SAFETY: the tags are never freed.
    unsafe { A.register_tags(range.start, range.end, b"plugin.so") };
    let first = A.alloc(64, Caller::tagged(&tags[0]));
    let second = A.alloc(64, Caller::tagged(&tags[1]));
    // SAFETY: live, given up.
    unsafe { A.free(second) };
    A.unregister_tags(range.start, range.end, b"plugin.so");
    assert_eq!(books(&A)["plugin.so|first"], (64, 1));

    // The object at another address has its tags again. Another object at the old address has
    // others.
    let again: &'static StaticTag = Box::leak(Box::new(StaticTag::new(c"plugin.c", c"first", 7)));
    let tag_of = |tag: &'static StaticTag| {
        let mut before = BTreeMap::new();
        A.census(|tag, _, calls| *before.entry(tag.0).or_insert(0) += calls);
        assert!(!A.alloc(64, Caller::tagged(tag)).is_null());
        let mut after = BTreeMap::new();
        A.census(|tag, _, calls| *after.entry(tag.0).or_insert(0) += calls);
        after.into_iter().find(|(tag, calls)| before.get(tag).unwrap_or(&0) != calls).unwrap().0
    };
    // SAFETY: the tag is never freed.
    unsafe { A.register_tags(again, std::ptr::from_ref(again).wrapping_add(1), b"plugin.so") };
    let known = tag_of(again);
    assert_eq!(place_of(&A, TagId(known)), "plugin.so|first");
    assert_eq!(books(&A)["plugin.so|first"], (128, 2));
    assert_ne!(tag_of(&tags[0]), known, "the old address is another place by now");
    // SAFETY: live, given up.
    unsafe { A.free(first) };
}

#[test]
fn a_split_block_is_many_allocations_of_one_tag() {
    static A: Kmem = Kmem::new();
    let caller = Caller::at(0x77_0000);
    let block = A.alloc_pages(Order(4), Gfp::ZERO, caller);
    assert_eq!(block as usize % (16 << 12), 0);
    assert_eq!(books(&A)["[770000]"], (16 << 12, 1));
    // SAFETY: our block; pages of it are freed once each.
    unsafe {
        A.split_page(block, Order(4));
        assert_eq!(books(&A)["[770000]"], (16 << 12, 16));
        A.free(block.add(3 << 12));
        assert_eq!(books(&A)["[770000]"], (15 << 12, 15));
        A.free_pages(block, Order(1));
        A.free_pages(block.add(2 << 12), Order(0));
        A.free_pages(block.add(4 << 12), Order(2));
        assert_eq!(books(&A)["[770000]"], (8 << 12, 8));
        A.free_pages(block.add(8 << 12), Order(3));
    }
    assert!(books(&A).is_empty());
    // More than a huge page: its pageblocks come apart, too.
    let block = A.alloc_pages(Order(10), Gfp::KERNEL, caller);
    // SAFETY: our block; pages of it are freed once each.
    unsafe {
        A.split_page(block, Order(10));
        A.free(block.add(4 << 20 >> 1));
        assert_eq!(books(&A)["[770000]"], (1023 << 12, 1023));
        (0..1024).filter(|n| *n != 512).for_each(|n| A.free(block.add(n << 12)));
    }
    assert!(books(&A).is_empty());
    let mut pages = [std::ptr::null_mut(); 9];
    pages[4] = A.alloc_pages(Order(0), Gfp::KERNEL, Caller::at(0x78_0000));
    assert_eq!(A.alloc_pages_bulk(Gfp::KERNEL, &mut pages, caller), 9);
    assert_eq!(books(&A)["[770000]"], (8 << 12, 8));
    let exact = A.alloc_pages_exact(5 << 12, Gfp::KERNEL, Caller::at(0x79_0000));
    assert_eq!(books(&A)["[790000]"], (5 << 12, 1));
    // SAFETY: all live, given up.
    unsafe {
        A.free_pages_exact(exact, 5 << 12);
        pages.iter().for_each(|&page| A.free_pages(page, Order(0)));
    }
    assert!(books(&A).is_empty());
    assert!(A.alloc_pages(Order(12), Gfp::KERNEL, caller).is_null());
    A.drain();
    assert_eq!(A.validate(), Ok(()));
}

#[test]
fn a_cache_counts_its_objects_and_stays_while_there_are_some() {
    static A: Kmem = Kmem::new();
    unsafe extern "C" fn construct(object: *mut std::ffi::c_void) {
        // SAFETY: an object of 200 bytes.
        unsafe { object.cast::<u8>().write_bytes(0x5a, 200) };
    }
    let caller = Caller::at(0x88_0000);
    let cache = A.cache_create(b"conn", 200, 64, Some(construct), caller).unwrap();
    // SAFETY: it lives until it is destroyed.
    let of = unsafe { cache.as_ref() };
    assert!(A.cache_create(b"odd", 200, 48, None, caller).is_none());
    let object = A.cache_alloc(of, Gfp::KERNEL, Caller::at(0x89_0000));
    assert_eq!(object as usize % 64, 0);
    // SAFETY: constructed; freed once.
    unsafe {
        assert_eq!(*object.add(199), 0x5a);
        assert!(!A.cache_destroy(cache));
        assert_eq!(of.live(), 1);
        A.cache_free(of, object);
        assert!(A.cache_destroy(cache));
    }
    assert!(books(&A).is_empty());
}

#[test]
fn nobody_is_billed_to_no_tag() {
    static A: Kmem = Kmem::new();
    assert!(!A.alloc(64, Caller::NOBODY).is_null());
    let mut tags = Vec::new();
    A.census(|tag, bytes, calls| tags.push((tag.0 & TAG_MASK, bytes, calls)));
    assert_eq!(tags, [(TAG_NONE, 64, 1)]);
}

#[test]
fn tags_of_a_registered_object_have_numbers_and_names_before_their_first_use() {
    static A: Kmem = Kmem::new();
    let tag = |function, line| StaticTag::new(c"plugin.c", function, line);
    let none = StaticTag { file: std::ptr::null(), ..tag(c"none", 0) };
    let tags: &'static [StaticTag; 3] =
        Box::leak(Box::new([tag(c"first", 7), none, tag(c"second", 9)]));
    let range = tags.as_ptr_range();
    let known = || {
        let names = (0..100).filter_map(|tag| A.sites().names(TagId(tag)));
        names.map(|of| String::from_utf8_lossy(of.function).into_owned()).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        // SAFETY: the tags are never freed.
        unsafe { A.register_tags(range.start, range.end, b"plugin.so") };
        assert_eq!(known(), ["first", "second"]);
    }
    let places = || (0..100).filter(|&tag| !A.sites().place(TagId(tag)).is_null()).count();
    assert_eq!(places(), 2);
    A.unregister_tags(range.start, range.end, b"plugin.so");
    assert_eq!((known().len(), places()), (2, 0));
    assert_eq!(A.sites().validate(), Ok(()));
}

#[test]
fn a_program_switches_profiling_and_objects_keep_what_they_have() {
    static A: Kmem = Kmem::new();
    let site = |kmem: &'static Kmem| kmem.alloc(40, Caller::at(0x77));
    let calls = || {
        let books = books(&A);
        let of = |place: &str| books.get(place).map_or(0, |row| row.1);
        (of("[77]"), of(&format!("tag {TAG_UNTAGGED}")))
    };
    let tagged = [site(&A), site(&A)];
    assert_eq!((A.profiling(), calls()), (Some(true), (2, 0)));
    assert!(A.set_profiling(false));
    let untagged = [site(&A), A.alloc(100_000, Caller::at(0x77))];
    assert_eq!((A.profiling(), calls()), (Some(false), (2, 2)));
    // SAFETY: a live object, given up.
    unsafe { A.free(tagged[0]) };
    assert!(A.set_profiling(true) && A.set_profiling(true));
    let last = site(&A);
    assert_eq!((A.profiling(), calls()), (Some(true), (2, 2)));
    // SAFETY: live allocations, given up.
    unsafe { [tagged[1], untagged[0], untagged[1], last].into_iter().for_each(|at| A.free(at)) };
    assert_eq!((calls(), A.stats().objects), ((0, 0), 0));
}

/// Threads enter their call sites into the cache while others switch. The last word counts.
#[test]
fn the_last_switch_counts_for_every_call_site_though_threads_switch_concurrently() {
    static A: Kmem = Kmem::new();
    static DONE: AtomicBool = AtomicBool::new(false);
    for round in 0..40 {
        DONE.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    for n in (0usize..).take_while(|_| !DONE.load(Ordering::Relaxed)) {
                        let at = A.alloc(40, Caller::at(0x1000 + thread * 8 + n % 4));
                        // SAFETY: a live object, given up.
                        unsafe { A.free(at) };
                    }
                });
            }
            let switch = || assert!((0..200).all(|n| A.set_profiling(n % 2 == 0)));
            let other = scope.spawn(switch);
            switch();
            other.join().expect("no panic");
            let on = round % 2 == 0;
            assert!(A.set_profiling(on));
            // A request from before the switch may still be under way, so look after the threads.
            DONE.store(true, Ordering::Relaxed);
        });
        let on = round % 2 == 0;
        assert_eq!(A.profiling(), Some(on));
        for site in 0..16 {
            let at = A.alloc(40, Caller::at(0x1000 + site));
            let untagged = books(&A).contains_key(&format!("tag {TAG_UNTAGGED}"));
            assert_eq!(untagged, !on, "site {site} in round {round}");
            // SAFETY: a live object, given up.
            unsafe { A.free(at) };
        }
    }
}
