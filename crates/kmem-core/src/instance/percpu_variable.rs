//! Static per-CPU variables (the kernel's `DEFINE_PER_CPU`): words that get a per-CPU object when
//! they are first used.

use core::cell::UnsafeCell;

use super::Instance;
use crate::codetag::StaticTag;
use crate::os::Platform;
use crate::percpu::Word;
use crate::request::Caller;
use crate::sync::{AtomicUsize, Ordering};
use crate::units::{CpuId, Gfp};

/// A word of which every CPU has a copy, made by [`define_per_cpu!`](crate::define_per_cpu).
///
/// The first use allocates its per-CPU object, which is billed to the line that defines the
/// variable and never freed. While there is no memory for that object, all threads use a word in
/// the variable itself. Sums include that word.
pub struct PerCpuVariable<W: Word, P: Platform + 'static> {
    instance: fn() -> &'static Instance<P>,
    tag: &'static StaticTag,
    /// Handle of the per-CPU object; 0: not allocated yet.
    handle: AtomicUsize,
    /// Used while there is no object. Only atomics use it.
    without_place: UnsafeCell<W>,
}

// SAFETY: only atomics use the cell.
unsafe impl<W: Word + Send, P: Platform + 'static> Sync for PerCpuVariable<W, P> {}

impl<W: Word, P: Platform + 'static> PerCpuVariable<W, P> {
    /// A variable of an instance, at zero.
    pub const fn new(
        instance: fn() -> &'static Instance<P>,
        tag: &'static StaticTag,
        zero: W,
    ) -> Self {
        let handle = AtomicUsize::new(0);
        Self { instance, tag, handle, without_place: UnsafeCell::new(zero) }
    }

    /// Adds to the copy of the CPU that the thread runs on, safe against migration and signals.
    #[inline]
    pub fn add(&'static self, by: W) {
        match self.handle() {
            // SAFETY: an aligned word of a live per-CPU object.
            Some((a, word)) => unsafe { a.this_cpu_add(word, by) },
            None => {
                // SAFETY: a word that only atomics use.
                unsafe { W::fetch_add(self.without_place.get(), by) };
            }
        }
    }

    /// Reads the copy of the CPU that the thread runs on.
    #[inline]
    pub fn read(&'static self) -> W {
        match self.handle() {
            // SAFETY: an aligned word of a live per-CPU object.
            Some((a, word)) => unsafe { a.this_cpu_read(word) },
            // SAFETY: a word that only atomics use.
            None => unsafe { W::load(self.without_place.get()) },
        }
    }

    /// Sum over all copies. It is exact while no thread adds.
    pub fn sum(&'static self) -> W {
        // SAFETY: a word that only atomics use.
        let without = unsafe { W::load(self.without_place.get()) };
        match self.handle() {
            // SAFETY: an aligned word of a live per-CPU object.
            Some((a, word)) => without.plus(unsafe { a.percpu_sum(word) }),
            None => without,
        }
    }

    /// Reads a CPU's copy. `None`: there is no such CPU, or no memory.
    pub fn of(&'static self, cpu: CpuId) -> Option<W> {
        let (a, word) = self.handle()?;
        let copy = a.per_cpu_ptr(word.cast(), cpu);
        // SAFETY: an aligned word in a copy of a live per-CPU object.
        (!copy.is_null()).then(|| unsafe { W::load(copy.cast()) })
    }

    /// Instance and word of the per-CPU object. `None`: there is no memory for the object.
    #[inline]
    fn handle(&'static self) -> Option<(&'static Instance<P>, *mut W)> {
        let a = (self.instance)();
        // Acquire pairs with the release in `place`: the copies are zero.
        let at = match self.handle.load(Ordering::Acquire) {
            0 => self.place(a)?,
            at => at,
        };
        Some((a, at as *mut W))
    }

    /// Allocates the per-CPU object, unless another thread did. Returns its handle.
    #[cold]
    #[inline(never)]
    fn place(&'static self, a: &'static Instance<P>) -> Option<usize> {
        let caller = Caller::tagged(self.tag);
        let new = a.alloc_percpu(size_of::<W>(), align_of::<W>(), Gfp::NOWARN, caller);
        if new.is_null() {
            return None;
        }
        let placed =
            self.handle.compare_exchange(0, new as usize, Ordering::AcqRel, Ordering::Acquire);
        if let Err(other) = placed {
            // SAFETY: this call allocated the object, which no thread uses.
            unsafe { a.free_percpu(new) };
            return Some(other);
        }
        Some(new as usize)
    }
}

/// Defines static per-CPU variables of an instance: words (`u32` or `u64`) of which every CPU has a
/// copy.
///
/// # Examples
/// ```
/// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
/// kmem_core::define_per_cpu! {
///     /// Packets that were received.
///     static PACKETS: u64 => KMEM;
/// }
/// PACKETS.add(1);
/// assert_eq!(PACKETS.sum(), 1);
/// ```
#[macro_export]
macro_rules! define_per_cpu {
    ($(
        $(#[$doc:meta])*
        $visible:vis static $name:ident: $word:ty => $kmem:expr $(, $platform:ty)?;
    )*) => {$(
        $(#[$doc])*
        $visible static $name: $crate::PerCpuVariable<
            $word,
            $crate::define_per_cpu!(@platform $($platform)?)
        > = $crate::PerCpuVariable::new(|| &$kmem, $crate::static_tag!(stringify!($name)), 0);
    )*};
    (@platform) => { $crate::os::linux::Linux };
    (@platform $platform:ty) => { $platform };
}
