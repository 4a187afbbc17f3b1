//! Changes of the length of areas.

use core::cmp::Ordering::{Equal, Greater, Less};
use core::ptr::NonNull;

use super::area::On;
use super::{Area, Kind};
use crate::heap::ZoneSet;
use crate::ledger::Resized;
use crate::memcg::objcg_of;
use crate::os::Platform;
use crate::page::{Bounds, PageWords, Run};
use crate::report::Fault;
use crate::request::Caller;
use crate::sync::Ordering;
use crate::units::PageCount;

/// From this length on, the pages of an area are moved by the platform, not copied.
const REMAP_PAGES: PageCount = PageCount(64);

impl<P: Platform> On<P> {
    /// Changes the length of a live area in place, if possible. Returns the outcome, and the old
    /// length. The group that paid for the area is charged before it grows, or refunded after it
    /// shrank. An address that is not that of a live area is reported, and ends the program.
    ///
    /// # Safety
    /// The caller alone uses the area, and gives up the pages behind its new length.
    pub unsafe fn resize(
        self,
        set: &'static ZoneSet,
        at: usize,
        new: PageCount,
        caller: Caller,
    ) -> (Resized, PageCount) {
        let Some(Area { start, pages: old, kind: Kind::Vmalloc, .. }) = self.find(at) else {
            self.ledger.fault("vrealloc", at, Fault::NeverAllocated);
        };
        let Some((first, words)) = set
            .zone
            .pfn(start)
            .and_then(|first| Some((first, set.zone.words(first)?)).filter(|_| start == at))
        else {
            let (offset, pages) = (at - start, old.0);
            self.ledger.fault("vrealloc", at, Fault::InsidePages { block: start, offset, pages });
        };
        let run = Run { start: first, pages: old };
        let done = self.ledger.recharge(words.ext, old, new, caller, || match new.cmp(&old) {
            Equal => true,
            Less => self.shorten(set, run, words, new),
            Greater => self.lengthen(set, run, words, new),
        });
        if done == Resized::Done {
            words.set_bounds(Bounds::NONE);
            let payer = objcg_of(words.word());
            let caller = caller.charged_to(self.ledger.groups.living(payer));
            if let Some(ext) = words.ext {
                let lengths = (old.bytes(), new.bytes());
                self.ledger.rebook((at, ext), caller, lengths);
            }
        }
        (done, old)
    }

    /// Moves the contents of the first pages of an area to another one.
    ///
    /// # Safety
    /// `from` and `to` are distinct areas of at least `pages` pages, which the caller alone uses.
    pub unsafe fn move_pages(self, from: *mut u8, to: *mut u8, pages: PageCount) {
        let bytes = pages.bytes();
        let (Some(at), Some(new)) = (NonNull::new(from), NonNull::new(to)) else { return };
        let platform = self.ledger.platform();
        // SAFETY: committed pages of two areas, which the caller alone uses, by the contract.
        if pages >= REMAP_PAGES && unsafe { platform.remap(at, new, bytes) } {
            return;
        }
        // SAFETY: pages of two areas, which the caller alone uses, by the contract.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }

    /// Gives the last pages of an area back.
    fn shorten(
        self,
        set: &'static ZoneSet,
        run: Run,
        words: PageWords<'_>,
        new: PageCount,
    ) -> bool {
        if self.checks().zeroes_on_free() {
            let given_up = Run { start: run.start + new, pages: run.pages - new };
            // SAFETY: the last pages of the area, which its user gives up.
            unsafe { self.clear(set, given_up) };
        }
        words.len.store(new.0, Ordering::Release);
        let (guard, old_guard) = (run.start + new, run.end());
        self.guard(set, guard);
        let stuck = PageCount(u32::from(!self.remove_guard(set, old_guard)));
        let rest = Run { start: guard + PageCount::ONE, pages: run.pages - new - stuck };
        if rest.pages > PageCount::ZERO {
            self.ledger.heap.give_pages(set, rest);
        }
        true
    }

    /// Takes the pages behind an area. False: they are not free.
    fn lengthen(
        self,
        set: &'static ZoneSet,
        run: Run,
        words: PageWords<'_>,
        new: PageCount,
    ) -> bool {
        let (guard, more) = (run.end(), new - run.pages);
        let behind = Run { start: guard + PageCount::ONE, pages: more };
        if u64::from(guard.0) + u64::from(more.0) >= u64::from(set.zone.committed().0)
            || !set.zone.claim_at(behind.start, more)
        {
            return false;
        }
        if self.guard_bits(set).has(guard) {
            if !self.make_accessible(set, Run { start: guard, pages: PageCount::ONE }) {
                self.ledger.heap.give_pages(set, behind);
                return false;
            }
            self.forget_guard(set, guard);
        }
        self.guard(set, run.start + new);
        self.number_pages(set, run.start, run.pages, new + PageCount::ONE);
        words.len.store(new.0, Ordering::Release);
        true
    }
}
