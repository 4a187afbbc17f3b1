//! Tables that are committed as their entries are used: sites, groups, sheaves, classes of chunks.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::instance::{Simulated, books, budget, calls, forked, free, free_all, leaked, simulated};
use kmem_core::Caller;
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::units::ObjcgId;

/// Enough for tables of the largest size.
const LARGE: usize = 4 << 30;
/// The address of the first site.
const SITE: usize = 0x10_0000;

/// Allocates one object from each of a range of sites, of a size that the site decides.
fn from_sites(a: &'static Simulated, sites: Range<usize>) -> Vec<*mut u8> {
    sites.map(|site| a.alloc(16 + site % 100, Caller::at(SITE + 16 * site))).collect()
}

/// Checks that the books have each of these sites, with one object.
fn assert_sites(a: &'static Simulated, sites: Range<usize>) {
    let expected: BTreeMap<usize, u64> = sites.map(|site| (SITE + 16 * site, 1)).collect();
    let found = calls(a);
    let live = found.into_iter().filter(|&(_, calls)| calls > 0).collect::<BTreeMap<_, _>>();
    assert!(live == expected, "{} sites, of {}", live.len(), expected.len());
}

/// Fills tables of a platform, in a child too.
fn fills_tables(a: &'static Simulated) {
    let held = from_sites(a, 0..60_000);
    assert_sites(a, 0..60_000);
    let parent = a.group(a.group_create(GroupId::ROOT, b"parent").expect("room")).expect("it");
    let mut charged = Vec::new();
    let mut groups = Vec::new();
    for i in 0..9000 {
        let group = parent.create(&format!("{i}")).expect("room");
        let caller = Caller::at(SITE + 16 * i).charged_to(group.id().objcg());
        charged.push(a.alloc(100, caller));
        groups.push(group);
    }
    let one = groups[0].stat().current;
    assert!(one >= 100);
    assert!(groups.iter().all(|group| group.stat().current == one));
    assert_eq!(parent.stat().current, 9000 * one);
    let before = books(a);
    let work = || {
        let inherited = books(a) == before;
        let sums = parent.stat().current == 9000 * one;
        let more = from_sites(a, 60_000..80_000);
        let new = books(a).len() == 80_000;
        let group = a.group_create(GroupId::ROOT, b"child's").is_ok();
        free_all(a, more);
        inherited && sums && new && group && a.validate() == Ok(())
    };
    // SAFETY: no other thread of this process uses the instance; nothing panics.
    assert!(unsafe { forked(work) });
    free_all(a, held);
    free_all(a, charged);
    assert_eq!(parent.stat().current, 0);
    assert_eq!(a.validate(), Ok(()));
    assert_eq!(calls(a).values().sum::<u64>(), 0);
}

#[test]
fn many_sites_and_groups_are_counted_exactly_in_a_child_too() {
    fills_tables(simulated(budget(LARGE, 2)));
}

#[test]
fn many_sites_and_groups_are_counted_exactly_where_memory_cannot_be_shown() {
    fills_tables(leaked(Sim::new(Linux::new(), budget(LARGE, 2)).without_show()));
}

#[test]
fn a_platform_that_cannot_show_memory_commits_tables_at_start() {
    let a: &Simulated = leaked(Sim::new(Linux::new(), budget(LARGE, 2)).without_show());
    free(a, a.alloc(1, Caller::at(SITE)));
    // No later call needs the platform for a site or a group.
    a.platform().fail(1, u64::MAX);
    for site in 100..60_000 {
        free_all(a, from_sites(a, site..site + 1));
    }
    let held = from_sites(a, 0..100);
    assert_sites(a, 0..100);
    free_all(a, held);
    for i in 0..16_000 {
        a.group_create(GroupId::ROOT, format!("{i}").as_bytes()).expect("room");
    }
}

#[test]
fn a_site_without_memory_for_its_entry_shares_the_tag_of_other_sites() {
    let a = simulated(budget(LARGE, 2));
    let held = from_sites(a, 0..100);
    // More than a step of sites: the calls before it keep the first objects' sites.
    a.platform().fail(1, u64::MAX);
    let more = from_sites(a, 100..10_000);
    a.platform().fail(u64::MAX, u64::MAX);
    let found = calls(a);
    let others = found.get(&0).copied().unwrap_or(0);
    let named = found.iter().filter(|&(&site, _)| site != 0).map(|(_, calls)| calls).sum::<u64>();
    let live = more.iter().chain(&held).filter(|at| !at.is_null()).count() as u64;
    assert_eq!(named + others, live);
    assert!(named >= 100 && others > 0, "{named} named, {others} others");
    // The next new site has a name again.
    let next = a.alloc(10, Caller::at(SITE - 16));
    assert_eq!(calls(a).get(&(SITE - 16)), Some(&1));
    free(a, next);
    free_all(a, held);
    free_all(a, more.into_iter().filter(|at| !at.is_null()));
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn a_group_without_memory_for_its_entry_is_refused_and_made_later() {
    let a = simulated(budget(LARGE, 2));
    free(a, a.alloc(1, Caller::at(SITE)));
    a.platform().fail(1, u64::MAX);
    let mut made = 0;
    let error = loop {
        match a.group_create(GroupId::ROOT, format!("{made}").as_bytes()) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, GroupError::NoMemory);
    assert!((10..1000).contains(&made), "{made}");
    a.platform().fail(u64::MAX, u64::MAX);
    a.group_create(GroupId::ROOT, format!("{made}").as_bytes()).expect("memory again");
    assert_eq!(a.validate_groups(), Ok(()));
}

#[test]
fn numbers_of_groups_that_never_were_are_refused() {
    let a = simulated(budget(LARGE, 2));
    free(a, a.alloc(1, Caller::at(SITE)));
    for objcg in [1, 200, 5000, 16_383] {
        for generation in [0, 1, 7] {
            let id = GroupId(generation << ObjcgId::BITS | objcg);
            assert_eq!(a.group(id).err(), Some(GroupError::NotFound));
            assert_eq!(a.group_delete(id), Err(GroupError::NotFound));
        }
        // A request in such a group's name is the root's.
        let at = a.alloc(50, Caller::at(SITE).charged_to(ObjcgId(objcg as u32)));
        assert!(!at.is_null());
        free(a, at);
    }
    assert_eq!(a.validate(), Ok(()));
}

/// One page of the table of classes describes 256 MiB. The first step of a pool has 113 sheaves.
#[test]
fn slabs_far_into_a_zone_have_classes_and_many_sheaves_hold_objects() {
    for a in [
        simulated(budget(LARGE, 2)),
        leaked(Sim::new(Linux::new(), budget(LARGE, 3)).with_nodes(3)),
    ] {
        let far: Vec<_> = (0..80_000).map(|_| a.alloc(8000, Caller::at(SITE))).collect();
        assert!(far.iter().all(|at| !at.is_null()));
        let low = far.iter().map(|&at| at as usize).min().expect("some");
        let high = far.iter().map(|&at| at as usize).max().expect("some");
        assert!(high - low > 512 << 20);
        free_all(a, far);
        for size in (16..2048).step_by(16) {
            let held: Vec<_> = (0..2000).map(|_| a.alloc(size, Caller::at(SITE))).collect();
            free_all(a, held);
        }
        assert_eq!(a.validate(), Ok(()));
        assert_eq!(calls(a).values().sum::<u64>(), 0);
    }
}
