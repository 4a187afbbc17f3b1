//! kmem itself, called as `libkmem.so` calls it: a function that takes its return address, then
//! the instance's fast path.

use crate::heap::Heap;
use kmem_core::Kmem;
use kmem_core::codetag::{Caller, scope};
use std::ffi::c_void;

/// Defines an instance, and malloc and free over it.
macro_rules! instance {
    ($name:ident: $instance:ident, $malloc:ident, $malloc_at:ident, $malloc_any:ident, $free:ident, $conf:literal) => {
        static $instance: Kmem = Kmem::new();

        #[unsafe(naked)]
        unsafe extern "C" fn $malloc(size: usize) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!("mov rsi, [rsp]", "jmp {}", sym $malloc_at);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!("mov x1, x30", "b {}", sym $malloc_at);
        }

        extern "C" fn $malloc_at(size: usize, ret: usize) -> *mut u8 {
            let key = scope::caller(ret);
            let at = $instance.alloc_fast(size, key);
            if at.is_null() { $malloc_any(size, key) } else { at }
        }

        /// Apart, so that the fast path has no frame.
        #[inline(never)]
        fn $malloc_any(size: usize, key: usize) -> *mut u8 {
            $instance.alloc_any(size, Caller { key, frame: 0 })
        }

        unsafe extern "C" fn $free(at: *mut c_void) {
            // SAFETY: the caller's promise.
            unsafe { $instance.free(at.cast()) }
        }

        /// The instance, started with the configuration of its row.
        pub(super) fn $name() -> (Heap, String) {
            // SAFETY: the pair belongs together and is linked in.
            let heap = unsafe { Heap::new($malloc, $free) };
            // SAFETY: allocators are loaded before this process starts its threads, so nobody
            // else uses the environment.
            unsafe { std::env::set_var("KMEM_CONF", $conf) };
            // The first call is what reads KMEM_CONF.
            let first = heap.alloc(64);
            // SAFETY: allocated on the line above.
            unsafe { heap.free(first) };
            // SAFETY: as above.
            unsafe { std::env::remove_var("KMEM_CONF") };
            (heap, concat!(env!("CARGO_PKG_VERSION"), " ", $conf).to_owned())
        }
    };
}

instance!(open: OPEN, open_malloc, open_malloc_at, open_malloc_any, open_free, "mem_profiling:1");
instance!(never: NEVER, never_malloc, never_malloc_at, never_malloc_any, never_free, "mem_profiling:never");
