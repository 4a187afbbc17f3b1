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

use super::sequence::Sequence;
use crate::prng::mix;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::TagId;

/// Passages of wrappers. Elsewhere than on Linux no thread knows its stack, so there are none.
pub(super) const OF_WRAPPERS: usize = if cfg!(kmem_linux) { 1 << 11 } else { 1 };

/// A passage that is kept.
#[repr(C, align(32))]
struct Kept {
    seq: Sequence,
    /// Tag of the chain; 0: there is none.
    tag: AtomicU32,
    generation: AtomicU32,
    /// The return address of the call, and that of its caller.
    chain: [AtomicU64; 2],
}

/// Places for passages. Zeroed, there is none.
pub(super) struct Passages<const SLOTS: usize = OF_WRAPPERS> {
    slots: [Kept; SLOTS],
}

impl<const SLOTS: usize> Passages<SLOTS> {
    #[inline(always)]
    fn slot(&self, [ret, caller]: [usize; 2]) -> &Kept {
        &self.slots[mix(mix(0, ret as u64), caller as u64) as usize % SLOTS]
    }

    /// The tag of a chain, if it was kept in this generation.
    #[inline(always)]
    pub(super) fn find(&self, generation: u32, chain: [usize; 2]) -> Option<TagId> {
        let kept = self.slot(chain);
        let seq = kept.seq.read()?;
        let tag = kept.tag.load(Ordering::Relaxed);
        let same = |(kept, ret): (&AtomicU64, usize)| kept.load(Ordering::Relaxed) == ret as u64;
        if tag == 0
            || kept.generation.load(Ordering::Relaxed) != generation
            || !kept.chain.iter().zip(chain).all(same)
        {
            return None;
        }
        kept.seq.is_still(seq).then_some(TagId(tag))
    }

    /// Keeps the tag of a chain. If another thread writes to its slot, it is not kept.
    pub(super) fn keep(&self, generation: u32, chain: [usize; 2], tag: TagId) {
        let kept = self.slot(chain);
        kept.seq.write(kept.seq.now(), || {
            kept.generation.store(generation, Ordering::Relaxed);
            for (kept, ret) in kept.chain.iter().zip(chain) {
                kept.store(ret as u64, Ordering::Relaxed);
            }
            kept.tag.store(tag.0, Ordering::Relaxed);
        });
    }

    /// In a forked child: writes of other threads do not end.
    pub(super) fn forget_writers(&self) {
        for kept in &self.slots {
            kept.seq.end_lost(|| kept.tag.store(0, Ordering::Relaxed));
        }
    }
}
