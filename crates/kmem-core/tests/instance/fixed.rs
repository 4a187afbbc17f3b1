//! Instances over a fixed piece of memory.

use std::alloc::{Layout, alloc_zeroed};

use kmem_core::Instance;
use kmem_core::os::regions::Regions;

use super::console::{fatal, print};
use super::leaked::leaked;

pub(crate) type Fixed = Instance<Regions>;

/// An instance over its own piece of zeroed memory. Both live until the test ends.
pub(crate) fn fixed(bytes: usize) -> &'static Fixed {
    let layout = Layout::from_size_align(bytes, 2 << 20).expect("a layout");
    // SAFETY: the size is not zero.
    let memory = unsafe { alloc_zeroed(layout) };
    assert!(!memory.is_null());
    // SAFETY: fresh and zeroed; the region alone uses it, and it is never freed.
    leaked(unsafe { Regions::of(memory, bytes, 2, print, fatal) })
}
