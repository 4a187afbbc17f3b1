//! A request for memory: the call site that asks, the group that pays, and how hard to try. It is
//! two words, so it is passed in registers.
//!
//! ```text
//! key    objcg:14 | static:1 | nofail:1 | address:48     see codetag::CallSite for the low 50 bits
//! frame  endless:1 | retry:1 | frame pointer | quiet:1
//! ```
//!
//! The cache of call sites reads only the address, so a group costs nothing there.

use crate::codetag::{CallSite, StaticTag};
use crate::task::{self, GROUP, group_bits, group_in};
use crate::units::{Effort, Gfp, ObjcgId};

/// Set in the key if the group must not refuse the request.
const NOFAIL: usize = 1 << 48;
// No frame pointer has the bits of the marks below.

/// Set in the frame if a failure is not reported.
const QUIET: usize = 1;
/// Set in the frame for [`Effort::Retry`].
const RETRY: usize = 1 << 62;
/// Set in the frame for [`Effort::Endless`].
const ENDLESS: usize = 1 << 63;
/// All marks in the frame.
const MARKS: usize = QUIET | RETRY | ENDLESS;

/// A call site that asks for memory, the group that pays, and how hard to try.
///
/// # Invariants
/// If the key has the mark of a static tag, its address is that of a tag that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The address of a [`CallSite`], with the group above it. The address is never 0 or 1.
    pub key: usize,
    /// The caller's frame pointer, 0 if unknown, with the marks.
    frame: usize,
}

impl Caller {
    /// The call that returns to `ret`, or the call site of a key that [`task::caller`] returned.
    #[inline(always)]
    pub const fn at(ret: usize) -> Self {
        Self { key: ret, frame: 0 }
    }

    /// A key, and the caller's frame pointer, which need not be valid.
    #[inline(always)]
    pub const fn in_frame(key: usize, frame: usize) -> Self {
        Self { key, frame: frame & !MARKS }
    }

    /// A static tag.
    #[inline(always)]
    pub fn tagged(tag: &'static StaticTag) -> Self {
        Self::at(CallSite::tagged(tag).address)
    }

    /// A static tag that lives as long as its object is loaded.
    ///
    /// # Safety
    /// `tag` is valid until it is unregistered.
    #[inline(always)]
    pub unsafe fn tagged_by(tag: *const StaticTag) -> Self {
        // SAFETY: the same contract.
        Self::at(unsafe { CallSite::tagged_by(tag) }.address)
    }

    /// No call site: the allocation goes without a tag.
    pub const NOBODY: Self = Self::at(CallSite::NOBODY.address);

    /// No call site, in a call that returns to `ret`.
    #[inline(always)]
    pub const fn nobody_at(ret: usize) -> Self {
        Self::in_frame(Self::NOBODY.key, ret)
    }

    /// The call site alone.
    pub const fn site(self) -> CallSite {
        CallSite { address: self.key & !(GROUP | NOFAIL), frame: self.frame & !MARKS }
    }

    /// A number that differs between calls in the program: the address of the call site, or without
    /// one the return address.
    pub(crate) const fn place(self) -> usize {
        let site = self.site();
        if site.address == CallSite::NOBODY.address { site.frame } else { site.address }
    }

    /// This caller, charged to the thread's group.
    #[inline(always)]
    pub fn here(self) -> Self {
        Self { key: task::grouped(self.key), ..self }
    }

    /// This caller, charged to another group.
    #[inline(always)]
    pub const fn charged_to(self, objcg: ObjcgId) -> Self {
        Self { key: self.key & !GROUP | group_bits(objcg), ..self }
    }

    /// The group that pays.
    #[inline(always)]
    pub const fn objcg(self) -> ObjcgId {
        group_in(self.key)
    }

    /// This caller, with the flags of a request.
    #[inline(always)]
    pub const fn with(self, gfp: Gfp) -> Self {
        let caller = if gfp.has(Gfp::UNACCOUNTED) { self.charged_to(ObjcgId::ROOT) } else { self };
        let caller = if gfp.has(Gfp::NOWARN) { caller.quietly() } else { caller };
        let caller = if gfp.has(Gfp::NOFAIL) { caller.nofail() } else { caller };
        let effort = match gfp.effort() {
            Effort::Once => 0,
            Effort::Retry => RETRY,
            Effort::Endless => ENDLESS,
        };
        Self { key: caller.key, frame: caller.frame | effort }
    }

    /// How hard to try.
    #[inline]
    pub const fn effort(self) -> Effort {
        if self.frame & ENDLESS != 0 {
            Effort::Endless
        } else if self.frame & RETRY != 0 {
            Effort::Retry
        } else {
            Effort::Once
        }
    }

    /// This caller, with an optional request: it is tried once, and a failure is not reported.
    pub const fn once(self) -> Self {
        Self { key: self.key, frame: self.frame & !MARKS | QUIET }
    }

    /// This caller, with a failure that is not reported.
    #[inline(always)]
    pub const fn quietly(self) -> Self {
        Self { key: self.key, frame: self.frame | QUIET }
    }

    /// Whether a failure is not reported.
    pub const fn is_quiet(self) -> bool {
        self.frame & QUIET != 0
    }

    /// This caller, with a request that its group must not refuse: the group goes above its `max`.
    #[inline(always)]
    pub const fn nofail(self) -> Self {
        Self { key: self.key | NOFAIL, ..self }
    }

    /// Whether the group must not refuse.
    pub const fn is_nofail(self) -> bool {
        self.key & NOFAIL != 0
    }
}
