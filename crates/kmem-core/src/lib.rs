//! kmem: the memory-allocation stack of an operating-system kernel as a library.
//!
//! One [`Kmem`] value is one allocator. The modules are layers, each of which may use only those
//! below it: ARCHITECTURE.md lists them, and a test checks it.
//!
//! Under one model checker (`--cfg loom`) only the lock-free protocols are built, without what
//! stands on them: its atomics are larger than memory's words and not made in constants. Under the
//! other (`--cfg shuttle`) all is built, as for a machine without an operating system.
#![cfg_attr(not(test), no_std)]

// In front of the others, so that its thread-local word lies beside small ones: of static
// thread-local storage the library may use 64 bytes.
#[cfg(not(loom))]
pub mod task;

pub mod alloc_tag;
pub mod class;
#[cfg(not(loom))]
pub mod codetag;
#[cfg(not(loom))]
pub mod conf;
#[cfg(not(loom))]
pub mod cpu;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
mod instance;
#[cfg(not(loom))]
pub mod ledger;
pub mod memcg;
pub mod mempool;
pub mod os;
pub mod page;
#[cfg(not(loom))]
pub mod percpu;
pub mod prng;
#[cfg(not(loom))]
pub mod report;
#[cfg(not(loom))]
pub mod request;
pub mod rhashtable;
pub mod row;
pub mod slab;
pub mod source;
pub mod sync;
pub mod units;
#[cfg(not(loom))]
pub mod vmalloc;

#[cfg(not(loom))]
pub use alloc_tag::LiveTag;
#[cfg(not(loom))]
pub use codetag::StaticTag;
#[cfg(kmem_linux)]
pub use instance::Kmem;
#[cfg(not(loom))]
pub use instance::{
    Cache, Constructor, Elements, FromInstance, Group, GroupKinds, GroupScope, GroupStat, Grouped,
    Instance, Invalid, Mempool, PerCpuVariable, Reservation, Stats, Table,
};
#[cfg(not(loom))]
pub use percpu::PerCpuStats;
#[cfg(not(loom))]
pub use report::Fault;
#[cfg(not(loom))]
pub use request::Caller;
#[cfg(not(loom))]
pub use task::{Scope, Tagged, fallible};
#[cfg(not(loom))]
pub use vmalloc::VmallocStats;

pub use kmem_layout::group::Limit;

/// A static tag for the place where this is written: `static_tag!("name")`, or without a name
/// that of the module.
#[macro_export]
macro_rules! static_tag {
    () => {
        $crate::static_tag!(module_path!())
    };
    ($name:expr) => {{
        const FILE: &::core::ffi::CStr = $crate::c_text(::core::concat!(::core::file!(), "\0"));
        const NAME: &::core::ffi::CStr = $crate::c_text(::core::concat!($name, "\0"));
        static TAG: $crate::StaticTag = $crate::StaticTag::new(FILE, NAME, ::core::line!());
        &TAG
    }};
}

/// Bills allocations to a name rather than to their call sites.
///
/// `let _scope = tag!("index build");` holds for the thread until the end of the block; scopes
/// nest, the innermost counts. `tag!("index build", future)` is a future whose every poll runs
/// under the name, on whichever thread.
#[macro_export]
macro_rules! tag {
    ($name:literal) => {
        $crate::Scope::enter($crate::static_tag!($name))
    };
    ($name:literal, $future:expr) => {
        $crate::Tagged::new($crate::static_tag!($name), $future)
    };
}

/// Allocates `size` bytes from an instance, billed to the line where this is written.
#[macro_export]
macro_rules! alloc {
    ($kmem:expr, $size:expr) => {
        $kmem.alloc($size, $crate::Caller::tagged($crate::static_tag!()).here())
    };
    ($kmem:expr, $size:expr, zeroed) => {
        $kmem.alloc_zeroed($size, $crate::Caller::tagged($crate::static_tag!()).here())
    };
    ($kmem:expr, $size:expr, align = $align:expr) => {
        $kmem.alloc_aligned($size, $align, $crate::Caller::tagged($crate::static_tag!()).here())
    };
}

/// A C string out of a constant that ends with a zero byte; for the macros.
#[doc(hidden)]
pub const fn c_text(text: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name must not contain a zero byte"),
    }
}
