//! Allocators that are linked into the program under names of their own.
//!
//! As many allocators as possible are linked in. On many processors, a call into a shared library
//! costs more than one within the program, because its target is gigabytes away. On a Zen 4 it
//! costs 0.8 ns more. Every preloaded malloc has this cost, which would hide the differences here.

use super::Allocator;
use crate::heap::Heap;

pub(crate) mod kmem;

/// The two functions of a compiled-in rival, and its version.
pub(super) fn heap(allocator: Allocator) -> Result<(Heap, String), String> {
    match allocator {
        Allocator::Kmem => Ok(kmem::on::heap()),
        Allocator::KmemNever => Ok(kmem::never::heap()),
        #[cfg(feature = "jemalloc")]
        Allocator::Jemalloc => Ok(jemalloc()),
        #[cfg(feature = "mimalloc")]
        Allocator::Mimalloc => Ok(mimalloc()),
        #[cfg(feature = "rpmalloc")]
        Allocator::Rpmalloc => rpmalloc(),
        #[cfg(feature = "snmalloc")]
        Allocator::Snmalloc => Ok(snmalloc()),
        other => Err(format!("built without the cargo feature `{}`", other.name())),
    }
}

/// Defaults: thread caches on, background threads off, statistics compiled out.
#[cfg(feature = "jemalloc")]
fn jemalloc() -> (Heap, String) {
    use std::ffi::{CStr, c_char};
    use tikv_jemalloc_sys::{free, mallctl, malloc};
    // SAFETY: the pair belongs together and is linked in.
    let heap = unsafe { Heap::new(malloc, free) };
    let mut version: *const c_char = std::ptr::null();
    let mut size = size_of_val(&version);
    // SAFETY: "version" writes one pointer, for which `size` is enough.
    let failed = unsafe {
        let place = (&raw mut version).cast();
        mallctl(c"version".as_ptr(), place, &mut size, std::ptr::null_mut(), 0)
    };
    if failed != 0 || version.is_null() {
        return (heap, "unknown".to_owned());
    }
    // SAFETY: jemalloc's version is a static C string.
    let version = unsafe { CStr::from_ptr(version) };
    (heap, version.to_string_lossy().into_owned())
}

/// Version 3, not secure, default options.
#[cfg(feature = "mimalloc")]
fn mimalloc() -> (Heap, String) {
    use libmimalloc_sys::{mi_free, mi_malloc};
    unsafe extern "C" {
        fn mi_version() -> std::ffi::c_int;
    }
    // SAFETY: the pair belongs together and is linked in.
    let heap = unsafe { Heap::new(mi_malloc, mi_free) };
    // SAFETY: takes nothing, returns a number; two digits each after the major.
    let version = unsafe { mi_version() };
    let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
    (heap, format!("{major}.{minor}.{patch}"))
}

/// Thread caches and the global cache on, which are the defaults.
#[cfg(feature = "rpmalloc")]
fn rpmalloc() -> Result<(Heap, String), String> {
    use rpmalloc_sys::{rpfree, rpmalloc, rpmalloc_initialize};
    use rpmalloc_sys::{rpmalloc_thread_finalize, rpmalloc_thread_initialize};
    fn start() {
        // SAFETY: any thread may call it.
        unsafe { rpmalloc_thread_initialize() }
    }
    fn end() {
        // SAFETY: the last call of an initialised thread.
        unsafe { rpmalloc_thread_finalize() }
    }
    // SAFETY: initialises the library and this thread; a second call does nothing.
    if unsafe { rpmalloc_initialize() } != 0 {
        return Err("rpmalloc_initialize failed".to_owned());
    }
    // SAFETY: the pair belongs together and is linked in.
    let heap = unsafe { Heap::new(rpmalloc, rpfree) };
    Ok((heap.with_threads(start, end), "1.4".to_owned()))
}

/// The build without checks of the client.
#[cfg(feature = "snmalloc")]
fn snmalloc() -> (Heap, String) {
    use snmalloc_sys::{sn_free, sn_malloc};
    // SAFETY: the pair belongs together and is linked in.
    let heap = unsafe { Heap::new(sn_malloc, sn_free) };
    (heap, "0.7".to_owned())
}
