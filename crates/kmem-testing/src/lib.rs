//! What the tests of all crates share. `tests/` holds the guards over the sources of the workspace.

pub mod page;
