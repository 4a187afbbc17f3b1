//! vmalloc and vmap, with the kernel's names. See [`crate::vmalloc`].

use core::ptr::null_mut;

use super::Instance;
use crate::heap::ZoneSet;
use crate::ledger::Resized;
use crate::memcg::stock::pages_cost;
use crate::os::Platform;
use crate::request::Caller;
use crate::sync::AtomicU32;
use crate::units::{Gfp, ObjcgId, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_SIZE, PageCount, Pfn};
use crate::vmalloc::{Area, AreaRequest, Freed, On, VmallocStats};

impl<P: Platform> Instance<P> {
    #[inline(always)]
    pub(super) fn areas(&'static self) -> On<P> {
        self.vmalloc.on(&self.ledger)
    }

    /// Allocates an area: pages for `size` bytes, followed by a page that faults. Null: there is no
    /// memory, or the group is at its limit. Fast path for lengths that CPUs keep: about 60
    /// instructions, no atomics.
    ///
    /// # Examples
    /// ```
    /// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
    /// use kmem_core::units::Gfp;
    /// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
    /// let area = KMEM.vmalloc(5000, Gfp::KERNEL, caller);
    /// assert!(!area.is_null());
    /// // SAFETY: the area has two pages, and is used no longer after `vfree`.
    /// unsafe {
    ///     area.add(8191).write(1);
    ///     KMEM.vfree(area);
    /// }
    /// ```
    pub fn vmalloc(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        self.area(AreaRequest { size, align: PAGE_SIZE, huge: false, fence: None }, gfp, caller)
    }

    /// [`Self::vmalloc`] at a multiple of 2 MiB if the area is at least that long; the platform is
    /// advised to use huge pages for it.
    pub fn vmalloc_huge(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        let huge = size >= PAGEBLOCK_SIZE;
        let align = if huge { PAGEBLOCK_SIZE } else { PAGE_SIZE };
        self.area(AreaRequest { size, align, huge, fence: None }, gfp, caller)
    }

    /// [`Self::vmalloc`] at a multiple of `align`, a power of two; null for any other.
    pub fn vmalloc_aligned(
        &'static self,
        size: usize,
        align: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        if !align.is_power_of_two() {
            return null_mut();
        }
        self.area(
            AreaRequest { size, align: align.max(PAGE_SIZE), huge: false, fence: None },
            gfp,
            caller,
        )
    }

    #[inline(always)]
    fn area(&'static self, request: AreaRequest, gfp: Gfp, caller: Caller) -> *mut u8 {
        match self.areas().alloc_fast(request, gfp, caller) {
            Ok(at) => at,
            Err(_) if !self.ready() => null_mut(),
            Err(looked) => self.areas().alloc(request, looked, gfp, caller.with(gfp)),
        }
    }

    /// Frees an area from [`Self::vmalloc`] and its variants; null does nothing. An address that is
    /// not that of a live area is reported, and ends the program.
    ///
    /// # Safety
    /// No thread uses the area from here on.
    pub unsafe fn vfree(&'static self, at: *mut u8) {
        let address = at as usize;
        let in_areas = |set: &&ZoneSet| set.zone.pfn(address).is_some();
        let Some(set) = self.areas().zone().filter(in_areas) else {
            // On a platform without memory protection, areas are allocations of the heap.
            // SAFETY: the caller gives the memory up, by the contract.
            return unsafe { self.free(at) };
        };
        let start = Pfn(((address - set.zone.base()) >> PAGE_SHIFT) as u32);
        // SAFETY: the caller gives the area up, by the contract.
        if !address.is_multiple_of(PAGE_SIZE) || !unsafe { self.free_area(set, start) } {
            self.fault("vfree", address, self.areas().fault_at(set, address));
        }
    }

    /// Frees the area that begins at a page. False: none begins there.
    ///
    /// # Safety
    /// No thread uses the area from here on.
    #[inline(always)]
    pub(super) unsafe fn free_area(&'static self, set: &'static ZoneSet, start: Pfn) -> bool {
        // SAFETY: the same contract.
        match unsafe { self.areas().free(set, start) } {
            Freed::Done => true,
            Freed::NotFound => false,
            Freed::Full(run) => {
                if self.may_flush() {
                    self.areas().keep(run);
                }
                true
            }
        }
    }

    /// Changes the size of an area, in place if possible, else by moving its pages. The group that
    /// paid for it still pays, or with [`Gfp::RECHARGE`] the caller's. Null: there is no memory,
    /// and the area stays. With null for `at`, this is [`Self::vmalloc`].
    ///
    /// # Safety
    /// `at` is null or a live area that the caller alone uses. If it moves, no thread uses the old
    /// address afterwards.
    pub unsafe fn vrealloc(
        &'static self,
        at: *mut u8,
        size: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        if at.is_null() {
            return self.vmalloc(size, gfp, caller);
        }
        if !self.ready() {
            return null_mut();
        }
        let (address, caller) = (at as usize, caller.with(gfp));
        let in_areas = |set: &&ZoneSet| set.zone.pfn(address).is_some();
        let Some(set) = self.areas().zone().filter(in_areas) else {
            // SAFETY: the same contract.
            return unsafe { self.realloc(at, size, caller) };
        };
        let fits = |pages: &PageCount| *pages > PageCount::ZERO && size <= isize::MAX as usize;
        let Some(new) = PageCount::for_bytes(size).filter(fits) else {
            return null_mut();
        };
        // SAFETY: an area that the caller alone uses, by the contract.
        let (resized, old) = unsafe { self.areas().resize(set, address, new, caller) };
        let to = match resized {
            Resized::Refused => return null_mut(),
            Resized::Done => at,
            // SAFETY: a live area of that length, which the caller alone uses.
            Resized::Not => unsafe { self.move_area(set, at, (old, size), gfp, caller) },
        };
        let checks = self.heap().zones.checks();
        // As in the kernel's vrealloc, either option.
        let zeroes = checks.zeroes_on_alloc() || checks.zeroes_on_free();
        if to.is_null() {
            return to;
        }
        // SAFETY: pages of the area, which the caller alone uses; and the part of the last one
        // behind `size` bytes.
        unsafe {
            if (zeroes || gfp.has(Gfp::ZERO)) && new > old {
                to.add(old.bytes()).write_bytes(0, (new - old).bytes());
            }
            if zeroes {
                to.add(size).write_bytes(0, new.bytes() - size);
            }
        }
        to
    }

    /// Moves an area of `old` pages to a new one of `size` bytes. The same group pays for that, or
    /// the caller's if the caller asks for it.
    ///
    /// # Safety
    /// See [`Self::vrealloc`].
    unsafe fn move_area(
        &'static self,
        set: &ZoneSet,
        at: *mut u8,
        (old, size): (PageCount, usize),
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let words = set.zone.pfn(at as usize).and_then(|start| set.zone.words(start));
        let groups = &self.ledger.groups;
        let pin = |ext: &AtomicU32| groups.pin_payer(ext, pages_cost(old));
        let payer = words.and_then(|words| words.ext).map_or(ObjcgId::ROOT, pin);
        let pays = if caller.is_recharging() { caller } else { caller.charged_to(payer) };
        let to = self.vmalloc(size, gfp.without(Gfp::ZERO), pays);
        groups.unpin_payer(payer);
        if !to.is_null() {
            let pages = PageCount(size.div_ceil(PAGE_SIZE) as u32).min(old);
            // SAFETY: two areas of at least `pages` pages, which the caller alone uses. It gives
            // the old one up.
            unsafe {
                self.areas().move_pages(at, to, pages);
                self.vfree(at);
            }
        }
        to
    }

    /// Allocates a page that [`Self::vmap`] can map; [`Self::free`] frees it. Null: there is no
    /// memory, the group is at its limit, or the platform cannot map memory twice.
    pub fn alloc_vmap_page(&'static self, gfp: Gfp, caller: Caller) -> *mut u8 {
        if !self.ready() {
            return null_mut();
        }
        self.areas().alloc_page(gfp, caller.with(gfp))
    }

    /// Maps pages from [`Self::alloc_vmap_page`] one behind the other, followed by a page that
    /// faults. Null: there is no memory for the mapping, or one of `pages` is no such page.
    ///
    /// # Safety
    /// The pages are live, and are not freed before [`Self::vunmap`].
    pub unsafe fn vmap(&'static self, pages: &[*mut u8]) -> *mut u8 {
        if !self.ready() {
            return null_mut();
        }
        // SAFETY: the same contract.
        unsafe { self.areas().map(pages) }
    }

    /// Removes a mapping of [`Self::vmap`]; null does nothing. An address that is not that of a
    /// mapping is reported, and ends the program.
    ///
    /// # Safety
    /// No thread uses the mapping from here on.
    pub unsafe fn vunmap(&'static self, at: *mut u8) {
        if at.is_null() || !self.ready() {
            return;
        }
        // SAFETY: the same contract.
        unsafe { self.areas().unmap_pages(at as usize) };
    }

    /// Area, its guard included, that an address lies in; `None` for the area of a block with a
    /// fence. Takes constant time.
    pub fn find_area(&'static self, at: usize) -> Option<Area> {
        self.areas().find(at).filter(|area| !area.fenced)
    }

    /// Calls `each` with every area, lowest first, and with free areas with a guard that CPUs keep.
    pub fn each_area(&'static self, each: impl FnMut(Area)) {
        self.areas().each_area(each);
    }

    /// Passes lines in the format of the kernel's `/proc/vmallocinfo` to `write`. Instead of a
    /// function they name `function@file:line`, or the return address of the call.
    pub fn vmallocinfo(&'static self, write: impl FnMut(&[u8])) {
        self.areas().info(write);
    }

    /// Counts of vmalloc.
    pub fn vmalloc_stats(&'static self) -> VmallocStats {
        self.areas().stats()
    }
}
