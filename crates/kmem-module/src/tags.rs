//! Static tags of modules, and the allocator that keeps the books for them.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::ops::Range;

use kmem_core::{LiveTag, StaticTag};

/// An allocator that is told of static tags.
pub trait Books: Send + Sync {
    /// Makes the tags at these addresses known under a module's name.
    ///
    /// # Safety
    /// The range holds tags, which stay valid until [`Books::unregister`].
    unsafe fn register(&self, tags: &Range<u64>, module: &str);

    /// Forgets the tags. Live allocations keep their names, and a warning lists their call sites.
    ///
    /// # Safety
    /// The arguments were given to [`Books::register`]; no code allocates with the tags any more.
    unsafe fn unregister(&self, tags: &Range<u64>, module: &str);

    /// Returns the live bytes of the tags; 0 without books. Fills `sites` with tags that have live
    /// bytes; further entries have null tags.
    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64;
}

/// The live allocations of a module: some of their call sites, and all their bytes.
pub(crate) struct Live {
    sites: [LiveTag; 4],
    bytes: u64,
}

impl Live {
    /// Counts live allocations. `None`: there are none.
    pub(crate) fn of(books: &dyn Books, tags: &Range<u64>) -> Option<Self> {
        let mut sites = [LiveTag::NONE; 4];
        let bytes = books.live(tags, &mut sites);
        (bytes > 0).then_some(Self { sites, bytes })
    }
}

/// Shows `5 bytes are live: a.c:7 work (5 bytes in 1)`. For use while the tags are mapped only.
impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are live:", self.bytes)?;
        let mut left = self.bytes;
        for live in self.sites.iter().filter(|live| !live.tag.is_null()) {
            // SAFETY: a tag of a mapped module; its strings were checked by the linker.
            let (file, function, line) = unsafe {
                let tag = &*live.tag;
                (CStr::from_ptr(tag.file), CStr::from_ptr(tag.function), tag.line)
            };
            let (file, function) = (file.to_string_lossy(), function.to_string_lossy());
            write!(f, " {file}:{line} {function} ({} bytes in {})", live.bytes, live.calls)?;
            left = left.saturating_sub(live.bytes);
        }
        if left > 0 { write!(f, " and others ({left} bytes)") } else { Ok(()) }
    }
}

/// The `libkmem.so` of this process, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Libkmem;

type Count = unsafe extern "C" fn(*const StaticTag, *const StaticTag, *mut LiveTag, usize) -> u64;
type Function = unsafe extern "C" fn(*const StaticTag, *const StaticTag, *const c_char, usize);

fn call(function: &CStr, tags: &Range<u64>, module: &str) {
    // SAFETY: a C string.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) };
    if at.is_null() {
        return;
    }
    // SAFETY: libkmem.so defines the function with this type.
    let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(at) };
    // SAFETY: the callers' contract for `tags`; `module` has its length.
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

    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64 {
        // SAFETY: a C string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"kmem_module_tags_live".as_ptr()) };
        if at.is_null() {
            return 0;
        }
        // SAFETY: libkmem.so defines the function with this type.
        let function = unsafe { std::mem::transmute::<*mut libc::c_void, Count>(at) };
        // SAFETY: `sites` has its length; the tags are only compared.
        unsafe { function(tags.start as _, tags.end as _, sites.as_mut_ptr(), sites.len()) }
    }
}

/// An allocator compiled into the program.
impl Books for &'static kmem_core::Kmem {
    unsafe fn register(&self, tags: &Range<u64>, module: &str) {
        self.register_tags(tags.start as _, tags.end as _, module.as_bytes());
    }

    unsafe fn unregister(&self, tags: &Range<u64>, module: &str) {
        self.unregister_tags(tags.start as _, tags.end as _, module.as_bytes());
    }

    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64 {
        self.live_tags(tags.start as _, tags.end as _, sites)
    }
}
