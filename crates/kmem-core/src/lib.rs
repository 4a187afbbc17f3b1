//! kmem: the memory-allocation stack of an operating-system kernel as a library.
//!
//! ```
//! use kmem_core::{Kmem, Limit, memcg::GroupId};
//!
//! #[global_allocator]
//! static A: Kmem = Kmem::new(); // every allocation of the program is in its books
//!
//! let tenant = A.group(GroupId::ROOT)?.create("tenant")?;
//! tenant.set(Limit::Max, Some(64 << 20))?; // bytes
//! let scope = tenant.enter();
//! let text = vec![0_u8; 1000]; // the tenant pays for it until it is dropped
//! drop(scope);
//! assert!(tenant.stat().current >= 1000);
//! A.census(|tag, bytes, calls| assert!(bytes > 0 && calls > 0, "{tag:?}"));
//! assert_eq!(text.len(), 1000);
//! # Ok::<(), kmem_core::memcg::GroupError>(())
//! ```
//!
//! One [`Kmem`] value is one allocator, and programs may have several. [`Instance`] is the same
//! over any [`os::Platform`]: Linux, the memory of a kernel, a simulator. ARCHITECTURE.md has a
//! map of the modules. Each is a layer that uses only layers below it, and a test checks that.
//!
//! With `--cfg loom` only the lock-free protocols are built: loom's atomics are larger than words
//! of memory, and cannot be made in constants. With `--cfg shuttle` everything is built as for a
//! machine without an operating system.
#![cfg_attr(not(test), no_std)]

// First, so that the linker places their thread-local words beside small ones: the library may use
// 64 bytes of static thread-local storage.
pub mod os;
#[cfg(not(loom))]
pub mod task;

pub mod alloc_tag;
mod callback;
pub mod class;
#[cfg(not(loom))]
pub mod codetag;
#[cfg(not(loom))]
pub mod conf;
#[cfg(not(loom))]
pub mod cpu;
#[cfg(not(loom))]
pub mod frames;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
mod instance;
#[cfg(not(loom))]
pub mod ledger;
pub mod memcg;
pub mod mempool;
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
    Cache, CacheFlags, Constructor, Elements, FromInstance, Group, GroupKinds, GroupScope,
    GroupStat, Grouped, Instance, Invalid, Mempool, PerCpuVariable, Reservation, SizedFree, Stats,
    Table,
};
#[cfg(not(loom))]
pub use ledger::Interface;
#[cfg(not(loom))]
pub use percpu::PerCpuStats;
#[cfg(not(loom))]
pub use report::{Fault, OnRefusal, Refusal, RefusalReason};
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
/// under the name, on whichever thread. A signal handler allocates in the scope that it interrupts,
/// unless it enters one of its own.
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
