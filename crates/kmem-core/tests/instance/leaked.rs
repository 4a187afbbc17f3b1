//! Instances that live as long as the tests.

use kmem_core::Instance;
use kmem_core::os::Platform;

/// An instance over a platform. It is made on the heap: a test's stack is too small for it.
pub(crate) fn leaked<P: Platform>(platform: P) -> &'static Instance<P> {
    let mut place = Box::<Instance<P>>::new_uninit();
    // SAFETY: the place is written before it is assumed to be initialized.
    unsafe {
        place.as_mut_ptr().write(Instance::over(platform));
        Box::leak(place.assume_init())
    }
}
