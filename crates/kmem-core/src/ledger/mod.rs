//! The ledger: who pays for memory and who holds it. All allocations take one sequence of steps,
//! and all frees another.
//!
//! ```text
//! alloc:  charge the group --> take from the heap, with effort --> write the extension word
//!           | at its limit       | none: refund, report            --> watch --> note the peak
//! free:   check --> watch --> refund the group
//! ```
//!
//! The fast paths of `malloc` and `free` do the same with one store each and come here only when
//! they cannot.
//!
//! | file            | what it does                                                 |
//! |-----------------|--------------------------------------------------------------|
//! | `objects`       | objects of slabs                                             |
//! | `pages`         | blocks and runs of pages                                     |
//! | `effort`        | retries before a request is refused                          |
//! | `transfer`      | another site, group or length for an allocation              |
//! | `watch`         | calls that are counted or checked one by one                 |
//! | `tracer`        | samples of allocations for a tracer outside the process      |
//! | `object_checks` | which checks of objects are on; records, caches              |
//! | `age`           | times of allocations                                         |
//! | `interface`     | which functions allocated an object, and may free it         |
//! | `red_zone`      | bytes around objects that no program may write to            |
//! | `fence`         | bytes around blocks that end in front of a guard             |
//! | `hold_back`     | freed objects in the quarantine                              |
//! | `exit_check`    | the last look at objects, when a program ends                |
//! | `misuse`        | the end of a program that misused memory                     |
//! | `here`          | the program's call that led into the allocator               |
//! | `tags`          | static tags of objects that are loaded and unloaded          |
//! | `fork`          | repair in a forked child                                     |
//!
//! Context: any; but shrinkers are called, see [`crate::memcg::Shrink`].

use kmem_layout::root::RootBlock;
use kmem_layout::word::{EXT_LIVE, TAG_UNTAGGED};

use crate::alloc_tag::{Books, Census, Samples};
use crate::heap::{Heap, ZoneSet};
use crate::memcg::stock::{Charging, Price};
use crate::memcg::{AtMax, Groups, Limits, objcg_bits, objcg_of};
use crate::os::Platform;
use crate::page::{PageWords, Run};
use crate::report::{Reporter, Reports};
use crate::request::Caller;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{ObjcgId, PageCount};

mod age;
mod effort;
mod exit_check;
mod fence;
mod fork;
mod here;
mod hold_back;
mod insist;
mod interface;
mod misuse;
mod object_checks;
mod objects;
mod pages;
mod red_zone;
mod tags;
mod tracer;
mod transfer;
mod watch;

pub use effort::COSTLY;
use effort::Tried;
pub use hold_back::HeldBack;
use insist::Refused;
pub use interface::Interface;
pub use object_checks::{CacheNumber, ObjectChecks, ObjectGuards};
pub use transfer::Resized;

/// Longest time in milliseconds that a misuse, or an object that is unloaded, waits for a record or
/// a report of another thread.
const RECORD_WAIT_MS: u64 = 500;

/// The ledger of an instance, over its heap. Zeroed memory, but for the platform, is a valid value:
/// not started.
#[repr(C)]
pub struct Ledger<P> {
    /// The memory.
    pub heap: Heap<P>,
    /// Who holds what.
    pub books: Books,
    /// Who pays for what.
    pub groups: Groups,
    /// Checks of objects.
    pub guards: ObjectGuards,
    /// Samples of allocations for a tracer.
    pub(crate) samples: Samples,
    /// State of the reports.
    pub reports: Reports,
    /// The request of an interpreter that was refused last.
    refused: Refused,
}

/// A part of an instance that allocates through the ledger.
pub struct Over<T: 'static, P: 'static> {
    /// The part.
    pub part: &'static T,
    /// The ledger.
    pub ledger: &'static Ledger<P>,
}

impl<T, P> Clone for Over<T, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, P> Copy for Over<T, P> {}

/// A request as the ledger sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Price for a group.
    pub price: Price,
    /// Bytes of the request, for reports.
    pub bytes: usize,
    /// Longest block that [`crate::units::Effort::Endless`] waits for without end.
    pub endless: PageCount,
}

/// Memory that was taken from the heap, and the words that say who holds it.
#[derive(Clone, Copy)]
pub struct Taken<'a> {
    /// Its address.
    pub at: usize,
    /// Bytes of it.
    pub bytes: usize,
    /// Its extension word; `None` in an instance without books, but for areas.
    pub ext: Option<&'a AtomicU32>,
    /// For pages, the word of the length, and the length.
    pub pages: Option<(&'a AtomicU32, PageCount)>,
}

impl<'a> Taken<'a> {
    /// A run of pages of a zone. `None`: it is not committed; claimed runs always are.
    #[inline]
    pub fn run(set: &'a ZoneSet, run: Run) -> Option<Self> {
        let PageWords { ext, len, .. } = set.zone.words(run.start)?;
        let (at, bytes) = (set.zone.address(run.start), run.pages.bytes());
        Some(Self { at, bytes, ext, pages: Some((len, run.pages)) })
    }

    /// Writes its extension word and its length.
    fn book(&self, word: u32) {
        if let Some(ext) = self.ext {
            ext.store(word, Ordering::Relaxed);
        }
        if let Some((len, pages)) = self.pages {
            // Release: a reader that sees the length sees the extension word.
            len.store(pages.0, Ordering::Release);
        }
    }
}

impl<P: Platform> Ledger<P> {
    /// A ledger over a heap, not started.
    pub const fn over(platform: P) -> Self {
        Self {
            heap: Heap::over(platform),
            books: Books::new(),
            groups: Groups::new(),
            guards: ObjectGuards::new(),
            samples: Samples::new(),
            reports: Reports::new(),
            refused: Refused::new(),
        }
    }

    /// The platform.
    #[inline]
    pub fn platform(&self) -> &P {
        &self.heap.platform
    }

    /// View for charging groups on this CPU.
    #[inline]
    pub fn charging(&self) -> Charging<'_, P> {
        Charging { groups: &self.groups, slots: &self.heap.slots, platform: &self.heap.platform }
    }

    /// View for counting live allocations.
    #[inline]
    pub fn census(&self) -> Census<'_> {
        // SAFETY: all slabs of the instance are made with these classes and these extension words,
        // which never change after start.
        unsafe { Census::new(&self.heap.zones, &self.heap.classes, self.heap.format()) }
    }

    /// View for making reports.
    pub fn reporter(&self) -> Reporter<'_, P> {
        Reporter {
            platform: &self.heap.platform,
            books: &self.books,
            groups: &self.groups,
            reports: &self.reports,
        }
    }

    /// Serves a request: charges the group, takes memory by `take`, writes the extension word.
    /// `None`: the group is at its limit, or there is no memory; both are told or reported.
    pub fn alloc<'a>(
        &'static self,
        request: Request,
        caller: Caller,
        mut take: impl FnMut() -> Option<Taken<'a>>,
    ) -> Option<Taken<'a>> {
        self.look_outside();
        self.books.note_fork(self.platform(), &self.census(), &self.groups);
        let objcg = self.groups.payer(caller.objcg());
        let is_charged = objcg != ObjcgId::ROOT;
        if is_charged && !self.pay((request.price, request.bytes), objcg, caller) {
            return None;
        }
        let mut tried = Tried::default();
        // One call of `take`, so that it is inlined and its result stays in registers.
        let mut taken = loop {
            if let Some(taken) = take() {
                break taken;
            }
            if self.try_again(request, caller, &mut tried) {
                continue;
            }
            if is_charged {
                self.charging().refund(request.price, objcg);
            }
            self.reporter().out_of_memory(&self.census(), request.bytes, caller);
            return None;
        };
        if is_charged {
            self.refund_rest(request.price, &taken, objcg);
        }
        let word = self.word_for(caller) | objcg_bits(objcg);
        if self.books.watch().checks() {
            self.check_cleared(&taken);
        }
        if !is_charged && taken.pages.is_none() && !self.books.are_kept() {
            // Without books, words are those of charged objects.
            taken.ext = None;
        }
        taken.book(word);
        if self.books.watch().any() {
            self.saw_alloc(word, (taken.at, taken.bytes as u64), caller);
        }
        self.note_peak();
        Some(taken)
    }

    /// Takes over what was written to the root block from outside.
    #[inline]
    fn look_outside(&'static self) {
        self.books.look_outside();
        self.look_for_tracer();
        if let Some(root) = self.books.root()
            && root.request.number.load(Ordering::Relaxed) != 0
        {
            self.serve_request(root);
        }
    }

    #[cold]
    #[inline(never)]
    fn serve_request(&'static self, root: &RootBlock) {
        let made = |used| {
            root.group_count.fetch_max(used, Ordering::Release);
        };
        if let Some(deleted) = self.groups.serve(self.platform(), &root.request, made) {
            self.charging().recall_deleted();
            self.groups.settle(deleted.objcg());
        }
    }

    /// Notes that memory was allocated: writes records of the books, and a report that is due.
    /// Inlined: records need most of a small stack, and have no room for one more frame.
    #[inline(always)]
    fn note_peak(&'static self) {
        self.books.note_peak(self.platform(), &self.census(), &self.groups);
        self.reporter().make_due(&self.census());
    }

    /// Takes an allocation at `at` out of the books. Its extension word was `word`, whose live bit
    /// the caller has cleared.
    pub fn free(&'static self, word: u32, price: Price, bytes: usize, at: usize) {
        if self.books.watch().any() {
            self.saw_free(word, (at, bytes as u64));
        }
        let objcg = objcg_of(word);
        if objcg != ObjcgId::ROOT {
            self.charging().refund(price, objcg);
        }
    }

    /// Extension word of a live allocation by a caller, without a group.
    pub fn word_for(&self, caller: Caller) -> u32 {
        if self.books.are_kept() {
            self.books.word_for(self.platform(), caller)
        } else {
            EXT_LIVE | TAG_UNTAGGED
        }
    }

    /// Charges a group for a request of `bytes`. False: it is at its limit, which is reported.
    pub fn pay(
        &'static self,
        (price, bytes): (Price, usize),
        objcg: ObjcgId,
        caller: Caller,
    ) -> bool {
        // A program may use other memory than that of the heap, and the stocks are in the heap.
        self.heap.ensure_arrays();
        let limits = if caller.is_nofail() { Limits::Exceed } else { Limits::Obey };
        match self.charging().pay(price, objcg, limits) {
            Ok(()) => true,
            Err(AtMax(at)) => {
                if self.pay_insistent((price, bytes), (at, objcg), caller) {
                    return true;
                }
                // Report only a refusal. A shrinker and a request that exceeds limits are served.
                if limits == Limits::Obey && !crate::task::is_shrinking() {
                    let (census, bytes) = (self.census(), (bytes as u64, price.bytes()));
                    self.reporter().group_refused(&census, (at, objcg), bytes, caller);
                }
                false
            }
        }
    }

    /// Refunds the price of pages that were paid for but not taken.
    fn refund_rest(&'static self, price: Price, taken: &Taken<'_>, objcg: ObjcgId) {
        if let (Price::Pages(paid), Some((_, pages))) = (price, taken.pages)
            && pages < paid
        {
            self.charging().refund(Price::Pages(paid - pages), objcg);
        }
    }
}
