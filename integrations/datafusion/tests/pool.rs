//! Grants and refusals of the pool, by the memory of its group.

use std::hint::black_box;
use std::sync::Arc;

use datafusion_common::DataFusionError;
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, Kmem, Limit};
use kmem_datafusion::GroupPool;

#[global_allocator]
static KMEM: Kmem = Kmem::new();

const MIB: usize = 1 << 20;

fn group(name: &str) -> Group<Linux> {
    KMEM.group(GroupId::ROOT).expect("the root").create(name).expect("a group")
}

fn limited(name: &str, mib: usize) -> Group<Linux> {
    let group = group(name);
    group.set(Limit::Max, Some((mib * MIB) as u64)).expect("a living group");
    group
}

fn operator(group: &Group<Linux>) -> MemoryReservation {
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(group.clone()));
    MemoryConsumer::new("sort").with_can_spill(true).register(&pool)
}

/// The text of a refusal.
fn refused(operator: &MemoryReservation, bytes: usize) -> String {
    match operator.try_grow(bytes).map_err(|error| error.find_root().to_string()) {
        Err(text) => text,
        Ok(()) => panic!("{bytes} bytes were granted"),
    }
}

#[test]
fn memory_that_no_operator_reserved_counts() {
    let tenant = limited("unreserved", 64);
    let operator = operator(&tenant);
    let scope = tenant.enter();
    let table = black_box(vec![1_u8; 60 * MIB]);
    drop(scope);
    assert_eq!(
        refused(&operator, 8 * MIB),
        "Resources exhausted: no 8.0 MB for sort, which has 0.0 B: the group /unreserved holds \
         60.1 MB of its max of 64.0 MB. Operators have reserved 0.0 B, the group has lately held \
         60.1 MB beside that, and 1 operators share the rest"
    );
    assert_eq!(operator.size(), 0);
    drop(table);
    // The pool expects such a table for a while, or until no operator is left.
    let asked = (1..).find(|_| operator.try_grow(8 * MIB).is_ok()).expect("the table is freed");
    assert!((2..100).contains(&asked), "{asked}");
}

#[test]
fn a_query_does_not_wait_for_the_memory_of_an_earlier_one() {
    let tenant = limited("earlier", 64);
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(tenant.clone()));
    let operator = || MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
    let scope = tenant.enter();
    let table = black_box(vec![1_u8; 60 * MIB]);
    drop(scope);
    refused(&operator(), 8 * MIB);
    drop(table);
    operator().try_grow(8 * MIB).expect("nothing is held");
}

#[test]
fn operators_that_can_spill_leave_an_eighth_to_the_others() {
    let tenant = limited("eighth", 16);
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(tenant));
    let spills = MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
    let fixed = MemoryConsumer::new("join").register(&pool);
    spills.try_grow(14 * MIB).expect("seven eighths");
    refused(&spills, 1);
    fixed.try_grow(2 * MIB).expect("the rest");
    refused(&fixed, 1);
}

#[test]
fn operators_that_can_spill_have_equal_shares() {
    let tenant = limited("shares", 16);
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(tenant));
    let operator = || MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
    let one = operator();
    one.try_grow(14 * MIB).expect("alone");
    let other = operator();
    refused(&one, 1);
    other.try_grow(3 * MIB).expect("it has nothing to spill");
    refused(&other, 1);
    one.shrink(7 * MIB);
    other.try_grow(4 * MIB).expect("its share");
    refused(&other, 1);
    drop(one);
    other.try_grow(7 * MIB).expect("alone again");
}

#[test]
fn nothing_is_always_granted() {
    let operator = operator(&limited("nothing", 1));
    operator.grow(2 * MIB);
    operator.try_grow(0).expect("operators fail where this is refused");
}

#[test]
fn a_refusal_is_one_that_operators_spill_at() {
    let tenant = limited("kind", 1);
    let error = operator(&tenant).try_grow(2 * MIB).expect_err("more than the limit");
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
}

#[test]
fn a_reservation_counts_before_it_is_used() {
    let tenant = limited("reserved", 10);
    let operator = operator(&tenant);
    operator.try_grow(8 * MIB).expect("below the limit");
    refused(&operator, 4 * MIB);
    operator.shrink(6 * MIB);
    operator.try_grow(4 * MIB).expect("below the limit again");
    assert_eq!(operator.size(), 6 * MIB);
    drop(operator);
}

#[test]
fn a_reservation_that_is_used_counts_once() {
    let tenant = limited("used", 10);
    let operator = operator(&tenant);
    operator.try_grow(6 * MIB).expect("below the limit");
    let _scope = tenant.enter();
    let _rows = black_box(vec![1_u8; 6 * MIB]);
    operator.try_grow(2 * MIB).expect("6 of 10 MiB are held");
}

#[test]
fn operators_on_many_threads_do_not_share_a_reservation() {
    let tenant = limited("threads", 10);
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(tenant));
    let granted: usize = std::thread::scope(|scope| {
        let grow = || {
            let operator = MemoryConsumer::new("sort").register(&pool);
            (0..100).for_each(|_| drop(operator.try_grow(MIB)));
            operator
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(grow)).collect();
        let operators: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        operators.iter().map(|operator| operator.as_ref().expect("no panic").size()).sum()
    });
    // Requests that are refused at the same time may refuse each other.
    assert!(granted <= 10 * MIB && granted > 0, "{granted}");
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn what_cannot_be_refused_goes_above_the_limit_and_counts() {
    let tenant = limited("grow", 10);
    let operator = operator(&tenant);
    operator.grow(12 * MIB);
    refused(&operator, 1);
}

#[test]
fn limits_of_groups_above_count_and_can_be_moved() {
    let upper = limited("upper", 4);
    let tenant = upper.create("tenant").expect("a group");
    let operator = operator(&tenant);
    let text = refused(&operator, 5 * MIB);
    assert!(text.contains("the group /upper holds 0.0 B of its max of 4.0 MB"), "{text}");
    upper.set(Limit::Max, Some(8 << 20)).expect("a living group");
    operator.try_grow(5 * MIB).expect("the limit was raised");
    tenant.delete().expect("no groups below");
    let text = refused(&operator, 9 * MIB);
    assert!(text.contains("/upper"), "{text}");
}

#[test]
fn the_limit_is_the_least_on_the_way_to_the_root() {
    let upper = limited("least", 4);
    let tenant = upper.create("tenant").expect("a group");
    let limit = |group: &Group<Linux>| match GroupPool::new(group.clone()).memory_limit() {
        MemoryLimit::Finite(bytes) => Some(bytes),
        MemoryLimit::Infinite => None,
        MemoryLimit::Unknown => panic!("a group's limit is known"),
    };
    assert_eq!(limit(&tenant), Some(4 * MIB));
    tenant.set(Limit::Max, Some(2 << 20)).expect("a living group");
    assert_eq!(limit(&tenant), Some(2 * MIB));
    assert_eq!(limit(&group("unlimited")), None);
    assert_eq!(limit(&KMEM.group(GroupId::ROOT).expect("the root")), None);
}

#[test]
fn without_a_limit_everything_is_granted() {
    for group in [group("free"), KMEM.group(GroupId::ROOT).expect("the root")] {
        operator(&group).try_grow(usize::MAX / 4).expect("no limit");
    }
}

#[test]
fn a_pool_shows_its_group() {
    let pool = GroupPool::new(limited("shown", 4));
    assert_eq!(pool.to_string(), "kmem(group: /shown, held: 0.0 B, reserved: 0.0 B)");
    assert_eq!(pool.name(), "kmem");
}
