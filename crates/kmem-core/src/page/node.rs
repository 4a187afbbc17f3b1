//! NUMA nodes: zones of their own for memory that is not equally far from all CPUs.
//!
//! A zone belongs to one node. A request takes pages from the zones of the node that its CPU
//! belongs to. When these can neither serve nor grow, it takes them from those of the other nodes,
//! the nearest one first.
//!
//! Memory that is freed goes onto the arrays of the CPU that frees it, whatever its node is, so the
//! fast paths know no node. It goes back to its node when it leaves the array, see `heap::nodes`.

use super::SlabTables;
use super::zones::{ZoneSet, Zones};
use crate::os::{MAX_NODES, Platform};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::units::{Item, PageCount};

/// Distance between two nodes, if the platform does not say. It counts tenths of that to memory of
/// the CPU's own node.
const FAR: u8 = 20;

/// The nodes that may serve a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// This node, or else the others, the nearest first.
    Near(u32),
    /// This node alone.
    Only(u32),
}

impl Placement {
    /// The node that is asked first.
    pub const fn node(self) -> u32 {
        match self {
            Self::Near(node) | Self::Only(node) => node,
        }
    }
}

/// Nodes of an instance. Zeroed memory is a valid value: one node.
pub(super) struct Nodes {
    /// Number of nodes beside the first.
    others: AtomicU32,
    /// A bit for each node that lacked a zone when it was first used, and for which the platform
    /// was asked again.
    tried: AtomicU64,
    /// For each node, all nodes: itself, then the others, the nearest first.
    order: [[AtomicU8; MAX_NODES as usize]; MAX_NODES as usize],
}

impl Nodes {
    pub(super) const fn new() -> Self {
        Self {
            others: AtomicU32::new(0),
            tried: AtomicU64::new(0),
            order: [const { [const { AtomicU8::new(0) }; MAX_NODES as usize] }; MAX_NODES as usize],
        }
    }

    /// Asks the platform for the distances between the first `nodes` nodes.
    pub(super) fn start(&self, platform: &impl Platform, nodes: u32) {
        let nodes = nodes.clamp(1, MAX_NODES);
        self.others.store(nodes - 1, Ordering::Relaxed);
        if nodes == 1 {
            return;
        }
        for from in 0..nodes {
            let mut distances = [FAR; MAX_NODES as usize];
            platform.distances(from, &mut distances[..nodes as usize]);
            let mut order: [u8; MAX_NODES as usize] = core::array::from_fn(|node| node as u8);
            let order = &mut order[..nodes as usize];
            // A node is nearer to itself than any other, whatever the platform says.
            order.sort_unstable_by_key(|&to| (u32::from(to) != from, distances[to as usize], to));
            for (place, &mut to) in self.order[from as usize].iter().zip(order) {
                place.store(to, Ordering::Relaxed);
            }
        }
    }

    /// The nodes of a placement, nearest first.
    fn nearest(&self, placement: Placement) -> impl Iterator<Item = u32> {
        let from = placement.node();
        let count = match placement {
            Placement::Only(_) => 1,
            Placement::Near(_) => self.others.load(Ordering::Relaxed) as usize + 1,
        };
        let order = &self.order[from as usize % MAX_NODES as usize];
        order[..count.min(order.len())].iter().map(|node| node.load(Ordering::Relaxed).into())
    }
}

impl<S: SlabTables> Zones<S> {
    /// Number of nodes.
    #[inline]
    pub fn nodes(&self) -> u32 {
        self.nodes.others.load(Ordering::Relaxed) + 1
    }

    /// Returns whether there is more than one node.
    #[inline]
    pub fn has_several_nodes(&self) -> bool {
        self.nodes() != 1
    }

    /// The node of the calling thread's CPU.
    #[inline]
    pub fn node(&self, platform: &impl Platform) -> u32 {
        if !self.has_several_nodes() {
            return 0;
        }
        let node = platform.node();
        if node < self.nodes() { node } else { 0 }
    }

    /// Placement near to the calling thread's CPU.
    #[inline]
    pub fn here(&self, platform: &impl Platform) -> Placement {
        Placement::Near(self.node(platform))
    }

    /// The zones of the heap for a placement, nearest first.
    pub fn nearest(
        &self,
        platform: &impl Platform,
        placement: Placement,
    ) -> impl Iterator<Item = &ZoneSet<S>> {
        if self.has_several_nodes() {
            self.ensure_zone_of(platform, placement.node());
        }
        self.nodes.nearest(placement).flat_map(|node| self.of_node(node))
    }

    /// The zones of the heap that are of a node.
    pub fn of_node(&self, node: u32) -> impl Iterator<Item = &ZoneSet<S>> {
        self.heap().filter(move |set| set.node == node)
    }

    /// Moves items of one zone next to each other, if there are several nodes.
    pub fn gather(&self, items: &mut [Item]) {
        let mut rest = if self.has_several_nodes() { items } else { &mut [] };
        while let Some(first) = rest.first() {
            let Some(set) = self.of(first.address()) else { return };
            let prefix = self.prefix_in(set, rest);
            let mut together = prefix;
            for at in prefix..rest.len() {
                if set.zone.pfn(rest[at].address()).is_some() {
                    rest.swap(together, at);
                    together += 1;
                }
            }
            rest = &mut rest[together..];
        }
    }

    /// Makes a zone of a node that has none, once.
    fn ensure_zone_of(&self, platform: &impl Platform, node: u32) {
        let bit = 1 << node;
        let tried = &self.nodes.tried;
        if tried.load(Ordering::Relaxed) & bit == 0
            && tried.fetch_or(bit, Ordering::Relaxed) & bit == 0
            && self.of_node(node).next().is_none()
        {
            self.add(platform, PageCount::ONE, node);
        }
    }
}
