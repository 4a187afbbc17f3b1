//! Requests that name a NUMA node (the kernel's `_node` functions). They pass the arrays of CPUs,
//! whose items may be of any node, and take from slabs and zones.

use core::ptr::null_mut;

use super::{Cache, Instance};
use crate::heap::Fit;
use crate::os::Platform;
use crate::page::Placement;
use crate::request::Caller;
use crate::units::{Gfp, MAX_ORDER, Order, PAGE_SIZE, PageCount};

impl<P: Platform> Instance<P> {
    /// Allocates `size` bytes of a node as the kernel's `kmalloc_node` does; null on failure. A
    /// node without memory is replaced by the nearest that has some, but not with
    /// [`Gfp::THISNODE`]. `None`, or a node that the machine does not have: see [`Self::kmalloc`].
    ///
    /// # Examples
    /// ```
    /// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
    /// use kmem_core::units::Gfp;
    /// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
    /// let at = KMEM.kmalloc_node(100, Gfp::THISNODE, Some(0), caller);
    /// assert_eq!(KMEM.page_to_nid(at), Some(0));
    /// // SAFETY: a live allocation, which is used no longer.
    /// unsafe { KMEM.free(at) };
    /// ```
    pub fn kmalloc_node(
        &'static self,
        size: usize,
        gfp: Gfp,
        node: Option<u32>,
        caller: Caller,
    ) -> *mut u8 {
        let gfp_here = gfp.without(Gfp::THISNODE);
        match self.placement(node, gfp) {
            Some(placement) => self.alloc_on(placement, (size, 1), gfp, caller.with(gfp)),
            None => self.kmalloc(size, gfp_here, caller),
        }
    }

    /// Allocates an object of a cache, of a node; see [`Self::kmalloc_node`].
    pub fn cache_alloc_node(
        &'static self,
        cache: &Cache,
        gfp: Gfp,
        node: Option<u32>,
        caller: Caller,
    ) -> *mut u8 {
        match self.placement(node, gfp) {
            _ if self.refuses_zeroes(cache, gfp) => null_mut(),
            Some(placement) => self.cache_alloc_on(cache, placement, gfp, caller),
            None => self.cache_alloc(cache, gfp.without(Gfp::THISNODE), caller),
        }
    }

    /// Allocates an object of a cache, of chosen nodes.
    pub(super) fn cache_alloc_on(
        &'static self,
        cache: &Cache,
        placement: Placement,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let object = self.alloc_on(placement, cache.layout(), gfp, caller.with(gfp));
        if !object.is_null() {
            self.enter_object(cache, object);
        }
        object
    }

    /// [`Self::alloc_pages_exact`] of a node; see [`Self::kmalloc_node`].
    pub fn alloc_pages_exact_node(
        &'static self,
        node: Option<u32>,
        bytes: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let Some(placement) = self.placement(node, gfp).filter(|_| bytes > 0) else {
            return self.alloc_pages_exact(bytes, gfp, caller);
        };
        let run = (PageCount::ONE, Fit::Exact, Some(placement));
        self.ledger.alloc_run_on(bytes, run, gfp, caller.with(gfp))
    }

    /// Allocates a block of `1 << order` pages of a node. Null: see [`Self::alloc_pages`] and
    /// [`Self::kmalloc_node`].
    pub fn alloc_pages_node(
        &'static self,
        node: Option<u32>,
        order: Order,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let gfp_here = gfp.without(Gfp::THISNODE);
        let Some(placement) = self.placement(node, gfp) else {
            return self.alloc_pages(order, gfp_here, caller);
        };
        if u32::from(order.0) > MAX_ORDER {
            return null_mut();
        }
        let (pages, caller) = (order.pages(), caller.with(gfp));
        self.ledger.alloc_run_on(pages.bytes(), (pages, Fit::Exact, Some(placement)), gfp, caller)
    }

    /// [`Self::alloc_pages_bulk`] of a node; see [`Self::kmalloc_node`]. Pages of a node that is
    /// named are allocated one by one.
    pub fn alloc_pages_bulk_node(
        &'static self,
        node: Option<u32>,
        gfp: Gfp,
        out: &mut [*mut u8],
        caller: Caller,
    ) -> usize {
        if self.ready() && self.placement(node, gfp).is_none() {
            self.ledger.alloc_singles(out, gfp, caller.with(gfp));
        }
        let mut filled = 0;
        for slot in out {
            if slot.is_null() {
                *slot = self.alloc_pages_node(node, Order(0), gfp, caller);
            }
            if slot.is_null() {
                break;
            }
            filled += 1;
        }
        filled
    }

    /// The nodes for a request. `None`: any, those near to the calling thread's CPU first.
    pub(super) fn placement(&'static self, node: Option<u32>, gfp: Gfp) -> Option<Placement> {
        if !self.ready() || !self.heap().zones.has_several_nodes() {
            return None;
        }
        let zones = &self.heap().zones;
        match node.filter(|&node| node < zones.nodes()) {
            Some(node) if gfp.has(Gfp::THISNODE) => Some(Placement::Only(node)),
            Some(node) => Some(Placement::Near(node)),
            None if gfp.has(Gfp::THISNODE) => Some(Placement::Only(zones.node(self.platform()))),
            None => None,
        }
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two, of chosen nodes.
    pub(super) fn alloc_on(
        &'static self,
        placement: Placement,
        (size, align): (usize, usize),
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        if self.ledger.guards.checks().has_fences() {
            return self.alloc_run(size, align, gfp, caller);
        }
        let class = self.ledger.class_aligned(size, align);
        let Some(class) = class else {
            let align = PageCount::for_bytes(align.div_ceil(PAGE_SIZE) * PAGE_SIZE);
            let Some(align) = align else { return null_mut() };
            let run = (align, Fit::Exact, Some(placement));
            return self.ledger.alloc_run_on(size, run, gfp, caller);
        };
        let at = self.ledger.alloc_object_on(class, placement, caller).address() as *mut u8;
        if !at.is_null() {
            // SAFETY: this call allocated the object, whose class has room for `size` bytes and the
            // red zone.
            unsafe {
                self.ledger.guard_object(at as usize, class, size);
                if gfp.has(Gfp::ZERO) {
                    at.write_bytes(0, size);
                }
            }
        }
        at
    }
}
