//! Changes of size, in place or by moving.

use core::ptr::null_mut;

use super::Instance;
use super::free::Reuse;
use crate::class::{MAX_OBJECT, SizeClass};
use crate::heap::{Live, ZoneSet};
use crate::ledger::Resized;
use crate::memcg::objcg_of;
use crate::memcg::stock::{Price, object_cost, pages_cost};
use crate::os::Platform;
use crate::page::{PageWords, Placement, Purpose, Run};
use crate::request::Caller;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Gfp, ObjcgId, PAGE_SIZE};

/// Where an allocation must lie after a change of its size.
#[derive(Clone, Copy)]
struct Target {
    /// A power of two.
    align: usize,
    /// The node, if no other one may have it.
    only: Option<u32>,
    /// The nodes for a new allocation.
    placement: Option<Placement>,
}

impl Target {
    /// Anywhere.
    const ANY: Self = Self { align: 1, only: None, placement: None };
}

/// A live allocation that must move.
struct Old {
    at: *mut u8,
    /// Bytes that may be used.
    len: usize,
    /// Its zone and pages, for a page allocation.
    run: Option<(&'static ZoneSet, Run)>,
}

impl<P: Platform> Instance<P> {
    /// Changes the size of an allocation, in place or by moving it. The caller's site becomes its
    /// holder. The group that paid for it still pays; or the caller's group, for one that is
    /// [`Caller::recharging`]. Null: there is no memory, or the group is at its limit, and the old
    /// block stays as it was. An address that is not that of a live allocation is reported, and
    /// ends the program.
    ///
    /// # Safety
    /// `at` is null or a live allocation that the caller alone uses. If it moves, no thread uses
    /// the old address afterwards.
    pub unsafe fn realloc(&'static self, at: *mut u8, size: usize, caller: Caller) -> *mut u8 {
        if at.is_null() {
            return self.alloc(size, caller);
        }
        // SAFETY: the same contract.
        unsafe { self.realloc_to(at, size, Target::ANY, caller) }
    }

    /// Changes the size of an allocation as the kernel's `krealloc_node_align` does. If it moves,
    /// it lies at a multiple of `align` then, on a node as for [`Self::kmalloc_node`]. It moves if
    /// it does not lie at such a multiple, or with [`Gfp::THISNODE`] on another node. Size 0 frees
    /// it. [`Gfp::ZERO`] zeroes the bytes behind those that it had. For a null address this is
    /// [`Self::kmalloc_node`]. Null: see [`Self::realloc`]; or `align` is not a power of two.
    ///
    /// # Safety
    /// See [`Self::realloc`].
    ///
    /// # Examples
    /// ```
    /// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
    /// use kmem_core::units::Gfp;
    /// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
    /// let at = KMEM.kmalloc(100, Gfp::KERNEL, caller);
    /// // SAFETY: a live allocation, of which the new address alone is used from here on.
    /// unsafe {
    ///     let at = KMEM.krealloc_node_align(at, 300, 256, Gfp::THISNODE, Some(0), caller);
    ///     assert!((at as usize).is_multiple_of(256));
    ///     KMEM.free(at);
    /// }
    /// ```
    pub unsafe fn krealloc_node_align(
        &'static self,
        at: *mut u8,
        size: usize,
        align: usize,
        gfp: Gfp,
        node: Option<u32>,
        caller: Caller,
    ) -> *mut u8 {
        if !align.is_power_of_two() {
            return null_mut();
        }
        // SAFETY: the same contract; new bytes are those of the caller alone.
        unsafe {
            if size == 0 {
                self.free(at);
                return null_mut();
            }
            let caller = caller.with(gfp);
            let placement = self.placement(node, gfp);
            // As in the kernel, without the name of a node the old one will do.
            let only = match placement {
                Some(Placement::Only(only)) if node == Some(only) => Some(only),
                _ => None,
            };
            let target = Target { align, only, placement };
            let (old, new) = if at.is_null() {
                (0, self.alloc_to(size, target, caller))
            } else {
                (self.usable_size(at), self.realloc_to(at, size, target, caller))
            };
            if gfp.has(Gfp::ZERO) && !new.is_null() && size > old {
                new.add(old).write_bytes(0, size - old);
            }
            new
        }
    }

    /// Allocates `size` bytes.
    fn alloc_to(&'static self, size: usize, target: Target, caller: Caller) -> *mut u8 {
        let Target { align, placement, .. } = target;
        match placement {
            Some(placement) => self.alloc_on(placement, (size, align), Gfp::KERNEL, caller),
            None => self.alloc_aligned(size, align, caller),
        }
    }

    /// Returns whether an allocation lies where it must.
    fn is_at(&'static self, at: *mut u8, target: Target) -> bool {
        (at as usize).is_multiple_of(target.align)
            && (target.only.is_none() || target.only == self.page_to_nid(at))
    }

    /// [`Self::realloc`] of an allocation, which then lies where `target` says.
    ///
    /// # Safety
    /// See [`Self::realloc`].
    unsafe fn realloc_to(
        &'static self,
        at: *mut u8,
        size: usize,
        target: Target,
        caller: Caller,
    ) -> *mut u8 {
        if !self.ready() {
            return null_mut();
        }
        // SAFETY: a live allocation that the caller alone uses, by the contract.
        unsafe {
            match self.heap().find(at as usize) {
                Ok(Live::Object { class, ext }) => {
                    self.realloc_object(at, (class, ext), size, target, caller)
                }
                Ok(Live::Pages { set, run, words }) if set.purpose == Purpose::Vmalloc => {
                    let in_place = target.align <= PAGE_SIZE && target.only.is_none();
                    if size > 0 && in_place && !words.bounds().is_fenced {
                        return self.vrealloc(at, size, Gfp::KERNEL, caller);
                    }
                    let old = Old { at, len: words.bounds().room(run.pages), run: None };
                    let charge = words.ext.map(|ext| (ext, pages_cost(run.pages)));
                    self.move_for_payer(old, charge, size, target, caller)
                }
                Ok(Live::Pages { set, run, words }) => {
                    self.realloc_run(at, (set, run, words), size, target, caller)
                }
                Err(fault) => self.fault("realloc", at as usize, fault),
            }
        }
    }

    /// # Safety
    /// See [`Self::realloc`]. `at` is a live object of that class, with that extension word.
    unsafe fn realloc_object(
        &'static self,
        at: *mut u8,
        (class, ext): (SizeClass, Option<&AtomicU32>),
        size: usize,
        target: Target,
        caller: Caller,
    ) -> *mut u8 {
        let word = ext.map_or(0, |ext| ext.load(Ordering::Relaxed));
        // SAFETY: a live object that the caller alone uses, by the contract.
        unsafe {
            let len = self.ledger.object_len(at as usize, class);
            if self.is_at(at, target) && self.ledger.resize_object(at as usize, class, word, size) {
                if let Some(ext) = ext {
                    if !self.recharge_object(ext, class, caller) {
                        self.ledger.resize_object(at as usize, class, word, len);
                        return null_mut();
                    }
                    let bytes = class.size() as usize;
                    self.ledger.rebook((at as usize, ext), caller, (bytes, bytes));
                }
                return at;
            }
            let old = Old { at, len, run: None };
            let charge = ext.map(|ext| (ext, object_cost(class)));
            self.move_for_payer(old, charge, size, target, caller)
        }
    }

    /// Has the caller's group pay for a live object that only the caller uses, if the caller asks
    /// for that. False: the group is at its limit.
    fn recharge_object(&'static self, ext: &AtomicU32, class: SizeClass, caller: Caller) -> bool {
        let to = self.ledger.groups.payer(caller.objcg());
        let from = objcg_of(ext.load(Ordering::Relaxed));
        if !caller.is_recharging() || to == from {
            return true;
        }
        let price = Price::Item(class.array());
        let new = (price, class.size() as usize);
        let done = self.ledger.recharge_to((ext, price), (to, new), caller, || true);
        done == Resized::Done
    }

    /// # Safety
    /// See [`Self::realloc`]. `at` is a live page allocation of that zone, with that run and words.
    unsafe fn realloc_run(
        &'static self,
        at: *mut u8,
        (set, run, words): (&'static ZoneSet, Run, PageWords<'_>),
        size: usize,
        target: Target,
        caller: Caller,
    ) -> *mut u8 {
        if size > MAX_OBJECT && self.is_at(at, target) {
            // SAFETY: a live page allocation that the caller alone uses, by the contract.
            match unsafe { self.ledger.resize_run(set, run, words, size, caller) } {
                // A move would charge even more.
                Resized::Refused => return null_mut(),
                Resized::Not => {}
                Resized::Done => {
                    let now = words.length();
                    if let Some(ext) = words.ext {
                        let lengths = (run.pages.bytes(), now.bytes());
                        self.ledger.rebook((at as usize, ext), caller, lengths);
                    }
                    if self.heap().zones.checks().zeroes_on_alloc() {
                        // The bytes that the user gives up read as zero when the run grows again.
                        // SAFETY: pages of the run behind those that its user has from now on.
                        unsafe { at.add(size).write_bytes(0, now.bytes() - size) };
                    }
                    return at;
                }
            }
        }
        let old = Old { at, len: run.pages.bytes(), run: Some((set, run)) };
        // SAFETY: a live page allocation that the caller alone uses, by the contract.
        unsafe {
            let charge = words.ext.map(|ext| (ext, pages_cost(run.pages)));
            self.move_for_payer(old, charge, size, target, caller)
        }
    }

    /// Moves an allocation to a new one of `size` bytes. The same group pays for that, or the
    /// caller's if the caller asks for that. `charge` is the extension word and the charged bytes
    /// of the allocation. Null: there is no memory for a new one, and the old one stays.
    ///
    /// # Safety
    /// `old` and `charge` describe a live allocation that the caller alone uses.
    unsafe fn move_for_payer(
        &'static self,
        old: Old,
        charge: Option<(&AtomicU32, u64)>,
        size: usize,
        target: Target,
        caller: Caller,
    ) -> *mut u8 {
        if caller.is_recharging() {
            // SAFETY: the same contract.
            return unsafe { self.move_to_new(old, size, target, caller) };
        }
        let groups = &self.ledger.groups;
        let payer = charge.map_or(ObjcgId::ROOT, |(ext, bytes)| groups.pin_payer(ext, bytes));
        // SAFETY: the same contract.
        let new = unsafe { self.move_to_new(old, size, target, caller.charged_to(payer)) };
        groups.unpin_payer(payer);
        new
    }

    /// Moves an allocation to a new one of `size` bytes, for which the caller's group pays. Null:
    /// there is no memory for it, and the old one stays.
    ///
    /// # Safety
    /// `old` describes a live allocation that the caller alone uses.
    unsafe fn move_to_new(
        &'static self,
        old: Old,
        size: usize,
        target: Target,
        caller: Caller,
    ) -> *mut u8 {
        let Old { at, len, run } = old;
        let objcg = caller.objcg();
        // A run that grew once grows again, often page by page. An eighth more avoids most moves,
        // and takes no memory until it is written to. Skip it if the group would have to reclaim.
        let roomy = size.saturating_add(size / 8);
        let wanted = run.is_some() && size > len && roomy > MAX_OBJECT;
        let has_room = |bytes| self.ledger.groups.has_room(objcg, bytes);
        let mut new = if wanted && has_room((roomy as u64).saturating_mul(2)) {
            self.alloc_to(roomy, target, caller.once())
        } else {
            null_mut()
        };
        if new.is_null() {
            new = self.alloc_to(size, target, caller);
        }
        if new.is_null() {
            return new;
        }
        // SAFETY: both are live, distinct and at least that long. The caller gave the old one up.
        unsafe {
            if run.is_none() || !self.heap().move_contents(at, new, len.min(size)) {
                core::ptr::copy_nonoverlapping(at, new, len.min(size));
            }
            // A request of the old length is unlikely. The old pages are better used by runs next
            // to them that grow.
            match run {
                Some((set, run)) if self.free_run(set, run.start, Reuse::Unlikely) => {}
                _ => self.free(at),
            }
        }
        new
    }
}
