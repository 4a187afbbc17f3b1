//! Counters, gauges and histograms for programs with many threads.
//!
//! Every CPU has a copy of each number. A thread adds to the copy of the CPU that it runs on, by a
//! restartable sequence of Linux (rseq). These are ten instructions, and none is atomic. No cache
//! line is shared by CPUs that count, so a counter costs the same with one thread and with a
//! hundred. Reading adds up the copies.
//!
//! ```
//! kmem_counters::define! {
//!     /// Requests that were served.
//!     pub static REQUESTS: Counter;
//!     /// Connections that are open.
//!     static CONNECTIONS: Gauge;
//!     /// Time to serve a request, in microseconds.
//!     static LATENCY: Histogram;
//! }
//!
//! CONNECTIONS.add(1);
//! REQUESTS.add(1);
//! LATENCY.record(1300);
//! CONNECTIONS.add(-1);
//!
//! assert_eq!(REQUESTS.sum(), 1);
//! assert_eq!(CONNECTIONS.sum(), 0);
//! let latency = LATENCY.snapshot();
//! assert_eq!((latency.count(), latency.sum()), (1, 1300));
//! assert!((1300..=1535).contains(&latency.quantile(0.99)));
//! ```
//!
//! The numbers lie in an allocator of this crate, whatever the allocator of the program is.
//! `static NAME: Counter => KMEM;` has them lie in one of the program's, where its books name the
//! line of the definition.
//!
//! Where the kernel has no restartable sequences, the numbers are atomics. They count as exactly,
//! and slower.
#![forbid(unsafe_code)]

mod counter;
mod histogram;

pub use counter::{Counter, Gauge};
pub use histogram::{BUCKETS, Histogram, Snapshot};

/// For the macro.
#[doc(hidden)]
pub mod of_macro {
    pub use kmem_core::os::linux::Linux;
    pub use kmem_core::{Kmem, PerCpuVariable, static_tag};

    /// Has the numbers of programs that name no instance.
    pub static KMEM: Kmem = Kmem::new();
}

/// Defines static [`Counter`]s, [`Gauge`]s and [`Histogram`]s.
///
/// `=> INSTANCE` behind a type names the [`Kmem`](kmem_core::Kmem) that has the memory.
#[macro_export]
macro_rules! define {
    ($(
        $(#[$doc:meta])*
        $visible:vis static $name:ident: $kind:ident $(=> $kmem:expr)?;
    )*) => {$(
        $(#[$doc])*
        $visible static $name: $crate::$kind =
            $crate::$kind::of($crate::define!(@words $kind $name $($kmem)?));
    )*};
    (@words Histogram $name:ident $($kmem:expr)?) => {
        [const { $crate::define!(@word $name $($kmem)?) }; $crate::BUCKETS + 1]
    };
    (@words $kind:ident $name:ident $($kmem:expr)?) => {
        $crate::define!(@word $name $($kmem)?)
    };
    (@word $name:ident) => {
        $crate::define!(@word $name $crate::of_macro::KMEM)
    };
    (@word $name:ident $kmem:expr) => {
        $crate::of_macro::PerCpuVariable::new(
            || &$kmem,
            $crate::of_macro::static_tag!(::core::stringify!($name)),
            0,
        )
    };
}
