//! Per-CPU memory, with the kernel's names. See [`crate::percpu`].

use core::ptr::null_mut;

use super::Instance;
use crate::os::Platform;
use crate::percpu::{On, PerCpuStats, Word};
use crate::request::Caller;
use crate::units::{CpuId, Gfp};

impl<P: Platform> Instance<P> {
    #[inline(always)]
    fn copies(&'static self) -> On<P> {
        self.percpu.on(&self.ledger)
    }

    /// Allocates an object of `size` bytes (up to 32 KiB) at a multiple of `align`, of which every
    /// CPU has a zeroed copy. Returns its handle. Null: there is no memory, the size or alignment
    /// is not supported, or the group is at its limit. The books count one copy, and a group pays
    /// for one.
    ///
    /// # Examples
    /// ```
    /// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
    /// use kmem_core::units::Gfp;
    /// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
    /// let handle = KMEM.alloc_percpu(8, 8, Gfp::KERNEL, caller);
    /// assert!(!handle.is_null());
    /// let counter = handle.cast::<u64>();
    /// // SAFETY: an aligned word in a live per-CPU object, which is used no longer afterwards.
    /// unsafe {
    ///     KMEM.this_cpu_add(counter, 2);
    ///     assert_eq!(KMEM.percpu_sum(counter), 2);
    ///     KMEM.free_percpu(handle);
    /// }
    /// ```
    pub fn alloc_percpu(
        &'static self,
        size: usize,
        align: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let Some(class) = On::<P>::class(size, align) else { return null_mut() };
        let mut item = self.copies().alloc_fast(class, caller);
        if item.is_none() && self.ready() {
            item = self.copies().alloc(class, caller.with(gfp));
        }
        item.address() as *mut u8
    }

    /// Frees a per-CPU object; null does nothing. An address that is not a live handle is reported,
    /// and ends the program.
    ///
    /// # Safety
    /// No thread uses any of its copies from here on.
    pub unsafe fn free_percpu(&'static self, handle: *mut u8) {
        if !handle.is_null() && self.ready() {
            // SAFETY: the same contract.
            unsafe { self.copies().free(handle as usize) };
        }
    }

    /// Copy of an object on a CPU; null if there is no memory for the CPU's unit, or no such CPU.
    pub fn per_cpu_ptr(&'static self, handle: *mut u8, cpu: CpuId) -> *mut u8 {
        self.copies().copy_of(handle, cpu)
    }

    /// Copies of an object: first the shared one, which is the handle itself, then those of CPUs
    /// that have a unit.
    pub fn per_cpu_copies(&'static self, handle: *mut u8) -> impl Iterator<Item = *mut u8> {
        self.copies().copies(handle)
    }

    /// Highest number of a CPU that there can be on this platform, plus one.
    pub fn possible_cpus(&'static self) -> u32 {
        self.copies().possible_cpus()
    }

    /// Adds to a word of this CPU's copy of a per-CPU object. Fast path: ten instructions, no
    /// atomics.
    ///
    /// # Safety
    /// `word` is an aligned word in a live per-CPU object, by its handle.
    #[inline(always)]
    pub unsafe fn this_cpu_add<W: Word>(&'static self, word: *mut W, by: W) {
        // SAFETY: the same contract.
        unsafe { self.copies().add(word, by) }
    }

    /// Adds to a word of this CPU's copy. Returns the new value.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_add_return<W: Word>(&'static self, word: *mut W, by: W) -> W {
        // SAFETY: the same contract.
        unsafe { self.copies().add_return(word, by) }
    }

    /// Reads a word of this CPU's copy.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_read<W: Word>(&'static self, word: *mut W) -> W {
        // SAFETY: the same contract.
        unsafe { self.copies().read(word) }
    }

    /// Writes a word of this CPU's copy. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_xchg<W: Word>(&'static self, word: *mut W, new: W) -> W {
        // SAFETY: the same contract.
        unsafe { self.copies().swap(word, new) }
    }

    /// Writes `new` to a word of this CPU's copy if its value is `old`. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_cmpxchg<W: Word>(&'static self, word: *mut W, old: W, new: W) -> W {
        // SAFETY: the same contract.
        unsafe { self.copies().replace(word, old, new) }
    }

    /// Sum of a word over all copies. It is exact while no thread writes to them.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    pub unsafe fn percpu_sum<W: Word>(&'static self, word: *mut W) -> W {
        // SAFETY: the same contract.
        unsafe { self.copies().sum(word) }
    }

    /// Counts per-CPU memory. Takes time linear in the number of objects.
    pub fn percpu_stats(&'static self) -> PerCpuStats {
        self.copies().stats()
    }

    /// Writes the counts in the format of the kernel's `percpu_stats`, line by line.
    /// `populated_size` are bytes of each unit that lie in slabs, `cur_alloc_size` those of live
    /// objects, one copy of each.
    pub fn percpu_info(&'static self, write: impl FnMut(&[u8])) {
        self.copies().info(write);
    }
}
