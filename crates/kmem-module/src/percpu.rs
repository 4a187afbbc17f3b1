//! Per-CPU variables of modules: their copies in the per-CPU memory of the allocator.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::layout::PerCpu;
use crate::tags::{Books, OwnTags};

/// The copies of a module's per-CPU variables (the kernel's `mod->percpu`).
///
/// # Invariants
/// `at` is a per-CPU object of `size` bytes in `books`, which only the module uses.
pub(crate) struct Copies {
    books: Arc<dyn Books>,
    at: NonNull<u8>,
    size: usize,
}

// SAFETY: any thread may write and free per-CPU objects.
unsafe impl Send for Copies {}

impl Copies {
    /// Allocates copies for all CPUs (the kernel's `percpu_modalloc`).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn new(
        books: Arc<dyn Books>,
        variables: PerCpu,
        tags: &'static OwnTags,
    ) -> Result<Self> {
        let (size, align) = (variables.size as usize, variables.align as usize);
        let at = books.percpu_alloc(size, align, &tags.percpu);
        let at = at.ok_or_else(|| Error::nomem(variables.size, "per-CPU variables"))?;
        // INVARIANT: a new object of this size.
        Ok(Self { books, at, size })
    }

    /// The address that operations on the variables take.
    pub(crate) fn address(&self) -> u64 {
        self.at.as_ptr() as u64
    }

    /// Writes the first values to all copies (the kernel's `percpu_modcopy`). No code of the module
    /// has run yet.
    ///
    /// # Panics
    /// There are more values than variables.
    pub(crate) fn write(&self, values: &[u8]) {
        assert!(values.len() <= self.size);
        // SAFETY: by the invariant the object is live, and each copy has `size` bytes. No other
        // thread uses them, as no code of the module has run.
        unsafe {
            self.books.percpu_copies(self.at, &mut |copy| {
                copy.copy_from_nonoverlapping(NonNull::from(values).cast(), values.len());
            });
        }
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // SAFETY: by the invariant the object is live. The module is not running any more.
        unsafe { self.books.percpu_free(self.at) };
    }
}
