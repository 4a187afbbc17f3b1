//! Functions of `kmem_module.h` that the loader itself provides to modules.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::Loader;
use crate::error::Errno;
use crate::module::Module;

/// The address of a function by its name.
pub(super) fn find(name: &[u8]) -> Option<u64> {
    Some(match name {
        b"kmem_try_module_get" => try_module_get as *const () as u64,
        b"kmem_module_put" => module_put as *const () as u64,
        b"kmem_module_refcount" => module_refcount as *const () as u64,
        b"kmem_module_request" => request_module as *const () as u64,
        b"kmem_smp_processor_id" => smp_processor_id as *const () as u64,
        _ => return None,
    })
}

/// # Safety
/// `module` is null or not unloaded.
unsafe extern "C" fn try_module_get(module: *const Module) -> bool {
    // SAFETY: the same contract.
    unsafe { module.as_ref() }.is_none_or(Module::try_get)
}

/// # Safety
/// `module` is null or not unloaded.
unsafe extern "C" fn module_put(module: *const Module) {
    // SAFETY: the same contract.
    if let Some(module) = unsafe { module.as_ref() } {
        module.put();
    }
}

/// # Safety
/// `module` is null or not unloaded.
unsafe extern "C" fn module_refcount(module: *const Module) -> c_int {
    // SAFETY: the same contract.
    unsafe { module.as_ref() }.map_or(-1, |module| module.refcount().cast_signed())
}

/// # Safety
/// `of` is null or not unloaded; `name` is a C string.
unsafe extern "C" fn request_module(of: *const Module, name: *const c_char) -> c_int {
    // SAFETY: the same contract.
    let (module, name) = unsafe { (of.as_ref(), CStr::from_ptr(name)) };
    let Some(loader) = module.and_then(|module| module.loader.upgrade()) else {
        return -Errno::EINVAL.0;
    };
    match name.to_str().map(|name| Loader(loader).request_module(name)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => -error.errno.0,
        Err(_) => -Errno::EINVAL.0,
    }
}

extern "C" fn smp_processor_id() -> c_uint {
    // SAFETY: takes no pointer.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}
