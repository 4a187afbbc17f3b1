//! Removed elements: they lose their hints, and are dropped when no reader can refer to them.

use core::ptr::NonNull;

use super::grace::Batch;
use super::list::{Link, Node};
use super::{Element, RHashTable, hint, segment};
use crate::source::Source;
use crate::sync::Ordering;

/// Fewest retired things for which a writer tries to drop them, which interrupts all CPUs.
const LOOK_AFTER: usize = if cfg!(loom) { 1 } else { 128 };
/// At this many retired things, every writer tries.
const LOOK_AFTER_MOST: usize = if cfg!(loom) { 1 } else { 1024 };
/// Between the two, a writer tries at one retired thing per this many elements.
const LOOK_AFTER_PART: usize = 8;

impl<K, V, S: Source, H> RHashTable<K, V, S, H> {
    /// Removes the hints for an unlinked element, and retires it.
    ///
    /// # Safety
    /// `link` is that of an element of this table, and this thread unlinked it.
    pub(super) unsafe fn retire(&self, link: &Link) {
        // SAFETY: an element's link, by the contract.
        let node = unsafe { Node::of(link) };
        hint::forget(node, |segment| self.segments.hints_in(segment, link.hash()));
        // SAFETY: unlinked by this thread (contract), and without hints now.
        unsafe { self.retire_unhinted(node) };
    }

    /// Retires an element.
    ///
    /// # Safety
    /// `node` is that of an element of this table, which new readers cannot find. No other call
    /// retires it.
    pub(super) unsafe fn retire_unhinted(&self, node: &Node) {
        // SAFETY: the element, and so its state, is valid until its grace period is over.
        unsafe { self.grace.retire(&raw const *node as usize, &node.state) };
    }

    /// Reclaims, if enough things are retired.
    pub(super) fn tidy(&self) {
        let part = self.len() / LOOK_AFTER_PART;
        if self.grace.waiting_for(part.clamp(LOOK_AFTER, LOOK_AFTER_MOST)) {
            self.reclaim();
        }
    }

    /// Drops removed elements that no reader can refer to any more. Does not wait for readers.
    pub fn reclaim(&self) {
        if let Some(batch) = self.grace.look(&self.source) {
            // SAFETY: a batch of this table's grace period.
            unsafe { self.drop_batch(batch, false) };
        }
    }

    /// Drops the elements of a batch, and advances its segments.
    ///
    /// # Safety
    /// The batch is from this table's grace period. If `closing`, no other thread uses the table.
    pub(super) unsafe fn drop_batch(&self, batch: Batch, closing: bool) {
        let mut next = batch.0;
        while next != 0 {
            if next & segment::RETIRED != 0 {
                // SAFETY: a segment's word in such a batch; for `closing`, the same contract.
                next = unsafe { self.drop_segment(next, closing) };
                continue;
            }
            let at = next as *mut Element<K, V>;
            // SAFETY: a retired element, which no thread refers to (invariant of `Batch`).
            unsafe {
                next = (*at).node.state.load(Ordering::Relaxed);
                at.drop_in_place();
                self.source.release(NonNull::new_unchecked(at.cast()));
            }
        }
    }
}
