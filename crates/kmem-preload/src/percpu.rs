//! The per-CPU memory functions, as `kmem.h` declares them.

use core::ffi::{c_int, c_uint};

use kmem_core::units::{CpuId, Gfp};

use crate::KMEM;
use crate::call_site::{Tag, tagged, twins};

twins! {
    /// # Safety
    /// `tag` is as for [`tagged`].
    fn alloc_percpu(size: usize, align: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.alloc_percpu(size, align, flags, unsafe { tagged(tag) })
    }
}

/// # Safety
/// `handle` is null, or a live handle that no thread uses any more.
#[unsafe(export_name = "kmem_free_percpu")]
unsafe extern "C" fn free_percpu(handle: *mut u8) {
    // SAFETY: the same contract.
    unsafe { KMEM.free_percpu(handle) }
}

/// The copy of a CPU. The number behind those of possible CPUs stands for the shared copy, whose
/// address is the handle.
#[unsafe(export_name = "kmem_per_cpu_ptr")]
extern "C" fn per_cpu_ptr(handle: *mut u8, cpu: c_uint) -> *mut u8 {
    if cpu == KMEM.possible_cpus() { handle } else { KMEM.per_cpu_ptr(handle, CpuId(cpu)) }
}

/// Possible CPUs, and one for the shared copy.
#[unsafe(export_name = "kmem_nr_cpu_ids")]
extern "C" fn nr_cpu_ids() -> c_uint {
    KMEM.possible_cpus() + 1
}

/// Writes statistics of per-CPU memory to `fd`.
#[unsafe(export_name = "kmem_percpu_stats")]
extern "C" fn percpu_stats(fd: c_int) {
    KMEM.percpu_info(|line| {
        // A line that cannot be written is lost.
        // SAFETY: `line` is valid for reading its length.
        unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
    });
}

/// Exports the operations for words of one width.
macro_rules! operations {
    (
        $word:ty: $add:literal, $add_return:literal, $read:literal, $xchg:literal,
        $cmpxchg:literal, $sum:literal, $module:ident
    ) => {
        mod $module {
            use crate::KMEM;

            /// # Safety
            /// `at` is an aligned word in the handle's copy of a live per-CPU object. This holds
            /// for all functions here.
            #[unsafe(export_name = $add)]
            unsafe extern "C" fn this_cpu_add(at: *mut $word, by: $word) {
                // SAFETY: the same contract.
                unsafe { KMEM.this_cpu_add(at, by) }
            }

            /// # Safety
            /// See [`this_cpu_add`].
            #[unsafe(export_name = $add_return)]
            unsafe extern "C" fn this_cpu_add_return(at: *mut $word, by: $word) -> $word {
                // SAFETY: the same contract.
                unsafe { KMEM.this_cpu_add_return(at, by) }
            }

            /// # Safety
            /// See [`this_cpu_add`].
            #[unsafe(export_name = $read)]
            unsafe extern "C" fn this_cpu_read(at: *mut $word) -> $word {
                // SAFETY: the same contract.
                unsafe { KMEM.this_cpu_read(at) }
            }

            /// # Safety
            /// See [`this_cpu_add`].
            #[unsafe(export_name = $xchg)]
            unsafe extern "C" fn this_cpu_xchg(at: *mut $word, new: $word) -> $word {
                // SAFETY: the same contract.
                unsafe { KMEM.this_cpu_xchg(at, new) }
            }

            /// # Safety
            /// See [`this_cpu_add`].
            #[unsafe(export_name = $cmpxchg)]
            unsafe extern "C" fn this_cpu_cmpxchg(at: *mut $word, old: $word, new: $word) -> $word {
                // SAFETY: the same contract.
                unsafe { KMEM.this_cpu_cmpxchg(at, old, new) }
            }

            /// # Safety
            /// See [`this_cpu_add`].
            #[unsafe(export_name = $sum)]
            unsafe extern "C" fn percpu_sum(at: *mut $word) -> $word {
                // SAFETY: the same contract.
                unsafe { KMEM.percpu_sum(at) }
            }
        }
    };
}

operations!(u32: "kmem_this_cpu_add_4", "kmem_this_cpu_add_return_4", "kmem_this_cpu_read_4",
    "kmem_this_cpu_xchg_4", "kmem_this_cpu_cmpxchg_4", "kmem_percpu_sum_4", words_of_4);
operations!(u64: "kmem_this_cpu_add_8", "kmem_this_cpu_add_return_8", "kmem_this_cpu_read_8",
    "kmem_this_cpu_xchg_8", "kmem_this_cpu_cmpxchg_8", "kmem_percpu_sum_8", words_of_8);
