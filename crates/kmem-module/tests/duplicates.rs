//! Duplicates: found before memory is spent, whichever way the module comes, and shared only with
//! requests for the same module.

mod harness;

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::ScopedJoinHandle;

use harness::{EMPTY, config, directory, insmod, loader, module, nothing_is_left};
use kmem_module::stats::Stat;
use kmem_module::{Errno, Loader};

/// Runs `what` in `threads` threads that begin at once. Returns their errnos, sorted (0: success).
fn storm(threads: usize, what: impl Fn(usize) -> kmem_module::Result<()> + Sync) -> Vec<i32> {
    let barrier = Barrier::new(threads);
    let mut results: Vec<i32> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|number| {
                let (barrier, what) = (&barrier, &what);
                scope.spawn(move || {
                    barrier.wait();
                    what(number).map_or_else(|error| error.errno.0, |()| 0)
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    results.sort_unstable();
    results
}

fn copy(path: &Path, name: &str) -> std::path::PathBuf {
    let to = path.with_file_name(name);
    fs::copy(path, &to).unwrap();
    to
}

/// All that was wasted, and the loads that were.
fn wasted(loader: &Loader) -> (u64, u64) {
    let stats = loader.stats();
    (stats.wasted(), stats.get(Stat::Loaded))
}

#[test]
fn a_late_duplicate_of_a_known_file_costs_nothing() {
    let dir = directory();
    let path = module(dir.path(), "late", EMPTY);
    let link = path.with_file_name("link.ko");
    fs::hard_link(&path, &link).unwrap();
    let loader = loader();
    insmod(&loader, &path, "").unwrap();
    let peak = loader.gauge().peak();
    for path in [&path, &link] {
        let error = insmod(&loader, path, "").unwrap_err();
        assert_eq!(error.errno, Errno::EEXIST);
        assert!(error.to_string().contains("a module called late is loaded"), "{error}");
    }
    // Arguments make no difference to a name that is taken.
    assert_eq!(insmod(&loader, &path, "x=1").unwrap_err().errno, Errno::EEXIST);
    assert_eq!(wasted(&loader), (0, 1));
    assert_eq!(loader.gauge().peak(), peak);
    assert_eq!(loader.stats().failed, [("late".to_owned(), 3, 1)]);
    loader.delete_module("late", 0).unwrap();
    insmod(&loader, &path, "").unwrap();
    loader.delete_module("late", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn a_late_duplicate_from_memory_costs_nothing() {
    let dir = directory();
    let path = module(dir.path(), "memory", EMPTY);
    let bytes = fs::read(&path).unwrap();
    let loader = loader();
    loader.init_module(&bytes, "").unwrap();
    let peak = loader.gauge().peak();
    for _ in 0..3 {
        assert_eq!(loader.init_module(&bytes, "").unwrap_err().errno, Errno::EEXIST);
    }
    assert_eq!((wasted(&loader), loader.gauge().peak()), ((0, 1), peak));
    loader.delete_module("memory", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn an_unknown_copy_costs_the_window_once_and_then_nothing() {
    let dir = directory();
    let path = harness::module_with(
        dir.path(),
        "copied",
        &format!("{EMPTY} static const char big[300000] __attribute__((used)) = {{ 1 }};"),
        &[],
    );
    let other = copy(&path, "copy.ko");
    let loader = loader();
    insmod(&loader, &path, "").unwrap();
    assert_eq!(insmod(&loader, &other, "").unwrap_err().errno, Errno::EEXIST);
    let once = loader.stats().wasted();
    assert!(once > 0 && once <= 64 << 10, "{once}");
    assert_eq!(loader.stats().get(Stat::BecomingBytes), once);
    assert_eq!(insmod(&loader, &other, "").unwrap_err().errno, Errno::EEXIST);
    assert_eq!(loader.stats().wasted(), once);
    assert_eq!(loader.stats().get(Stat::FailedBecoming), 2);
    // Unloaded, neither file is known for anything.
    loader.delete_module("copied", 0).unwrap();
    insmod(&loader, &other, "").unwrap();
    loader.delete_module("copied", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn four_hundred_threads_load_a_file_once_for_nothing() {
    let dir = directory();
    let path = module(dir.path(), "storm", EMPTY);
    let loader = loader();
    let alone = {
        let loader = harness::loader();
        insmod(&loader, &path, "").unwrap();
        let peak = loader.gauge().peak();
        loader.delete_module("storm", 0).unwrap();
        peak
    };
    let results = storm(400, |_| insmod(&loader, &path, ""));
    // Who comes while it is loaded shares the load; who comes after it is too late.
    let shared = results.iter().filter(|&&errno| errno == 0).count();
    assert!(
        shared >= 1 && results.iter().all(|&errno| errno == 0 || errno == Errno::EEXIST.0),
        "{results:?}"
    );
    assert_eq!(wasted(&loader), (0, 1));
    assert_eq!(loader.gauge().peak(), alone, "never more than one load");
    assert_eq!(loader.stats().get(Stat::FailedBecoming), 400 - shared as u64);
    loader.delete_module("storm", 0).unwrap();
    nothing_is_left(&loader);
}

/// A module whose init waits until the test lets it go on, by a number in this program.
const WAITS: &str = "extern int *gate; static int arg; module_param(arg, int, 0);
     int gated_arg; EXPORT_SYMBOL(gated_arg);
     static int __init go(void) { __atomic_store_n(&gate[0], 1, __ATOMIC_RELEASE);
        while (!__atomic_load_n(&gate[1], __ATOMIC_ACQUIRE)) ;
        gated_arg = arg; return gate[2]; } module_init(go);
     static void stop(void) { } module_exit(stop);";

/// The gate of one test: begun, may go on, result.
struct Gate {
    words: &'static [AtomicU32; 3],
}

struct WithGate(usize);

impl kmem_module::symbols::Core for WithGate {
    fn find(&self, name: &std::ffi::CStr) -> Option<kmem_module::symbols::Definition> {
        let value = self.0 as u64;
        match name.to_bytes() {
            b"gate" => Some(kmem_module::symbols::Definition { value, version: None, gpl: false }),
            _ => harness::Host.find(name),
        }
    }
}

impl Gate {
    fn new() -> (Self, Loader) {
        let words: &'static [AtomicU32; 3] = Box::leak(Box::default());
        let pointer: &'static usize = Box::leak(Box::new(words.as_ptr() as usize));
        let core = Box::new(WithGate(std::ptr::from_ref(pointer) as usize));
        (Self { words }, Loader::new(kmem_module::Config { core, ..config() }).unwrap())
    }

    fn wait_until_init_runs(&self) {
        while self.words[0].load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
    }

    fn open(&self) {
        self.words[1].store(1, Ordering::Release);
    }
}

#[test]
fn a_loser_shares_only_what_it_has_in_common_with_the_winner() {
    let dir = directory();
    let path = module(dir.path(), "gated", WAITS);
    let same = copy(&path, "same.ko");
    let other = module(
        dir.path(),
        "other",
        &format!("{WAITS}\nint more = 1; MODULE_INFO(name, \"gated\");"),
    );
    let (gate, loader) = Gate::new();
    std::thread::scope(|scope| {
        let winner = scope.spawn(|| insmod(&loader, &path, "arg=1"));
        gate.wait_until_init_runs();
        let loader = &loader;
        let wait_for = |losers: usize| {
            while loader.waiting() < losers {
                std::thread::yield_now();
            }
        };
        // In this order: of two requests for one copy, the later one waits for the earlier one.
        let mut results = vec![
            scope.spawn(|| insmod(loader, &path, "arg=1")),
            scope.spawn(|| insmod(loader, &same, "arg=1")),
        ];
        wait_for(2);
        results.push(scope.spawn(|| insmod(loader, &path, "arg=2")));
        results.push(scope.spawn(|| insmod(loader, &same, "arg=2")));
        results.push(scope.spawn(|| insmod(loader, &other, "arg=1")));
        wait_for(5);
        gate.open();
        let errno = |result: ScopedJoinHandle<'_, _>| match result.join().unwrap() {
            Ok(()) => Ok(()),
            Err(kmem_module::Error { errno, .. }) => Err(errno),
        };
        let results: Vec<_> = results.into_iter().map(errno).collect();
        let exists = Err(Errno::EEXIST);
        winner.join().unwrap().unwrap();
        // The winner's file, and a copy of it, with the winner's arguments; then with others; then
        // another module.
        assert_eq!(results, [Ok(()), Ok(()), exists, exists, exists]);
        assert_eq!(harness::int(loader, "gated_arg"), 1);
        // The winner's file cost nothing, the copies a window each.
        assert_eq!(loader.stats().get(Stat::Loaded), 1);
    });
    loader.delete_module("gated", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn those_who_wait_for_a_load_that_fails_get_its_error_and_may_try_again() {
    let dir = directory();
    let path = module(dir.path(), "fails", WAITS);
    let (gate, loader) = Gate::new();
    gate.words[2].store(-5_i32 as u32, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let winner = scope.spawn(|| insmod(&loader, &path, ""));
        gate.wait_until_init_runs();
        let losers: Vec<_> = (0..8).map(|_| scope.spawn(|| insmod(&loader, &path, ""))).collect();
        while loader.waiting() < losers.len() {
            std::thread::yield_now();
        }
        gate.open();
        assert_eq!(winner.join().unwrap().unwrap_err().errno, Errno::EIO);
        for loser in losers {
            assert_eq!(loser.join().unwrap().unwrap_err().errno, Errno::EIO);
        }
    });
    nothing_is_left(&loader);
    gate.words[2].store(0, Ordering::Relaxed);
    insmod(&loader, &path, "").unwrap();
    loader.delete_module("fails", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn transient_errors_are_not_shared() {
    let dir = directory();
    let path = module(dir.path(), "transient", WAITS);
    let (gate, loader) = Gate::new();
    gate.words[2].store(-12_i32 as u32, Ordering::Relaxed); // ENOMEM
    gate.open();
    let loader = &loader;
    let loads = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert_eq!(insmod(loader, &path, "").unwrap_err().errno, Errno::ENOMEM);
                loads.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    // Each tried itself.
    assert_eq!(loader.stats().get(Stat::FailedLoads), 4);
    nothing_is_left(loader);
}

#[test]
fn a_file_that_is_replaced_is_another_file_and_a_name_is_one_module() {
    let dir = directory();
    let path = module(dir.path(), "replaced", EMPTY);
    let loader = loader();
    insmod(&loader, &path, "").unwrap();
    let newer = module(
        dir.path(),
        "newer",
        &format!("{EMPTY} int newer = 1; EXPORT_SYMBOL(newer); MODULE_INFO(name, \"replaced\");"),
    );
    fs::rename(&newer, &path).unwrap();
    assert_eq!(insmod(&loader, &path, "").unwrap_err().errno, Errno::EEXIST);
    loader.delete_module("replaced", 0).unwrap();
    insmod(&loader, &path, "").unwrap();
    assert!(loader.symbol("newer").is_some());
    loader.delete_module("replaced", 0).unwrap();
    nothing_is_left(&loader);
}
