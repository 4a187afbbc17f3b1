//! What a thread works under: a tag, to which what it allocates meanwhile is billed rather than to the
//! call site (the kernel's `alloc_tag_save` and `alloc_tag_restore`), and a group, which pays
//! (`set_active_memcg`).
//!
//! One word per thread, in static thread-local storage, so that looking costs two instructions, and
//! one test for who is in neither. Platforms without it have no scopes.
//!
//! ```text
//! objcg:14 | static:1 | 0 | address of the static tag:45 | 0 | fallible:1 | shrinking:1
//! ```

use super::tag::{Caller, GROUP, StaticTag, group_bits, objcg};
use crate::units::ObjcgId;
use core::marker::PhantomData;

/// Set in the thread's word while it calls shrinkers.
const SHRINKING: usize = 1;
/// Set in the thread's word where a Rust program takes null for an answer.
const FALLIBLE: usize = 2;
/// The tag in the thread's word, as a key.
const TAG: usize = !(GROUP | 7);

#[cfg(all(kmem_linux, not(miri)))]
mod word {
    use core::arch::asm;

    core::arch::global_asm!(
        ".pushsection .tbss.kmem_scope, \"awT\", %nobits",
        ".balign 8",
        ".hidden kmem_scope",
        ".globl kmem_scope",
        ".type kmem_scope, %object",
        ".size kmem_scope, 8",
        "kmem_scope: .zero 8",
        ".popsection",
    );

    /// The word's address.
    #[inline(always)]
    fn place() -> *mut usize {
        let at: *mut usize;
        // SAFETY: computes an address.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("mov {0}, fs:[0]", "add {0}, [rip + kmem_scope@GOTTPOFF]", out(reg) at,
                options(nostack, readonly));
            #[cfg(target_arch = "aarch64")]
            asm!("mrs {0}, tpidr_el0", "adrp {1}, :gottprel:kmem_scope",
                "ldr {1}, [{1}, :gottprel_lo12:kmem_scope]", "add {0}, {0}, {1}",
                out(reg) at, out(reg) _, options(nostack, readonly, preserves_flags));
        }
        at
    }

    #[inline(always)]
    pub(super) fn get() -> usize {
        #[cfg(target_arch = "x86_64")]
        {
            let word: usize;
            // SAFETY: reads the thread's own word.
            unsafe {
                asm!("mov {0}, [rip + kmem_scope@GOTTPOFF]", "mov {0}, fs:[{0}]", out(reg) word,
                    options(nostack, readonly, preserves_flags));
            }
            word
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the thread's own word.
        unsafe {
            *place()
        }
    }

    pub(super) fn set(word: usize) {
        // SAFETY: the thread's own word.
        unsafe { *place() = word }
    }
}

#[cfg(not(all(kmem_linux, not(miri))))]
mod word {
    pub(super) fn get() -> usize {
        0
    }
    pub(super) fn set(_: usize) {}
}

/// The key for a call that returns to `ret`: the thread's tag, if it is under one, else the call; and
/// the thread's group.
#[inline(always)]
pub fn caller(ret: usize) -> usize {
    let word = word::get();
    if word == 0 { ret } else { merged(word, ret) }
}

/// Whether the thread is under a tag or in a group.
#[inline(always)]
pub fn is_in_any() -> bool {
    word::get() != 0
}

/// The thread's tag and group, with `key` for the tag if it is under none.
#[inline(always)]
fn merged(word: usize, key: usize) -> usize {
    let tag = word & TAG;
    word & GROUP | if tag != 0 { tag } else { key }
}

/// A key with the thread's group.
#[inline(always)]
pub(super) fn grouped(key: usize) -> usize {
    key | word::get() & GROUP
}

/// The thread's tag as a key, 0 for none.
pub fn tag() -> usize {
    word::get() & TAG
}

/// Makes `key` the thread's tag, 0 for none; returns the one before.
pub fn replace_tag(key: usize) -> usize {
    let before = word::get();
    word::set(before & !TAG | key & TAG);
    before & TAG
}

/// The thread's group.
pub fn group() -> ObjcgId {
    objcg(word::get())
}

/// Makes a group the thread's; returns the one before.
#[inline(always)]
pub fn replace_group(group: ObjcgId) -> ObjcgId {
    let before = word::get();
    word::set(before & !GROUP | group_bits(group));
    objcg(before)
}

/// Says whether what the thread allocates for Rust's collections may fail for its group's sake; returns
/// what was said before.
pub fn replace_fallible(fallible: bool) -> bool {
    let before = word::get();
    word::set(if fallible { before | FALLIBLE } else { before & !FALLIBLE });
    before & FALLIBLE != 0
}

/// See [`replace_fallible`].
#[inline(always)]
pub fn is_fallible() -> bool {
    word::get() & FALLIBLE != 0
}

/// Whether the thread is within a shrinker.
pub fn is_shrinking() -> bool {
    word::get() & SHRINKING != 0
}

/// Calls shrinkers: meanwhile [`is_shrinking`].
pub fn while_shrinking<T>(act: impl FnOnce() -> T) -> T {
    word::set(word::get() | SHRINKING);
    let done = act();
    word::set(word::get() & !SHRINKING);
    done
}

/// While it lives, its thread's allocations are billed to one tag. See [`crate::tag!`].
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    before: usize,
    /// Scopes belong to a thread.
    _thread: PhantomData<*mut ()>,
}

impl Scope {
    /// Enters a scope. Scopes nest: the innermost counts.
    #[inline]
    pub fn enter(tag: &'static StaticTag) -> Self {
        Self { before: replace_tag(Caller::tagged(tag).key), _thread: PhantomData }
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        replace_tag(self.before);
    }
}

/// A future whose every poll runs under a tag, whichever thread polls it.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Tagged<F> {
    tag: &'static StaticTag,
    future: F,
}

impl<F: Future> Tagged<F> {
    /// Puts `future` under a tag.
    pub fn new(tag: &'static StaticTag, future: F) -> Self {
        Self { tag, future }
    }
}

impl<F: Future> Future for Tagged<F> {
    type Output = F::Output;

    fn poll(
        self: core::pin::Pin<&mut Self>,
        context: &mut core::task::Context<'_>,
    ) -> core::task::Poll<F::Output> {
        // SAFETY: `future` is never moved out of, and `Tagged` is not `Unpin` unless it is.
        let this = unsafe { self.get_unchecked_mut() };
        let _scope = Scope::enter(this.tag);
        // SAFETY: as above.
        unsafe { core::pin::Pin::new_unchecked(&mut this.future) }.poll(context)
    }
}
