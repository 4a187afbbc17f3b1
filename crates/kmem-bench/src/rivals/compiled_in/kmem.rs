//! kmem itself, with the functions of `libkmem.so`: `malloc` passes its return address and
//! `kmalloc` a static tag to the instance's fast path.

use crate::heap::Heap;
use crate::kernel::Kernel;
use kmem_core::StaticTag;
use kmem_core::request::Caller;
use kmem_core::task;
use kmem_core::units::Gfp;
use std::ffi::c_void;

/// Defines a module with an instance of its own, and the functions of `libkmem.so` over it.
macro_rules! instance {
    ($name:ident, $conf:literal) => {
        pub(crate) mod $name {
            use super::{Caller, Gfp, Heap, Kernel, StaticTag, c_void, task};
            use kmem_core::Kmem;
            use kmem_core::units::Order;

            static KMEM: Kmem = Kmem::new();

            #[unsafe(naked)]
            unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!("mov rsi, [rsp]", "jmp {}", sym malloc_at);
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!("mov x1, x30", "b {}", sym malloc_at);
            }

            extern "C" fn malloc_at(size: usize, ret: usize) -> *mut u8 {
                if task::is_in_any() {
                    return malloc_any(size, task::caller(ret));
                }
                // SAFETY: a return address.
                let at = unsafe { KMEM.alloc_fast_root(size, ret) };
                if at.is_null() { malloc_any(size, ret) } else { at }
            }

            /// A separate function, so that the fast path has no frame.
            #[inline(never)]
            fn malloc_any(size: usize, key: usize) -> *mut u8 {
                // SAFETY: a return address, or the key of one.
                KMEM.alloc_any(size, unsafe { Caller::of_key(key) })
            }

            unsafe extern "C" fn free(at: *mut c_void) {
                // SAFETY: the same contract.
                unsafe { KMEM.free(at.cast()) }
            }

            unsafe extern "C" fn kmalloc_tag(
                size: usize,
                flags: Gfp,
                tag: *const StaticTag,
            ) -> *mut u8 {
                // SAFETY: the same contract.
                KMEM.kmalloc_here(size, flags, unsafe { Caller::tagged_by(tag) })
            }

            unsafe extern "C" fn kfree(at: *mut u8) {
                // SAFETY: the same contract.
                unsafe { KMEM.free(at) }
            }

            unsafe extern "C" fn alloc_pages_tag(
                flags: Gfp,
                order: u32,
                tag: *const StaticTag,
            ) -> *mut u8 {
                match u8::try_from(order) {
                    Ok(order) => {
                        // SAFETY: the same contract.
                        let caller = unsafe { Caller::tagged_by(tag) }.here();
                        KMEM.alloc_pages(Order(order), flags, caller)
                    }
                    Err(_) => core::ptr::null_mut(),
                }
            }

            unsafe extern "C" fn free_pages(at: *mut u8, order: u32) {
                if let Ok(order) = u8::try_from(order) {
                    // SAFETY: the same contract.
                    unsafe { KMEM.free_pages(at, Order(order)) }
                }
            }

            fn census(each: &mut dyn FnMut(u32, u64)) {
                KMEM.census(|tag, _, calls| each(tag.0, calls));
            }

            /// The instance as a heap, started with the configuration of its row.
            pub(crate) fn heap() -> (Heap, String) {
                // SAFETY: the pair belongs together and is linked in.
                let heap = unsafe { Heap::new(malloc, free) };
                // SAFETY: allocators are loaded before this process starts threads, so no other
                // thread uses the environment.
                unsafe { std::env::set_var("KMEM_CONF", $conf) };
                // The first call reads KMEM_CONF.
                let first = heap.alloc(64);
                // SAFETY: allocated on the line above.
                unsafe { heap.free(first) };
                // SAFETY: no other thread uses the environment.
                unsafe { std::env::remove_var("KMEM_CONF") };
                (heap, concat!(env!("CARGO_PKG_VERSION"), " ", $conf).to_owned())
            }

            /// The instance itself.
            #[allow(dead_code, reason = "of one of them")]
            pub(crate) fn instance() -> &'static Kmem {
                &KMEM
            }

            /// The started instance as the kernel's functions.
            #[allow(dead_code, reason = "of most of them")]
            pub(crate) fn kernel() -> Kernel {
                heap();
                Kernel { kmalloc_tag, kfree, alloc_pages_tag, free_pages, census }
            }
        }
    };
}

instance!(on, "mem_profiling:1");
instance!(never, "mem_profiling:never");
instance!(never_groups, "mem_profiling:never,groups:always");
instance!(off, "mem_profiling:0");
// An instance that is switched on during the measurement.
instance!(switched, "mem_profiling:0");
// The instances of the page table: with default checks, and without checks.
instance!(pages, "mem_profiling:1");
instance!(pages_never, "mem_profiling:never");
instance!(pages_off, "mem_profiling:1,check_pages:off");
// The other checks of pages.
instance!(pages_every, "check_pages:every");
instance!(pages_protected, "debug_pagealloc:1");
instance!(pages_poisoned, "page_poison:1");
instance!(pages_init_on_alloc, "init_on_alloc:1");
instance!(pages_init_on_free, "init_on_free:1");
instance!(zeroed, "init_on_alloc:1,init_on_free:1");
instance!(pages_shuffled, "shuffle:1");
// The checks of objects.
instance!(caches_checked, "check_caches:1");
instance!(red_zones, "redzone:1");
instance!(quarantined, "quarantine_kb:1024");
instance!(objects_checked, "shuffle:1,check_caches:1,redzone:1,quarantine_kb:1024");
instance!(hardened, "hardened");
