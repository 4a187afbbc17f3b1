//! The allocator of modules: it keeps the books for their static tags, and has their memory.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{LazyLock, Mutex};

use kmem_core::units::{CpuId, Gfp};
use kmem_core::{Caller, LiveTag, StaticTag};

use crate::alloc;
use crate::error::{Error, Result};
use crate::module::lock;
use crate::name::{MODULE_NAME_LEN, Name};

/// The allocator of modules.
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

    /// Allocates an area of zeroed whole pages for a module's memory, billed to a tag and to the
    /// group of this thread. `None`: this process has no allocator for areas.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory, or the group is at its limit.
    fn area_alloc(&self, len: usize, tag: &'static StaticTag) -> Result<Option<NonNull<u8>>>;

    /// Gives back the pages of an area behind its first `len` bytes, which stay where they are.
    /// False: the area stays as it is.
    ///
    /// # Safety
    /// `area` is from [`Books::area_alloc`] with the same tag. The pages are whole, readable and
    /// writable, and no thread uses them any more. `len` is not 0.
    unsafe fn area_shrink(&self, area: NonNull<u8>, len: usize, tag: &'static StaticTag) -> bool;

    /// Frees an area.
    ///
    /// # Safety
    /// `area` is from [`Books::area_alloc`]. All its pages are readable and writable, and no thread
    /// uses it any more.
    unsafe fn area_free(&self, area: NonNull<u8>);

    /// Allocates a per-CPU object, and makes a copy of it for every possible CPU. It is billed to a
    /// tag and to the group of this thread. Returns the address that operations on it take
    /// (`this_cpu_add` and the like). `None`: there is no memory, the group is at its limit, or
    /// this process has no per-CPU memory.
    fn percpu_alloc(
        &self,
        size: usize,
        align: usize,
        tag: &'static StaticTag,
    ) -> Option<NonNull<u8>>;

    /// Calls `each` with every copy of a per-CPU object.
    ///
    /// # Safety
    /// `object` is from [`Books::percpu_alloc`], and not freed.
    unsafe fn percpu_copies(&self, object: NonNull<u8>, each: &mut dyn FnMut(NonNull<u8>));

    /// Frees a per-CPU object.
    ///
    /// # Safety
    /// `object` is from [`Books::percpu_alloc`], and no thread uses any of its copies any more.
    unsafe fn percpu_free(&self, object: NonNull<u8>);
}

/// The static tags of memory that the loader allocates for one module. They have the functions of
/// the kernel, and the module's name. They are never freed, as live bytes may outlive the module.
pub struct OwnTags {
    /// Of its text, its data and its symbols.
    pub(crate) memory: StaticTag,
    /// Of its per-CPU variables.
    pub(crate) percpu: StaticTag,
    name: [u8; MODULE_NAME_LEN],
}

// SAFETY: the tags point to constants and to `name`, which is never freed or written.
unsafe impl Send for OwnTags {}

impl OwnTags {
    /// The tags of a module's name, which all loads of it share.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn of(module: Name) -> Result<&'static Self> {
        static ALL: LazyLock<Mutex<HashMap<Name, &'static OwnTags>>> =
            LazyLock::new(Mutex::default);
        const FILE: &CStr = c"kmem-module/src/tags.rs";
        let mut all = lock(&ALL);
        if let Some(tags) = all.get(&module) {
            return Ok(tags);
        }
        alloc::reserve(&mut all)?;
        let mut name = [0; MODULE_NAME_LEN];
        name[..module.len()].copy_from_slice(module.as_bytes());
        let (memory, percpu) = (c"module_memory_alloc", c"percpu_modalloc");
        let mut tags: Vec<Self> = alloc::list(1)?;
        tags.push(Self {
            memory: StaticTag::new(FILE, memory, line!()),
            percpu: StaticTag::new(FILE, percpu, line!()),
            name,
        });
        let tags = &mut tags.leak()[0];
        let name = tags.name.as_ptr().cast();
        (tags.memory.module, tags.percpu.module) = (name, name);
        all.insert(module, tags);
        Ok(tags)
    }
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

/// An allocator compiled into the program.
impl Books for &'static kmem_core::Kmem {
    unsafe fn register(&self, tags: &Range<u64>, module: &str) {
        // SAFETY: the tags stay loaded until they are unregistered, by the contract.
        unsafe { self.register_tags(tags.start as _, tags.end as _, module.as_bytes()) };
    }

    unsafe fn unregister(&self, tags: &Range<u64>, module: &str) {
        self.unregister_tags(tags.start as _, tags.end as _, module.as_bytes());
    }

    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64 {
        self.live_tags(tags.start as _, tags.end as _, sites)
    }

    fn area_alloc(&self, len: usize, tag: &'static StaticTag) -> Result<Option<NonNull<u8>>> {
        let gfp = Gfp::KERNEL.and(Gfp::ZERO);
        let area = NonNull::new(self.vmalloc(len, gfp, Caller::tagged(tag).here()));
        area.map(Some).ok_or_else(|| Error::nomem(len as u64, "the module"))
    }

    unsafe fn area_shrink(&self, area: NonNull<u8>, len: usize, tag: &'static StaticTag) -> bool {
        let caller = Caller::tagged(tag);
        // SAFETY: the same contract. An area that shrinks stays in place.
        !unsafe { self.vrealloc(area.as_ptr(), len, Gfp::KERNEL, caller) }.is_null()
    }

    unsafe fn area_free(&self, area: NonNull<u8>) {
        // SAFETY: the same contract.
        unsafe { self.vfree(area.as_ptr()) };
    }

    fn percpu_alloc(
        &self,
        size: usize,
        align: usize,
        tag: &'static StaticTag,
    ) -> Option<NonNull<u8>> {
        let caller = Caller::tagged(tag).here();
        let object = NonNull::new(self.alloc_percpu(size, align, Gfp::KERNEL, caller))?;
        let has_copy = |cpu| !self.per_cpu_ptr(object.as_ptr(), CpuId(cpu)).is_null();
        if (0..self.possible_cpus()).all(has_copy) {
            return Some(object);
        }
        // SAFETY: the object was just allocated, and no thread uses it.
        unsafe { self.free_percpu(object.as_ptr()) };
        None
    }

    unsafe fn percpu_copies(&self, object: NonNull<u8>, each: &mut dyn FnMut(NonNull<u8>)) {
        self.per_cpu_copies(object.as_ptr()).filter_map(NonNull::new).for_each(each);
    }

    unsafe fn percpu_free(&self, object: NonNull<u8>) {
        // SAFETY: the same contract.
        unsafe { self.free_percpu(object.as_ptr()) };
    }
}
