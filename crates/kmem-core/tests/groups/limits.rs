//! Limits of groups, shrinkers and reservations.

use super::*;

#[test]
fn above_max_a_request_is_refused_and_nothing_is_left_of_it() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(1 << 20)).expect("a living group");
    let scope = tenant.enter();
    let mut all = until_null(|| alloc!(A, 1000));
    // The limit is used to the last object: the stocks of CPUs were brought back first.
    let each = cost(&A, all[0]);
    assert_eq!(all.len() as u64, (1 << 20) / each);
    let stat = tenant.stat();
    assert_eq!(stat.current, all.len() as u64 * each);
    assert!(stat.peak <= 1 << 20);
    assert_eq!((stat.events[group_event::MAX], stat.events[group_event::OOM]), (1, 1));
    assert!(alloc!(A, 100_000).is_null());
    assert!(alloc!(A, 10, zeroed).is_null() || tenant.stat().current <= 1 << 20);
    assert!(tenant.try_charge(1 << 19).is_err());
    drop(scope);
    // The limit does not concern other groups.
    let other = alloc!(A, 1000);
    assert!(!other.is_null());
    free(&A, other);
    let _scope = tenant.enter();
    free(&A, all.pop().expect("one"));
    all.push(alloc!(A, 1000));
    assert!(!all[all.len() - 1].is_null());
    assert_eq!(A.validate_groups(), Ok(()));
    all.into_iter().for_each(|at| free(&A, at));
}

#[test]
fn shrinkers_hold_a_group_below_its_limits_and_are_never_called_from_within() {
    static A: Kmem = Kmem::new();
    static CACHE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static DEPTH: AtomicUsize = AtomicUsize::new(0);
    let tenant = group(&A, "tenant");
    let shrink = Box::leak(Box::new(|bytes: usize| {
        assert_eq!(DEPTH.fetch_add(1, Ordering::Relaxed), 0);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // It may allocate, above the limit too.
        let note = alloc!(A, 2000);
        assert!(!note.is_null());
        let mut freed = 0;
        let mut cache = CACHE.lock().expect("not held while we allocate");
        while freed < bytes
            && let Some(at) = cache.pop()
        {
            freed += 1028;
            free(&A, at as *mut u8);
        }
        free(&A, note);
        DEPTH.fetch_sub(1, Ordering::Relaxed);
        freed
    }));
    let registered = tenant.add_shrinker(shrink).expect("a living group");
    for (limit, event) in [(Limit::Max, group_event::MAX), (Limit::High, group_event::HIGH)] {
        tenant.set(limit, Some(1 << 20)).expect("a living group");
        A.group_reset_peak(tenant.id()).expect("a living group");
        let before = (CALLS.load(Ordering::Relaxed), tenant.stat().events[event]);
        let _scope = tenant.enter();
        for _ in 0..20_000 {
            let at = alloc!(A, 1000);
            assert!(!at.is_null());
            CACHE.lock().expect("no panic").push(at as usize);
        }
        let stat = tenant.stat();
        assert!(stat.current <= (1 << 20) + (64 << 10), "{stat:?}");
        assert!(CALLS.load(Ordering::Relaxed) > before.0 && stat.events[event] > before.1);
        assert_eq!(stat.events[group_event::OOM], 0);
        tenant.set(limit, None).expect("a living group");
    }
    A.shrinker_remove(registered).expect("not within one");
    let _scope = tenant.enter();
    tenant.set(Limit::Max, Some(0)).expect("a living group");
    assert!(alloc!(A, 1000).is_null());
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn a_limit_set_below_what_is_held_calls_shrinkers_and_grants_nothing_more() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    let _scope = tenant.enter();
    let all: Vec<*mut u8> = (0..1000).map(|_| alloc!(A, 1000)).collect();
    tenant.set(Limit::Max, Some(100_000)).expect("a living group");
    assert!(alloc!(A, 16).is_null());
    assert_eq!(tenant.stat().current, 1000 * 1028);
    all.into_iter().for_each(|at| free(&A, at));
    assert!(!alloc!(A, 16).is_null());
}

#[test]
fn what_cannot_be_refused_goes_above_the_limit_and_says_so() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(4096)).expect("a living group");
    let caller = Caller::at(0x1000).charged_to(tenant.id().objcg());
    assert!(A.alloc(8000, caller).is_null());
    assert!(!tenant.stat().over_limit);
    let at = A.alloc(8000, caller.nofail());
    assert!(!at.is_null() && tenant.stat().over_limit);
    A.group_reset_peak(tenant.id()).expect("a living group");
    assert!(!tenant.stat().over_limit);
    free(&A, at);
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn a_reservation_is_charged_until_it_is_dropped() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    tenant.set(Limit::Max, Some(1 << 20)).expect("a living group");
    let half = tenant.try_charge(1 << 19).expect("there is room");
    let other = tenant.try_charge(1 << 19).expect("there is room");
    assert_eq!(tenant.try_charge(1).err(), Some(GroupError::NoMemory));
    let stat = tenant.stat();
    assert_eq!((stat.current, stat.reserved), (1 << 20, 1 << 20));
    assert_eq!(A.validate_groups(), Ok(()));
    drop(half);
    assert_eq!(tenant.stat().current, 1 << 19);
    assert_eq!(A.group_uncharge(tenant.id(), 1 << 20), Err(GroupError::NotFound));
    drop(other);
    assert_eq!(tenant.stat().current, 0);
}

#[test]
fn a_reservation_of_more_than_there_can_be_is_refused_and_disturbs_nobody() {
    static A: Kmem = Kmem::new();
    let parent = group(&A, "parent");
    let (tenant, other) =
        (parent.create("tenant").expect("a group"), parent.create("other").expect("a group"));
    for bytes in [u64::MAX, 1 << 63, (1 << 62) + 1] {
        assert_eq!(tenant.try_charge(bytes).err(), Some(GroupError::NoMemory), "{bytes:#x}");
        assert_eq!((tenant.stat().current, parent.stat().peak), (0, 0));
    }
    let most = tenant.try_charge(1 << 62).expect("no limit");
    let caller = Caller::at(0x1000).charged_to(other.id().objcg());
    assert!(A.alloc(100, caller).is_null());
    // A charge that cannot be refused is counted, so that it can be taken back.
    let at = A.alloc(100, caller.nofail());
    assert_eq!(parent.stat().current, (1 << 62) + cost(&A, at));
    assert_eq!(A.validate_groups(), Ok(()));
    free(&A, at);
    drop(most);
    assert_eq!(parent.stat().current, 0);
    assert_eq!(A.validate_groups(), Ok(()));
}

#[test]
fn an_eventfd_is_told_of_events() {
    static A: Kmem = Kmem::new();
    let tenant = group(&A, "tenant");
    // SAFETY: a fresh descriptor, read into a word.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_NONBLOCK);
        assert!(fd >= 0);
        A.group_notify(tenant.id(), Some(fd as u32)).expect("a living group");
        tenant.set(Limit::Max, Some(0)).expect("a living group");
        assert!(A.alloc(64, Caller::at(0x1000).charged_to(tenant.id().objcg())).is_null());
        let mut count = 0u64;
        assert_eq!(libc::read(fd, (&raw mut count).cast(), 8), 8);
        assert_eq!(count, 2, "max and oom");
        libc::close(fd);
    }
}
