//! The tag that a thread works under: what it allocates meanwhile is billed to it rather than to
//! the call site (the kernel's `alloc_tag_save` and `alloc_tag_restore`).
//!
//! One word per thread, in static thread-local storage, so that looking costs two instructions.
//! Platforms without it have no scopes.

use super::tag::{Caller, StaticTag};
use core::marker::PhantomData;

#[cfg(all(kmem_linux, not(miri), not(loom)))]
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

#[cfg(not(all(kmem_linux, not(miri), not(loom))))]
mod word {
    pub(super) fn get() -> usize {
        0
    }
    pub(super) fn set(_: usize) {}
}

/// The caller to bill: the thread's scope if it is in one, else the call that returns to `ret`.
#[inline(always)]
pub fn caller(ret: usize) -> usize {
    let scope = word::get();
    if scope != 0 { scope } else { ret }
}

/// The thread's scope as a key, 0 for none.
pub fn current() -> usize {
    word::get()
}

/// Makes `key` the thread's scope; returns the one before.
pub fn replace(key: usize) -> usize {
    let before = word::get();
    word::set(key);
    before
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
        Self { before: replace(Caller::tagged(tag).key), _thread: PhantomData }
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        word::set(self.before);
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
