//! Live objects by NUMA node: the part of the census that each zone adds.

use std::collections::BTreeMap;

use kmem_layout::root::zone_purpose;

use super::tables::TagTotal;
use super::zone::Zone;

/// Live objects of each node by tag. Areas of vmalloc and per-CPU objects are of no node.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    nodes: BTreeMap<Option<u32>, BTreeMap<u32, TagTotal>>,
}

impl Nodes {
    /// Adds the difference that a zone made to the totals by tag.
    pub(super) fn add(&mut self, zone: &Zone, before: &[TagTotal], after: &[TagTotal]) {
        let node = (zone.purpose == zone_purpose::HEAP).then_some(zone.node);
        let tags = self.nodes.entry(node).or_default();
        // A zone may be the first with a tag.
        let before = before.iter().chain(std::iter::repeat(&TagTotal { bytes: 0, calls: 0 }));
        for (tag, (before, after)) in (0..).zip(before.zip(after)) {
            if before != after {
                let sum = tags.entry(tag).or_default();
                sum.bytes += after.bytes - before.bytes;
                sum.calls += after.calls - before.calls;
            }
        }
    }

    /// The nodes, and their live objects in order of tag.
    pub(super) fn all(&self) -> impl Iterator<Item = (Option<u32>, &BTreeMap<u32, TagTotal>)> {
        self.nodes.iter().map(|(node, tags)| (*node, tags))
    }
}
