//! A pool of memory for DataFusion that asks the kmem group of the query.
//!
//! DataFusion asks a [`MemoryPool`] before an operator keeps more memory, and the operator spills
//! to disk where the pool refuses. The pools of DataFusion add up what operators say they need.
//! Batches on their way, and hash tables while they grow, are in no such sum. [`GroupPool`] asks
//! the group that pays for the query instead.
//!
//! ```
//! use std::sync::Arc;
//!
//! use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool};
//! use kmem_core::memcg::GroupId;
//! use kmem_core::{Kmem, Limit};
//! use kmem_datafusion::GroupPool;
//!
//! #[global_allocator]
//! static KMEM: Kmem = Kmem::new();
//!
//! let tenant = KMEM.group(GroupId::ROOT)?.create("tenant")?;
//! tenant.set(Limit::Max, Some(64 << 20))?;
//! let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(tenant.clone()));
//! let _scope = tenant.enter();
//! let table = vec![0_u8; 60 << 20]; // no operator has told the pool of it
//! let sort = MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
//! assert!(sort.try_grow(8 << 20).is_err());
//! # drop(table);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A query runs within `group.run(future)`. DataFusion spawns tasks of its own, and
//! [`tasks_keep_their_group`] has the query's group pay for these, too. Threads of other crates do
//! not know the group: the root pays for what `object_store` reads from files.
//!
//! [`MemoryPool`]: datafusion_execution::memory_pool::MemoryPool

mod pool;
mod tasks;

/// The page on this crate, whose program is compiled and run with the examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/datafusion.md")]
struct Page;

pub use pool::GroupPool;
pub use tasks::tasks_keep_their_group;
