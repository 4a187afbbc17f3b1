//! Where the code tags of modules are made known: the allocator whose books they are in.

use std::ffi::{CStr, c_char};
use std::ops::Range;

use kmem::StaticTag;

/// An allocator's register of code tags.
pub trait Books: Send + Sync {
    /// Tells that the tags at these addresses belong to a module.
    ///
    /// # Safety
    /// There are tags, and there will be until [`Books::unregister`].
    unsafe fn register(&self, tags: &Range<u64>, module: &str);

    /// Takes leave of the tags: what is live of theirs keeps its names, and a warning tells the sites.
    ///
    /// # Safety
    /// As given to [`Books::register`]; nobody allocates for them any more.
    unsafe fn unregister(&self, tags: &Range<u64>, module: &str);
}

/// The `libkmem.so` of this process, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Libkmem;

type Function = unsafe extern "C" fn(*const StaticTag, *const StaticTag, *const c_char, usize);

fn call(function: &CStr, tags: &Range<u64>, module: &str) {
    // SAFETY: a C string.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) };
    if at.is_null() {
        return;
    }
    // SAFETY: libkmem.so defines these functions so.
    let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(at) };
    // SAFETY: tags, as the caller promised to register or unregister, and a name of that length.
    unsafe {
        function(tags.start as _, tags.end as _, module.as_ptr().cast(), module.len());
    }
}

impl Books for Libkmem {
    unsafe fn register(&self, tags: &Range<u64>, module: &str) {
        call(c"kmem_module_tags_register", tags, module);
    }

    unsafe fn unregister(&self, tags: &Range<u64>, module: &str) {
        call(c"kmem_module_tags_unregister", tags, module);
    }
}

/// An allocator compiled into the program.
impl Books for &'static kmem::Kmem {
    unsafe fn register(&self, tags: &Range<u64>, module: &str) {
        self.register_tags(tags.start as _, tags.end as _, module.as_bytes());
    }

    unsafe fn unregister(&self, tags: &Range<u64>, module: &str) {
        self.unregister_tags(tags.start as _, tags.end as _, module.as_bytes());
    }
}
