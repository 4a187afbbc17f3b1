//! Writes to a root block from outside: the words and the cache change, and nothing else does.

mod fake;

use fake::{CACHE_LEN, Target};
use kmem_snapshot::books::{Profiling, Root};
use kmem_snapshot::control::Setting;
use kmem_snapshot::memory::Memory;
use kmem_snapshot::{Control, ReadError};

fn setting(control: &Control) -> Setting {
    let settings = control.settings().unwrap();
    assert_eq!(settings.len(), 1);
    settings[0]
}

/// Copies the target's cache of call sites.
fn cache(target: &Target) -> Vec<u8> {
    let memory = Memory::Live(target.process().memory());
    let root = setting(&target.process().control().unwrap()).root;
    let (addr, len) = Root::read(&memory, root).unwrap().cache;
    let mut bytes = vec![0; len as usize];
    memory.read(addr, &mut bytes).unwrap();
    bytes
}

fn is_empty(cache: &[u8]) -> bool {
    assert_eq!(cache.len(), CACHE_LEN);
    cache.iter().all(|&byte| byte == 0)
}

#[test]
fn each_word_is_written_alone_and_the_cache_is_emptied() {
    for (write, expected) in [
        (
            (|c, _| c.set_profiling(0)) as fn(&Control, u64) -> Result<(), ReadError>,
            (Profiling::Off, 0, 0, 0),
        ),
        (|c, _| c.set_depth(7), (Profiling::On, 7, 0, 0)),
        (|c, root| c.set_deep(root, 28, 12), (Profiling::On, 0, 12, 28)),
    ] {
        let target = Target::start("");
        let control = target.process().control().unwrap();
        let before = setting(&control);
        assert_eq!((before.profiling, before.depth), (Profiling::On, 0));
        assert!(!is_empty(&cache(&target)));
        write(&control, before.root).unwrap();
        let after = setting(&control);
        assert_eq!((after.profiling, after.depth, after.deep_depth, after.deep_tag), expected);
        assert!(is_empty(&cache(&target)));
    }
}

#[test]
fn what_was_set_can_be_ended() {
    let target = Target::start("");
    let control = target.process().control().unwrap();
    let before = setting(&control);
    control.set_deep(before.root, 28, 32).unwrap();
    control.set_deep(before.root, 0, 0).unwrap();
    control.set_profiling(0).unwrap();
    control.set_profiling(1).unwrap();
    assert_eq!(setting(&control), before);
}

#[test]
fn of_two_copies_one_has_the_deep_site_and_both_have_the_switch() {
    let target = Target::start("copies");
    let control = target.process().control().unwrap();
    let roots: Vec<u64> = control.settings().unwrap().iter().map(|s| s.root).collect();
    assert_eq!(roots.len(), 2);
    control.set_deep(roots[1], 28, 5).unwrap();
    control.set_profiling(0).unwrap();
    control.set_depth(3).unwrap();
    for (setting, deep) in control.settings().unwrap().iter().zip([(0, 0), (28, 5)]) {
        assert_eq!((setting.deep_tag, setting.deep_depth), deep);
        assert_eq!((setting.profiling, setting.depth), (Profiling::Off, 3));
    }
}

#[test]
fn values_that_make_no_sense_are_refused_and_nothing_is_written() {
    let target = Target::start("");
    let control = target.process().control().unwrap();
    let before = setting(&control);
    for (result, what) in [
        (control.set_profiling(2), "0 or 1, not to 2"),
        (control.set_depth(33), "a depth of 33"),
        (control.set_deep(before.root, 28, 33), "a depth of 33"),
        (control.set_deep(before.root, 7, 2), "tag 7 is no call site"),
        (control.set_deep(before.root, 1 << 17, 2), "tag 131072 is no call site"),
        (control.set_deep(before.root + 8, 28, 2), "no root block at"),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, ReadError::BadSetting(_)), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    assert_eq!(setting(&control), before);
    assert!(!is_empty(&cache(&target)));
}

#[test]
fn a_cache_that_is_not_the_processs_own_is_not_written_nor_is_any_word() {
    for (fault, what) in [
        ("cache-outside", "cache at 0x1000000000000000"),
        ("cache-none", "cache at 0x0"),
        ("cache-wrap", "cache at 0xfffffffffffffff8"),
        ("cache-length", "cache_len is 12"),
        ("cache-long", "cache_len is 1048584"),
        ("cache-unaligned", "is not in the process's writable memory"),
        ("cache-read-only", "is not in the process's writable memory"),
    ] {
        let target = Target::start(fault);
        let control = target.process().control().unwrap();
        let before = setting(&control);
        for result in
            [control.set_profiling(0), control.set_depth(3), control.set_deep(before.root, 28, 3)]
        {
            let error = result.unwrap_err();
            assert!(matches!(error, ReadError::BadBooks { .. }), "{fault}: {error}");
            assert!(error.to_string().contains(what), "{fault}: {error}");
        }
        assert_eq!(setting(&control), before, "{fault}");
    }
}

#[test]
fn absent_books_and_processes_are_told() {
    let target = Target::start("never");
    let error = target.process().control().unwrap().set_profiling(1).unwrap_err();
    assert!(matches!(error, ReadError::ProfilingNever { .. }), "{error}");
    let target = Target::start("none-mapped");
    let error = target.process().control().unwrap_err();
    assert!(matches!(error, ReadError::NotInstrumented { .. }), "{error}");
    let target = Target::start("version");
    let error = target.process().control().unwrap_err();
    assert!(error.to_string().contains("layout version"), "{error}");
    let target = Target::start("");
    let control = target.process().control().unwrap();
    drop(target);
    let error = control.set_profiling(0).unwrap_err();
    assert!(matches!(error, ReadError::NoProcess { .. }), "{error}");
}
