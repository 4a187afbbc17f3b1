//! Instances under test, and work that several test files do with them.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]

mod affinity;
mod books;
mod cases;
mod child;
mod console;
mod fixed;
mod forked;
mod group;
mod leaked;
mod memory;
mod random;
#[cfg(target_os = "linux")]
mod simulated;

pub(crate) use affinity::pin;
pub(crate) use books::{books, calls};
pub(crate) use cases::cases;
pub(crate) use child::{case, lines, run_child, said_by_child};
pub(crate) use console::{fatal, print};
pub(crate) use fixed::{Fixed, fixed};
pub(crate) use forked::forked;
pub(crate) use group::{agrees, cost, group};
pub(crate) use leaked::leaked;
pub(crate) use memory::{assert_empty, counted, free, free_all, until_null};
pub(crate) use random::random;
#[cfg(target_os = "linux")]
pub(crate) use simulated::{Simulated, after_faults, budget, simulated, started};
