//! Memory pools: allocation that does not fail (the kernel's `mempool_t`).
//!
//! ```text
//! alloc --> back end --> (none) --> reserve --> (none) --> wait for a free --+
//!             ^----------------------------------------------------------------/
//! free  --> reserve, if it holds less than it should --> back end
//! ```
//!
//! A pool has a reserve of `min` elements. Making or resizing a pool allocates all of them, or
//! fails. If every user of the pool frees its elements in the end, an allocation that may wait
//! never fails.
//!
//! Elements in the reserve are billed to the maker of the pool, elements outside to the callers
//! that allocated them.
//!
//! Context: any, signal handlers included, for freeing and for allocation that must not wait. There
//! are no locks.

#[cfg(not(loom))]
mod pool;
#[cfg_attr(loom, expect(dead_code, reason = "only the reserve is built"))]
mod reserve;
#[cfg(not(loom))]
mod validate;

#[cfg(not(loom))]
pub use pool::{BackEnd, Mempool, NoReserve};
#[cfg(not(loom))]
pub(crate) use reserve::{Reserve, Shelf};
#[cfg(not(loom))]
pub use validate::ReserveFault;
