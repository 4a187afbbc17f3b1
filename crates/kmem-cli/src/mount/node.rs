//! A file or a directory, and its number.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

/// A file or a directory of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// The directory of all processes.
    Root,
    /// The directory of a process.
    Process(u32),
    /// Its call sites.
    Allocinfo(u32),
    /// Its size classes and caches.
    Slabinfo(u32),
    /// The directory of a group, by the pid and its path.
    Group(u32, String),
    /// A file of a group, by its place in [`FILES`](crate::group::file::FILES).
    GroupFile(u32, String, usize),
}

impl Node {
    /// True for a directory.
    pub(super) fn is_directory(&self) -> bool {
        matches!(self, Self::Root | Self::Process(_) | Self::Group(..))
    }
}

/// Number of the root.
const ROOT: u64 = 1;

/// The nodes that the kernel knows by their numbers.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    hash: RandomState,
    /// Each with the count of lookups that the kernel did not forget.
    known: HashMap<u64, (Node, u64)>,
}

impl Nodes {
    /// Number of a node. It stays the same, also while the kernel does not know it.
    pub(super) fn number(&self, node: &Node) -> u64 {
        match node {
            Node::Root => ROOT,
            // 64 bits: no two of some thousand nodes have the same.
            other => self.hash.hash_one(other).max(ROOT + 1),
        }
    }

    /// Notes that the kernel has looked a node up. Returns its number.
    pub(super) fn look_up(&mut self, node: Node) -> u64 {
        let number = self.number(&node);
        self.known.entry(number).or_insert((node, 0)).1 += 1;
        number
    }

    /// Notes that the kernel forgets lookups of a node.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        if let Some((_, count)) = self.known.get_mut(&number) {
            *count = count.saturating_sub(lookups);
            if *count == 0 {
                self.known.remove(&number);
            }
        }
    }

    /// The node of a number.
    pub(super) fn get(&self, number: u64) -> Option<Node> {
        match number {
            ROOT => Some(Node::Root),
            other => self.known.get(&other).map(|(node, _)| node.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Node, Nodes};

    #[test]
    fn a_node_is_known_until_all_its_lookups_are_forgotten_and_keeps_its_number() {
        let mut nodes = Nodes::default();
        let group = Node::Group(7, "/a".to_owned());
        let number = nodes.look_up(group.clone());
        assert_eq!((nodes.look_up(group.clone()), nodes.number(&group)), (number, number));
        nodes.forget(number, 1);
        assert_eq!(nodes.get(number), Some(group.clone()));
        nodes.forget(number, 1);
        assert_eq!(nodes.get(number), None);
        assert_eq!(nodes.look_up(group), number);
        nodes.forget(1, 1000);
        assert_eq!(nodes.get(1), Some(Node::Root));
    }
}
