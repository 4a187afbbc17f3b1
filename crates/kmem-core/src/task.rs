//! The task word of a thread: a tag, a group and two marks for its allocations. They are billed to
//! the tag instead of their call sites (the kernel's `alloc_tag_save` and `alloc_tag_restore`), and
//! the group pays for them (`set_active_memcg`).
//!
//! On Linux it is one word in static thread-local storage, so that reading it costs two
//! instructions. A thread without tag and group needs one test more. Elsewhere a kernel keeps the
//! word, and says where: see `os::task_word`. Only this module reads and writes the word.
//!
//! ```text
//! objcg:14 | static:1 | 0 | address of the static tag:45 | frames:1 | fallible:1 | shrinking:1
//! ```

use core::marker::PhantomData;

use crate::codetag::{CallSite, StaticTag, packed};
use crate::units::ObjcgId;

/// Set in the word while the thread calls shrinkers.
const SHRINKING: usize = 1;
/// Set in the word while a Rust program accepts that allocations are refused.
const FALLIBLE: usize = 2;
/// Set in the word while the frames of an interpreter tell the thread's call sites.
const FRAMES: usize = 4;
/// Lowest bit of the group.
const GROUP_SHIFT: u32 = usize::BITS - ObjcgId::BITS;
/// The group's bits, in the word and in the key of a caller.
pub(crate) const GROUP: usize = !0 << GROUP_SHIFT;
/// The tag's bits.
const TAG: usize = !(GROUP | 7);

/// A group in the word and in the key of a caller.
#[inline(always)]
pub(crate) const fn group_bits(objcg: ObjcgId) -> usize {
    (objcg.0 as usize) << GROUP_SHIFT
}

/// The group in a word or in the key of a caller.
#[inline(always)]
pub const fn group_in(word: usize) -> ObjcgId {
    ObjcgId((word >> GROUP_SHIFT) as u32)
}

#[cfg(all(kmem_linux, not(miri)))]
mod word {
    crate::os::linux::thread_word::define!("kmem_task");
}

#[cfg(not(all(kmem_linux, not(miri))))]
use crate::os::task_word as word;

/// The key for a call that returns to `ret`: the thread's tag, or `ret` without one, and the
/// thread's group.
#[inline(always)]
pub fn caller(ret: usize) -> usize {
    let (word, ret) = (word::get(), packed(ret));
    if word == 0 { ret } else { merged(word, ret) }
}

/// [`caller`], with `framed` in place of `ret` on a thread that [`follow_frames`] was called on.
#[inline(always)]
pub fn caller_in_frame(ret: usize, framed: impl FnOnce(usize) -> usize) -> usize {
    let (word, ret) = (word::get(), packed(ret));
    match word {
        0 => ret,
        _ if word & (TAG | FRAMES) == FRAMES => word & GROUP | framed(ret),
        _ => merged(word, ret),
    }
}

/// From now on, the frames of an interpreter tell the thread's call sites.
pub fn follow_frames() {
    word::set(word::get() | FRAMES);
}

/// Returns whether the frames of an interpreter tell the thread's call sites.
#[inline(always)]
pub fn follows_frames() -> bool {
    word::get() & FRAMES != 0
}

/// Returns whether the thread is under a tag, in a group, or runs an interpreter.
#[inline(always)]
pub fn is_in_any() -> bool {
    word::get() != 0
}

/// The tag and the group of a word, with `key` instead of the tag if there is none.
#[inline(always)]
fn merged(word: usize, key: usize) -> usize {
    let tag = word & TAG;
    word & GROUP | if tag != 0 { tag } else { key }
}

/// A key with the thread's group.
#[inline(always)]
pub(crate) fn grouped(key: usize) -> usize {
    key | word::get() & GROUP
}

/// The thread's tag as a key, 0 for none.
pub fn tag() -> usize {
    word::get() & TAG
}

/// Makes `key` the thread's tag, 0 for none. Returns the one before.
///
/// # Safety
/// `key` is 0, or the key of a static tag that stays loaded while it is the thread's tag.
pub unsafe fn replace_tag(key: usize) -> usize {
    let before = word::get();
    word::set(before & !TAG | key & TAG);
    before & TAG
}

/// The thread's group.
pub fn group() -> ObjcgId {
    group_in(word::get())
}

/// Makes a group the thread's. Returns the one before.
#[inline(always)]
pub fn replace_group(group: ObjcgId) -> ObjcgId {
    let before = word::get();
    word::set(before & !GROUP | group_bits(group));
    group_in(before)
}

/// Returns whether the thread's group may refuse allocations of Rust's collections.
#[inline(always)]
pub fn is_fallible() -> bool {
    word::get() & FALLIBLE != 0
}

/// Runs `work`. Meanwhile, a group at its limit refuses memory to Rust's collections, so
/// `try_reserve` and similar calls fail. Otherwise the group goes above the limit.
pub fn fallible<T>(work: impl FnOnce() -> T) -> T {
    marked(FALLIBLE, work)
}

/// Returns whether the thread is within a shrinker.
pub fn is_shrinking() -> bool {
    word::get() & SHRINKING != 0
}

/// Runs `work`, which calls shrinkers. Meanwhile, [`is_shrinking`] is true.
pub fn while_shrinking<T>(work: impl FnOnce() -> T) -> T {
    marked(SHRINKING, work)
}

/// Runs `work` with a mark set in the word. Then restores the mark.
fn marked<T>(mark: usize, work: impl FnOnce() -> T) -> T {
    let before = word::get() & mark;
    word::set(word::get() | mark);
    let done = work();
    word::set(word::get() & !mark | before);
    done
}

/// A scope: until it is dropped, its thread's allocations are billed to one tag. See
/// [`crate::tag!`].
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    before: usize,
    /// Keeps the scope on its thread.
    _thread: PhantomData<*mut ()>,
}

impl Scope {
    /// Enters a scope. Scopes nest: allocations are billed to the tag of the innermost one.
    #[inline]
    pub fn enter(tag: &'static StaticTag) -> Self {
        // SAFETY: the key of a static tag that is never unloaded.
        let before = unsafe { replace_tag(CallSite::tagged(tag).address) };
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Scope {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this was the thread's tag before the scope, and stays loaded until it is
        // replaced.
        unsafe { replace_tag(self.before) };
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
    /// A future that polls `future` under a tag.
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
        // SAFETY: `future` is never moved out of, and `Tagged` is `Unpin` only if the future is.
        let this = unsafe { self.get_unchecked_mut() };
        let _scope = Scope::enter(this.tag);
        // SAFETY: the future is pinned as long as `Tagged` is, whose field it is.
        unsafe { core::pin::Pin::new_unchecked(&mut this.future) }.poll(context)
    }
}
