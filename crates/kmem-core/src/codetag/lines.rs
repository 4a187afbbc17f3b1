//! Sites of an interpreter's lines: see [`crate::frames`].
//!
//! ```text
//! cache[slot(key)]           as for return addresses: the key of an instruction, marked
//! kept[hash(key)]            key | tag, code, epoch     more of them, behind the cache
//! codes[hash(block)]         block, length, epoch       code objects with keys in either
//! passages[hash(C site, key)]                           calls from outside of the interpreter
//! passages[hash(print, key)]                            code objects in memory of its own
//! ```
//!
//! A site is a file, a function and a line, whichever instruction of whichever code object asked.
//! So a module that is loaded again has its sites again. A call that is not in the interpreter's
//! own code adds the name of its object to the site.
//!
//! A code object that is freed leaves its keys. Another one in its place must not have them. Before
//! there can be one, the allocation function hands out the block, and [`Sites::given`] is told.
//!
//! The interpreter's own allocator hands out parts of its arenas, and kmem does not see it. A key
//! in them is kept with the print of its code object ([`Frames::print`]). Each call compares it.

use core::array;

use kmem_layout::word::{TAG_MASK, TAG_NONE, TAG_OTHER};

use super::passages::Passages;
use super::tag::{FRAME, Key};
use super::{CallSite, Names, Sites, Table};
use crate::frames::{Block, Frames, Name, Now};
use crate::os::Platform;
use crate::prng::mix;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::TagId;

/// Places of code objects: sets, and places of a set. A program has more code than that, but most
/// of it never asks for memory.
const SETS: usize = if cfg!(kmem_linux) { 1 << 10 } else { 1 };
const WAYS: usize = 4;
/// Keys that are kept.
const KEPT: usize = if cfg!(kmem_linux) { 1 << 14 } else { 1 };
const EPOCH_BITS: u32 = 32;

/// Keys of lines, for a program with an interpreter. Zeroed, there is none.
pub(super) struct Lines {
    codes: [[AtomicU64; WAYS]; SETS],
    lens: [[AtomicU32; WAYS]; SETS],
    epochs: [[AtomicU32; WAYS]; SETS],
    kept: [Kept; KEPT],
    passages: Passages<KEPT>,
    generation: AtomicU32,
}

/// A key with its tag. Only complete if `word` is the same before and after the key is read.
#[repr(C, align(16))]
struct Kept {
    key: AtomicU64,
    /// Epoch of the code object:32 | place of the code object:12 | tag:17; 0: none.
    word: AtomicU64,
}

/// The place of a code object.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot {
    number: usize,
    epoch: u32,
}

impl Slot {
    fn word(self, tag: TagId) -> u64 {
        const TAG: u32 = TAG_MASK.count_ones();
        const { assert!(TAG + (SETS * WAYS).ilog2() + EPOCH_BITS < 64) };
        let number = (self.number as u64) << TAG | u64::from(tag.0);
        u64::from(self.epoch) << (64 - EPOCH_BITS) | number
    }
}

impl Lines {
    #[inline(always)]
    fn set(block: usize) -> usize {
        mix(0, block as u64 >> 4) as usize % SETS
    }

    fn slot(&self, block: usize) -> Option<Slot> {
        let set = Self::set(block);
        let way =
            self.codes[set].iter().position(|at| at.load(Ordering::Acquire) == block as u64)?;
        let epoch = self.epochs[set][way].load(Ordering::Acquire);
        Some(Slot { number: set * WAYS + way, epoch })
    }

    fn kept(&self, key: usize) -> &Kept {
        &self.kept[mix(1, key as u64) as usize % KEPT]
    }

    fn find(&self, key: usize, block: usize) -> Option<TagId> {
        let kept = self.kept(key);
        let word = kept.word.load(Ordering::Acquire);
        if word == 0 || kept.key.load(Ordering::Relaxed) != key as u64 {
            return None;
        }
        fence(Ordering::Acquire);
        let tag = TagId(word as u32 & TAG_MASK);
        let is_whole = kept.word.load(Ordering::Relaxed) == word;
        (is_whole && self.slot(block)?.word(tag) == word).then_some(tag)
    }

    fn keep(&self, key: usize, slot: Slot, tag: TagId) {
        let kept = self.kept(key);
        kept.word.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        kept.key.store(key as u64, Ordering::Relaxed);
        kept.word.store(slot.word(tag), Ordering::Release);
    }
}

impl Sites {
    /// The frames of the program's interpreter.
    #[inline(always)]
    pub fn interpreter(&self) -> &Frames {
        self.unwinder.interpreter()
    }

    /// The bits of a key that name a call that returns to `ret`, on a thread that runs the
    /// interpreter: its line. `ret` itself, if the thread is in no line.
    #[inline]
    pub fn key_in_frame(&self, platform: &impl Platform, ret: usize) -> usize {
        match self.interpreter().key(platform) {
            Some(key) if self.interpreter().has_code(ret) => FRAME | key,
            Some(_) => CallSite::BELOW_FRAME,
            None => ret,
        }
    }

    /// Follows the frames of the calling thread from now on, if it holds the interpreter, and the
    /// call is one of the interpreter's own. Returns whether this is the first time.
    #[inline(never)]
    pub fn follow(&self, platform: &impl Platform, caller: CallSite) -> bool {
        let is_first = self.interpreter().are_known()
            && self.interpreter().has_code(caller.address)
            && self.interpreter().follow(platform);
        if is_first {
            // Calls of the interpreter's own that came before it was known.
            self.forget();
        }
        is_first
    }

    /// The instruction that asks, and the return address of a call that is not the interpreter's
    /// own. `None`: lines are not named, or this thread is in none.
    #[inline]
    fn asking(&self, platform: &impl Platform, caller: CallSite) -> Option<(Now, Option<usize>)> {
        if !self.interpreter().are_known() || caller.static_tag().is_some() {
            return None;
        }
        self.asking_in_frame(platform, caller)
    }

    #[inline(never)]
    fn asking_in_frame(
        &self,
        platform: &impl Platform,
        caller: CallSite,
    ) -> Option<(Now, Option<usize>)> {
        if !self.interpreter().is_followed() {
            return None;
        }
        let ret = return_address(platform, caller)?;
        let below = (!self.interpreter().has_code(ret)).then_some(ret);
        Some((self.interpreter().now(platform)?, below))
    }

    /// The caller without the marks of a frame: the return address of the call.
    #[cold]
    #[inline(never)]
    pub(super) fn without_frame(&self, platform: &impl Platform, caller: CallSite) -> CallSite {
        let ret = return_address(platform, caller);
        CallSite { address: ret.unwrap_or(CallSite::NOBODY.address), ..caller }
    }

    /// The tag of the line that asks, if it was told before. `keep`: see [`Sites::lookup`].
    #[inline]
    pub(super) fn find_line(
        &self,
        platform: &impl Platform,
        caller: CallSite,
        keep: bool,
    ) -> Option<TagId> {
        let (now, below) = self.asking(platform, caller)?;
        self.find_known(platform, now, caller, below, keep)
    }

    fn find_known(
        &self,
        platform: &impl Platform,
        now: Now,
        caller: CallSite,
        below: Option<usize>,
        keep: bool,
    ) -> Option<TagId> {
        let lines = self.unwinder.lines.get()?;
        let generation = lines.generation.load(Ordering::Acquire);
        let site = match below {
            None => {
                if let Some(tag) = lines.find(now.key, now.block) {
                    if keep {
                        self.remember(FRAME | now.key, tag);
                    }
                    return Some(tag);
                }
                None
            }
            Some(ret) => {
                let site = self.known_below(platform, CallSite { address: ret, ..caller })?;
                let noticed = lines.passages.find(generation, [site.0 as usize, now.key]);
                if noticed.is_some() {
                    return noticed;
                }
                Some(site)
            }
        };
        let print = self.print(platform, now, site)?;
        lines.passages.find(generation, [print, now.key])
    }

    /// The first word of a passage of a code object in memory of the interpreter's own allocator.
    fn print(&self, platform: &impl Platform, now: Now, site: Option<TagId>) -> Option<usize> {
        /// Tags of sites are smaller.
        const PRINT: usize = 1 << 32;
        let print = self.interpreter().print(platform, now)?;
        Some(mix(print, site.map_or(0, |tag| u64::from(tag.0))) as usize | PRINT)
    }

    /// The tag of a call without regard to the interpreter, if it is known.
    fn known_below(&self, platform: &impl Platform, caller: CallSite) -> Option<TagId> {
        let cached = self.look_up(caller.address).map(|word| TagId(word & TAG_MASK));
        cached.or_else(|| self.lookup_chain_of_code(platform, caller))
    }

    /// The tag of the line that asks; a new one if it has none. `None`: no line asks. `keep`: see
    /// [`Sites::lookup`]. Not inlined: callers of `malloc` may have little stack.
    #[inline(never)]
    pub(super) fn lookup_line(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        caller: CallSite,
        keep: bool,
    ) -> Option<TagId> {
        let (now, below) = self.asking(platform, caller)?;
        if keep && let Some(tag) = self.find_known(platform, now, caller, below, keep) {
            return Some(tag);
        }
        let below = below.map(|ret| {
            let caller = CallSite { address: ret, ..caller };
            let known = self.known_below(platform, caller);
            known.unwrap_or_else(|| self.lookup_code(platform, table, caller, keep))
        });
        self.name_line(platform, table, now, below, keep)
    }

    /// Names an instruction, and keeps its tag. Not inlined: callers of `malloc` may have little
    /// stack.
    #[cold]
    #[inline(never)]
    fn name_line(
        &self,
        platform: &impl Platform,
        table: &Table<'_>,
        now: Now,
        below: Option<TagId>,
        keep: bool,
    ) -> Option<TagId> {
        let mut name = Name::new();
        let block = self.interpreter().name(platform, now, &mut name)?;
        let names =
            Names { line: name.line, module: &[], file: name.file(), function: name.function() };
        let tag = match below.map(|tag| self.address(tag)) {
            Some(at) if at != 0 && !self.interpreter().has_code(at) => {
                let found = platform.with_object(at.wrapping_sub(1), |object| {
                    let module = object.name();
                    let module = &module[..module.len().min(64)];
                    self.find_or_add(platform, table, Key::line(&Names { module, ..names }))
                });
                found.unwrap_or_else(|| self.find_or_add(platform, table, Key::line(&names)))
            }
            _ => self.find_or_add(platform, table, Key::line(&names)),
        };
        if keep && tag.0 != TAG_OTHER && tag.0 != TAG_NONE {
            self.keep_line(platform, now, block, below, tag);
        }
        Some(tag)
    }

    fn keep_line(
        &self,
        platform: &impl Platform,
        now: Now,
        block: Block,
        below: Option<TagId>,
        tag: TagId,
    ) {
        let Some(lines) = self.unwinder.lines.get_or_make(platform) else { return };
        let generation = lines.generation.load(Ordering::Acquire);
        // Other memory may be freed without notice: that of the interpreter's own allocator.
        let is_noticed =
            self.interpreter().has_code(block.start) || platform.has_reserved(block.start);
        if !block.is_unique || !is_noticed {
            if let Some(print) = self.print(platform, now, below) {
                lines.passages.keep(generation, [print, now.key], tag);
            }
            return;
        }
        let Some(slot) = self.place_code(lines, block) else { return };
        match below {
            None => {
                lines.keep(now.key, slot, tag);
                self.remember(FRAME | now.key, tag);
            }
            Some(site) => {
                lines.passages.keep(generation, [site.0 as usize, now.key], tag);
            }
        }
    }

    /// The place of a code object, taken from another one if there is no other.
    fn place_code(&self, lines: &Lines, block: Block) -> Option<Slot> {
        let len = block.len.min(u32::MAX as usize) as u32;
        if let Some(slot) = lines.slot(block.start) {
            let (set, way) = (slot.number / WAYS, slot.number % WAYS);
            return (lines.lens[set][way].load(Ordering::Relaxed) == len).then_some(slot);
        }
        let set = Lines::set(block.start);
        let codes = &lines.codes[set];
        let free = codes.iter().position(|code| code.load(Ordering::Relaxed) == 0);
        let way = free.unwrap_or_else(|| {
            let epochs: [u32; WAYS] =
                array::from_fn(|way| lines.epochs[set][way].load(Ordering::Relaxed));
            let way =
                epochs.iter().fold(0u32, |sum, &epoch| sum.wrapping_add(epoch)) as usize % WAYS;
            self.forget_code(lines, set, way);
            way
        });
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        codes[way].compare_exchange(0, block.start as u64, done, failed).ok()?;
        lines.lens[set][way].store(len, Ordering::Relaxed);
        lines.slot(block.start)
    }

    /// Notes that a block was handed out: what was there is gone.
    #[inline]
    pub fn given(&self, block: usize) {
        let Some(lines) = self.unwinder.lines.get() else { return };
        let set = Lines::set(block);
        for way in 0..WAYS {
            if lines.codes[set][way].load(Ordering::Relaxed) == block as u64 {
                self.forget_code(lines, set, way);
            }
        }
    }

    /// Forgets all keys of a code object.
    #[cold]
    #[inline(never)]
    fn forget_code(&self, lines: &Lines, set: usize, way: usize) {
        let start = lines.codes[set][way].swap(0, Ordering::AcqRel) as usize;
        let len = lines.lens[set][way].load(Ordering::Relaxed) as usize;
        lines.epochs[set][way].fetch_add(1, Ordering::AcqRel);
        lines.generation.fetch_add(1, Ordering::AcqRel);
        self.forget_addresses(start, len);
    }

    /// Forgets calls from objects that may be gone.
    pub(super) fn forget_calls_below(&self) {
        if let Some(lines) = self.unwinder.lines.get() {
            lines.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// In a forked child: gives up what other threads were writing.
    pub(super) fn forget_line_writers(&self) {
        if let Some(lines) = self.unwinder.lines.get() {
            lines.passages.forget_writers();
        }
    }
}

/// The return address of a call, also where the key names a frame: then it is in the call's record.
#[inline]
fn return_address(platform: &impl Platform, caller: CallSite) -> Option<usize> {
    if !caller.is_in_frame() {
        return Some(caller.address);
    }
    let at = caller.frame.checked_add(8).filter(|_| caller.frame != 0)?;
    if let Some(stack) = platform.stack(caller.frame) {
        return stack.word(at);
    }
    platform.peek_word(at)
}
