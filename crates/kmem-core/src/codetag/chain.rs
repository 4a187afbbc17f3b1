//! Chains of callers.
//!
//! ```text
//! record:  the caller's frame pointer, the return address   (made by the allocation function)
//! CFA      = record + 16, the caller's stack pointer after the call
//! step:    rule of the return address --> CFA of the caller --> next return address, in its frame
//! ```
//!
//! Each step takes a [`Rule`] from the cache, or from the tables of the object that has the code.
//! Where no object has it, or its object describes no frames, the frame pointer leads on, as long
//! as it leads upwards on the stack. Code of a just-in-time compiler is such a place, and hand-made
//! assembly. Without `_dl_find_object` all code is.
//!
//! A chain of depth `n` has the `n` innermost calls that are not in wrappers. All calls before them
//! are in wrappers, and belong to the chain, too. It may end within wrappers: code of the program
//! may have been inlined into one. Between the `n` calls, one in a wrapper counts like any other.
//! It does not where a site is told apart by one caller more: that of `palloc` tells more than
//! `palloc`.
//!
//! A chain ends at its depth, where a thread begins, and at anything that cannot be a frame. It
//! also ends at a frame that takes more than constants to describe, such as that of a signal
//! handler. Its words are read from the thread's own stack, within its bounds. Other stacks may be
//! gone at any time, so the platform copies their words ([`peek`]).
//!
//! [`peek`]: crate::os::Process::peek

mod lead;
mod up;
mod window;

use super::lines::Lines;
use super::made::Made;
use super::passages::Passages;
use super::rules::{Code, Rules};
use super::tag::{CallSite, Key};
use super::trails::{Trail, Trails, Wanted};
use super::unloads::{Generation, Unloads};
use super::unwind::{Base, IS_AARCH64, Rule, Step, rule};
use super::wrappers::{Wrapper, Wrappers};
use crate::frames::Frames;
use crate::os::{Platform, Return, Stack};
use crate::units::TagId;
use kmem_layout::site::MAX_DEPTH;
use kmem_layout::word::TAG_OTHER;
use lead::{Lead, leads};
use up::Up;
use window::Window;

/// Most objects whose symbols are read for one chain.
const OBJECTS_AT_ONCE: usize = 8;

/// Memory of an instance for the program's code and its chains. Zeroed, it knows nothing.
pub(super) struct Unwinder {
    unloads: Unloads,
    wrappers: Wrappers,
    frames: Frames,
    rules: Made<Rules>,
    passages: Made<Passages>,
    trails: Made<Trails>,
    /// Lines of an interpreter.
    pub(super) lines: Made<Lines>,
}

/// Effect of an object whose symbols were not read yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unread {
    /// The walk ends there, and is to be repeated.
    Stop,
    /// The walk goes on, as if the object had no wrappers.
    Pass,
}

/// Number of callers that are told apart.
#[derive(Clone, Copy)]
pub(super) struct Depth {
    /// Depth of the chain.
    pub(super) calls: u32,
    /// Depth under which its trail is kept. Less than `calls` for a site that is told apart by more
    /// callers than others.
    pub(super) asked: u32,
    /// Do not count calls in wrappers that come between others.
    pub(super) through: bool,
}

impl Depth {
    pub(super) fn of(calls: u32) -> Self {
        Self { calls, asked: calls, through: false }
    }
}

/// How far a walk goes, and the rules that it may keep.
#[derive(Clone, Copy)]
struct Reach {
    depth: usize,
    asked: usize,
    through: bool,
    generation: Generation,
    unread: Unread,
}

/// A walk on the thread's own stack.
struct Walk<'a> {
    stack: &'a Stack,
    caller: CallSite,
    reach: Reach,
}

impl Unwinder {
    pub(super) const fn new() -> Self {
        let (unloads, wrappers, frames) = (Unloads::new(), Wrappers::new(), Frames::new());
        // SAFETY: zeroed, all are empty.
        let (rules, passages, trails, lines) =
            unsafe { (Made::none(), Made::none(), Made::none(), Made::none()) };
        Self { unloads, wrappers, frames, rules, passages, trails, lines }
    }

    /// Takes functions for wrappers whose names match these patterns. Called once, at the start.
    pub(super) fn choose(&self, patterns: &'static [u8]) {
        self.wrappers.choose(patterns);
    }

    /// Returns whether the call that returns to `ret` is one in a wrapper. `None`: not known now.
    pub(super) fn wrapper(&self, platform: &impl Platform, ret: usize) -> Option<Wrapper> {
        self.wrappers.find(platform, ret, &self.frames)
    }

    /// The interpreter among the program's objects.
    #[inline(always)]
    pub(super) fn interpreter(&self) -> &Frames {
        &self.frames
    }

    /// A number that changes when an object is unloaded, and is not 0. `None`: one is being
    /// unloaded.
    pub(super) fn generation(&self) -> Option<u32> {
        Some(self.unloads.generation().settled()? << 1 | 1)
    }

    /// Notes that an object is about to be unloaded.
    pub(super) fn begin_unload(&self) {
        self.unloads.begin();
    }

    /// Notes that the object of a [`Self::begin_unload`] is gone, and forgets all rules.
    pub(super) fn end_unload(&self) {
        self.unloads.end(|| {
            if let Some(rules) = self.rules.get() {
                rules.forget();
            }
        });
    }

    /// In a forked child: forgets what other threads of the parent had begun.
    pub(super) fn forget_threads(&self) {
        self.wrappers.forget_threads();
        if self.unloads.forget()
            && let Some(rules) = self.rules.get()
        {
            rules.forget();
        }
        if let Some(passages) = self.passages.get() {
            passages.forget_writers();
        }
        if let Some(trails) = self.trails.get() {
            trails.forget_writers();
        }
    }

    /// The tag of a chain that was walked before and is on the stack. `frames` is asked for the
    /// return addresses of a tag.
    #[inline]
    pub(super) fn find_chain<'a>(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        depth: u32,
        frames: impl Fn(TagId) -> &'a [u64],
    ) -> Option<TagId> {
        let passages = self.passages.get().filter(|_| depth == 1);
        let trails = self.trails.get();
        // To find a stack takes long at first, and most threads need none.
        if passages.is_none() && trails.is_none() {
            return None;
        }
        self.on_stack(platform, caller, depth, |walk| {
            let passage = passages.and_then(|passages| self.find_passage(passages, walk));
            passage.or_else(|| trails?.find(&walk.wanted()?, frames))
        })
    }

    /// Calls `work` with a walk on the thread's own stack. `None`: the call is on another one.
    #[inline(always)]
    fn on_stack<T>(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        depth: u32,
        work: impl FnOnce(&Walk<'_>) -> Option<T>,
    ) -> Option<T> {
        let stack = platform.stack(caller.frame)?;
        work(&Walk { stack: &stack, caller, reach: self.reach(Depth::of(depth)) })
    }

    /// The tag of a chain that was walked for this depth, by its trail alone. For a site that is
    /// told apart it is that of the longer chain.
    #[inline(never)]
    pub(super) fn find_longer<'a>(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        depth: u32,
        frames: impl Fn(TagId) -> &'a [u64],
    ) -> Option<TagId> {
        let trails = self.trails.get()?;
        self.on_stack(platform, caller, depth, |walk| trails.find(&walk.wanted()?, frames))
    }

    /// The tag of a call in a wrapper and its caller, if it is known.
    #[inline(always)]
    fn find_passage(&self, passages: &Passages, walk: &Walk<'_>) -> Option<TagId> {
        passages.find(walk.reach.generation.settled()?, walk.passage(self.rules.get()?)?)
    }

    /// Keeps the chain of a call in a wrapper and its caller. False: its trail is to be kept. It is
    /// another chain, or is known already, but its rule was gone.
    fn keep_passage(
        &self,
        platform: &impl Platform,
        walk: &Walk<'_>,
        chain: &[usize],
        tag: TagId,
    ) -> bool {
        let Some(generation) = walk.reach.generation.settled() else { return false };
        let found = self.rules.get().and_then(|rules| walk.passage(rules));
        let (Some(passage), Some(passages)) =
            (found.filter(|passage| passage == chain), self.passages.get_or_make(platform))
        else {
            return false;
        };
        let is_new = passages.find(generation, passage).is_none();
        if is_new {
            passages.keep(generation, passage, tag);
        }
        is_new
    }

    /// Forgets the trails by which [`Self::find_chain`] would find a tag.
    pub(super) fn forget_chain(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        depth: u32,
        tag: TagId,
    ) {
        if let Some(trails) = self.trails.get() {
            self.on_stack(platform, caller, depth, |walk| {
                walk.wanted().map(|wanted| trails.forget(&wanted, tag))
            });
        }
    }

    #[inline(always)]
    fn reach(&self, Depth { calls, asked, through }: Depth) -> Reach {
        let [depth, asked] = [calls, asked].map(|depth| depth.clamp(1, MAX_DEPTH) as usize);
        let generation = self.unloads.generation();
        Reach { depth, asked, through, generation, unread: Unread::Pass }
    }

    /// Calls `tag_of` with the chain of a call, up to `depth`. [`Self::find_chain`] finds it by
    /// [`Depth::asked`]. On other stacks than the thread's own the chain of depth 1 is the call
    /// alone: to copy words at every call takes too long.
    pub(super) fn tag_of_chain(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        depth: Depth,
        tag_of: impl Fn(&Chain) -> Found,
    ) -> TagId {
        let reach = self.reach(depth);
        let Some(stack) = platform.stack(caller.frame) else {
            return match reach.depth {
                1 => tag_of(&Chain::from(caller)).tag(),
                _ => self.walk_elsewhere(platform, caller, reach, tag_of),
            };
        };
        // Symbols are read between two walks: callers of `malloc` may have little stack.
        let reading = Reach { unread: Unread::Stop, ..reach };
        for _ in 0..OBJECTS_AT_ONCE {
            let walk = Walk { stack: &stack, caller, reach: reading };
            match self.walk_own(platform, &walk, &tag_of) {
                Ok(tag) => return tag,
                Err(ret) if self.wrapper(platform, ret).is_none() => break,
                Err(_) => {}
            }
        }
        let tag = self.walk_own(platform, &Walk { stack: &stack, caller, reach }, &tag_of);
        tag.unwrap_or(TagId(TAG_OTHER))
    }

    /// [`Self::tag_of_chain`] on the thread's own stack, by rules.
    ///
    /// # Errors
    /// A return address in an object whose symbols are to be read.
    #[inline(never)]
    fn walk_own(
        &self,
        platform: &impl Platform,
        walk: &Walk<'_>,
        tag_of: impl Fn(&Chain) -> Found,
    ) -> Result<TagId, usize> {
        let mut chain = Chain::from(walk.caller);
        let mut trail = Trail::from(walk.caller.frame);
        let word = |at| walk.stack.word(at);
        self.walk(platform, &mut chain, walk.reach, word, &mut trail);
        if chain.is_unread && walk.reach.unread == Unread::Stop {
            return Err(chain.frames[chain.len - 1]);
        }
        let found = tag_of(&chain);
        // Most chains of a program's start come once. Their trails would only take memory.
        if let Found::Again(tag) = found
            && !(walk.reach.depth == 1
                && self.keep_passage(platform, walk, &chain.frames[..chain.len], tag))
            && let Some(wanted) = walk.wanted()
            && let Some(trails) = self.trails.get_or_make(platform)
        {
            trails.keep(&wanted, &trail, tag);
        }
        Ok(found.tag())
    }

    /// [`Self::tag_of_chain`] on a stack that may be gone at any time.
    #[cold]
    #[inline(never)]
    fn walk_elsewhere(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        reach: Reach,
        tag_of: impl Fn(&Chain) -> Found,
    ) -> TagId {
        let mut chain = Chain::from(caller);
        if caller.frame != 0 {
            let mut window = Window::new(platform);
            let mut trail = Trail::from(caller.frame);
            self.walk(platform, &mut chain, reach, |at| window.word(at), &mut trail);
        }
        if chain.is_unread {
            // For the next time.
            self.wrapper(platform, caller.address);
        }
        tag_of(&chain).tag()
    }

    /// Adds callers to a chain as far as it reaches, and the places of their words to a trail.
    #[inline(always)]
    fn walk(
        &self,
        platform: &impl Platform,
        chain: &mut Chain,
        Reach { mut depth, through, generation, unread, .. }: Reach,
        mut word: impl FnMut(usize) -> Option<usize>,
        trail: &mut Trail,
    ) {
        let record = chain.record;
        // Rules of a generation in which an object is unloaded are not kept.
        let rules = generation.settled().and_then(|_| self.rules.get_or_make(platform));
        // Between the allocation function and its record there was no other call.
        if word(record.wrapping_add(8)).is_none_or(|ret| ret & ADDRESS != chain.frames[0]) {
            trail.spoil();
            return;
        }
        let Some(mut pointer) = word(record) else { return trail.spoil() };
        let (mut pointer_at, mut sp, mut guessed) = (record, record + 16, false);
        // Without a table, a frame of AArch64 may reach further than its record: then `sp` is the
        // lowest that the stack pointer may be.
        let mut is_sp_known = true;
        loop {
            let ret = chain.frames[chain.len - 1];
            let kept = rules.and_then(|rules| rules.find(ret));
            let code = match kept {
                Some(code) => code,
                // A guess may have led to a return address of long ago, whose object goes now.
                None if guessed && rules.is_none() => return trail.spoil(),
                None => self.look_up(platform, ret, generation, &mut chain.is_unread),
            };
            if chain.is_unread {
                // It may be a wrapper, so the chain may be longer.
                trail.spoil();
            }
            chain.note(code.wrapper);
            if through && code.wrapper != Wrapper::No && chain.wrappers != chain.len {
                depth += 1;
            }
            let stops = chain.is_unread && unread == Unread::Stop;
            if stops || chain.len >= (chain.wrappers + depth).min(chain.frames.len()) {
                return;
            }
            let step = match code.rule {
                Rule::Constant(step) if is_sp_known => step,
                Rule::Constant(step) => match step.by_pointer() {
                    Some(step) => step,
                    None => return trail.spoil(),
                },
                Rule::FramePointer if kept.is_some() => {
                    guessed = true;
                    Step::RECORD
                }
                Rule::FramePointer => {
                    // Other code may come to a place where no object is.
                    trail.spoil();
                    match leads(platform, sp, pointer, &mut word) {
                        Lead::Nowhere => return,
                        Lead::Maybe => {}
                        Lead::ToCaller => {
                            self.keep_lead(platform, ret, code, chain.is_unread, generation);
                        }
                    }
                    guessed = true;
                    Step::RECORD
                }
                Rule::End => return,
            };
            is_sp_known = !IS_AARCH64 || matches!(code.rule, Rule::Constant(_));
            if step.base == Base::Frame {
                trail.add_pointer(pointer_at, pointer);
            }
            let Some(up) = Up::by(step, sp, pointer, &mut word) else { return trail.spoil() };
            if let Some((at, saved)) = up.saved {
                (pointer_at, pointer) = (at, saved);
            }
            trail.add_return(up.at);
            chain.frames[chain.len] = up.ret;
            chain.len += 1;
            sp = up.cfa;
        }
    }

    /// Reads the tables of the object that has the code at a return address, and keeps what they
    /// say. Without one, the frame pointer leads on.
    #[cold]
    #[inline(never)]
    fn look_up(
        &self,
        platform: &impl Platform,
        ret: usize,
        generation: Generation,
        is_unread: &mut bool,
    ) -> Code {
        let Some(rule) = rule_of(platform, ret) else {
            return Code { rule: Rule::FramePointer, wrapper: Wrapper::No };
        };
        let wrapper = self.wrappers.find_known(platform, ret);
        *is_unread |= wrapper.is_none();
        let code = Code { rule, wrapper: wrapper.unwrap_or(Wrapper::No) };
        // A frame pointer is to show first that it leads on.
        if wrapper.is_some()
            && rule != Rule::FramePointer
            && let Some(rules) = self.rules.get()
        {
            rules.keep(ret, code, &self.unloads, generation);
        }
        code
    }

    /// Keeps that the frame pointer leads on from the code of an object.
    #[cold]
    #[inline(never)]
    fn keep_lead(
        &self,
        platform: &impl Platform,
        ret: usize,
        code: Code,
        is_unread: bool,
        generation: Generation,
    ) {
        // By the byte of the call, as for rules.
        let is_in_object = platform.return_address(ret) == Return::AfterCall;
        if is_in_object
            && !is_unread
            && let Some(rules) = self.rules.get()
        {
            rules.keep(ret, code, &self.unloads, generation);
        }
    }
}

/// The rule of a return address. `None`: no object has the code. Not inlined: callers of `malloc`
/// may have little stack.
#[inline(never)]
fn rule_of(platform: &impl Platform, ret: usize) -> Option<Rule> {
    platform.with_object(ret.wrapping_sub(1), |object| rule(object, ret))
}

impl Walk<'_> {
    /// The question for its trail. `None`: an object is being unloaded, so there is none.
    #[inline(always)]
    fn wanted(&self) -> Option<Wanted<'_>> {
        let CallSite { frame: record, address: ret } = self.caller;
        let Reach { asked: depth, generation, .. } = self.reach;
        let generation = generation.settled()?;
        Some(Wanted { stack: self.stack, record, ret, depth, generation })
    }

    /// The return addresses of a call in a wrapper, and of its caller. `None`: it is in none, or no
    /// rule is kept.
    #[inline(always)]
    fn passage(&self, rules: &Rules) -> Option<[usize; 2]> {
        let CallSite { frame: record, address } = self.caller;
        let word = |at| self.stack.word(at);
        if word(record.wrapping_add(8))? & ADDRESS != address {
            return None;
        }
        let step = rules.step_from_wrapper(address)?;
        let sp = record + 16;
        let base = if step.base == Base::Stack { sp } else { word(record)? };
        let (_, ret) = Up::ret(step, sp, Up::cfa(step, sp, base)?, word)?;
        Some([address, ret])
    }
}

/// Bits of a return address that a call site keeps.
const ADDRESS: usize = (1 << 48) - 1;

/// The tag of a chain that was walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is new.
    New(TagId),
    /// It was given before.
    Again(TagId),
}

impl Found {
    fn tag(self) -> TagId {
        let (Self::New(tag) | Self::Again(tag)) = self;
        tag
    }
}

/// Return addresses of a call and its callers, innermost first.
pub(super) struct Chain {
    record: usize,
    frames: [usize; MAX_DEPTH as usize],
    len: usize,
    /// Number of return addresses at the start that are in wrappers.
    wrappers: usize,
    /// Number of those up to the last one in a wrapper that was chosen.
    chosen: usize,
    /// True: one of them is in an object whose symbols were not read yet.
    is_unread: bool,
}

impl Chain {
    fn from(caller: CallSite) -> Self {
        let mut frames = [0; MAX_DEPTH as usize];
        frames[0] = caller.address;
        Self { record: caller.frame, frames, len: 1, wrappers: 0, chosen: 0, is_unread: false }
    }

    /// Notes in which kind of wrapper the last return address is.
    fn note(&mut self, wrapper: Wrapper) {
        if wrapper == Wrapper::No || self.wrappers + 1 != self.len {
            return;
        }
        self.wrappers = self.len;
        if wrapper == Wrapper::Chosen {
            self.chosen = self.len;
        }
    }

    /// The first return address behind those at the start that are in wrappers. `None`: there are
    /// none in wrappers, or no others.
    pub(super) fn behind_wrappers(&self) -> Option<usize> {
        let known = &self.frames[..self.len];
        if self.wrappers > 0 { known.get(self.wrappers).copied() } else { None }
    }

    /// All return addresses.
    pub(super) fn calls(&self) -> &[usize] {
        &self.frames[..self.len]
    }

    /// The key of its site. A call without callers has that of the call.
    pub(super) fn key(&self) -> Key<'_> {
        match &self.frames[..self.len] {
            [ret] => Key::caller(*ret),
            frames => Key::chain(frames, self.wrappers, self.chosen),
        }
    }
}

#[cfg(test)]
mod tests;
