//! Damaged tables of groups, read and written from outside.

mod fake;

use fake::Target;
use kmem_layout::group::Limit;
use kmem_snapshot::books::{Books, Groups};
use kmem_snapshot::{ReadError, report};

fn books(target: &Target) -> Books {
    target.snapshot().unwrap().books.remove(0)
}

/// Checks that each group has one place in the tree, and that nothing is lost.
fn assert_tree(target: &Target, books: &Books) {
    let groups = books.groups.all();
    assert!(groups[0].is_root() && groups[0].depth == 0);
    for (at, group) in groups.iter().enumerate().skip(1) {
        assert!(group.parent < at && group.depth == groups[group.parent].depth + 1);
        assert!(group.depth <= 32 && books.groups.below(group.parent).contains(&at));
        assert_eq!(groups.iter().filter(|other| other.objcg == group.objcg).count(), 1);
    }
    let objects = |at: usize| groups[at].own.objects;
    for (at, group) in groups.iter().enumerate() {
        let sum: u64 = books.groups.below(at).map(objects).sum();
        assert_eq!(group.usage.objects, sum);
    }
    let all: u64 = target.totals.values().map(|of| of.1).sum();
    assert_eq!(groups[0].usage.objects, all);
    assert_eq!(books.rows_of(&books.groups.below(0)), books.rows);
    let bytes: i64 = target.totals.values().map(|of| of.0).sum();
    assert_eq!(groups[0].usage.slab + groups[0].usage.pages, bytes as u64);
    let mut out = Vec::new();
    report::write_groups(&mut out, &books.groups).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), groups.len() + 1);
    assert!(!text.contains(['\x1b', '\x07', '\u{202e}']));
}

fn depth_of(groups: &Groups, objcg: u32) -> usize {
    groups.all().iter().find(|group| group.objcg == objcg).unwrap().depth
}

#[test]
fn a_sound_table_is_a_tree() {
    let target = Target::start("");
    let books = books(&target);
    assert_tree(&target, &books);
    assert_eq!((books.groups.torn, books.groups.all().len()), (0, 48 - 5));
    // A group below a deleted one is below its nearest living ancestor.
    let at = books.groups.find("/g1/g3/g4").unwrap();
    assert_eq!(books.groups.path(at), "/g1/g3/g4");
    let group = &books.groups.all()[at];
    assert_eq!((group.objcg, group.depth), (4, 3));
    assert!(group.own.objects > 0 && books.groups.find("/g1/g2").is_none());
    let own = group.usage.current();
    assert_eq!(group.cached + own, 4 << 30);
}

#[test]
fn ways_that_do_not_end_at_the_root_are_cut_and_told() {
    for fault in ["group-cycle", "group-parents", "group-deep"] {
        let target = Target::start(fault);
        let books = books(&target);
        assert_tree(&target, &books);
        assert_eq!(books.groups.torn, 15, "{fault}");
        assert!(depth_of(&books.groups, 4) >= 1);
    }
}

#[test]
fn names_that_cannot_be_are_shown_safely_and_never_confused() {
    let target = Target::start("group-names");
    let books = books(&target);
    assert_tree(&target, &books);
    let groups = &books.groups;
    // A name with a slash is no path. Of two groups with one name one is found.
    assert_eq!(groups.all()[groups.find("/g1/g3").unwrap()].objcg, 3);
    assert!([1, 8].contains(&groups.all()[groups.find("/g1").unwrap()].objcg));
    assert!(groups.all().iter().all(|group| group.objcg != 9), "there is no such state");
    assert_eq!(groups.find("/").unwrap(), 0);
}

#[test]
fn tables_that_cannot_be_are_refused_by_name() {
    for (fault, what) in [
        ("group_count", "group_count is 4294967295, above group_capacity 16384"),
        ("group_capacity", "group_capacity is 4294967295, above 16384"),
        ("group_size", "group_size is 8"),
        ("group_size-odd", "group_size is 385"),
        ("groups-outside", "groups at 0x1000000000000000"),
        ("groups-wrap", "groups at 0xffffffffffffff9b"),
    ] {
        let error = Target::start(fault).snapshot().unwrap_err();
        assert!(matches!(error, ReadError::BadBooks { .. }), "{fault}: {error}");
        assert!(error.to_string().contains(what), "{fault}: {error}");
    }
}

#[test]
fn groups_that_come_and_go_meanwhile_lose_nothing() {
    let target = Target::start("group-churn");
    for _ in 0..15 {
        assert_tree(&target, &books(&target));
    }
}

#[test]
fn a_limit_is_written_where_its_group_is_and_nowhere_else() {
    let target = Target::start("");
    let before = books(&target);
    let control = target.process().control().unwrap();
    control.set_group_limit("/g1/g3/g4", Limit::Max, 4096).unwrap();
    control.set_group_limit("g11", Limit::Low, 77).unwrap();
    let after = books(&target);
    for (before, after) in before.groups.all().iter().zip(after.groups.all()) {
        let mut expected = before.clone();
        match before.objcg {
            4 => expected.max = Some(4096),
            11 => expected.low = Some(77),
            _ => {}
        }
        assert_eq!(*after, expected);
    }
    for path in ["/g1/g2", "/g4", "/g1/g3/g4/g4", "/none"] {
        let error = control.set_group_limit(path, Limit::Max, 1).unwrap_err();
        assert!(matches!(error, ReadError::NoGroup { .. }), "{path}: {error}");
    }
    let error = control.set_group_limit("/", Limit::Max, 1).unwrap_err();
    assert!(matches!(error, ReadError::RootGroup), "{error}");
    let target = Target::start("groups-read-only");
    let control = target.process().control().unwrap();
    let error = control.set_group_limit("/g1", Limit::Max, 1).unwrap_err();
    assert!(
        error.to_string().contains("entry 1 is not in the process's writable memory"),
        "{error}"
    );
    assert_eq!(books(&target).groups.all()[1].max, None);
}
