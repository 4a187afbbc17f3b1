//! Runs queries that need more memory than they may have, under each pool of memory. Beside the
//! limit of the pool it prints the bytes that the query held, as its group counted them.
//!
//! ```text
//! spill [MIB [ROWS]]      the limit, 48 MiB without; the rows, 3 million without
//! ```

#[path = "../tests/query/mod.rs"]
mod query;

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use datafusion::DATAFUSION_VERSION;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, UnboundedMemoryPool,
};
use kmem_core::memcg::GroupId;
use kmem_core::{Kmem, Limit};
use kmem_datafusion::{GroupPool, tasks_keep_their_group};
use tokio::runtime::Builder;

#[global_allocator]
static KMEM: Kmem = Kmem::new();

/// Names, and queries with one row of result, so that no result fills the memory. `ROWS` stands for
/// the number of rows, and `NAMES` for two thirds of it.
const QUERIES: [(&str, &str); 3] = [
    (
        "sort",
        "SELECT count(*), max(place) FROM (SELECT name, row_number() OVER (ORDER BY name) AS place
         FROM (SELECT concat('customer ', value * 7919 % ROWS) AS name
         FROM generate_series(1, ROWS)))",
    ),
    (
        "group by",
        "SELECT count(*), max(n) FROM (SELECT name, count(*) AS n
         FROM (SELECT concat('customer ', value * 7919 % NAMES) AS name
         FROM generate_series(1, ROWS)) GROUP BY name)",
    ),
    (
        "distinct",
        "SELECT count(*), max(c) FROM (SELECT k % 1000 AS g, count(DISTINCT v) AS c
         FROM (SELECT value AS k, concat('order ', value * 104729 % NAMES) AS v
         FROM generate_series(1, ROWS)) GROUP BY g)",
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let mut number = |or: u64| arguments.next().map_or(Ok(or), |text| text.parse::<u64>());
    let (mib, rows) = (number(48)?, number(3_000_000)?);
    let limit = mib << 20;
    tasks_keep_their_group(&KMEM)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).build()?;
    println!("limit {mib} MiB, {rows} rows, DataFusion {DATAFUSION_VERSION}");
    println!("query           pool  seconds  spills  peak MiB of limit  answer");
    for (name, query) in QUERIES {
        let names = (rows * 2 / 3).to_string();
        let query = query.replace("ROWS", &rows.to_string()).replace("NAMES", &names);
        let mut expected = String::new();
        for pool in ["unbounded", "greedy", "fair", "kmem"] {
            let group = KMEM.group(GroupId::ROOT)?.create(&format!("{name} {pool}"))?;
            let with: Arc<dyn MemoryPool> = match pool {
                "unbounded" => Arc::new(UnboundedMemoryPool::default()),
                "greedy" => Arc::new(GreedyMemoryPool::new(limit as usize)),
                "fair" => Arc::new(FairSpillPool::new(limit as usize)),
                _ => {
                    group.set(Limit::Max, Some(limit))?;
                    Arc::new(GroupPool::new(group.clone()))
                }
            };
            let begin = Instant::now();
            let done = runtime.block_on(query::run(&group, with, 4, &query));
            let (seconds, peak) = (begin.elapsed().as_secs_f64(), group.stat().peak);
            let (answer, spills) = done.unwrap_or_else(|error| (error.to_string(), 0));
            let (held, part) = (peak as f64 / f64::from(1 << 20), peak as f64 / limit as f64);
            let answer = answer.lines().last().unwrap_or_default();
            if pool == "unbounded" {
                answer.clone_into(&mut expected);
            }
            if answer != expected && !answer.starts_with("Resources exhausted") {
                return Err(format!("{name}, {pool}: {answer} instead of {expected}").into());
            }
            println!(
                "{name:10}{pool:>10}{seconds:>9.2}{spills:>8}{held:>10.1}{part:>9.2}  {answer}"
            );
        }
    }
    Ok(())
}
