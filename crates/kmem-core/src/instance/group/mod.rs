//! Groups, the interface for programs.
//!
//! | file     | offers                                      |
//! |----------|---------------------------------------------|
//! | `number` | groups by number, as C programs use them    |
//! | `merge`  | ids of deleted groups for new ones           |
//! | `limits` | limits, reservations, shrinkers             |
//! | `stat`   | charges and live allocations of groups      |
//! | `handle` | groups by handle, as Rust programs use them |

mod handle;
mod limits;
mod merge;
mod number;
mod stat;

pub use handle::{Group, GroupScope, Grouped, Reservation};
pub use stat::{GroupKinds, GroupStat};
