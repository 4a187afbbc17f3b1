//! Numbers that many threads count.

use std::thread;

use kmem_core::Kmem;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{proptest, test_runner::Config};

const THREADS: u64 = 8;
const TIMES: u64 = 100_000;

fn on_threads(count: impl Fn(u64) + Sync) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            let count = &count;
            scope.spawn(move || count(number));
        }
    });
}

#[test]
fn no_count_is_lost_on_many_threads() {
    kmem_counters::define! { static SEEN: Counter; }
    on_threads(|number| (0..TIMES).for_each(|_| SEEN.add(number)));
    assert_eq!(SEEN.sum(), TIMES * THREADS * (THREADS - 1) / 2);
}

#[test]
fn a_gauge_that_falls_as_often_as_it_grows_is_at_zero() {
    kmem_counters::define! { static OPEN: Gauge; }
    on_threads(|_| {
        for _ in 0..TIMES {
            OPEN.add(1);
            OPEN.add(-1);
        }
        OPEN.add(-2);
    });
    assert_eq!(OPEN.sum(), -2 * THREADS.cast_signed());
}

#[test]
fn a_histogram_counts_every_number_of_every_thread() {
    kmem_counters::define! { static SIZES: Histogram; }
    on_threads(|_| (0..TIMES).for_each(|number| SIZES.record(number)));
    let sizes = SIZES.snapshot();
    assert_eq!(sizes.count(), TIMES * THREADS);
    assert_eq!(sizes.sum(), THREADS * (TIMES * (TIMES - 1) / 2));
    let median = sizes.quantile(0.5);
    assert!((TIMES / 2 - 1..TIMES / 2 * 5 / 4).contains(&median), "{median}");
    assert_eq!(sizes.buckets().last().map(|(_, so_far)| so_far), Some(TIMES * THREADS));
}

#[test]
fn an_empty_histogram_has_no_numbers() {
    kmem_counters::define! { static NONE: Histogram; }
    let none = NONE.snapshot();
    assert_eq!((none.count(), none.sum(), none.quantile(0.5)), (0, 0, 0));
    assert_eq!(none.buckets().count(), 0);
}

#[test]
fn a_counter_of_an_instance_is_in_its_books() {
    static KMEM: Kmem = Kmem::new();
    kmem_counters::define! { static MINE: Counter => KMEM; }
    MINE.add(3);
    assert_eq!(MINE.sum(), 3);
    let mut live = 0;
    KMEM.census(|_, _, calls| live += calls);
    assert_eq!(live, 1);
}

/// Numbers of every magnitude.
fn numbers() -> impl Strategy<Value = Vec<u64>> {
    let number = prop_oneof![0_u64..10, 0_u64..100_000, any::<u64>()];
    proptest::collection::vec(number, 1..200)
}

proptest! {
    #![proptest_config(Config { cases: 64, ..Config::default() })]

    #[test]
    fn a_quantile_is_never_too_low_and_at_most_a_quarter_too_high(
        mut all in numbers(),
        part in 0.0..=1.0,
    ) {
        // Statics outlive a case, so each case counts what it adds.
        kmem_counters::define! { static ANY: Histogram; }
        let before = ANY.snapshot();
        all.iter().for_each(|&number| ANY.record(number));
        let after = ANY.snapshot();
        let added = after.since(&before);
        all.sort_unstable();
        let rank = ((f64::ceil(part * all.len() as f64)) as usize).max(1);
        let (exact, quantile) = (all[rank - 1], added.quantile(part));
        assert!(quantile >= exact && quantile - exact <= exact / 4, "{quantile} for {exact}");
        assert_eq!(added.count(), all.len() as u64);
    }
}
