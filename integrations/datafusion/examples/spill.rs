//! Runs queries that need more memory than they may have, under each pool of memory. Beside the
//! limit of the pool it prints the bytes that the query held, as its group counted them.
//!
//! ```text
//! spill [MIB [ROWS]]      the limit, 48 MiB without; the rows, 3 million without
//! ```

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use datafusion::DATAFUSION_VERSION;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, Kmem, Limit};
use kmem_datafusion::{GroupPool, tasks_keep_their_group};
use tokio::runtime::{Builder, Runtime};

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

/// One query under one pool.
struct Run {
    seconds: f64,
    spills: usize,
    /// Most bytes that its group held.
    peak: u64,
    /// The row of the result, or the error.
    answer: String,
}

/// Counts how often the operators of a plan went to disk.
fn spills(plan: &dyn ExecutionPlan) -> usize {
    let below = plan.children().into_iter().map(|child| spills(child.as_ref())).sum::<usize>();
    below + plan.metrics().and_then(|metrics| metrics.spill_count()).unwrap_or(0)
}

async fn answer(context: &SessionContext, query: &str) -> Result<(usize, String), Box<dyn Error>> {
    let plan = context.sql(query).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
    let columns = batches.first().map(|batch| batch.columns().to_vec()).unwrap_or_default();
    let values = columns.iter().map(|column| array_value_to_string(column, 0));
    Ok((spills(plan.as_ref()), values.collect::<Result<Vec<_>, _>>()?.join(", ")))
}

fn run(
    runtime: &Runtime,
    query: &str,
    group: &Group<Linux>,
    pool: Arc<dyn MemoryPool>,
) -> Result<Run, Box<dyn Error>> {
    let environment = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
    let mut config = SessionConfig::new().with_target_partitions(4);
    // Each sort reserves this in advance. The default of 10 MiB is much for four of them.
    config.options_mut().execution.sort_spill_reservation_bytes = 1 << 20;
    let begin = Instant::now();
    let work = async {
        let context = SessionContext::new_with_config_rt(config, environment);
        answer(&context, query).await
    };
    let done = runtime.block_on(group.clone().run(work));
    let seconds = begin.elapsed().as_secs_f64();
    let (spills, answer) = done.unwrap_or_else(|error| (0, error.to_string()));
    Ok(Run { seconds, spills, peak: group.stat().peak, answer })
}

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
            let Run { seconds, spills, peak, answer } = run(&runtime, &query, &group, with)?;
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
