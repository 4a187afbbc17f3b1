//! Where the code tags of modules are made known: the allocator whose books they are in.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::ops::Range;

use kmem::{LiveTag, StaticTag};

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

    /// Bytes of live allocations of the tags; 0 where nobody keeps books. `sites` are those of the first tags, the rest
    /// have no tag.
    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64;
}

/// What a module that is to be unloaded still holds: its first sites, and all its bytes.
pub(crate) struct Live {
    sites: [LiveTag; 4],
    bytes: u64,
}

impl Live {
    /// Counts; none: nothing is live.
    pub(crate) fn of(books: &dyn Books, tags: &Range<u64>) -> Option<Self> {
        let mut sites = [LiveTag::NONE; 4];
        let bytes = books.live(tags, &mut sites);
        (bytes > 0).then_some(Self { sites, bytes })
    }
}

/// `5 bytes are live: a.c:7 work (5 bytes in 1)`. Only while the tags are mapped.
impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are live:", self.bytes)?;
        let mut left = self.bytes;
        for live in self.sites.iter().filter(|live| !live.tag.is_null()) {
            // SAFETY: a tag of a module that is mapped, whose strings were checked when it was linked.
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

    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64 {
        // SAFETY: a C string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"kmem_module_tags_live".as_ptr()) };
        if at.is_null() {
            return 0;
        }
        // SAFETY: libkmem.so defines this function so.
        let function = unsafe { std::mem::transmute::<*mut libc::c_void, Count>(at) };
        // SAFETY: room for as many entries as are told.
        unsafe { function(tags.start as _, tags.end as _, sites.as_mut_ptr(), sites.len()) }
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

    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64 {
        self.live_tags(tags.start as _, tags.end as _, sites)
    }
}
