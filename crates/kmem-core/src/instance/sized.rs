//! Frees that tell the size of the request: `operator delete(void *, size_t)` of C++14, and
//! `free_sized` of C23. Another size is a misuse, see [`Conf::check_sizes`].
//!
//! [`Conf::check_sizes`]: crate::conf::Conf::check_sizes

use super::Instance;
use crate::class::{MAX_OBJECT, SizeClass};
use crate::heap::{Fit, Live, RunRequest};
use crate::ledger::Interface;
use crate::os::Platform;
use crate::report::Fault;
use crate::units::{PAGE_SIZE, PageCount, TagId};

use kmem_layout::word::TAG_MASK;

/// Size and alignment of a request, as a free tells them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizedFree {
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment, a power of two; 1 if it is not told.
    pub align: usize,
    /// The interface. `realloc` may have changed the size of memory of [`Interface::Malloc`].
    pub interface: Interface,
}

impl SizedFree {
    /// The class that serves such a request; `None`: pages do. `red_zone` is the number of bytes
    /// that the memory has beyond the request.
    #[inline(always)]
    fn class(self, red_zone: usize) -> Option<SizeClass> {
        let need = self.size.checked_add(red_zone)?;
        if self.align > 16 {
            return SizeClass::aligned(need, self.align);
        }
        // In this order: most requests are small.
        SizeClass::of_small(need).or_else(|| (need <= MAX_OBJECT).then(|| SizeClass::of(need)))
    }

    /// Returns whether the size may have changed in place.
    fn is_resizable(self) -> bool {
        self.interface == Interface::Malloc
    }

    /// Returns whether an object of this class may have such a request.
    fn fits_class(self, class: SizeClass) -> bool {
        let size = class.size() as usize;
        let shrunk = self.is_resizable() && self.size <= size && self.size > size / 2;
        shrunk || self.class(0) == Some(class)
    }

    /// Returns whether an allocation of that length may have such a request.
    fn fits_pages(self, pages: PageCount, red_zone: usize) -> bool {
        let Ok(asked) = u32::try_from(self.size.div_ceil(PAGE_SIZE)) else { return false };
        let asked = PageCount(asked.max(1));
        let request =
            RunRequest { pages: asked, align: PageCount::ONE, fit: Fit::Loose, placement: None };
        asked <= pages
            && self.class(red_zone).is_none()
            && (self.is_resizable() || pages <= request.most())
    }
}

impl<P: Platform> Instance<P> {
    /// Frees an allocation as [`Self::free`] does, if it is of the size that the caller tells. Any
    /// other size is reported, and ends the program. Calls `foreign` for an address that is not
    /// this instance's.
    ///
    /// # Safety
    /// See [`Self::free_or`].
    #[inline(always)]
    pub unsafe fn free_sized_or(
        &'static self,
        at: *mut u8,
        told: SizedFree,
        foreign: unsafe fn(*mut u8),
    ) {
        let fits = |class| told.class(0) == Some(class);
        // SAFETY: the same contract.
        unsafe {
            if !self.free_by::<false>(&self.heap().fast, at, fits) {
                // In registers: the fast path stores nothing for the slow one.
                let SizedFree { size, align, interface } = told;
                self.free_sized_slow(at, (size, align), interface, foreign);
            }
        }
    }

    /// [`Self::free_sized_or`] where the fast path does not free.
    ///
    /// # Safety
    /// See [`Self::free_or`].
    #[cold]
    #[inline(never)]
    unsafe fn free_sized_slow(
        &'static self,
        at: *mut u8,
        (size, align): (usize, usize),
        interface: Interface,
        foreign: unsafe fn(*mut u8),
    ) {
        let told = SizedFree { size, align, interface };
        if at.is_null() {
            return;
        }
        if !self.owns(at) {
            // SAFETY: the same contract.
            return unsafe { foreign(at) };
        }
        if self.ready()
            && self.ledger.guards.checks().checks_sizes()
            && let Some(fault) = self.other_size(at as usize, told)
        {
            let call = if told.is_resizable() { "free_sized" } else { "sized delete" };
            self.fault(call, at as usize, fault);
        }
        // SAFETY: the same contract.
        unsafe { self.free_slow(at, Some(interface)) }
    }

    /// The fault of the size that a free tells. `None`: nothing, or no live allocation begins
    /// there, which the free finds.
    fn other_size(&'static self, at: usize, told: SizedFree) -> Option<Fault> {
        let checks = self.ledger.guards.checks();
        let live = self.heap().find(at).ok()?;
        let last = TagId(live.word() & TAG_MASK);
        let (bytes, fits) = match live {
            Live::Object { class, .. } => {
                // SAFETY: a live object of that class.
                let bytes = unsafe { self.ledger.object_len(at, class) };
                let exact = checks.has_red_zones();
                (bytes, if exact { told.size == bytes } else { told.fits_class(class) })
            }
            Live::Pages { run, words, .. } => {
                let bounds = words.bounds();
                let (bytes, exact) = (bounds.room(run.pages), bounds.is_fenced);
                let fits = || told.fits_pages(run.pages, checks.red_zone());
                (bytes, if exact { told.size.max(1) == bytes } else { fits() })
            }
        };
        (!fits).then_some(Fault::OtherSize { bytes, told: told.size, last })
    }
}
