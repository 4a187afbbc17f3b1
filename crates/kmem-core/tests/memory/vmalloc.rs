//! vmalloc: areas are apart, guarded and booked, and any address in one finds it. Mappings show the
//! pages that they map.

use crate::instance::{Simulated, after_faults, books, budget, cases, forked, simulated, started};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;

use kmem_core::Kmem;
use kmem_core::os::Budget;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};
use kmem_core::vmalloc::Kind;
use proptest::prelude::*;

const PAGE: usize = 4096;
const SITE: Caller = Caller::at(0x1000);

fn areas_of(areas: usize) -> Budget {
    Budget { first_zone: areas, areas, memory: 64 << 20, ..budget(16 << 20, 2) }
}

/// True if access to a byte of this process faults.
fn faults(at: *mut u8) -> bool {
    // SAFETY: the child only touches the byte and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            at.write_volatile(at.read_volatile());
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) == 0);
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
    }
}

#[test]
fn the_page_behind_an_area_faults_fresh_and_used_again() {
    static KMEM: Kmem = Kmem::new();
    for round in 0..3 {
        for pages in [1, 4, 73, 74, 600] {
            let at = KMEM.vmalloc(pages * PAGE - 5, Gfp::KERNEL, SITE);
            // SAFETY: live and that long, then given up.
            unsafe {
                at.write_bytes(1, pages * PAGE);
                assert!(!faults(at.add(pages * PAGE - 1)), "the last byte of {pages}");
                assert!(faults(at.add(pages * PAGE)), "the byte behind {pages} in round {round}");
                KMEM.vfree(at);
            }
        }
    }
    KMEM.trim();
    let stats = KMEM.vmalloc_stats();
    assert_eq!((stats.guards, stats.unguarded, stats.stuck), (0, 0, 0));
}

#[test]
fn long_and_aligned_areas_are_taken_again_as_they_were_freed() {
    let a = simulated(areas_of(64 << 20));
    a.platform().run_on(0);
    let take = |pages: usize, align: usize| {
        let at = a.vmalloc_aligned(pages * PAGE, align * PAGE, Gfp::KERNEL, SITE);
        assert!(!at.is_null() && at.addr().is_multiple_of(align * PAGE));
        at
    };
    for (pages, align) in [(72, 1), (73, 1), (100, 1), (256, 1), (5, 4), (90, 8)] {
        let first = take(pages, align);
        for _ in 0..3 {
            // SAFETY: live, given up.
            unsafe { a.vfree(first) };
            assert_eq!(take(pages, align), first, "{pages} pages at {align}");
        }
        let guards = a.vmalloc_stats().guards;
        // An area of another length does not take its place.
        // SAFETY: live, given up.
        unsafe { a.vfree(first) };
        assert_eq!(a.vmalloc_stats().guards, guards, "{pages} pages are kept, guard included");
        let other = take(pages + 1, 1);
        assert_ne!(other, first, "{pages} pages");
        // SAFETY: live, given up.
        unsafe { a.vfree(other) };
        a.trim();
        assert_eq!(a.vmalloc_stats().guards, 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: usize, shift: u32, kind: u8, site: usize, cpu: u32 },
    Free { which: usize, cpu: u32 },
    Resize { which: usize, size: usize, zero: bool, site: usize },
    Map { pages: Vec<usize> },
    Unmap { which: usize },
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let size =
        prop_oneof![6 => 1usize..20 * PAGE, 2 => 1usize..100 * PAGE, 1 => 1usize..1500 * PAGE]
            .boxed();
    let site = 0x1001usize..0x1010;
    prop_oneof![
        6 => (size.clone(), 12u32..16, 0u8..5, site.clone(), 0u32..2)
            .prop_map(|(size, shift, kind, site, cpu)| {
                Step::Alloc { size, shift, kind, site, cpu }
            }),
        5 => (any::<usize>(), 0u32..2).prop_map(|(which, cpu)| Step::Free { which, cpu }),
        3 => (any::<usize>(), size, any::<bool>(), site)
            .prop_map(|(which, size, zero, site)| Step::Resize { which, size, zero, site }),
        2 => prop::collection::vec(0usize..16, 1..10).prop_map(|pages| Step::Map { pages }),
        1 => any::<usize>().prop_map(|which| Step::Unmap { which }),
        1 => Just(Step::Trim),
    ]
}

struct Held {
    at: *mut u8,
    size: usize,
    site: usize,
    fill: u8,
}

impl Held {
    fn pages(&self) -> usize {
        self.size.div_ceil(PAGE)
    }

    /// Checks that the ends of each page hold what they were filled with.
    fn check(&self, pages: usize) {
        for page in 0..pages {
            // SAFETY: live and that long.
            let (first, last) =
                unsafe { (*self.at.add(page * PAGE), *self.at.add(page * PAGE + PAGE - 1)) };
            assert_eq!((first, last), (self.fill, self.fill), "page {page} of {}", self.pages());
        }
    }

    fn fill(&self) {
        for page in 0..self.pages() {
            // SAFETY: live and that long.
            unsafe {
                self.at.add(page * PAGE).write(self.fill);
                self.at.add(page * PAGE + PAGE - 1).write(self.fill);
            }
        }
    }
}

fn is_zero(at: *mut u8, from: usize, to: usize) -> bool {
    // SAFETY: live and that long.
    unsafe { std::slice::from_raw_parts(at.add(from), to - from) }.iter().all(|&b| b == 0)
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn areas_mappings_and_books_equal_a_plain_model(
        steps in prop::collection::vec(step(), 1..200)
    ) {
        let a = simulated(areas_of(256 << 20));
        let page = |_| a.alloc_vmap_page(Gfp::ZERO, Caller::at(0x2000));
        let shared: Vec<*mut u8> = (0..16).map(page).collect();
        let mut held: Vec<Held> = Vec::new();
        let mut maps: Vec<(*mut u8, Vec<usize>)> = Vec::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Alloc { size, shift, kind, site, cpu } => {
                    a.platform().run_on(cpu);
                    let caller = Caller::at(site);
                    let (at, align) = match kind {
                        0 => (a.vmalloc(size, Gfp::ZERO, caller), PAGE),
                        1 => (a.vmalloc_aligned(size, 1 << shift, Gfp::KERNEL, caller), 1 << shift),
                        2 => {
                            let align = if size >= 2 << 20 { 2 << 20 } else { PAGE };
                            (a.vmalloc_huge(size, Gfp::KERNEL, caller), align)
                        }
                        _ => (a.vmalloc(size, Gfp::KERNEL, caller), PAGE),
                    };
                    prop_assert!(!at.is_null() && (at as usize).is_multiple_of(align));
                    let new = Held { at, size, site, fill: i as u8 | 1 };
                    prop_assert!(kind != 0 || is_zero(at, 0, new.pages() * PAGE));
                    new.fill();
                    held.push(new);
                }
                Step::Free { which, cpu } if !held.is_empty() => {
                    a.platform().run_on(cpu);
                    let gone = held.swap_remove(which % held.len());
                    gone.check(gone.pages());
                    // SAFETY: live, given up; by both names.
                    unsafe { if i % 2 == 0 { a.vfree(gone.at) } else { a.free(gone.at) } };
                    let area = a.find_area(gone.at as usize);
                    prop_assert!(area.is_none_or(|area| area.kind != Kind::Vmalloc));
                }
                Step::Resize { which, size, zero, site } if !held.is_empty() => {
                    let slot = which % held.len();
                    let gfp = if zero { Gfp::ZERO } else { Gfp::KERNEL };
                    let old = held[slot].pages();
                    // SAFETY: live, and only this test uses it.
                    let at = unsafe { a.vrealloc(held[slot].at, size, gfp, Caller::at(site)) };
                    prop_assert!(!at.is_null());
                    held[slot] = Held { at, size, site, fill: held[slot].fill };
                    let new = held[slot].pages();
                    held[slot].check(old.min(new));
                    prop_assert!(!zero || new <= old || is_zero(at, old * PAGE, new * PAGE));
                    held[slot].fill();
                }
                Step::Map { pages } => {
                    let pointers: Vec<_> = pages.iter().map(|&page| shared[page]).collect();
                    // SAFETY: live to the end.
                    let at = unsafe { a.vmap(&pointers) };
                    prop_assert!(!at.is_null());
                    maps.push((at, pages));
                }
                Step::Unmap { which } if !maps.is_empty() => {
                    let (at, _) = maps.swap_remove(which % maps.len());
                    // SAFETY: a mapping of this test, given up.
                    unsafe { a.vunmap(at) };
                    prop_assert_eq!(a.find_area(at as usize), None);
                }
                Step::Trim => {
                    a.trim();
                    prop_assert_eq!(a.validate(), Ok(()));
                }
                _ => {}
            }
            // Every mapping of a page shows it.
            for (n, &page) in shared.iter().enumerate() {
                // SAFETY: live.
                unsafe { page.cast::<u64>().write((i * 16 + n) as u64) };
            }
            for (at, pages) in &maps {
                for (n, page) in pages.iter().enumerate() {
                    // SAFETY: mapped.
                    let shown = unsafe { at.add(n * PAGE).cast::<u64>().read() };
                    prop_assert_eq!(shown, (i * 16 + page) as u64);
                }
            }
        }
        let mut model = BTreeMap::from([(0x2000, (16 * PAGE as u64, 16))]);
        for h in &held {
            h.check(h.pages());
            let bytes = h.pages() * PAGE;
            for inside in [0, 1, bytes / 2, bytes - 1, bytes] {
                let area = a.find_area(h.at as usize + inside).expect("an area");
                let found = (area.start, area.pages.0 as usize, area.kind);
                prop_assert_eq!(found, (h.at as usize, h.pages(), Kind::Vmalloc));
            }
            let sum = model.entry(h.site).or_insert((0, 0));
            *sum = (sum.0 + bytes as u64, sum.1 + 1);
        }
        prop_assert_eq!(books(a), model);
        let mut seen = Vec::new();
        a.each_area(|area| if area.kind != Kind::Unpurged { seen.push(area.start) });
        let mapped = maps.iter().map(|map| map.0 as usize);
        let mut expected: Vec<_> = held.iter().map(|h| h.at as usize).chain(mapped).collect();
        expected.sort_unstable();
        prop_assert_eq!(seen, expected);
        // SAFETY: live, given up.
        unsafe {
            held.into_iter().for_each(|h| a.vfree(h.at));
            maps.into_iter().for_each(|(at, _)| a.vunmap(at));
            shared.into_iter().for_each(|page| a.free_pages(page, kmem_core::units::Order(0)));
        }
        a.trim();
        prop_assert_eq!((a.validate(), a.stats().used, a.vmalloc_stats().guards), (Ok(()), 0, 0));
        prop_assert!(books(a).is_empty());
    }
}

#[test]
fn what_cannot_be_served_is_refused() {
    let a = simulated(areas_of(64 << 20));
    for size in [0, usize::MAX, isize::MAX as usize, 1 << 40, 65 << 20] {
        assert!(a.vmalloc(size, Gfp::NOWARN, SITE).is_null(), "{size}");
        assert!(a.vmalloc_huge(size, Gfp::NOWARN, SITE).is_null(), "{size}");
    }
    for align in [0, 3, 4097, 1 << 40, 1 << 63] {
        assert!(a.vmalloc_aligned(PAGE, align, Gfp::NOWARN, SITE).is_null(), "{align}");
    }
    let heap = a.alloc_pages(kmem_core::units::Order(0), Gfp::KERNEL, SITE);
    let at = a.vmalloc(PAGE, Gfp::KERNEL, SITE);
    // SAFETY: live; pages of other kinds are refused.
    unsafe {
        assert!(a.vmap(&[]).is_null() && a.vmap(&[heap]).is_null() && a.vmap(&[at]).is_null());
        assert!(a.vrealloc(at, 1 << 40, Gfp::NOWARN, SITE).is_null());
        at.write_bytes(7, PAGE);
        a.vfree(std::ptr::null_mut());
        a.vunmap(std::ptr::null_mut());
    }
}

#[test]
fn an_area_that_moves_to_grow_keeps_its_contents() {
    let a = simulated(areas_of(256 << 20));
    let mut at = a.vmalloc(100 * PAGE, Gfp::KERNEL, SITE);
    let mut barriers = Vec::new();
    for pages in (100..2000).step_by(100) {
        // SAFETY: live, and only this test uses it.
        unsafe {
            at.cast::<usize>().add((pages - 1) * PAGE / 8).write(pages);
            at = a.vrealloc(at, (pages + 100) * PAGE, Gfp::KERNEL, SITE);
            assert!(!at.is_null());
            for old in (100..=pages).step_by(100) {
                assert_eq!(at.cast::<usize>().add((old - 1) * PAGE / 8).read(), old);
            }
        }
        // This area is in the way of its growth.
        barriers.push(a.vmalloc(PAGE, Gfp::KERNEL, SITE));
    }
}

#[test]
fn any_one_call_may_fail() {
    let work = |a: &'static Simulated| -> usize {
        let mut served = 0;
        let mut held = Vec::new();
        let page = a.alloc_vmap_page(Gfp::NOWARN, SITE);
        for i in 0..150usize {
            a.platform().run_on(i as u32 / 40);
            a.platform().advance_ms(10);
            let size = [PAGE, 4 * PAGE, 90 * PAGE, 600 * PAGE][i % 4];
            let at = a.vmalloc(size, Gfp::NOWARN, SITE);
            if at.is_null() {
                continue;
            }
            served += 1;
            // SAFETY: live and that long; given up once.
            unsafe {
                at.write(5);
                at.add(size - 1).write(6);
                held.push((at, size));
                if held.len() > 6 {
                    let (at, size) = held.swap_remove(i * 7 % held.len());
                    let to = a.vrealloc(at, [size * 2, size / 2][i % 2], Gfp::NOWARN, SITE);
                    let at = if to.is_null() { at } else { to };
                    assert_eq!(at.read(), 5);
                    a.vfree(at);
                }
                if !page.is_null() {
                    let map = a.vmap(&[page, page]);
                    if !map.is_null() {
                        page.write(i as u8);
                        assert_eq!((map.read(), map.add(PAGE).read()), (i as u8, i as u8));
                        a.vunmap(map);
                    }
                }
            }
        }
        for (at, _) in held {
            // SAFETY: live, given up.
            unsafe { a.vfree(at) };
        }
        // SAFETY: null, or live and given up.
        unsafe { a.free(page) };
        served
    };
    let fresh = || started(areas_of(64 << 20));
    let a = fresh();
    a.platform().fail(u64::MAX, u64::MAX);
    assert_eq!(work(a), 150);
    let calls = a.platform().calls();
    assert!(calls > 100, "{calls} calls");
    for fault in (1..=calls).filter(|fault| *fault <= 60 || fault.is_multiple_of(29)) {
        let a = after_faults(fresh(), fault..fault + 1, work);
        assert!(work(a) >= 149, "the fault at call {fault} did not pass");
        a.trim();
        let lost = a.stats().used / PAGE as u64;
        // One guard or one mapping may stay: the system refused to unmap it.
        assert!(lost <= 4, "{lost} pages lost by a fault at call {fault}");
        assert!(books(a).is_empty());
    }
    let a = fresh();
    work(a);
    after_faults(a, 1..u64::MAX, work);
    assert_eq!(work(a), 150);
}

#[test]
fn vmallocinfo_has_the_kernels_lines() {
    let a = simulated(areas_of(64 << 20));
    let tag = kmem_core::static_tag!("reader");
    let at = a.vmalloc(3 * PAGE, Gfp::KERNEL, Caller::tagged(tag));
    let page = a.alloc_vmap_page(Gfp::KERNEL, SITE);
    // SAFETY: live.
    let map = unsafe { a.vmap(&[page, page]) };
    let by_address = a.vmalloc(PAGE, Gfp::KERNEL, Caller::at(0x40_1234));
    let mut text = Vec::new();
    a.vmallocinfo(|line| text.extend_from_slice(line));
    let text = String::from_utf8(text).expect("text");
    let line = |at: *mut u8, pages: usize| {
        let at = at as usize;
        format!("{at:#018x}-{:#018x} {:7}", at + (pages + 1) * PAGE, (pages + 1) * PAGE)
    };
    let here = format!("reader@{}:{} pages=3 vmalloc N0=3", file!(), tag.line);
    for expected in [
        format!("{} {here}", line(at, 3)),
        format!("{} vmap", line(map, 2)),
        format!("{} 0x401234 pages=1 vmalloc N0=1", line(by_address, 1)),
    ] {
        assert!(text.lines().any(|line| line == expected), "no {expected:?} in\n{text}");
    }
    // SAFETY: live, given up.
    unsafe { a.vfree(at) };
    text_has_unpurged(a, &line(at, 3));
}

fn text_has_unpurged(a: &'static Simulated, start: &str) {
    let mut found = false;
    a.vmallocinfo(|line| found |= line == format!("{start} unpurged vm_area\n").as_bytes());
    assert!(found);
}

#[test]
fn threads_pass_areas_on() {
    static KMEM: Kmem = Kmem::new();
    let passed = std::sync::Mutex::new(Vec::<(usize, usize)>::new());
    thread::scope(|scope| {
        for me in 0..4usize {
            let passed = &passed;
            scope.spawn(move || {
                for i in 0..4000 {
                    let pages = 1 + (i * 7 + me) % 80;
                    let at = KMEM.vmalloc(pages * PAGE, Gfp::KERNEL, SITE);
                    assert!(!at.is_null());
                    // SAFETY: live and that long; freed once.
                    unsafe {
                        at.cast::<usize>().write(at as usize);
                        at.add((pages - 1) * PAGE).cast::<usize>().write(at as usize);
                        let mut passed = passed.lock().expect("no panic");
                        passed.push((at as usize, pages));
                        if passed.len() > 50 {
                            let (other, pages) = passed.swap_remove(i % 50);
                            drop(passed);
                            let last = other + (pages - 1) * PAGE;
                            assert_eq!(
                                ((other as *const usize).read(), (last as *const usize).read()),
                                (other, other)
                            );
                            KMEM.vfree(other as *mut u8);
                        }
                    }
                }
            });
        }
    });
    for (at, _) in passed.into_inner().expect("no panic") {
        // SAFETY: live, given up.
        unsafe { KMEM.vfree(at as *mut u8) };
    }
    KMEM.trim();
    assert_eq!((KMEM.validate(), KMEM.vmalloc_stats().guards, KMEM.stats().used), (Ok(()), 0, 0));
}

/// True if the kernel can write to a byte of this process.
pub(crate) fn is_writable(at: *mut u8) -> bool {
    let mut zero = std::fs::File::open("/dev/zero").expect("a device");
    // SAFETY: memory of the caller, of which only the kernel writes one byte.
    let byte = unsafe { std::slice::from_raw_parts_mut(at, 1) };
    std::io::Read::read(&mut zero, byte).is_ok()
}

/// Returns whether the kernel marks pages as inaccessible without a mapping of their own.
fn has_marks() -> bool {
    const MADV_GUARD_INSTALL: i32 = 102;
    // SAFETY: a fresh page, which nothing else uses.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        libc::madvise(page, PAGE, MADV_GUARD_INSTALL) == 0 && !is_writable(page.cast())
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("the kernel lists them").lines().count()
}

#[test]
fn a_guard_takes_no_mapping_where_the_kernel_marks_pages() {
    const AREAS: usize = 400;
    let a = simulated(areas_of(64 << 20));
    // SAFETY: live, given up.
    unsafe { a.vfree(a.vmalloc(1, Gfp::KERNEL, SITE)) };
    let before = mappings();
    let areas: Vec<_> = (0..AREAS).map(|_| a.vmalloc(1, Gfp::KERNEL, SITE)).collect();
    assert!(areas.iter().all(|at| is_writable(*at) && !is_writable(at.wrapping_add(PAGE))));
    // Other tests of this process map memory, too.
    let more = mappings().saturating_sub(before);
    assert_eq!(more < AREAS, has_marks(), "{more} mappings more for {AREAS} areas");
    // SAFETY: live, given up.
    areas.into_iter().for_each(|at| unsafe { a.vfree(at) });
    a.trim();
    assert_eq!(a.vmalloc_stats().guards, 0);
}

#[test]
fn threads_that_grow_the_heap_at_once_leave_the_protection_of_pages_of_others() {
    for _ in 0..100 {
        let a = simulated(areas_of(64 << 20));
        a.vmalloc_stats();
        let (start, end) = (Barrier::new(4), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    let at = a.vmalloc(PAGE, Gfp::KERNEL, SITE);
                    let protect = |access| {
                        // SAFETY: a live page of this thread, which no other accesses.
                        assert_eq!(unsafe { libc::mprotect(at.cast(), PAGE, access) }, 0);
                    };
                    protect(libc::PROT_READ);
                    end.wait();
                    assert!(!is_writable(at), "a read-only page of an area is writable");
                    assert!(!is_writable(at.wrapping_add(PAGE)), "a guard is gone");
                    protect(libc::PROT_READ | libc::PROT_WRITE);
                    // SAFETY: live, given up.
                    unsafe { a.vfree(at) };
                });
            }
        });
    }
}

#[test]
fn a_forked_child_has_areas_and_guards_but_not_the_mappings() {
    static KMEM: Kmem = Kmem::new();
    let kept: Vec<*mut u8> =
        (1..40).map(|pages| KMEM.vmalloc(pages * PAGE, Gfp::KERNEL, SITE)).collect();
    let page = KMEM.alloc_vmap_page(Gfp::ZERO, SITE);
    // SAFETY: live areas; the child uses this instance only.
    unsafe {
        let map = KMEM.vmap(&[page]);
        // This CPU keeps some free areas with their guards.
        kept[20..].iter().for_each(|&at| KMEM.vfree(at));
        kept[3].write(77);
        let work = || {
            let mut right =
                kept[3].read() == 77 && KMEM.find_area(kept[3] as usize + PAGE).is_some();
            // The child can use all free areas, those with guards included.
            for round in 0..200 {
                let pages = 1 + round % 60;
                let at = KMEM.vmalloc(pages * PAGE, Gfp::KERNEL, SITE);
                at.write_bytes(9, pages * PAGE);
                right &= kept[..20].iter().all(|other| !(at..at.add(pages * PAGE)).contains(other));
            }
            kept[..20].iter().for_each(|&at| KMEM.vfree(at));
            KMEM.vunmap(map);
            let own = KMEM.alloc_vmap_page(Gfp::KERNEL, SITE);
            own.write(1);
            let again = KMEM.vmap(&[own]);
            right && again.read() == 1
        };
        assert!(forked(work), "what the child found");
        page.write(3);
        assert_eq!((map.read(), kept[3].read()), (3, 77));
    }
}

/// A forked child has no page that can be mapped again. So the page must not become one of the
/// heap.
#[test]
fn pages_that_can_be_mapped_do_not_become_anybodys_pages() {
    let a = simulated(budget(16 << 20, 2));
    for free in [
        // SAFETY: live, given up.
        (|a, at| unsafe { a.free(at) }) as fn(&'static Simulated, *mut u8),
        // SAFETY: live, given up.
        |a, at| unsafe { a.free_pages(at, Order(0)) },
    ] {
        let page = a.alloc_vmap_page(Gfp::KERNEL, SITE);
        assert!(!page.is_null());
        free(a, page);
        assert_ne!(a.alloc_pages(Order(0), Gfp::KERNEL, SITE), page);
    }
}

#[test]
fn pages_of_areas_do_not_become_anybodys_pages_when_there_are_no_others() {
    let a = simulated(budget(16 << 20, 2));
    let area = a.vmalloc(3 << 20, Gfp::KERNEL, SITE);
    assert!(!area.is_null());
    // SAFETY: live, given up.
    unsafe { a.vfree(area) };
    a.platform().fail(1, u64::MAX);
    for order in [Order(0), Order(9)] {
        loop {
            let page = a.alloc_pages(order, Gfp::NOWARN, SITE);
            if page.is_null() {
                break;
            }
            assert!(!(area as usize..area as usize + (3 << 20)).contains(&(page as usize)));
        }
    }
}
