//! Chains of callers.
//!
//! ```text
//! record:  the caller's frame pointer, the return address   (made by the allocation function)
//! CFA      = record + 16, the caller's stack pointer after the call
//! step:    rule of the return address --> CFA of the caller --> next return address, below it
//! ```
//!
//! Each step takes a [`Rule`] from the cache, or from the tables of the object that has the code.
//! Where no object has it, or its object describes no frames, the frame pointer leads on, as long
//! as it leads upwards on the stack. Code of a just-in-time compiler is such a place, and hand-made
//! assembly. Without `_dl_find_object` all code is.
//!
//! A chain ends at its depth, where a thread begins, and at anything that cannot be a frame. It
//! also ends at a frame that takes more than constants to describe, such as that of a signal
//! handler. Its words are read from the thread's own stack, within its bounds. Other stacks may be
//! gone at any time, so the platform copies their words ([`peek`]).
//!
//! [`peek`]: crate::os::Process::peek

use super::rules::Rules;
use super::tag::CallSite;
use super::trails::{Trail, Trails, Wanted};
use super::unloads::{Generation, Unloads};
use super::unwind::{Base, Rule, Step, rule};
use crate::os::{Platform, Stack};
use crate::sync::{AtomicU64, Ordering};
use crate::units::TagId;
use kmem_layout::site::MAX_DEPTH;

/// Most bytes from one frame to the next.
const MAX_FRAME: usize = 1 << 20;
/// Bytes of another stack that are read at once.
const WINDOW: usize = 512;

/// Memory of an instance for the program's code and its chains. Zeroed, it knows nothing.
///
/// # Invariants
/// `caches` is 0, or the address of caches that are never freed.
pub(super) struct Unwinder {
    unloads: Unloads,
    /// Most programs ask for no chain, so the first one that does makes the caches.
    caches: AtomicU64,
}

/// Zeroed, they are empty.
struct Caches {
    rules: Rules,
    trails: Trails,
}

/// A walk on the thread's own stack.
struct Walk<'a> {
    stack: &'a Stack,
    caller: CallSite,
    depth: usize,
    generation: Generation,
}

impl Unwinder {
    pub(super) const fn new() -> Self {
        Self { unloads: Unloads::new(), caches: AtomicU64::new(0) }
    }

    /// Notes that an object is about to be unloaded.
    pub(super) fn begin_unload(&self) {
        self.unloads.begin();
    }

    /// Notes that the object of a [`Self::begin_unload`] is gone, and forgets all rules.
    pub(super) fn end_unload(&self) {
        self.unloads.end(|| {
            if let Some(caches) = self.caches() {
                caches.rules.forget();
            }
        });
    }

    /// In a forked child: forgets what other threads of the parent had begun.
    pub(super) fn forget_threads(&self) {
        self.unloads.forget();
        if let Some(caches) = self.caches() {
            caches.trails.forget_writers();
        }
    }

    /// The caches, if there are any yet.
    #[inline(always)]
    fn caches(&self) -> Option<&Caches> {
        // Acquire pairs with the release of `make_caches`: they are zeroed.
        // SAFETY: 0, or the address of caches that are never freed (invariant).
        unsafe { (self.caches.load(Ordering::Acquire) as *const Caches).as_ref() }
    }

    /// Makes the caches. `None`: there is no memory for them.
    #[cold]
    #[inline(never)]
    fn make_caches(&self, platform: &impl Platform) -> Option<&Caches> {
        let (bytes, align) = (size_of::<Caches>(), align_of::<Caches>());
        let at = platform.allocate(bytes, align)?;
        let (made, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        // INVARIANT: zeroed memory of their size, which is released only if another thread's is in
        // use.
        if self.caches.compare_exchange(0, at.as_ptr() as u64, made, failed).is_err() {
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { platform.release(at, bytes) };
        }
        self.caches()
    }

    /// Calls `tag_of` with the return addresses of a call and its callers, innermost first, up to
    /// `depth`. `known` is asked for those of a tag; if the stack has them, that is the tag.
    #[inline]
    pub(super) fn tag_of_chain<'a>(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        depth: u32,
        known: impl Fn(TagId) -> &'a [u64],
        tag_of: impl FnOnce(&[usize]) -> TagId,
    ) -> TagId {
        let depth = depth.clamp(1, MAX_DEPTH) as usize;
        let generation = self.unloads.generation();
        let Some(stack) = platform.stack(caller.frame) else {
            return self.walk_elsewhere(platform, caller, depth, tag_of);
        };
        let walk = Walk { stack: &stack, caller, depth, generation };
        if let Some(wanted) = walk.wanted()
            && let Some(caches) = self.caches()
            && let Some(tag) = caches.trails.find(&wanted, known)
        {
            return tag;
        }
        self.walk_own(platform, &walk, tag_of)
    }

    /// [`Self::tag_of_chain`] on the thread's own stack, by rules.
    #[inline(never)]
    fn walk_own(
        &self,
        platform: &impl Platform,
        walk: &Walk<'_>,
        tag_of: impl FnOnce(&[usize]) -> TagId,
    ) -> TagId {
        let mut chain = Chain::from(walk.caller);
        let mut trail = Trail::from(walk.caller.frame);
        let word = |at| walk.stack.word(at);
        self.walk(platform, &mut chain, walk.depth, walk.generation, word, &mut trail);
        let tag = tag_of(chain.frames());
        if let Some(wanted) = walk.wanted()
            && let Some(caches) = self.caches()
        {
            caches.trails.keep(&wanted, &trail, tag);
        }
        tag
    }

    /// [`Self::tag_of_chain`] on a stack that may be gone at any time.
    #[cold]
    #[inline(never)]
    fn walk_elsewhere(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        depth: usize,
        tag_of: impl FnOnce(&[usize]) -> TagId,
    ) -> TagId {
        let mut chain = Chain::from(caller);
        if caller.frame != 0 {
            let mut window = Window::new(platform);
            let mut trail = Trail::from(caller.frame);
            let generation = self.unloads.generation();
            self.walk(platform, &mut chain, depth, generation, |at| window.word(at), &mut trail);
        }
        tag_of(chain.frames())
    }

    /// Adds callers to a chain up to `depth`, and the places of their words to a trail.
    #[inline(always)]
    fn walk(
        &self,
        platform: &impl Platform,
        chain: &mut Chain,
        depth: usize,
        generation: Generation,
        mut word: impl FnMut(usize) -> Option<usize>,
        trail: &mut Trail,
    ) {
        let record = chain.record;
        let caches = self.caches().or_else(|| self.make_caches(platform));
        // Rules of a generation in which an object is unloaded are not kept.
        let caches = caches.filter(|_| generation.settled().is_some());
        // Between the allocation function and its record there was no other call.
        if word(record.wrapping_add(8)).is_none_or(|ret| ret & ADDRESS != chain.frames[0]) {
            trail.spoil();
            return;
        }
        let Some(mut pointer) = word(record) else { return trail.spoil() };
        let (mut pointer_at, mut sp) = (record, record + 16);
        while chain.len < depth {
            let ret = chain.frames[chain.len - 1];
            let kept = caches.and_then(|caches| caches.rules.find(ret));
            let rule = kept.unwrap_or_else(|| {
                let rule = look_up(platform, ret);
                if let (Some(rule), Some(caches)) = (rule, caches) {
                    caches.rules.keep(ret, rule, &self.unloads, generation);
                }
                rule.unwrap_or(Rule::FramePointer)
            });
            let step = match rule {
                Rule::Constant(step) => step,
                Rule::FramePointer => {
                    // Other code may come to a place where no object is.
                    if kept.is_none() {
                        trail.spoil();
                    }
                    Step::RECORD
                }
                Rule::End => return,
            };
            let base = match step.base {
                Base::Stack => sp,
                Base::Frame => {
                    trail.add_pointer(pointer_at, pointer);
                    pointer
                }
            };
            let cfa = base.wrapping_add(8 * step.cfa as usize);
            if cfa < sp + 8 || cfa - sp > MAX_FRAME {
                return trail.spoil();
            }
            let Some(next) = word(cfa - 8) else { return trail.spoil() };
            if step.saved != 0 {
                pointer_at = cfa.wrapping_sub(8 * step.saved as usize);
                match word(pointer_at) {
                    Some(saved) if pointer_at >= sp => pointer = saved,
                    _ => return trail.spoil(),
                }
            }
            // The first page and the upper half of the address space hold no code of a program.
            if next < 4096 || next >> 47 != 0 {
                return trail.spoil();
            }
            trail.add_return(cfa - 8);
            chain.frames[chain.len] = next;
            chain.len += 1;
            sp = cfa;
        }
    }
}

/// Reads the rule of a return address. `None`: no object has the code.
#[cold]
#[inline(never)]
fn look_up(platform: &impl Platform, ret: usize) -> Option<Rule> {
    platform.with_object(ret.wrapping_sub(1), |object| rule(object, ret))
}

impl Walk<'_> {
    /// The question for its trail. `None`: an object is being unloaded, so there is none.
    #[inline(always)]
    fn wanted(&self) -> Option<Wanted<'_>> {
        let CallSite { frame: record, address: ret } = self.caller;
        let generation = self.generation.settled()?;
        Some(Wanted { stack: self.stack, record, ret, depth: self.depth, generation })
    }
}

/// Bits of a return address that a call site keeps.
const ADDRESS: usize = (1 << 48) - 1;

/// Return addresses of a call and its callers, innermost first.
struct Chain {
    record: usize,
    frames: [usize; MAX_DEPTH as usize],
    len: usize,
}

impl Chain {
    fn from(caller: CallSite) -> Self {
        let mut frames = [0; MAX_DEPTH as usize];
        frames[0] = caller.address;
        Self { record: caller.frame, frames, len: 1 }
    }

    fn frames(&self) -> &[usize] {
        &self.frames[..self.len]
    }
}

/// Words of a stack that may be gone at any time, copied in parts.
struct Window<'a, P> {
    platform: &'a P,
    bytes: [u8; WINDOW],
    /// Address of the copy.
    at: usize,
    /// Bytes that could be read.
    len: usize,
}

impl<'a, P: Platform> Window<'a, P> {
    fn new(platform: &'a P) -> Self {
        Self { platform, bytes: [0; WINDOW], at: 0, len: 0 }
    }

    fn word(&mut self, at: usize) -> Option<usize> {
        if !at.is_multiple_of(8) {
            return None;
        }
        let is_in = |window: &Self| at >= window.at && at - window.at + 8 <= window.len;
        if !is_in(self) {
            self.at = at;
            self.len = self.platform.peek(at, &mut self.bytes);
            if !is_in(self) {
                return None;
            }
        }
        let bytes = self.bytes.get(at - self.at..)?.first_chunk()?;
        Some(usize::from_ne_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests;
