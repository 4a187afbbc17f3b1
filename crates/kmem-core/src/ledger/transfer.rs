//! Changes of live allocations: another call site, another group, another length.

use kmem_layout::length;
use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::Ledger;
use crate::heap::{Live, ZoneSet};
use crate::memcg::stock::{Price, pages_cost};
use crate::memcg::{objcg_bits, objcg_of};
use crate::os::Platform;
use crate::page::{PageWords, Run};
use crate::request::Caller;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{ObjcgId, PageCount};

/// Outcome of a change of length in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resized {
    /// The length has changed.
    Done,
    /// The length cannot be changed in place.
    Not,
    /// The group that pays is at its limit.
    Refused,
}

impl<P: Platform> Ledger<P> {
    /// Writes the caller's site into the word of the live allocation at `at`, whose length changed
    /// from `from` to `to` bytes. Without books this does nothing, unless a group pays.
    pub fn rebook(
        &self,
        (at, ext): (usize, &AtomicU32),
        caller: Caller,
        (from, to): (usize, usize),
    ) {
        if !self.books.are_kept() && objcg_of(ext.load(Ordering::Relaxed)) == ObjcgId::ROOT {
            return;
        }
        let site = self.word_for(caller);
        let word = change(ext, |word| word & !(TAG_MASK | EXT_LIVE) | site);
        if self.books.watch().any() {
            self.saw_free(word, (at, from as u64));
            self.saw_alloc(site, (at, to as u64), caller);
        }
    }

    /// Bills a live allocation to another site and group. A group at its limit exceeds it. For an
    /// address that is not that of a live allocation, this does nothing.
    pub fn rebill(&'static self, at: usize, caller: Caller) {
        let (ext, price, bytes) = match self.heap.find(at) {
            Ok(Live::Object { class, ext: Some(ext) }) => {
                (ext, Price::Item(class.array()), class.size() as usize)
            }
            Ok(Live::Pages { run, words: PageWords { ext: Some(ext), .. }, .. }) => {
                (ext, Price::Pages(run.pages), run.pages.bytes())
            }
            _ => return,
        };
        let (new, caller) = (self.groups.payer(caller.objcg()), caller.nofail());
        let old = objcg_of(ext.load(Ordering::Relaxed));
        if old != new && (new == ObjcgId::ROOT || self.pay((price, bytes), new, caller)) {
            // The group may have changed to the parent of a deleted one meanwhile.
            let word = change(ext, |word| word & (TAG_MASK | EXT_LIVE) | objcg_bits(new));
            if objcg_of(word) != ObjcgId::ROOT {
                self.charging().refund(price, objcg_of(word));
            }
        }
        self.rebook((at, ext), caller, (bytes, bytes));
    }

    /// Changes the length of a page allocation in place, if possible. Charges or refunds the
    /// difference to the group that pays for it.
    ///
    /// # Safety
    /// `run` is a live page allocation of the heap, which the caller alone uses.
    pub unsafe fn resize_run(
        &'static self,
        set: &'static ZoneSet,
        run: Run,
        words: PageWords<'_>,
        bytes: usize,
        caller: Caller,
    ) -> Resized {
        let Some(new) = PageCount::for_bytes(bytes) else { return Resized::Not };
        self.recharge(words.ext, run.pages, new, caller, || {
            if new == run.pages {
                return true;
            }
            if !self.heap.resizes_in_place() {
                return false;
            }
            if new < run.pages {
                // Write the length first: otherwise the repair of a child forked in between would
                // count the freed pages to this run.
                words.len.store(new.0, Ordering::Release);
                // SAFETY: a run of the heap, whose user gives up the pages behind `new`.
                unsafe { self.heap.shorten_run(set, run, new) };
                return true;
            }
            let done = self.heap.lengthen_run(set, run, new);
            if done {
                words.len.store(new.0, Ordering::Release);
                self.note_peak();
            }
            done
        })
    }

    /// Makes the change from `old` to `new` pages by `change`. Charges the group in an extension
    /// word before it for more pages; refunds the group after it for fewer. Without a word, no
    /// group pays.
    pub fn recharge(
        &'static self,
        ext: Option<&AtomicU32>,
        old: PageCount,
        new: PageCount,
        caller: Caller,
        change: impl FnOnce() -> bool,
    ) -> Resized {
        let Some(ext) = ext else { return if change() { Resized::Done } else { Resized::Not } };
        let objcg = self.groups.pin_payer(ext, pages_cost(old));
        let to = self.groups.payer(caller.objcg());
        if caller.is_recharging() && to != objcg {
            let (paid, price) = (Price::Pages(old), (Price::Pages(new), new.bytes()));
            let resized = self.recharge_to((ext, paid), (to, price), caller, change);
            self.groups.unpin_payer(objcg);
            return resized;
        }
        let is_charged = objcg != ObjcgId::ROOT;
        let more = new.saturating_sub(old);
        let (more, bytes) = (Price::Pages(more), more.bytes());
        if is_charged && new > old && !self.pay((more, bytes), objcg, caller) {
            self.groups.unpin_payer(objcg);
            return Resized::Refused;
        }
        let done = change();
        if is_charged && done && new < old {
            self.charging().refund(Price::Pages(old - new), objcg);
        }
        if is_charged && !done && new > old {
            self.charging().refund(more, objcg);
        }
        self.groups.unpin_payer(objcg);
        if done { Resized::Done } else { Resized::Not }
    }

    /// Changes a live allocation by `alter`, after which `to` pays the new price. Refunds the old
    /// price to the group in the extension word.
    pub fn recharge_to(
        &'static self,
        (ext, old): (&AtomicU32, Price),
        (to, (new, bytes)): (ObjcgId, (Price, usize)),
        caller: Caller,
        alter: impl FnOnce() -> bool,
    ) -> Resized {
        if to != ObjcgId::ROOT && !self.pay((new, bytes), to, caller) {
            return Resized::Refused;
        }
        let (resized, payer, price) = if alter() {
            let word = change(ext, |word| word & (TAG_MASK | EXT_LIVE) | objcg_bits(to));
            (Resized::Done, objcg_of(word), old)
        } else {
            (Resized::Not, to, new)
        };
        if payer != ObjcgId::ROOT {
            self.charging().refund(price, payer);
        }
        resized
    }

    /// Makes a block one allocation per page, each with the same tag and group. A block of one page
    /// stays as it is.
    pub fn split(&'static self, set: &ZoneSet, run: Run) {
        let Some(first) = set.zone.words(run.start) else { return };
        if run.pages == PageCount::ONE || first.len.load(Ordering::Acquire) != run.pages.0 {
            return;
        }
        let piece = length::piece(run.pages.0.ilog2());
        let pin = |ext: &AtomicU32| self.groups.pin_payer(ext, pages_cost(run.pages));
        let objcg = first.ext.map_or(ObjcgId::ROOT, pin);
        // A block of an order owns whole pageblocks or none, so none is owned in part.
        set.zone.loosen(run);
        let word = first.word();
        // Go from the last page to the first: a concurrent census sees the whole block until the
        // end.
        for page in (1..run.pages.0).rev() {
            if let Some(words) = set.zone.words(run.start + PageCount(page)) {
                words.set_word(word);
                words.len.store(piece, Ordering::Release);
            }
        }
        first.len.store(piece, Ordering::Release);
        self.groups.unpin_payer(objcg);
        if self.books.watch().any() {
            self.saw_free(word, (set.zone.address(run.start), run.pages.bytes() as u64));
            for page in 0..run.pages.0 {
                let word = word & TAG_MASK | EXT_LIVE;
                let at = set.zone.address(run.start + PageCount(page));
                self.saw_alloc(word, (at, PageCount::ONE.bytes() as u64), Caller::NOBODY);
            }
        }
    }
}

/// Changes an extension word, of which another thread may change the group concurrently. Returns
/// the old word.
fn change(ext: &AtomicU32, to: impl Fn(u32) -> u32) -> u32 {
    let changed = ext.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| Some(to(word)));
    changed.unwrap_or_else(|word| word)
}
