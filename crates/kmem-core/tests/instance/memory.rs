//! Allocations that tests make and free.

use kmem_core::Instance;
use kmem_core::class::SizeClass;
use kmem_core::os::Platform;

/// Bytes that the books count for a live allocation. One of no bytes takes an address.
pub(crate) fn counted<P: Platform>(instance: &'static Instance<P>, at: *mut u8) -> u64 {
    // SAFETY: tests pass live allocations.
    match unsafe { instance.usable_size(at) } {
        0 => SizeClass::ZERO.size().into(),
        usable => usable as u64,
    }
}

/// Frees an allocation that the caller does not use any more.
pub(crate) fn free<P: Platform>(instance: &'static Instance<P>, at: *mut u8) {
    // SAFETY: tests pass live allocations, or null, and do not use them afterwards.
    unsafe { instance.free(at) }
}

/// Frees allocations that the caller does not use any more.
pub(crate) fn free_all<P: Platform>(
    instance: &'static Instance<P>,
    all: impl IntoIterator<Item = *mut u8>,
) {
    all.into_iter().for_each(|at| free(instance, at));
}

/// Repeats a request until it returns null. Returns all that it returned before.
pub(crate) fn until_null(request: impl FnMut() -> *mut u8) -> Vec<*mut u8> {
    std::iter::repeat_with(request).take_while(|at| !at.is_null()).collect()
}

/// Asserts that an instance has no objects and no pages in use. CPUs keep pages until a drain.
#[track_caller]
pub(crate) fn assert_empty<P: Platform>(instance: &'static Instance<P>) {
    assert_eq!(instance.validate(), Ok(()));
    let stats = instance.stats();
    assert_eq!((stats.tracked, stats.objects, stats.used), (0, 0, 0));
}
