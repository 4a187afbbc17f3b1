//! Trails: chains of callers that were walked before, and where on the stack their words lie.
//!
//! ```text
//! first[hash(return address, depth of the stack)]   a trail
//! more[the same number]                             7 trails
//! trail   tag | returns: distance of each return address from the first frame
//!             | pointers: distance and value of each frame pointer that a frame's place depends on
//! ```
//!
//! A walk takes one step after the other, each of which waits for two loads. A trail is compared
//! instead: all its words lie at known distances, so the processor loads them at once.
//!
//! A trail whose words are all on the stack is the chain that a walk would find. The first return
//! address has a rule, which says where the second one lies; the trail has it there. It is equal,
//! so its rule is that of the trail's walk, and so on. A rule that counts from the frame pointer
//! finds the pointer's value, relative to the first frame, among the `pointers`. Rules change only
//! when an object is unloaded, and a trail holds for one generation of rules.
//!
//! A trail is a seqlock ([`Sequence`]). A reader that sees a mixture compares other words of the
//! stack, and finds out afterwards. A writer never waits: if another one is at work, the trail is
//! not kept.

use super::sequence::Sequence;
use crate::os::{Stack, return_address};
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, Ordering};
use crate::units::TagId;
use kmem_layout::site::MAX_DEPTH;

/// Elsewhere than on Linux no thread knows its stack, so there are no trails.
const SETS: usize = if cfg!(kmem_linux) { 256 } else { 1 };
/// Trails of one place that differ in callers further out.
const WAYS: usize = 8;
const MOST: usize = MAX_DEPTH as usize;

/// A trail, while it is walked. Distances are in words from the first frame's record.
pub(super) struct Trail {
    record: usize,
    returns: [u16; MOST],
    pointers: [(u16, u16); MOST],
    returns_len: usize,
    pointers_len: usize,
    /// False: it cannot be found again by these words.
    sound: bool,
}

impl Trail {
    /// An empty trail from the record of the first frame.
    pub(super) fn from(record: usize) -> Self {
        Self {
            record,
            returns: [0; MOST],
            pointers: [(0, 0); MOST],
            returns_len: 0,
            pointers_len: 0,
            sound: true,
        }
    }

    /// Words from the record to an address.
    fn distance(&self, at: usize) -> Option<u16> {
        let bytes = at.checked_sub(self.record)?;
        if bytes.is_multiple_of(8) { u16::try_from(bytes / 8).ok() } else { None }
    }

    /// Notes that the next return address lies at an address.
    #[inline(always)]
    pub(super) fn add_return(&mut self, at: usize) {
        match (self.distance(at), self.returns.get_mut(self.returns_len)) {
            (Some(distance), Some(entry)) => {
                *entry = distance;
                self.returns_len += 1;
            }
            _ => self.sound = false,
        }
    }

    /// Notes that the chain depends on a frame pointer, which was read at an address.
    #[inline(always)]
    pub(super) fn add_pointer(&mut self, at: usize, value: usize) {
        let distances = self.distance(at).zip(self.distance(value));
        match (distances, self.pointers.get_mut(self.pointers_len)) {
            (Some(distances), Some(entry)) => {
                *entry = distances;
                self.pointers_len += 1;
            }
            _ => self.sound = false,
        }
    }

    /// Notes that the chain depends on more than words of the stack.
    pub(super) fn spoil(&mut self) {
        self.sound = false;
    }
}

/// A trail that is kept.
#[repr(C, align(64))]
struct Kept {
    seq: Sequence,
    generation: AtomicU32,
    /// Tag of the chain; 0: there is none.
    tag: AtomicU32,
    /// Depth that was asked for, number of returns, number of pointers: a byte each.
    counts: AtomicU32,
    returns: [AtomicU16; MOST],
    /// Distance of the pointer's place, and of its value above.
    pointers: [AtomicU32; MOST],
}

/// The trails. Zeroed, there is none.
pub(super) struct Trails {
    /// Number of trails of each set. A look at others would touch their memory.
    lens: [AtomicU8; SETS],
    /// The first trail of each set. Most sets of a short program have no other, so it uses few
    /// pages.
    first: [Kept; SETS],
    more: [[Kept; WAYS - 1]; SETS],
}

/// The question for a chain: its first record and return address, and the depth asked for.
pub(super) struct Wanted<'a> {
    pub(super) stack: &'a Stack,
    pub(super) record: usize,
    pub(super) ret: usize,
    pub(super) depth: usize,
    pub(super) generation: u32,
}

impl Wanted<'_> {
    /// The set for it. On all threads, equal calls are at equal depths of the stack.
    #[inline(always)]
    fn set(&self) -> usize {
        let place = self.ret ^ self.stack.top().wrapping_sub(self.record) << 20 ^ self.depth << 44;
        ((place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % SETS
    }

    /// Returns whether the stack has the words of a trail, whose chain is `frames`.
    #[inline(always)]
    fn is_on(&self, kept: &Kept, frames: &[u64], pointers: usize) -> bool {
        if frames.first() != Some(&(self.ret as u64)) {
            return false;
        }
        let word = |distance: usize| self.stack.word(self.record.wrapping_add(8 * distance));
        for (ret, at) in frames[1..].iter().zip(&kept.returns) {
            let found = word(at.load(Ordering::Relaxed).into());
            if found.map(return_address) != Some(*ret as usize) {
                return false;
            }
        }
        kept.pointers[..pointers.min(MOST)].iter().all(|pointer| {
            let pointer = pointer.load(Ordering::Relaxed) as usize;
            let value = self.record.wrapping_add(8 * (pointer >> 16));
            word(pointer & 0xffff) == Some(value)
        })
    }
}

impl Trails {
    /// The trails of a set.
    #[inline(always)]
    fn set(&self, number: usize) -> impl Iterator<Item = &Kept> {
        let len = usize::from(self.lens[number].load(Ordering::Relaxed));
        (0..len.min(WAYS)).map(move |way| self.way(number, way))
    }

    /// A trail of a set.
    #[inline(always)]
    fn way(&self, number: usize, way: usize) -> &Kept {
        match way {
            0 => &self.first[number],
            _ => &self.more[number][way - 1],
        }
    }

    /// The tag of the chain on the stack, if it is known. `frames` gives the return addresses of a
    /// tag.
    #[inline(always)]
    pub(super) fn find<'a>(
        &self,
        wanted: &Wanted<'_>,
        frames: impl Fn(TagId) -> &'a [u64],
    ) -> Option<TagId> {
        let number = wanted.set();
        for kept in self.set(number) {
            let Some(seq) = kept.seq.read() else { continue };
            let (tag, counts) =
                (kept.tag.load(Ordering::Relaxed), kept.counts.load(Ordering::Relaxed));
            if tag == 0 {
                continue;
            }
            let (depth, returns) = (counts as usize & 0xff, counts as usize >> 8 & 0xff);
            let frames = frames(TagId(tag));
            if depth != wanted.depth
                || kept.generation.load(Ordering::Relaxed) != wanted.generation
                || frames.len() != returns + 1
                || !wanted.is_on(kept, frames, counts as usize >> 16)
            {
                continue;
            }
            if kept.seq.is_still(seq) {
                return Some(TagId(tag));
            }
        }
        None
    }

    /// Keeps the trail of a chain that was walked in a generation.
    pub(super) fn keep(&self, wanted: &Wanted<'_>, trail: &Trail, tag: TagId) {
        if !trail.sound {
            return;
        }
        let number = wanted.set();
        // An empty one first. Then one for the tag, so that two chains of a place do not always
        // take each other's.
        let is_free = |kept: &Kept| kept.tag.load(Ordering::Relaxed) == 0;
        let len = self.set(number).count();
        let empty = self.set(number).position(is_free).unwrap_or(len);
        let way = if empty < WAYS { empty } else { tag.0 as usize % WAYS };
        let kept = self.way(number, way);
        self.lens[number].fetch_max(way as u8 + 1, Ordering::Relaxed);
        // A new one was never written, unless another thread writes it now. To read it first would
        // cost a page fault more.
        let seq = if way < len { kept.seq.now() } else { 0 };
        let counts = wanted.depth | trail.returns_len << 8 | trail.pointers_len << 16;
        let pointers = &trail.pointers[..trail.pointers_len];
        kept.seq.write(seq, || {
            kept.generation.store(wanted.generation, Ordering::Relaxed);
            kept.counts.store(counts as u32, Ordering::Relaxed);
            for (entry, &at) in kept.returns.iter().zip(&trail.returns[..trail.returns_len]) {
                entry.store(at, Ordering::Relaxed);
            }
            for (entry, &(at, value)) in kept.pointers.iter().zip(pointers) {
                entry.store(u32::from(value) << 16 | u32::from(at), Ordering::Relaxed);
            }
            kept.tag.store(tag.0, Ordering::Relaxed);
        });
    }

    /// Forgets the trails of a tag among those that a question would find.
    pub(super) fn forget(&self, wanted: &Wanted<'_>, tag: TagId) {
        for kept in self.set(wanted.set()) {
            let seq = kept.seq.now();
            if kept.tag.load(Ordering::Relaxed) == tag.0 {
                kept.seq.write(seq, || kept.tag.store(0, Ordering::Relaxed));
            }
        }
    }

    /// In a forked child: writes of other threads do not end.
    pub(super) fn forget_writers(&self) {
        for kept in (0..SETS).flat_map(|number| self.set(number)) {
            kept.seq.end_lost(|| kept.tag.store(0, Ordering::Relaxed));
        }
    }
}
