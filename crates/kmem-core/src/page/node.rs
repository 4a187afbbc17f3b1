//! NUMA nodes: zones of their own for memory that is not equally far from all CPUs.
//!
//! A zone belongs to one node. A request takes pages from the zones of the node that its CPU
//! belongs to. When these can neither serve nor grow, it takes them from the others in order. A
//! node's first zone is made at the first request on a CPU of that node. Memory that is freed on a
//! CPU of another node goes to its zone, never to that CPU's arrays.
//!
//! On a machine with one node all of this is one test on slow paths. With several nodes the fast
//! paths, which know no node, are closed: an object or a page is looked up when it is freed.

use super::SlabTables;
use super::zones::{ZoneSet, Zones};
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::PageCount;

/// Most nodes with zones of their own. Nodes with higher numbers share those of node 0.
const MOST: u32 = 64;

/// Nodes of an instance. Zeroed memory is a valid value: one node.
pub(super) struct Nodes {
    /// Number of nodes beside the first.
    others: AtomicU32,
    /// A bit for each node that has a zone, or for which the platform refused one.
    tried: AtomicU64,
}

impl Nodes {
    pub(super) const fn new() -> Self {
        Self { others: AtomicU32::new(0), tried: AtomicU64::new(0) }
    }

    /// Asks the platform for the number of nodes.
    pub(super) fn start(&self, platform: &impl Platform) {
        let nodes = platform.nodes().clamp(1, MOST);
        self.others.store(nodes - 1, Ordering::Relaxed);
    }
}

impl<S: SlabTables> Zones<S> {
    /// Returns whether there is more than one node.
    #[inline]
    pub fn has_several_nodes(&self) -> bool {
        self.nodes.others.load(Ordering::Relaxed) != 0
    }

    /// The node of the calling thread's CPU.
    pub(super) fn node(&self, platform: &impl Platform) -> u32 {
        if !self.has_several_nodes() {
            return 0;
        }
        let node = platform.node();
        if node <= self.nodes.others.load(Ordering::Relaxed) { node } else { 0 }
    }

    /// Returns whether memory of a zone is near to the calling thread's CPU.
    #[inline]
    pub fn is_near(&self, platform: &impl Platform, set: &ZoneSet<S>) -> bool {
        !self.has_several_nodes() || set.node == self.node(platform)
    }

    /// The zones of the heap, those of the calling thread's node first.
    pub fn near(&self, platform: &impl Platform) -> impl Iterator<Item = &ZoneSet<S>> {
        let node = self.node(platform);
        if self.has_several_nodes() {
            self.ensure_zone_of(platform, node);
        }
        let far = if self.has_several_nodes() { Some(self.heap()) } else { None };
        self.heap()
            .filter(move |set| set.node == node)
            .chain(far.into_iter().flatten().filter(move |set| set.node != node))
    }

    /// Makes the first zone of a node, once.
    fn ensure_zone_of(&self, platform: &impl Platform, node: u32) {
        let bit = 1 << node;
        let tried = &self.nodes.tried;
        if tried.load(Ordering::Relaxed) & bit == 0
            && tried.fetch_or(bit, Ordering::Relaxed) & bit == 0
            && !self.heap().any(|set| set.node == node)
        {
            self.add(platform, PageCount::ONE);
        }
    }
}
