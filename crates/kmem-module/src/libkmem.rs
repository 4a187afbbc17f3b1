//! The allocator of modules in `libkmem.so`, found by its symbols.

use std::ffi::{CStr, c_char, c_uint};
use std::ops::Range;
use std::ptr::NonNull;

use kmem_core::units::Gfp;
use kmem_core::{LiveTag, StaticTag};

use crate::error::{Error, Result};
use crate::tags::Books;

/// The `libkmem.so` of this process, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Libkmem;

type Count = unsafe extern "C" fn(*const StaticTag, *const StaticTag, *mut LiveTag, usize) -> u64;
type Function = unsafe extern "C" fn(*const StaticTag, *const StaticTag, *const c_char, usize);

/// A function of `libkmem.so`, if the process has it.
///
/// # Safety
/// `F` is the function's type.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>()) };
    // SAFETY: a C string.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: a function's address, whose type is `F` by the contract.
    (!at.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut libc::c_void, F>(&at) })
}

type AllocArea = unsafe extern "C" fn(usize, Gfp, *const StaticTag) -> *mut u8;
type ResizeArea = unsafe extern "C" fn(*mut u8, usize, Gfp, *const StaticTag) -> *mut u8;
type FreeArea = unsafe extern "C" fn(*mut u8);

/// The functions of `libkmem.so` for areas.
struct AreaFunctions {
    alloc: AllocArea,
    resize: ResizeArea,
    free: FreeArea,
}

impl AreaFunctions {
    fn find() -> Option<Self> {
        // SAFETY: the types of these functions in libkmem.so.
        unsafe {
            Some(Self {
                alloc: function(c"kmem_vmalloc_tag")?,
                resize: function(c"kmem_vrealloc_tag")?,
                free: function(c"kmem_vfree")?,
            })
        }
    }
}

type AllocPerCpu = unsafe extern "C" fn(usize, usize, Gfp, *const StaticTag) -> *mut u8;
type CopyOf = unsafe extern "C" fn(*mut u8, c_uint) -> *mut u8;
type Cpus = unsafe extern "C" fn() -> c_uint;
type FreePerCpu = unsafe extern "C" fn(*mut u8);

/// The functions of `libkmem.so` for per-CPU objects.
struct PerCpuFunctions {
    alloc: AllocPerCpu,
    copy_of: CopyOf,
    cpus: Cpus,
    free: FreePerCpu,
}

impl PerCpuFunctions {
    fn find() -> Option<Self> {
        // SAFETY: the types of these functions in libkmem.so.
        unsafe {
            Some(Self {
                alloc: function(c"kmem_alloc_percpu_tag")?,
                copy_of: function(c"kmem_per_cpu_ptr")?,
                cpus: function(c"kmem_nr_cpu_ids")?,
                free: function(c"kmem_free_percpu")?,
            })
        }
    }

    /// All copies of an object: those of CPUs, and the one of threads without a CPU number. `None`
    /// for a CPU that there is no memory for.
    ///
    /// # Safety
    /// `object` is live.
    unsafe fn copies(&self, object: NonNull<u8>) -> impl Iterator<Item = Option<NonNull<u8>>> {
        // SAFETY: takes no pointer.
        let cpus = unsafe { (self.cpus)() };
        // SAFETY: the same contract.
        (0..cpus).map(move |cpu| NonNull::new(unsafe { (self.copy_of)(object.as_ptr(), cpu) }))
    }
}

fn call(name: &CStr, tags: &Range<u64>, module: &str) {
    // SAFETY: libkmem.so defines the function with this type.
    let Some(function) = (unsafe { function::<Function>(name) }) else { return };
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
        // SAFETY: libkmem.so defines the function with this type.
        let Some(function) = (unsafe { function::<Count>(c"kmem_module_tags_live") }) else {
            return 0;
        };
        // SAFETY: `sites` has its length; the tags are only compared.
        unsafe { function(tags.start as _, tags.end as _, sites.as_mut_ptr(), sites.len()) }
    }

    fn area_alloc(&self, len: usize, tag: &'static StaticTag) -> Result<Option<NonNull<u8>>> {
        let Some(functions) = AreaFunctions::find() else { return Ok(None) };
        // SAFETY: a tag that is never freed.
        let area = unsafe { (functions.alloc)(len, Gfp::KERNEL.and(Gfp::ZERO), tag) };
        NonNull::new(area).map(Some).ok_or_else(|| Error::nomem(len as u64, "the module"))
    }

    unsafe fn area_shrink(&self, area: NonNull<u8>, len: usize, tag: &'static StaticTag) -> bool {
        AreaFunctions::find().is_some_and(|functions| {
            // SAFETY: the same contract. An area that shrinks stays in place.
            !unsafe { (functions.resize)(area.as_ptr(), len, Gfp::KERNEL, tag) }.is_null()
        })
    }

    unsafe fn area_free(&self, area: NonNull<u8>) {
        if let Some(functions) = AreaFunctions::find() {
            // SAFETY: the same contract.
            unsafe { (functions.free)(area.as_ptr()) };
        }
    }

    fn percpu_alloc(
        &self,
        size: usize,
        align: usize,
        tag: &'static StaticTag,
    ) -> Option<NonNull<u8>> {
        let functions = PerCpuFunctions::find()?;
        // SAFETY: a tag that is never freed.
        let object = unsafe { (functions.alloc)(size, align, Gfp::KERNEL, tag) };
        let object = NonNull::new(object)?;
        // SAFETY: a live object, which is freed only if a copy is missing.
        unsafe {
            if functions.copies(object).any(|copy| copy.is_none()) {
                (functions.free)(object.as_ptr());
                return None;
            }
        }
        Some(object)
    }

    unsafe fn percpu_copies(&self, object: NonNull<u8>, each: &mut dyn FnMut(NonNull<u8>)) {
        if let Some(functions) = PerCpuFunctions::find() {
            // SAFETY: the same contract.
            unsafe { functions.copies(object).flatten().for_each(each) };
        }
    }

    unsafe fn percpu_free(&self, object: NonNull<u8>) {
        if let Some(functions) = PerCpuFunctions::find() {
            // SAFETY: the same contract.
            unsafe { (functions.free)(object.as_ptr()) };
        }
    }
}
