//! Changes of size, in place or by moving.

use core::ptr::null_mut;

use super::Instance;
use super::free::Reuse;
use crate::class::{MAX_OBJECT, SizeClass};
use crate::heap::{Live, ZoneSet};
use crate::ledger::Resized;
use crate::memcg::stock::objcg_of;
use crate::os::Platform;
use crate::page::{PageWords, Purpose, Run};
use crate::request::Caller;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Gfp, ObjcgId};

/// A live allocation that must move.
struct Old {
    at: *mut u8,
    /// Bytes that may be used.
    len: usize,
    /// Group that pays for it.
    objcg: ObjcgId,
    /// Its zone and pages, for a page allocation.
    run: Option<(&'static ZoneSet, Run)>,
}

impl<P: Platform> Instance<P> {
    /// Changes the size of an allocation, in place or by moving it. The caller's site becomes its
    /// holder; the group that paid for it still pays. Null: there is no memory, or the group is at
    /// its limit, and the old block stays. An address that is not that of a live allocation is
    /// reported, and ends the program.
    ///
    /// # Safety
    /// `at` is null or a live allocation that the caller alone uses. If it moves, no thread uses
    /// the old address afterwards.
    pub unsafe fn realloc(&'static self, at: *mut u8, size: usize, caller: Caller) -> *mut u8 {
        if at.is_null() {
            return self.alloc(size, caller);
        }
        if !self.ready() {
            return null_mut();
        }
        // SAFETY: a live allocation that the caller alone uses, by the contract.
        unsafe {
            match self.heap().find(at as usize) {
                Ok(Live::Object { class, ext }) => {
                    self.realloc_object(at, (class, ext), size, caller)
                }
                Ok(Live::Pages { set, .. }) if set.purpose == Purpose::Vmalloc && size > 0 => {
                    self.vrealloc(at, size, Gfp::KERNEL, caller)
                }
                Ok(Live::Pages { set, run, words }) => {
                    self.realloc_run(at, (set, run, words), size, caller)
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
        caller: Caller,
    ) -> *mut u8 {
        let word = ext.map_or(0, |ext| ext.load(Ordering::Relaxed));
        // SAFETY: a live object that the caller alone uses, by the contract.
        unsafe {
            if self.ledger.resize_object(at as usize, class, word, size) {
                if let Some(ext) = ext {
                    let bytes = class.size() as usize;
                    self.ledger.rebook(ext, caller, bytes, bytes);
                }
                return at;
            }
            let len = self.ledger.object_len(at as usize, class);
            self.move_to_new(Old { at, len, objcg: objcg_of(word), run: None }, size, caller)
        }
    }

    /// # Safety
    /// See [`Self::realloc`]. `at` is a live page allocation of that zone, with that run and words.
    unsafe fn realloc_run(
        &'static self,
        at: *mut u8,
        (set, run, words): (&'static ZoneSet, Run, PageWords<'_>),
        size: usize,
        caller: Caller,
    ) -> *mut u8 {
        if size > MAX_OBJECT {
            // SAFETY: a live page allocation that the caller alone uses, by the contract.
            match unsafe { self.ledger.resize_run(set, run, words, size, caller) } {
                // A move would charge even more.
                Resized::Refused => return null_mut(),
                Resized::Not => {}
                Resized::Done => {
                    let now = crate::units::PageCount(words.len.load(Ordering::Relaxed));
                    self.ledger.rebook(words.ext, caller, run.pages.bytes(), now.bytes());
                    if self.heap().zones.checks().zeroes_on_alloc() {
                        // The bytes that the user gives up read as zero when the run grows again.
                        // SAFETY: pages of the run behind those that its user has from now on.
                        unsafe { at.add(size).write_bytes(0, now.bytes() - size) };
                    }
                    return at;
                }
            }
        }
        let objcg = objcg_of(words.ext.load(Ordering::Relaxed));
        let old = Old { at, len: run.pages.bytes(), objcg, run: Some((set, run)) };
        // SAFETY: a live page allocation that the caller alone uses, by the contract.
        unsafe { self.move_to_new(old, size, caller) }
    }

    /// Moves an allocation to a new one of `size` bytes, for which the same group pays. Null: there
    /// is no memory for it, and the old one stays.
    ///
    /// # Safety
    /// `old` describes a live allocation that the caller alone uses.
    unsafe fn move_to_new(&'static self, old: Old, size: usize, caller: Caller) -> *mut u8 {
        let Old { at, len, objcg, run } = old;
        let objcg = self.ledger.groups.living(objcg);
        let caller = caller.charged_to(objcg);
        // A run that grew once grows again, often page by page. An eighth more avoids most moves,
        // and takes no memory until it is written to. Skip it if the group would have to reclaim.
        let roomy = size.saturating_add(size / 8);
        let wanted = run.is_some() && size > len && roomy > MAX_OBJECT;
        let has_room = |bytes| self.ledger.groups.has_room(objcg, bytes);
        let mut new = if wanted && has_room((roomy as u64).saturating_mul(2)) {
            self.alloc(roomy, caller.once())
        } else {
            null_mut()
        };
        if new.is_null() {
            new = self.alloc(size, caller);
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
