//! Per-CPU memory: copies are apart, zeroed and exact, and the books count each object.
#![cfg(target_os = "linux")]

mod instance;

use instance::{
    Simulated, after_faults, books, budget, calls, cases, fixed, forked, pin, simulated, started,
    until_null,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;

use kmem_core::Kmem;
use kmem_core::os::Budget;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::request::Caller;
use kmem_core::units::{CpuId, Gfp};
use proptest::prelude::*;

const BUDGET: Budget = Budget { memory: 1 << 30, ..budget(16 << 20, 4) };

struct Held {
    handle: *mut u8,
    size: usize,
    site: usize,
    /// Byte that fills each CPU's copy.
    fill: [u8; 4],
}

impl Held {
    fn check(&self, a: &'static Simulated) {
        for (cpu, fill) in (0..).zip(self.fill) {
            let copy = a.per_cpu_ptr(self.handle, CpuId(cpu));
            // SAFETY: live and that long.
            let bytes = unsafe { std::slice::from_raw_parts(copy, self.size) };
            assert!(bytes.iter().all(|&b| b == fill), "copy of {cpu}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: usize, shift: u32, site: usize, cpu: u32 },
    Free { which: usize, cpu: u32 },
    Fill { which: usize, cpu: u32, with: u8 },
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![6 => 1usize..200, 2 => 200usize..4000, 1 => 4000usize..=32_768];
    prop_oneof![
        5 => (size, 0u32..13, 0x1001usize..0x1010, 0u32..4)
            .prop_map(|(size, shift, site, cpu)| Step::Alloc { size, shift, site, cpu }),
        4 => (any::<usize>(), 0u32..4).prop_map(|(which, cpu)| Step::Free { which, cpu }),
        5 => (any::<usize>(), 0u32..4, any::<u8>())
            .prop_map(|(which, cpu, with)| Step::Fill { which, cpu, with }),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn copies_and_books_equal_a_plain_model(steps in prop::collection::vec(step(), 1..300)) {
        let a = simulated(BUDGET);
        let mut held: Vec<Held> = Vec::new();
        for step in steps {
            match step {
                Step::Alloc { size, shift, site, cpu } => {
                    a.platform().run_on(cpu);
                    let handle = a.alloc_percpu(size, 1 << shift, Gfp::KERNEL, Caller::at(site));
                    prop_assert!(!handle.is_null());
                    prop_assert_eq!(handle as usize % (1 << shift), 0);
                    for other in &held {
                        let (start, theirs) = (handle.addr(), other.handle.addr());
                        prop_assert!(start + size <= theirs || theirs + other.size <= start);
                    }
                    let new = Held { handle, size, site, fill: [0; 4] };
                    new.check(a);
                    held.push(new);
                }
                Step::Free { which, cpu } if !held.is_empty() => {
                    a.platform().run_on(cpu);
                    let gone = held.swap_remove(which % held.len());
                    gone.check(a);
                    // SAFETY: live, given up.
                    unsafe { a.free_percpu(gone.handle) };
                }
                Step::Fill { which, cpu, with } if !held.is_empty() => {
                    let slot = which % held.len();
                    let copy = a.per_cpu_ptr(held[slot].handle, CpuId(cpu));
                    // SAFETY: live and that long.
                    unsafe { copy.write_bytes(with, held[slot].size) };
                    held[slot].fill[cpu as usize] = with;
                }
                Step::Trim => {
                    a.trim();
                    prop_assert_eq!(a.validate(), Ok(()));
                }
                _ => {}
            }
        }
        let mut model = BTreeMap::new();
        for h in &held {
            h.check(a);
            let sum = model.entry(h.site).or_insert(0);
            *sum += 1;
        }
        prop_assert_eq!(calls(a), model);
        for h in held {
            // SAFETY: live, given up.
            unsafe { a.free_percpu(h.handle) };
        }
        prop_assert!(books(a).is_empty());
        a.trim();
        prop_assert_eq!(a.validate(), Ok(()));
        prop_assert_eq!(a.percpu_stats().used, 0);
    }
}

#[test]
fn a_cpu_that_appears_later_finds_zeroes_and_then_its_own_copy() {
    let a = simulated(BUDGET);
    a.platform().run_on(0);
    let counter: *mut u64 = a.alloc_percpu(8, 8, Gfp::KERNEL, Caller::at(7)).cast();
    // SAFETY: live words.
    unsafe {
        a.this_cpu_add(counter, 5);
        assert_eq!(a.percpu_stats().units, 1);
        a.platform().run_on(3);
        assert_eq!(a.this_cpu_read(counter), 0);
        assert_eq!(a.this_cpu_add_return(counter, 9), 9);
        assert_eq!(a.percpu_stats().units, 2);
        let many: Vec<_> =
            (0..5000).map(|_| a.alloc_percpu(64, 8, Gfp::KERNEL, Caller::at(8))).collect();
        a.platform().run_on(1);
        for &handle in &many {
            a.this_cpu_add(handle.cast::<u32>(), 1);
        }
        assert_eq!(a.percpu_sum(counter), 14);
        assert_eq!((a.this_cpu_xchg(counter, 40), a.this_cpu_read(counter)), (0, 40));
        assert_eq!(a.this_cpu_cmpxchg(counter, 1, 2), 40);
        assert_eq!(a.this_cpu_cmpxchg(counter, 40, 2), 40);
        assert_eq!((a.this_cpu_read(counter), a.percpu_sum(counter)), (2, 16));
        assert_eq!(a.percpu_stats().objects, 5001);
        assert_eq!(*a.per_cpu_ptr(counter.cast(), CpuId(3)).cast::<u64>(), 9);
    }
}

#[test]
fn what_cannot_be_served_is_refused() {
    let a = simulated(BUDGET);
    let caller = Caller::at(7);
    assert!(a.alloc_percpu(32_769, 1, Gfp::NOWARN, caller).is_null());
    assert!(a.alloc_percpu(8, 24, Gfp::NOWARN, caller).is_null());
    assert!(a.alloc_percpu(8, 8192, Gfp::NOWARN, caller).is_null());
    assert!(a.alloc_percpu(usize::MAX, 4096, Gfp::NOWARN, caller).is_null());
    let handle = a.alloc_percpu(0, 0, Gfp::KERNEL, caller);
    assert!(!handle.is_null());
    assert!(a.per_cpu_ptr(handle, CpuId(u32::MAX)).is_null());
    // SAFETY: null; live and given up.
    unsafe {
        a.free_percpu(std::ptr::null_mut());
        a.free_percpu(handle);
    }
}

#[test]
fn a_space_that_is_used_up_refuses_and_goes_on() {
    let a = simulated(BUDGET);
    let held = until_null(|| a.alloc_percpu(1000, 8, Gfp::NOWARN, Caller::at(7)));
    assert!(held.len() > 1000 && a.percpu_stats().objects == held.len() as u64);
    for handle in held {
        // SAFETY: live, given up.
        unsafe { a.free_percpu(handle) };
    }
    assert!(!a.alloc_percpu(30_000, 8, Gfp::KERNEL, Caller::at(7)).is_null());
}

#[test]
fn any_one_call_may_fail() {
    let work = |a: &'static Simulated| -> usize {
        let mut served = 0;
        let mut held: Vec<*mut u64> = Vec::new();
        for i in 0..200u32 {
            a.platform().run_on(i / 50);
            let size = [8, 200, 3000, 20_000][i as usize % 4];
            let at: *mut u64 = a.alloc_percpu(size, 8, Gfp::NOWARN, Caller::at(13)).cast();
            if at.is_null() {
                continue;
            }
            served += 1;
            held.push(at);
            // SAFETY: live words.
            unsafe {
                for (n, &word) in held.iter().enumerate() {
                    a.this_cpu_add(word, n as u64 + 1);
                }
            }
        }
        for (n, &word) in held.iter().enumerate() {
            // SAFETY: live, then given up.
            unsafe {
                assert_eq!(a.percpu_sum(word) % (n as u64 + 1), 0);
                assert!(a.percpu_sum(word) > 0);
                a.free_percpu(word.cast());
            }
        }
        served
    };
    let fresh = || started(BUDGET);
    let a = fresh();
    a.platform().fail(u64::MAX, u64::MAX);
    assert_eq!(work(a), 200);
    let calls = a.platform().calls();
    assert!(calls > 8, "{calls} calls");
    for fault in 1..=calls {
        let a = after_faults(fresh(), fault..fault + 1, work);
        assert!(work(a) >= 199, "the fault at call {fault} did not pass");
        a.trim();
        assert_eq!((a.validate(), a.percpu_stats().objects, a.percpu_stats().used), (Ok(()), 0, 0));
    }
    let a = fresh();
    after_faults(a, 1..u64::MAX, work);
    assert_eq!(work(a), 200);
}

#[test]
#[should_panic(expected = "gave up")]
fn the_heap_does_not_take_a_handle() {
    let a = fixed(256 << 20);
    let handle = a.alloc_percpu(8, 8, Gfp::KERNEL, Caller::at(7));
    assert!(!handle.is_null());
    // SAFETY: none; the allocator must detect it.
    unsafe { a.free(handle) };
}

#[test]
#[should_panic(expected = "gave up")]
fn a_handle_is_freed_once() {
    let a = fixed(256 << 20);
    let handle = a.alloc_percpu(8, 8, Gfp::KERNEL, Caller::at(7));
    // SAFETY: none for the second; the allocator must detect it.
    unsafe {
        a.free_percpu(handle);
        a.free_percpu(handle);
    }
}

static COUNTED: Kmem = Kmem::new();

/// Signal handler: interrupts the thread with per-CPU work of its own.
extern "C" fn on_signal(_: i32) {
    let counter = COUNTER.load(Ordering::Relaxed) as *mut u64;
    // SAFETY: live until all threads ended.
    unsafe { COUNTED.this_cpu_add(counter, 1) };
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
}
static COUNTER: AtomicU64 = AtomicU64::new(0);
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

#[test]
fn no_addition_is_lost_to_migrations_and_signals() {
    const THREADS: usize = 6;
    const SIGNALS: u64 = 3000;
    let counter: *mut u64 = COUNTED.alloc_percpu(8, 8, Gfp::KERNEL, Caller::at(7)).cast();
    COUNTER.store(counter as u64, Ordering::Relaxed);
    // SAFETY: the handler takes no lock and does not allocate.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    // The last signal is sent before the first thread may end. So a number that is used belongs to
    // a living thread of this test.
    let stop = AtomicBool::new(false);
    let numbers = [const { AtomicI32::new(0) }; THREADS];
    let added: u64 = thread::scope(|scope| {
        let threads: Vec<_> =
            numbers.iter().map(|number| scope.spawn(|| add_until(&stop, number))).collect();
        let mut turn = 0;
        while INTERRUPTED.load(Ordering::Relaxed) < SIGNALS {
            turn += 1;
            let known = numbers.iter().map(|number| number.load(Ordering::Relaxed));
            for thread in known.filter(|&number| number > 0) {
                pin(thread, turn % 2);
                // SAFETY: a thread of this process.
                unsafe {
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        // Join each thread: the end of a scope does not wait for handlers that run while a thread
        // ends.
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    let interrupted = INTERRUPTED.load(Ordering::Relaxed);
    // SAFETY: live, then given up.
    unsafe {
        assert_eq!(COUNTED.percpu_sum(counter), added + interrupted);
        COUNTED.free_percpu(counter.cast());
    }
}

/// Stores the number of this thread, then adds until `stop`. Returns the number of additions.
fn add_until(stop: &AtomicBool, number: &AtomicI32) -> u64 {
    // SAFETY: takes nothing.
    number.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    let mut adds = 0;
    while !stop.load(Ordering::Relaxed) {
        // SAFETY: live until all threads ended.
        unsafe { add_one(COUNTER.load(Ordering::Relaxed) as *mut u64, adds) };
        adds += 1;
    }
    adds
}

/// Adds one to the CPU's copy. `way` selects the operation.
///
/// # Safety
/// `counter` is live.
unsafe fn add_one(counter: *mut u64, way: u64) {
    // SAFETY: a live counter, by the contract.
    unsafe {
        match way % 3 {
            0 => COUNTED.this_cpu_add(counter, 1),
            1 => assert!(COUNTED.this_cpu_add_return(counter, 1) > 0),
            _ => loop {
                let seen = COUNTED.this_cpu_read(counter);
                if COUNTED.this_cpu_cmpxchg(counter, seen, seen + 1) == seen {
                    return;
                }
            },
        }
    }
}

#[test]
fn threads_allocate_and_free_each_others_objects() {
    let passed = std::sync::Mutex::new(Vec::<usize>::new());
    thread::scope(|scope| {
        for me in 0..4u32 {
            let passed = &passed;
            scope.spawn(move || {
                for i in 0..30_000u32 {
                    let size = 8 << (i % 6);
                    let at: *mut u32 =
                        COUNTED.alloc_percpu(size, 8, Gfp::KERNEL, Caller::at(9)).cast();
                    assert!(!at.is_null());
                    // SAFETY: live words; freed once.
                    unsafe {
                        assert_eq!(COUNTED.percpu_sum(at), 0);
                        COUNTED.this_cpu_add(at, me + 1);
                        assert_eq!(COUNTED.percpu_sum(at), me + 1);
                        let mut passed = passed.lock().expect("no panic");
                        passed.push(at as usize);
                        if passed.len() > 100 {
                            let other = passed.swap_remove(i as usize % 100);
                            drop(passed);
                            COUNTED.free_percpu(other as *mut u8);
                        }
                    }
                }
            });
        }
    });
    for at in passed.into_inner().expect("no panic") {
        // SAFETY: live, given up.
        unsafe { COUNTED.free_percpu(at as *mut u8) };
    }
}

#[test]
fn a_forked_child_goes_on_with_objects_of_its_own() {
    let counter: *mut u64 = COUNTED.alloc_percpu(8, 8, Gfp::KERNEL, Caller::at(11)).cast();
    // SAFETY: a live counter; the child uses this instance only.
    unsafe {
        COUNTED.this_cpu_add(counter, 3);
        let work = || {
            COUNTED.this_cpu_add(counter, 4);
            let mut right = COUNTED.percpu_sum(counter) == 7;
            for size in [8, 8, 100, 3000] {
                let more: *mut u64 =
                    COUNTED.alloc_percpu(size, 8, Gfp::KERNEL, Caller::at(12)).cast();
                right &= more != counter && COUNTED.percpu_sum(more) == 0;
                COUNTED.this_cpu_add(more, 1);
                right &= COUNTED.percpu_sum(more) == 1;
            }
            COUNTED.free_percpu(counter.cast());
            right
        };
        assert!(forked(work), "what the child found");
        assert_eq!(COUNTED.percpu_sum(counter), 3);
        COUNTED.free_percpu(counter.cast());
    }
}

static PROCESS: Kmem = Kmem::new();

kmem_core::define_per_cpu! {
    static EVENTS: u64 => PROCESS;
    /// No code uses it.
    static UNUSED: u32 => PROCESS;
}

#[test]
fn a_static_variable_gets_a_place_when_it_is_used_billed_to_its_definition() {
    let rows = || {
        let mut rows = Vec::new();
        PROCESS.census(|tag, bytes, calls| {
            if let Some(names) = PROCESS.sites().names(tag)
                && [&b"EVENTS"[..], b"UNUSED"].contains(&names.function)
            {
                rows.push((names.function.to_vec(), bytes, calls));
            }
        });
        rows
    };
    assert!(rows().is_empty());
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..10_000).for_each(|_| EVENTS.add(2)))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    });
    assert_eq!(EVENTS.sum(), 80_000);
    let of_cpus: u64 = (0..PROCESS.possible_cpus()).filter_map(|cpu| EVENTS.of(CpuId(cpu))).sum();
    assert!(of_cpus <= 80_000 && EVENTS.of(CpuId(PROCESS.possible_cpus())).is_none());
    assert!(EVENTS.read() <= 80_000);
    assert_eq!(rows(), [(b"EVENTS".to_vec(), 16, 1)]);
    let _ = &UNUSED;
}

#[test]
fn the_report_has_the_layout_of_the_kernels() {
    let a = simulated(BUDGET);
    let text = || {
        let mut text = Vec::new();
        a.percpu_info(|line| text.extend_from_slice(line));
        String::from_utf8(text).expect("text")
    };
    let value = |name: &str| {
        let text = text();
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        let number = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
        number
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert_eq!((value("nr_units"), value("nr_cur_alloc"), value("unit_size")), (0, 0, 0));
    let handles =
        [8, 100, 4000].map(|size| a.alloc_percpu(size, 8, Gfp::KERNEL, Caller::at(0x1000)));
    assert_eq!((value("nr_units"), value("nr_cur_alloc")), (1, 3));
    assert_eq!(value("cur_alloc_size"), 16 + 112 + 4096);
    assert!(value("populated_size") >= 4096 && value("unit_size") >= 1 << 20);
    // SAFETY: live, given up.
    handles.into_iter().for_each(|handle| unsafe { a.free_percpu(handle) });
    assert_eq!((value("nr_cur_alloc"), value("cur_alloc_size")), (0, 0));
    let heads: Vec<_> =
        text().lines().filter(|line| !line.starts_with("  ")).map(str::to_owned).collect();
    let rule = "-".repeat(40);
    assert_eq!(
        heads,
        ["Percpu Memory Statistics", "Allocation Info:", &rule, "Global Stats:", &rule]
    );
}

#[test]
fn a_static_variable_counts_without_memory() {
    static FULL: std::sync::OnceLock<&'static Simulated> = std::sync::OnceLock::new();
    kmem_core::define_per_cpu! {
        static LATE: u32 => **FULL.get().expect("set below"), Sim<Linux>;
    }
    let a = started(BUDGET);
    FULL.set(a).ok().expect("once");
    a.platform().fail(1, u64::MAX);
    LATE.add(3);
    assert_eq!((LATE.sum(), LATE.of(CpuId(0))), (3, None));
    a.platform().fail(u64::MAX, u64::MAX);
    LATE.add(4);
    assert_eq!((LATE.sum(), LATE.of(CpuId(0))), (7, Some(4)));
}
