//! Tasks that DataFusion spawns, in the group of the task that spawned them.

use std::any::Any;

use datafusion_common_runtime::{JoinSetTracer, JoinSetTracerError, set_join_set_tracer};
use futures::future::BoxFuture;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, Kmem};

type Output = Box<dyn Any + Send>;
type Block = Box<dyn FnOnce() -> Output + Send>;

/// Wraps tasks, by the hook that DataFusion has for tracers.
struct Tasks(&'static Kmem);

impl Tasks {
    /// Returns the group of the task that runs.
    fn group(&self) -> Option<Group<Linux>> {
        self.0.group(self.0.group_current()).ok()
    }
}

impl JoinSetTracer for Tasks {
    fn trace_future(&self, future: BoxFuture<'static, Output>) -> BoxFuture<'static, Output> {
        match self.group() {
            Some(group) => Box::pin(group.run(future)),
            None => future,
        }
    }

    fn trace_block(&self, block: Block) -> Block {
        let group = self.group();
        Box::new(move || {
            let _scope = group.as_ref().map(Group::enter);
            block()
        })
    }
}

/// Has every task that DataFusion spawns work for the group of the task that spawns it.
///
/// Call it once, before the first query. Without it, the group pays only for what the future of
/// the query allocates itself. Most operators run in tasks of their own.
///
/// # Errors
/// The process has a tracer of DataFusion's tasks already. There can be one.
pub fn tasks_keep_their_group(kmem: &'static Kmem) -> Result<(), JoinSetTracerError> {
    set_join_set_tracer(Box::leak(Box::new(Tasks(kmem))))
}
