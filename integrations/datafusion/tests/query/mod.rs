//! Runs a query with a pool; for the tests and for the example.

use std::sync::Arc;

use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use kmem_core::Group;
use kmem_core::os::linux::Linux;

/// Counts how often the operators of a plan went to disk.
fn spills(plan: &dyn ExecutionPlan) -> usize {
    let below = plan.children().into_iter().map(|child| spills(child.as_ref())).sum::<usize>();
    below + plan.metrics().and_then(|metrics| metrics.spill_count()).unwrap_or(0)
}

/// Runs a query in a group. Returns the first row of its result, and how often it went to disk.
pub(crate) async fn run(
    group: &Group<Linux>,
    pool: Arc<dyn MemoryPool>,
    partitions: usize,
    query: &str,
) -> Result<(String, usize), DataFusionError> {
    let work = async {
        let environment = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
        let mut config = SessionConfig::new().with_target_partitions(partitions);
        // Each sort reserves this in advance. The default of 10 MiB is much for several of them.
        config.options_mut().execution.sort_spill_reservation_bytes = 1 << 20;
        let context = SessionContext::new_with_config_rt(config, environment);
        let plan = context.sql(query).await?.create_physical_plan().await?;
        let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
        let columns = batches[0].columns().iter();
        let values: Result<Vec<_>, _> = columns.map(|row| array_value_to_string(row, 0)).collect();
        Ok((values?.join(", "), spills(plan.as_ref())))
    };
    group.clone().run(work).await
}
