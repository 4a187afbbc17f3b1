//! Queries of DataFusion under groups.

mod query;

use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use datafusion::execution::memory_pool::UnboundedMemoryPool;
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, Kmem, Limit};
use kmem_datafusion::{GroupPool, tasks_keep_their_group};
use query::run;

#[global_allocator]
static KMEM: Kmem = Kmem::new();

const MIB: u64 = 1 << 20;

const PARTITIONS: usize = 2;

/// Counts 300,000 names, and has one row of result.
const COUNT: &str = "SELECT count(*), max(n) FROM (SELECT name, count(*) AS n
    FROM (SELECT concat('customer ', value * 7919 % 300007) AS name
          FROM generate_series(1, 600000)) GROUP BY name)";

/// Bytes that libraries keep once they are used: tables of functions, buffers of threads.
const KEPT: u64 = 256 << 10;

fn group(name: &str) -> Group<Linux> {
    static TASKS: Once = Once::new();
    TASKS.call_once(|| tasks_keep_their_group(&KMEM).expect("no other tracer"));
    KMEM.group(GroupId::ROOT).expect("the root").create(name).expect("a group")
}

async fn unbounded(group: &Group<Linux>, query: &str) -> String {
    let pool = Arc::new(UnboundedMemoryPool::default());
    run(group, pool, PARTITIONS, query).await.expect("no limit").0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_beyond_its_limit_spills_and_stays_within_it() {
    let (free, limited) = (group("free"), group("limited"));
    let expected = unbounded(&free, COUNT).await;
    let needs = free.stat().peak;
    let limit = 16 * MIB;
    assert!(needs > 2 * limit, "the query needs {needs} bytes only");
    limited.set(Limit::Max, Some(limit)).expect("a living group");
    let pool = Arc::new(GroupPool::new(limited.clone()));
    let (answer, spilled) = run(&limited, pool, PARTITIONS, COUNT).await.expect("it can spill");
    assert_eq!(answer, expected);
    assert!(spilled > 0);
    let peak = limited.stat().peak;
    // Batches on their way may go above it for a moment. The peak has the stocks of CPUs, too.
    assert!(peak < limit + limit / 4, "{peak} of {limit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_pays_for_its_tasks_and_leaves_little() {
    let tenant = group("tasks");
    unbounded(&tenant, COUNT).await;
    // The names alone are 300,000 times some 15 bytes.
    assert!(tenant.stat().peak > 300_000 * 15, "{:?}", tenant.stat());
    assert!(tenant.stat().current < KEPT, "{:?}", tenant.stat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_without_room_is_refused_while_another_is_served() {
    let (full, other) = (group("full"), group("other"));
    full.set(Limit::Max, Some(2 * MIB)).expect("a living group");
    let pool = Arc::new(GroupPool::new(full.clone()));
    let (refused, answer) =
        tokio::join!(run(&full, pool, PARTITIONS, COUNT), unbounded(&other, COUNT));
    let error = refused.expect_err("2 MiB are too little for a query").find_root().to_string();
    assert!(error.contains("the group /full holds"), "{error}");
    assert_eq!(answer, "300007, 2");
    // Tasks of the query that failed end by themselves.
    let end = Instant::now() + Duration::from_secs(30);
    while full.stat().current >= KEPT {
        assert!(Instant::now() < end, "{:?}", full.stat());
        tokio::task::yield_now().await;
    }
}
