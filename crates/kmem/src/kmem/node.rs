//! Nodes of a machine whose memory is not equally far from all CPUs (NUMA): zones of their own.
//!
//! A zone is of one node. Who wants pages takes them from the zones of the node it runs on, then, when these can
//! neither serve nor grow, from the others in order; a node's first zone is made when a CPU of that node first
//! wants something. What is freed on a CPU of another node goes to its zone, never to that CPU's arrays.
//!
//! On a machine with one node all of this is one test in paths that are slow anyway. With several, the paths that
//! know no node are closed: an object or a page is looked up when it is freed.

use super::{Instance, ZoneSet};
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::PageCount;

/// Nodes that have zones of their own; those with higher numbers share with node 0.
const MOST: u32 = 64;

/// What an instance knows of nodes. Zeroed memory is a valid value: one node.
pub(super) struct Nodes {
    /// How many there are beside the first.
    others: AtomicU32,
    /// Nodes that have a zone, or have been refused one.
    tried: AtomicU64,
}

impl Nodes {
    pub(super) const fn new() -> Self {
        Self { others: AtomicU32::new(0), tried: AtomicU64::new(0) }
    }

    /// Whether there is more than one.
    #[inline]
    pub(super) fn several(&self) -> bool {
        self.others.load(Ordering::Relaxed) != 0
    }
}

impl<P: Platform> Instance<P> {
    pub(super) fn start_nodes(&self) {
        let nodes = self.platform.nodes().clamp(1, MOST);
        self.nodes.others.store(nodes - 1, Ordering::Relaxed);
    }

    /// The node of the calling thread's CPU.
    pub(super) fn node(&self) -> u32 {
        if !self.nodes.several() {
            return 0;
        }
        let node = self.platform.node();
        if node <= self.nodes.others.load(Ordering::Relaxed) { node } else { 0 }
    }

    /// Whether memory of a zone is near to the CPU that this runs on.
    #[inline]
    pub(super) fn is_near(&self, set: &ZoneSet) -> bool {
        !self.nodes.several() || set.node == self.node()
    }

    /// The node that memory of this instance was asked from, as the kernel calls it; `None`: it is not of this instance.
    pub fn page_to_nid(&'static self, at: *mut u8) -> Option<u32> {
        Some(self.zone_of(at as usize)?.node)
    }

    /// The zones that objects and pages come from, those of this node first.
    pub(super) fn near_sets(&'static self) -> impl Iterator<Item = &'static ZoneSet> {
        let node = self.node();
        if self.nodes.several() {
            self.ensure_zone_of(node);
        }
        let far = if self.nodes.several() { Some(self.heap_sets()) } else { None };
        self.heap_sets()
            .filter(move |set| set.node == node)
            .chain(far.into_iter().flatten().filter(move |set| set.node != node))
    }

    /// Makes the first zone of a node, once.
    fn ensure_zone_of(&'static self, node: u32) {
        let bit = 1 << node;
        let tried = &self.nodes.tried;
        if tried.load(Ordering::Relaxed) & bit == 0
            && tried.fetch_or(bit, Ordering::Relaxed) & bit == 0
            && !self.heap_sets().any(|set| set.node == node)
        {
            self.add_zone(PageCount(1));
        }
    }
}
