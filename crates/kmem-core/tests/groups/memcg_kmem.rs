//! The kernel's tests of control groups, for groups of an instance: the self-tests `test_kmem` and
//! `test_memcontrol`, and LTP's tests of counters. The kernel's tests allow for memory that CPUs
//! hold. Here that memory is known, so counts are checked to the byte.

use crate::instance::{counted, free, group, pin};
use kmem_core::class::SIZES;
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::linux::Linux;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Group, GroupStat, Kmem, alloc};
use kmem_layout::group::Limit;
use kmem_layout::group::{GroupBlock, group_event};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

/// Charge of an object with this many usable bytes.
fn cost(usable: usize) -> u64 {
    crate::instance::cost(usable as u64)
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A cache that frees its oldest objects when it is asked to.
struct Cache {
    kmem: &'static Kmem,
    objects: Mutex<std::collections::VecDeque<usize>>,
    asked: AtomicUsize,
}

impl Cache {
    fn of(tenant: &Group<Linux>, kmem: &'static Kmem) -> &'static Self {
        let cache: &'static Self = Box::leak(Box::new(Self {
            kmem,
            objects: Mutex::default(),
            asked: AtomicUsize::new(0),
        }));
        let shrink = Box::leak(Box::new(move |bytes| cache.shrink(bytes)));
        tenant.add_shrinker(shrink).expect("a living group");
        cache
    }

    /// Fills it with that many objects of 1000 bytes.
    fn fill(&self, count: usize) {
        for _ in 0..count {
            let at = alloc!(self.kmem, 1000);
            if !at.is_null() {
                self.objects.lock().expect("no panic").push_back(at as usize);
            }
        }
    }

    fn shrink(&self, bytes: usize) -> usize {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut freed = 0;
        let Ok(mut objects) = self.objects.try_lock() else { return 0 };
        while freed < bytes
            && let Some(at) = objects.pop_front()
        {
            freed += cost(1024) as usize;
            free(self.kmem, at as *mut u8);
        }
        freed
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::Relaxed)
    }

    fn empty(&self) {
        self.shrink(usize::MAX);
    }
}

fn nothing_is_left(kmem: &'static Kmem) {
    assert_eq!(kmem.validate_groups(), Ok(()));
    assert_eq!(kmem.group_dying(), 0);
    for id in kmem.group_all().filter(|&id| id != GroupId::ROOT) {
        let stat = kmem.group_stat(id).expect("a living group");
        assert_eq!((stat.current, stat.own, stat.reserved), (0, 0, 0));
    }
}

#[test]
fn basic() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let cache = Cache::of(&tenant, &A);
    let scope = tenant.enter();
    cache.fill(100_000);
    let full = tenant.stat();
    assert_eq!(full.current, 100_000 * cost(1024));
    tenant.set(Limit::High, Some(full.current / 4)).expect("a living group");
    let less = tenant.stat();
    assert!(less.current <= full.current / 4, "{less:?}");
    assert!(cache.asked() > 0);
    drop(scope);
    cache.empty();
    nothing_is_left(&A);
}

#[test]
fn memcg_deletion() {
    static A: Kmem = Kmem::new();
    const GROUPS: usize = 1000;
    const EACH: usize = 40;
    let parent = group(&A, "parent");
    let workers = 2 * cpus();
    let (entered, left) = (Barrier::new(workers + 1), Barrier::new(workers + 1));
    let current: Mutex<Option<Group<Linux>>> = Mutex::new(None);
    let kept = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for me in 0..workers {
            let (entered, left, current, kept) = (&entered, &left, &current, &kept);
            scope.spawn(move || {
                for _ in 0..GROUPS {
                    entered.wait();
                    let tenant = current.lock().expect("no panic").clone().expect("a group");
                    let scope = tenant.enter();
                    let mut mine: Vec<usize> =
                        (0..EACH).map(|i| alloc!(A, (me + i * 37) % 2000) as usize).collect();
                    drop(scope);
                    mine.drain(EACH / 2..).for_each(|at| free(&A, at as *mut u8));
                    kept.lock().expect("no panic").extend(mine);
                    drop(tenant);
                    left.wait();
                }
            });
        }
        for round in 0..GROUPS {
            let child = parent.create(&format!("{round}")).expect("room");
            *current.lock().expect("no panic") = Some(child.clone());
            entered.wait();
            // Every other group is deleted while threads use it.
            if round % 2 == 0 {
                child.delete().expect("no groups below");
            }
            left.wait();
            if round % 2 != 0 {
                child.delete().expect("no groups below");
            }
            *current.lock().expect("no panic") = None;
        }
    });
    let kept = kept.into_inner().expect("no panic");
    assert_eq!(kept.len(), GROUPS * workers * EACH / 2);
    let sum: u64 = kept.iter().map(|&at| crate::instance::cost(counted(&A, at as *mut u8))).sum();
    assert_eq!(parent.stat().current, sum);
    assert_eq!(A.validate_groups(), Ok(()));
    assert!(A.group_dying() >= GROUPS / 2, "{} groups hold objects", A.group_dying());
    kept.into_iter().for_each(|at| free(&A, at as *mut u8));
    nothing_is_left(&A);
}

/// A thread's memory is what it allocates: threads have no stocks of their own.
#[test]
fn kernel_stacks() {
    static A: Kmem = Kmem::new();
    const THREADS: usize = 1000;
    let tenant = group(&A, "tenant");
    let (all_have, go) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (tenant, all_have, go) = (&tenant, &all_have, &go);
            let thread = thread::Builder::new().stack_size(64 << 10);
            let work = move || {
                let _scope = tenant.enter();
                let stack = alloc!(A, 16 << 10);
                all_have.wait();
                go.wait();
                free(&A, stack);
            };
            thread.spawn_scoped(scope, work).expect("a thread");
        }
        all_have.wait();
        let stat = tenant.stat();
        assert_eq!(stat.current, THREADS as u64 * cost(16 << 10));
        assert!(stat.cached <= slack_of_a_cpu(1) * cpus() as u64, "{stat:?}");
        go.wait();
    });
    nothing_is_left(&A);
}

#[test]
fn dead_cgroups() {
    static A: Kmem = Kmem::new();
    let mut held = Vec::new();
    for round in 0..30 {
        let tenant = group(&A, &format!("{round}"));
        let _scope = tenant.enter();
        held.extend((0..100).map(|i| alloc!(A, i * 1000 % 100_000)));
        tenant.delete().expect("no groups below");
    }
    assert_eq!(A.group_dying(), 30);
    held.into_iter().for_each(|at| free(&A, at));
    nothing_is_left(&A);
}

/// A group itself takes an entry, in a table that exists from the start.
#[test]
fn many_small_groups() {
    static A: Kmem = Kmem::new();
    const { assert!(size_of::<GroupBlock>() <= 512) };
    let parent = group(&A, "parent");
    let mut all = Vec::new();
    while all.len() < 10_000 {
        match parent.create(&format!("{}", all.len())) {
            Ok(tenant) => {
                let _scope = tenant.enter();
                all.push((alloc!(A, 64), tenant.id()));
            }
            // Tables are sized by the machine's memory.
            Err(error) => {
                assert_eq!(error, GroupError::Full);
                break;
            }
        }
    }
    assert!(all.len() > 200, "{} groups", all.len());
    assert_eq!(parent.stat().current, all.len() as u64 * cost(64));
    for (at, id) in all {
        A.group_delete(id).expect("no groups below");
        free(&A, at);
    }
    nothing_is_left(&A);
}

/// The kernel's groups have counters in per-CPU memory, which its test counts. Groups of an
/// instance have none, so each gets an object. A parent pays for the objects of its deleted groups.
#[test]
fn percpu_basic() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let handles: Vec<_> = (0..200)
        .map(|n| {
            let child = parent.create(&format!("{n}")).expect("a new name");
            let who = Caller::at(0x1000).charged_to(child.id().objcg());
            let handle = A.alloc_percpu(256, 8, Gfp::KERNEL, who);
            child.delete().expect("no groups below");
            handle
        })
        .collect();
    assert_eq!(parent.stat().current, handles.len() as u64 * cost(256));
    assert_eq!(A.group_dying(), handles.len());
    for handle in handles {
        // SAFETY: live, and given up.
        unsafe { A.free_percpu(handle) };
    }
    nothing_is_left(&A);
}

#[test]
fn current_peak() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let _scope = tenant.enter();
    let at = alloc!(A, 8 << 20);
    let top = tenant.stat();
    assert!(top.peak >= top.current && top.current > 8 << 20);
    free(&A, at);
    assert_eq!(tenant.stat().peak, top.peak);
    A.group_reset_peak(tenant.id()).expect("a living group");
    assert!(tenant.stat().peak < 1 << 20);
    let at = alloc!(A, 2 << 20);
    let again = tenant.stat();
    assert!(again.peak >= again.current && again.peak < 3 << 20, "{again:?}");
    free(&A, at);
    nothing_is_left(&A);
}

#[test]
fn low() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let (spared, other) =
        (parent.create("spared").expect("room"), parent.create("other").expect("room"));
    let (low, used) = (Cache::of(&spared, &A), Cache::of(&other, &A));
    {
        let _scope = spared.enter();
        low.fill(500);
    }
    spared.set(Limit::Low, Some(1 << 20)).expect("a living group");
    parent.set(Limit::Max, Some(2 << 20)).expect("a living group");
    let _scope = other.enter();
    used.fill(10_000);
    assert_eq!(low.asked(), 0);
    assert!(used.asked() > 0);
    assert_eq!(spared.stat().events[group_event::LOW], 0);
    assert_eq!(spared.stat().own, 500 * cost(1024));
    // The protected group is asked when no other group has anything.
    let rest = alloc!(A, (2 << 20) - (300 << 10));
    assert!(!rest.is_null() && low.asked() > 0);
    assert!(spared.stat().events[group_event::LOW] > 0);
    assert!(spared.stat().own < 500 * cost(1024));
    free(&A, rest);
    low.empty();
    used.empty();
    nothing_is_left(&A);
}

#[test]
fn high_and_high_sync() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let cache = Cache::of(&tenant, &A);
    tenant.set(Limit::High, Some(1 << 20)).expect("a living group");
    let _scope = tenant.enter();
    cache.fill(500);
    assert_eq!((cache.asked(), tenant.stat().events[group_event::HIGH]), (0, 0));
    // One large request calls the shrinkers before it returns, and is granted nevertheless.
    let large = alloc!(A, 4 << 20);
    assert!(!large.is_null() && cache.asked() > 0);
    let stat = tenant.stat();
    assert!(stat.events[group_event::HIGH] > 0 && stat.current > 4 << 20);
    assert_eq!((stat.events[group_event::MAX], stat.events[group_event::OOM]), (0, 0));
    assert_eq!(cache.objects.lock().expect("no panic").len(), 0);
    free(&A, large);
    nothing_is_left(&A);
}

#[test]
fn max() {
    static A: Kmem = Kmem::new();
    let (tenant, other) = (group(&A, "tenant"), group(&A, "other"));
    for impossible in [0, 1, 4095] {
        tenant.set(Limit::Max, Some(impossible)).expect("a living group");
        let _scope = tenant.enter();
        assert!(alloc!(A, 5000).is_null() && alloc!(A, 100_000).is_null());
    }
    tenant.set(Limit::Max, Some(1 << 20)).expect("a living group");
    let mut held = Vec::new();
    for turn in 0..5000 {
        let _scope = if turn % 2 == 0 { tenant.enter() } else { other.enter() };
        let at = alloc!(A, 1000);
        if !at.is_null() {
            held.push(at);
        }
        assert!(turn % 2 == 0 || !at.is_null(), "another group's limit");
        assert!(tenant.stat().current <= 1 << 20);
    }
    assert_eq!(tenant.stat().current, (1 << 20) / cost(1024) * cost(1024));
    assert_eq!(other.stat().current, 2500 * cost(1024));
    assert_eq!(other.stat().events, [0; group_event::COUNT]);
    // Other kinds of requests that do not fit leave nothing, either.
    let caller = Caller::at(0x1000).charged_to(tenant.id().objcg());
    let before = tenant.stat().current;
    assert!(A.alloc_pages(Order(5), Gfp::KERNEL, caller).is_null());
    assert!(A.alloc_zeroed(1 << 20, caller).is_null());
    assert!(A.alloc_aligned(1 << 16, 1 << 16, caller).is_null());
    assert_eq!(tenant.stat().current, before);
    held.into_iter().for_each(|at| free(&A, at));
    nothing_is_left(&A);
}

#[test]
fn reclaim() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let below = tenant.create("below").expect("room");
    let (mine, its) = (Cache::of(&tenant, &A), Cache::of(&below, &A));
    for (at, cache) in [(&tenant, mine), (&below, its)] {
        let _scope = at.enter();
        cache.fill(1000);
    }
    for target in [1_500_000, 1_000_000, 100_000, 0] {
        tenant.set(Limit::High, Some(target)).expect("a living group");
        assert!(tenant.stat().current <= target);
    }
    nothing_is_left(&A);
}

#[test]
fn oom_events() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(1 << 20)).expect("a living group");
    let refused = || tenant.stat().events[group_event::OOM];
    let _scope = tenant.enter();
    let caller = Caller::at(0x1000).here().quietly();
    let small = A.alloc(1000, caller);
    let pages = A.alloc(200 << 10, caller);
    assert_eq!(refused(), 0);
    assert!(A.alloc(1 << 20, caller).is_null());
    assert_eq!(refused(), 1);
    // SAFETY: live; they stay where they are.
    unsafe {
        assert!(A.realloc(small, 2 << 20, caller).is_null());
        assert_eq!(refused(), 2);
        assert!(A.realloc(pages, 2 << 20, caller).is_null());
        assert_eq!(refused(), 3);
        // This block is in the way of its growth, so it must move. The limit leaves no room for
        // more.
        let next = A.alloc(200 << 10, Caller::at(0x1000));
        let moved = A.realloc(pages, 500 << 10, caller);
        assert!(!moved.is_null());
        assert_eq!(refused(), 3, "a request that was granted counts as refused");
        A.free(next);
        A.free(moved);
    }
    // Bulk requests end with the first one that is refused.
    let mut out = [core::ptr::null_mut(); 400];
    let got = A.alloc_pages_bulk(Gfp::NOWARN, &mut out, caller);
    assert_eq!(got as u64, ((1 << 20) - cost(1024)) / 4100);
    assert_eq!(refused(), 4);
    assert_eq!(tenant.stat().current, got as u64 * 4100 + cost(1024));
    out[..got].iter().for_each(|&at| free(&A, at));
    free(&A, small);
    nothing_is_left(&A);
}

/// A charge that is too large to count is refused, and changes no counter.
#[test]
fn charges_that_no_counter_can_hold() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let half = tenant.try_charge(1 << 40).expect("no limit");
    for bytes in [u64::MAX, u64::MAX - (1 << 40), u64::MAX / 2, 1 << 63] {
        assert_eq!(tenant.try_charge(bytes).err(), Some(GroupError::NoMemory), "{bytes:#x}");
        assert_eq!(tenant.stat().current, 1 << 40);
    }
    assert_eq!(A.group_uncharge(tenant.id(), u64::MAX), Err(GroupError::NotFound));
    drop(half);
    nothing_is_left(&A);
}

/// LTP's tests by file: failcnt, force_empty, limit_in_bytes, max_usage, stat, subgroup_charge and
/// use_hierarchy.
#[test]
fn counters() {
    static A: Kmem = Kmem::new();
    let top = group(&A, "top");
    let (left, right) = (top.create("left").expect("room"), top.create("right").expect("room"));
    let is = |group: &Group<Linux>| group.stat();
    // limit_in_bytes
    assert_eq!((is(&top).max, is(&top).high, is(&top).low), (u64::MAX, u64::MAX, 0));
    top.set(Limit::Max, Some(1 << 20)).expect("a living group");
    assert_eq!(is(&top).max, 1 << 20);
    // subgroup_charge, stat
    let cache = Cache::of(&left, &A);
    {
        let _scope = left.enter();
        cache.fill(100);
    }
    let object = A.alloc(4096, Caller::at(0x1000).charged_to(right.id().objcg()));
    let reserved = top.try_charge(10_000).expect("room");
    let want = |current, own, reserved| (current, own, reserved);
    let seen = |stat: GroupStat| (stat.current, stat.own, stat.reserved);
    assert_eq!(seen(is(&left)), want(100 * cost(1024), 100 * cost(1024), 0));
    assert_eq!(seen(is(&right)), want(cost(4096), cost(4096), 0));
    assert_eq!(seen(is(&top)), want(100 * cost(1024) + cost(4096) + 10_000, 10_000, 10_000));
    // use_hierarchy, failcnt: the limit of the parent counts, and the parent has the event.
    let caller = Caller::at(0x1000).charged_to(right.id().objcg()).quietly();
    assert!(A.alloc(2 << 20, caller).is_null());
    assert_eq!(is(&top).events[group_event::MAX], 1);
    assert_eq!(is(&right).events[group_event::MAX], 0);
    // max_usage
    assert!(is(&top).peak >= is(&top).current && is(&top).peak <= 1 << 20);
    // The shrinkers of the whole hierarchy were asked before.
    assert_eq!(seen(is(&left)), want(0, 0, 0));
    // force_empty
    {
        let _scope = left.enter();
        cache.fill(100);
    }
    left.set(Limit::High, Some(0)).expect("a living group");
    assert_eq!(seen(is(&left)), want(0, 0, 0));
    drop(reserved);
    free(&A, object);
    nothing_is_left(&A);
}

/// Most bytes that a CPU has in stock for `groups` groups. Each class counts 16 KiB, or one object
/// if that is larger. Each of at most 64 groups adds 32 KiB.
fn slack_of_a_cpu(groups: u64) -> u64 {
    let classes: u64 = SIZES[1..].iter().map(|&size| cost(size as usize).max(16 << 10)).sum();
    classes + groups.min(64) * (32 << 10)
}

#[test]
fn what_is_charged_and_not_in_use_is_bounded_class_by_class() {
    static A: Kmem = Kmem::new();
    // SAFETY: takes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    assert!(pin(0, cpu as usize));
    for &size in &SIZES[1..] {
        let tenant = group(&A, &format!("{size}"));
        let _scope = tenant.enter();
        let bound = cost(size as usize).max(16 << 10);
        let count = 2 * (16 << 10) / size as usize + 20;
        let held: Vec<*mut u8> = (0..count).map(|_| alloc!(A, size as usize)).collect();
        for at in held {
            free(&A, at);
            let cached = tenant.stat().cached;
            assert!(cached <= bound, "{cached} bytes in stock for objects of {size}");
        }
        tenant.delete().expect("no groups below");
    }
    nothing_is_left(&A);
}

#[test]
fn what_is_charged_and_not_in_use_is_bounded_for_any_number_of_groups() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let groups: Vec<_> = (0..200).map(|i| parent.create(&format!("{i}")).expect("room")).collect();
    let bound = slack_of_a_cpu(groups.len() as u64) * cpus() as u64;
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        for me in 0..2 * cpus() {
            let (groups, parent, most) = (&groups, &parent, &most);
            scope.spawn(move || {
                let mut held = Vec::new();
                for i in 0..40_000 {
                    let _scope = groups[(i * 7 + me * 31) % groups.len()].enter();
                    held.push(alloc!(A, i * 97 % (48 << 10)) as usize);
                    if held.len() > 300 {
                        free(&A, held.swap_remove(i * 31 % 300) as *mut u8);
                    }
                    if i % 100 == 0 {
                        most.fetch_max(parent.stat().cached as usize, Ordering::Relaxed);
                    }
                }
                held.into_iter().for_each(|at| free(&A, at as *mut u8));
            });
        }
    });
    let most = most.into_inner() as u64;
    assert!(most > 0 && most <= bound, "{most} bytes in stock at most, of {bound}");
    nothing_is_left(&A);
}
