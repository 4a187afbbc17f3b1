//! Passages: calls in wrappers with the callers of these, which were walked before.
//!
//! ```text
//! slots[hash(return address, caller)]   sequence | tag | generation | return address | caller
//! ```
//!
//! Most wrappers are called by what is no wrapper, and their frames have a rule. So one step finds
//! the caller, and both addresses say which chain it is. A trail says so for one depth of the stack
//! only. A program that calls itself reaches its wrappers at very many: g++ had more of them than
//! there are trails.
//!
//! A hit reads one line of memory beside the rule's. A slot is a seqlock, as a trail is.

use super::tag::mix;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::TagId;

/// Elsewhere than on Linux no thread knows its stack, so there are no passages.
const SLOTS: usize = if cfg!(kmem_linux) { 1 << 11 } else { 1 };

/// A passage that is kept.
#[repr(C, align(32))]
struct Kept {
    /// Odd while a thread writes.
    seq: AtomicU32,
    /// Tag of the chain; 0: there is none.
    tag: AtomicU32,
    generation: AtomicU32,
    /// The return address of the call, and that of its caller.
    chain: [AtomicU64; 2],
}

/// The passages. Zeroed, there is none.
pub(super) struct Passages {
    slots: [Kept; SLOTS],
}

impl Passages {
    #[inline(always)]
    fn slot(&self, [ret, caller]: [usize; 2]) -> &Kept {
        &self.slots[mix(mix(0, ret as u64), caller as u64) as usize % SLOTS]
    }

    /// The tag of a chain, if it was kept in this generation.
    #[inline(always)]
    pub(super) fn find(&self, generation: u32, chain: [usize; 2]) -> Option<TagId> {
        let kept = self.slot(chain);
        // Acquire pairs with the release that ends a write.
        let seq = kept.seq.load(Ordering::Acquire);
        let tag = kept.tag.load(Ordering::Relaxed);
        let same = |(kept, ret): (&AtomicU64, usize)| kept.load(Ordering::Relaxed) == ret as u64;
        if seq & 1 != 0
            || tag == 0
            || kept.generation.load(Ordering::Relaxed) != generation
            || !kept.chain.iter().zip(chain).all(same)
        {
            return None;
        }
        // All of it was of one write, if the number is the same after the reads.
        fence(Ordering::Acquire);
        (kept.seq.load(Ordering::Relaxed) == seq).then_some(TagId(tag))
    }

    /// Keeps the tag of a chain. A writer never waits: if another one is at work, it is not kept.
    pub(super) fn keep(&self, generation: u32, chain: [usize; 2], tag: TagId) {
        let kept = self.slot(chain);
        let seq = kept.seq.load(Ordering::Relaxed);
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if seq & 1 != 0 || kept.seq.compare_exchange(seq, seq + 1, done, failed).is_err() {
            return;
        }
        // Pairs with the fence of `find`: who reads a word of this write sees an odd number, or a
        // later one.
        fence(Ordering::Release);
        kept.generation.store(generation, Ordering::Relaxed);
        for (kept, ret) in kept.chain.iter().zip(chain) {
            kept.store(ret as u64, Ordering::Relaxed);
        }
        kept.tag.store(tag.0, Ordering::Relaxed);
        kept.seq.store(seq.wrapping_add(2), Ordering::Release);
    }

    /// In a forked child: writes of other threads do not end.
    pub(super) fn forget_writers(&self) {
        for kept in &self.slots {
            if kept.seq.load(Ordering::Relaxed) & 1 != 0 {
                kept.tag.store(0, Ordering::Relaxed);
                kept.seq.fetch_add(1, Ordering::Release);
            }
        }
    }
}
