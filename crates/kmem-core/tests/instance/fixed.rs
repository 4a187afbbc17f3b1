//! Instances over a fixed piece of memory.

use std::alloc::{Layout, alloc_zeroed};

use kmem_core::Instance;
use kmem_core::os::region::FixedRegion;

use super::leaked::leaked;

pub(crate) type Fixed = Instance<FixedRegion>;

fn print(text: &[u8]) {
    eprint!("{}", String::from_utf8_lossy(text));
}

fn fatal() -> ! {
    panic!("the allocator gave up")
}

/// An instance on its own piece of zeroed memory. Both live until the test ends.
pub(crate) fn fixed(bytes: usize) -> &'static Fixed {
    let layout = Layout::from_size_align(bytes, 2 << 20).expect("a layout");
    // SAFETY: not of size zero.
    let memory = unsafe { alloc_zeroed(layout) };
    assert!(!memory.is_null());
    // SAFETY: fresh, zeroed, given away for good.
    leaked(unsafe { FixedRegion::new(memory, bytes, 2, print, fatal) })
}
