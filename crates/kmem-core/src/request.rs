//! A request for memory: the call site that asks, the group that pays, and how hard to try. It is
//! two words, so it is passed in registers.
//!
//! ```text
//! key    objcg:14 | static:1 | nofail:1 | address:48     see codetag::CallSite for the low 50 bits
//! frame  endless:1 | retry:1 | recharge:1 | address of the call's record | quiet:1
//! ```
//!
//! The cache of call sites reads only the address, so a group costs nothing there.

use crate::codetag::{CallSite, StaticTag};
use crate::task::{self, GROUP, group_bits, group_in};
use crate::units::{Effort, Gfp, ObjcgId};

/// Bits of a return address.
const ADDRESS: usize = (1 << 48) - 1;
/// Set in the key if the group must not refuse the request.
const NOFAIL: usize = 1 << 48;
// No address of a record has the bits of the marks below.

/// Set in the frame if a failure is not reported.
const QUIET: usize = 1;
/// Set in the frame for [`Effort::Retry`].
const RETRY: usize = 1 << 62;
/// Set in the frame for [`Effort::Endless`].
const ENDLESS: usize = 1 << 63;
/// Set in the frame if a change of size moves the charge to the caller's group.
const RECHARGE: usize = 1 << 61;
/// All marks in the frame.
const MARKS: usize = QUIET | RETRY | ENDLESS | RECHARGE;

/// Instructions that begin a frame with the record of a call.
#[doc(hidden)]
#[macro_export]
#[cfg(target_arch = "x86_64")]
macro_rules! begin_record {
    () => {
        concat!(
            "push rbp\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset 6, -16\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register 6",
        )
    };
}

/// Instructions that begin a frame with the record of a call.
#[doc(hidden)]
#[macro_export]
#[cfg(target_arch = "aarch64")]
macro_rules! begin_record {
    () => {
        concat!(
            "stp x29, x30, [sp, #-16]!\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset 29, -16\n",
            ".cfi_offset 30, -8\n",
            "mov x29, sp",
        )
    };
}

/// The body of a naked function that calls `$inner` from a frame of its own. In `$x86` or `$arm` it
/// passes the address of its frame's record. `$before` comes first, and has no instructions.
#[doc(hidden)]
#[macro_export]
macro_rules! call_with_record {
    (
        $inner:path, $x86:literal, $arm:literal, [$($x86_more:expr),*], [$($arm_more:expr),*]
        $(, before $before:expr)?
    ) => {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!(
            $($before,)?
            ".cfi_startproc",
            $crate::begin_record!(),
            $($x86_more,)*
            concat!("mov ", $x86, ", rbp"),
            "call {}",
            "pop rbp",
            ".cfi_def_cfa 7, 8",
            "ret",
            ".cfi_endproc",
            sym $inner
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!(
            $($before,)?
            ".cfi_startproc",
            $crate::begin_record!(),
            $($arm_more,)*
            concat!("mov ", $arm, ", x29"),
            "bl {}",
            "ldp x29, x30, [sp], #16",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            sym $inner
        );
    };
}

/// A call site that asks for memory, the group that pays, and how hard to try.
///
/// # Invariants
/// The address in the key is that of [`CallSite::NOBODY`] or higher. If it has the mark of a static
/// tag, it is that of a tag that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The address of a [`CallSite`], with the group above it.
    key: usize,
    /// Address of the call's record (see [`Caller::in_frame`]), 0 if unknown, with the marks.
    frame: usize,
}

impl Caller {
    /// The call that returns to `ret`, of which the lower 48 bits count. 0 to 5 are no call site.
    #[inline]
    pub const fn at(ret: usize) -> Self {
        // The highest number that names no call site.
        const HIGHEST: usize = CallSite::BELOW_FRAME & ADDRESS;
        let address = ret & ADDRESS;
        let key = if address <= HIGHEST { CallSite::NOBODY.address } else { address };
        Self { key, frame: 0 }
    }

    /// The caller of a key.
    ///
    /// # Safety
    /// `key` is a return address, the result of [`task::caller`] for one, or the [`Self::key`] of a
    /// caller whose static tag is still loaded.
    #[inline(always)]
    pub const unsafe fn of_key(key: usize) -> Self {
        // SAFETY: the same contract.
        unsafe { Self::in_frame(key, 0) }
    }

    /// The caller of a key. `frame` is the address of the call's record on the stack: the caller's
    /// frame pointer, then the return address of the key. The caller's stack begins right above. An
    /// address that is not that of such a record, such as 0, does no harm: then nothing is known of
    /// the callers.
    ///
    /// # Safety
    /// See [`Self::of_key`].
    #[inline(always)]
    pub const unsafe fn in_frame(key: usize, frame: usize) -> Self {
        // INVARIANT: no return address is that small, and none has the mark of a static tag. The
        // tag is loaded, by the contract.
        Self { key, frame: frame & !MARKS }
    }

    /// The key: the address of the call site, and the group above it.
    #[inline(always)]
    pub const fn key(self) -> usize {
        self.key
    }

    /// A static tag.
    #[inline(always)]
    pub fn tagged(tag: &'static StaticTag) -> Self {
        // INVARIANT: a `'static` tag stays loaded.
        Self { key: CallSite::tagged(tag).address, frame: 0 }
    }

    /// A static tag that lives as long as its object is loaded.
    ///
    /// # Safety
    /// `tag` is valid until it is unregistered.
    #[inline(always)]
    pub unsafe fn tagged_by(tag: *const StaticTag) -> Self {
        // SAFETY: the same contract.
        // INVARIANT: the tag is loaded, by the contract.
        Self { key: unsafe { CallSite::tagged_by(tag) }.address, frame: 0 }
    }

    /// No call site: the allocation goes without a tag.
    pub const NOBODY: Self = Self::at(CallSite::NOBODY.address);

    /// No call site, in a call that returns to `ret`.
    #[inline(always)]
    pub const fn nobody_at(ret: usize) -> Self {
        Self { frame: ret & !MARKS, ..Self::NOBODY }
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

    /// Runs `work`, a function of the program. Meanwhile, allocations without a tag of their own
    /// are billed to this caller's static tag, and its group pays (the kernel's `alloc_hooks`). A
    /// caller without a static tag leaves the tag of the thread.
    pub fn bill<T>(self, work: impl FnOnce() -> T) -> T {
        let (tag, group) = (task::tag(), task::replace_group(self.objcg()));
        if self.site().static_tag().is_some() {
            // SAFETY: the tag is loaded (invariant).
            unsafe { task::replace_tag(self.key) };
        }
        let done = work();
        // SAFETY: this was the thread's tag before, and stays loaded until it is replaced.
        unsafe { task::replace_tag(tag) };
        task::replace_group(group);
        done
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
        let caller = if gfp.has(Gfp::RECHARGE) { caller.recharging() } else { caller };
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

    /// This caller, with a change of size after which its group pays for all of the allocation.
    /// Otherwise the group that paid for it goes on to pay.
    #[inline(always)]
    pub const fn recharging(self) -> Self {
        Self { key: self.key, frame: self.frame | RECHARGE }
    }

    /// Returns whether a change of size moves the charge to the caller's group.
    pub const fn is_recharging(self) -> bool {
        self.frame & RECHARGE != 0
    }

    /// This caller, with a failure that is not reported.
    #[inline(always)]
    pub const fn quietly(self) -> Self {
        Self { key: self.key, frame: self.frame | QUIET }
    }

    /// Returns whether a failure is not reported.
    pub const fn is_quiet(self) -> bool {
        self.frame & QUIET != 0
    }

    /// This caller, with a request that its group must not refuse: the group goes above its `max`.
    #[inline(always)]
    pub const fn nofail(self) -> Self {
        Self { key: self.key | NOFAIL, ..self }
    }

    /// Returns whether the group must not refuse.
    pub const fn is_nofail(self) -> bool {
        self.key & NOFAIL != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_return_address_names_a_static_tag_a_group_or_an_empty_slot_of_the_cache() {
        for ret in [0, 1, 2, 0x7f12_3456_789a, 1 << 48, 1 << 49, usize::MAX] {
            let caller = Caller::at(ret);
            assert_eq!(caller.objcg(), ObjcgId::ROOT, "{ret:#x}");
            assert!(!caller.is_nofail(), "{ret:#x}");
            assert_eq!(caller.site().static_tag(), None, "{ret:#x}");
            assert!(caller.site().address >= CallSite::NOBODY.address, "{ret:#x}");
        }
        assert_eq!(Caller::at(0x7f12_3456_789a).site().address, 0x7f12_3456_789a);
    }
}
