//! Instances that live as long as the tests.

use kmem_core::Instance;
use kmem_core::os::Platform;

/// An instance over a platform, on the heap from the start: it is too large for a test's stack.
pub(crate) fn leaked<P: Platform>(platform: P) -> &'static Instance<P> {
    let mut place = Box::<Instance<P>>::new_uninit();
    // SAFETY: written before it is assumed to be.
    unsafe {
        place.as_mut_ptr().write(Instance::over(platform));
        Box::leak(place.assume_init())
    }
}
