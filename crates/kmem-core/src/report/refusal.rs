//! The function of the program that is told of refused requests, in place of the report on standard
//! error.
//!
//! ```text
//! refused --> is there a function, and is this thread in no callback? --yes--> call it
//!                                   | no
//!                                   v
//!                                 the report, at most once in five seconds
//! ```
//!
//! The function is called where shrinkers may be called: the thread holds no lock of the allocator.
//! While it runs, the thread is marked as one within a shrinker. So limits refuse its allocations
//! nothing, and a failure within it is reported on standard error. That bounds the recursion.

use core::cell::OnceCell;
use core::ffi::c_void;

use kmem_layout::group::NO_LIMIT;
use kmem_layout::word::TAG_MASK;

use super::Reporter;
use super::line::Line;
use super::name::SiteName;
use crate::callback::Callback;
use crate::codetag::CallSite;
use crate::memcg::GroupId;
use crate::os::Platform;
use crate::request::Caller;
use crate::sync::{AtomicU32, Ordering, spin};
use crate::task;
use crate::units::{ObjcgId, PAGE_SIZE, TagId};

/// Reason of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RefusalReason {
    /// There is no memory.
    NoMemory = 0,
    /// A group is at its `max`.
    AtMax = 1,
}

/// A request that was refused: `struct kmem_refusal` of `kmem/refusal.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Refusal {
    /// Size of the structure in bytes.
    size: u64,
    /// The group whose `max` refused the request; the root if there is no memory.
    pub group: GroupId,
    /// The group of the request: that one, or one below it.
    pub payer: GroupId,
    /// Bytes of the request. A small one counts with the bytes of its size class, and a change of
    /// size with the bytes that it adds.
    pub bytes: u64,
    /// Bytes charged to `group`, with what CPUs keep for it. For the root: bytes of pages in use.
    pub usage: u64,
    /// `max` of `group` in bytes. For the root: most bytes that the heap may have.
    pub limit: u64,
    /// Return address of the call that asked; 0 for a static tag, or if it is not known.
    pub caller: usize,
    /// Tag of the call site, see [`crate::Instance::refusal_site`].
    tag: u32,
    /// Reason of the refusal.
    pub reason: RefusalReason,
}

const _: () = assert!(size_of::<Refusal>() == 8 * 8);

/// Function that is told of a refusal. It runs on the thread that allocates, which may hold any
/// lock of the program. So it must not wait for a lock, and it must return. The root pays for its
/// allocations.
pub type OnRefusal = unsafe extern "C" fn(data: *mut c_void, refusal: *const Refusal);

/// The function of an instance. Zeroed memory is a valid value: none.
///
/// # Invariants
/// `function` is empty, or has an [`OnRefusal`] that any thread may call with its data until it is
/// removed.
pub(super) struct Handler {
    function: Callback,
    /// 1 while a thread replaces the function.
    taken: AtomicU32,
}

impl Handler {
    /// None.
    pub(super) const fn new() -> Self {
        Self { function: Callback::none(), taken: AtomicU32::new(0) }
    }

    /// Replaces the function, and returns when no thread runs the old one. Calls `wait` while this
    /// waits for other threads.
    ///
    /// # Safety
    /// Any thread may call a new function with its data until it is replaced.
    pub(super) unsafe fn replace(&self, new: Option<(OnRefusal, *mut c_void)>, wait: impl Fn()) {
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        while self.taken.compare_exchange(0, 1, done, failed).is_err() {
            spin();
            wait();
        }
        self.function.remove(wait);
        // INVARIANT: the function may be called with the data, by the contract.
        if let Some((call, data)) = new {
            self.function.set(call as *const (), data);
        }
        self.taken.store(0, Ordering::Release);
    }

    /// In a forked child: other threads neither run the function nor replace it.
    pub(super) fn forget(&self) {
        self.function.forget_calls();
        self.taken.store(0, Ordering::Relaxed);
    }

    /// Returns whether a refusal on this thread is told.
    fn listens(&self) -> bool {
        self.function.is_set() && !task::is_shrinking()
    }

    /// Calls the function. False: there is none.
    fn call(&self, refusal: &Refusal) -> bool {
        let told = self.function.with(|call, data| {
            let group = task::replace_group(ObjcgId::ROOT);
            task::while_shrinking(|| {
                // SAFETY: an `OnRefusal` that may be called with its data (invariant): it is not
                // removed while this call is counted.
                unsafe { core::mem::transmute::<*const (), OnRefusal>(call)(data, refusal) }
            });
            task::replace_group(group);
        });
        told.is_some()
    }
}

/// The caller of a refused request. Its tag is looked up once, for the first that needs it: the
/// black box, the function or the report.
pub(super) struct Asker {
    caller: Caller,
    tag: OnceCell<TagId>,
}

impl Asker {
    pub(super) fn new(caller: Caller) -> Self {
        Self { caller, tag: OnceCell::new() }
    }

    /// Its tag, for an instance with books.
    pub(super) fn tag<P: Platform>(&self, reporter: &Reporter<'_, P>) -> TagId {
        let look_up = || reporter.books.word_for(reporter.platform, self.caller) & TAG_MASK;
        *self.tag.get_or_init(|| TagId(look_up()))
    }
}

impl<P: Platform> Reporter<'_, P> {
    /// Tells the program of a refusal at the `max` of the group `at`; the root: there is no memory.
    /// False: the program has no function for it, or this thread is in a callback.
    pub(super) fn tell(&self, at: ObjcgId, payer: ObjcgId, bytes: u64, asker: &Asker) -> bool {
        let handler = &self.reports.handler;
        handler.listens() && handler.call(&self.refusal(at, payer, bytes, asker))
    }

    #[inline(never)]
    fn refusal(&self, at: ObjcgId, payer: ObjcgId, bytes: u64, asker: &Asker) -> Refusal {
        let (sites, site) = (&self.books.sites, asker.caller.site());
        // Without books there is no table of sites.
        let (tag, address) = if self.books.are_kept() {
            let tag = asker.tag(self);
            (tag.0, sites.address(tag))
        } else {
            let is_call = site.static_tag().is_none() && site != CallSite::NOBODY;
            (0, if is_call { site.address } else { 0 })
        };
        let living = |objcg| self.groups.id(self.groups.living(objcg)).unwrap_or(GroupId::ROOT);
        let (usage, limit, reason) = if at == ObjcgId::ROOT {
            let used = self.books.root().map_or(0, |root| root.used_pages.load(Ordering::Relaxed));
            let most = self.platform.budget();
            let most = most.memory.min(most.limit) as u64;
            (u64::from(used) * PAGE_SIZE as u64, most, RefusalReason::NoMemory)
        } else {
            let (usage, max) = self.groups.usage(at).unwrap_or((0, NO_LIMIT));
            (usage, max, RefusalReason::AtMax)
        };
        Refusal {
            size: size_of::<Refusal>() as u64,
            group: if at == ObjcgId::ROOT { GroupId::ROOT } else { living(at) },
            payer: if payer == ObjcgId::ROOT { GroupId::ROOT } else { living(payer) },
            bytes,
            usage,
            limit,
            caller: address,
            tag,
            reason,
        }
    }

    /// Writes the call site of a refusal, as the report names it, into a line.
    pub fn refusal_site(&self, refusal: &Refusal) -> Line {
        let (sites, tag) = (&self.books.sites, TagId(refusal.tag & TAG_MASK));
        let line = core::cell::RefCell::new(Line::new());
        self.with_mappings(refusal.caller != 0, |maps| {
            line.borrow_mut().add(format_args!("{}", SiteName { sites, tag, maps }));
        });
        line.into_inner()
    }
}
