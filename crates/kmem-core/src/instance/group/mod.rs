//! Groups, the interface for programs.
//!
//! | file     | offers                                      |
//! |----------|---------------------------------------------|
//! | `number` | groups by number, as C programs use them    |
//! | `limits` | limits, reservations, shrinkers             |
//! | `stat`   | charges and live allocations of groups      |
//! | `handle` | groups by handle, as Rust programs use them |

mod handle;
mod limits;
mod number;
mod stat;

pub use handle::{Group, GroupScope, Grouped, Reservation};
pub use stat::{GroupKinds, GroupStat};
