//! Static tags of objects that are loaded and unloaded. Shared libraries register their tags in
//! constructors and unregister them in destructors; for modules the loader does both.

use core::ffi::{CStr, c_char, c_int, c_void};

use kmem_core::LiveTag;
use kmem_core::codetag::StaticTag;

use crate::KMEM;

/// A loaded object.
struct Object {
    /// Its first address.
    start: usize,
    /// The address behind its last one.
    stop: usize,
    /// File name without directories; empty for the main program.
    name: &'static [u8],
}

/// Finds the loaded object that contains `tag`. Tags of C++ have no section of their own, so the
/// whole object counts. If the dynamic linker does not know it, the given range without a name.
fn object_of(tag: *const StaticTag, stop: *const StaticTag) -> Object {
    let mut object = Object { start: tag as usize, stop: stop as usize, name: &[] };
    // SAFETY: `visit` gets an `Object`, as it requires. Constructors and destructors may call the
    // dynamic linker.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut object).cast()) };
    object
}

/// Fills `data` in and returns 1 if `info` describes the object that contains its `start`; else
/// returns 0.
///
/// # Safety
/// `info` comes from the dynamic linker; `data` is an [`Object`].
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the same contract.
    let (info, object) = unsafe { (&*info, &mut *data.cast::<Object>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    let (mut start, mut stop) = (usize::MAX, 0);
    for i in 0..info.dlpi_phnum.into() {
        // SAFETY: one of `dlpi_phnum` headers, which stay while the object is loaded.
        let header = unsafe { &*info.dlpi_phdr.add(i) };
        if header.p_type == libc::PT_LOAD {
            let at = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            start = start.min(at);
            stop = stop.max(at.saturating_add(header.p_memsz as usize));
        }
    }
    if !(start..stop).contains(&object.start) {
        return 0;
    }
    let path = if info.dlpi_name.is_null() {
        &[]
    } else {
        // SAFETY: the dynamic linker's C string, which stays while the object is loaded.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
    };
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    *object = Object { start, stop, name };
    1
}

/// Makes the tags of the object that contains `start` known, under the object's name.
///
/// # Safety
/// The range is the tags of one loaded object, until they are unregistered. Where they have no
/// section, it is one zeroed tag in the object.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tags_register(start: *const StaticTag, stop: *const StaticTag) {
    let object = object_of(start, stop);
    let addresses = object.start as *const _..object.stop as *const _;
    // SAFETY: the contract: the tags are loaded until they are unregistered.
    unsafe { KMEM.register_object(addresses, start..stop, object.name) };
}

/// Forgets the tags of an object before `dlclose` unloads it; reports its live allocations. Does
/// nothing at exit.
///
/// # Safety
/// The range was given to [`kmem_tags_register`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tags_unregister(start: *const StaticTag, stop: *const StaticTag) {
    // At exit live allocations are no mistake.
    if crate::process::is_unloading() {
        let object = object_of(start, stop);
        KMEM.unregister_tags(object.start as *const _, object.stop as *const _, object.name);
    }
}

/// A module's name of `len` bytes.
///
/// # Safety
/// `name` is valid for reading `len` bytes.
unsafe fn module_name<'a>(name: *const c_char, len: usize) -> &'a [u8] {
    // SAFETY: the same contract.
    unsafe { core::slice::from_raw_parts(name.cast(), len) }
}

/// Makes the tags of a module known under its name of `len` bytes. The dynamic linker does not know
/// the module.
///
/// # Safety
/// The range holds tags, which are loaded until they are unregistered; `name` is valid for reading
/// `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_module_tags_register(
    start: *const StaticTag,
    stop: *const StaticTag,
    name: *const c_char,
    len: usize,
) {
    // SAFETY: the contract: the tags are loaded, and the name can be read.
    unsafe { KMEM.register_tags(start, stop, module_name(name, len)) };
}

/// Forgets the tags of a module before it is unloaded; reports its live allocations.
///
/// # Safety
/// The arguments were given to [`kmem_module_tags_register`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_module_tags_unregister(
    start: *const StaticTag,
    stop: *const StaticTag,
    name: *const c_char,
    len: usize,
) {
    // SAFETY: the same contract.
    KMEM.unregister_tags(start, stop, unsafe { module_name(name, len) });
}

/// Returns the live bytes of a module's tags. Fills up to `room` entries of `out` with tags that
/// have live bytes; further entries have null tags.
///
/// # Safety
/// The range holds tags; `out` is valid for reading and writing `room` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_module_tags_live(
    start: *const StaticTag,
    stop: *const StaticTag,
    out: *mut LiveTag,
    room: usize,
) -> u64 {
    // SAFETY: the same contract.
    KMEM.live_tags(start, stop, unsafe { core::slice::from_raw_parts_mut(out, room) })
}
