//! Stacks as a tree: of callers, or of places in the source. Each node holds the objects that were
//! allocated in it and below it.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::{By, Frame, Stacks};
use crate::sites::{Order, Site};

/// A node of the tree: a call under its caller.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    /// The call.
    pub frame: Frame<'a>,
    /// Live bytes, including those of the nodes below.
    pub bytes: i64,
    /// Live objects, including those of the nodes below, modulo 2^64: a kernel writes -1 as
    /// 2^64 - 1.
    pub calls: u64,
    children: Vec<usize>,
}

/// All stacks, joined at their outermost frames.
#[derive(Debug, Clone)]
pub struct Tree<'a> {
    nodes: Vec<Node<'a>>,
    roots: Vec<usize>,
}

/// A node to show.
#[derive(Debug, Clone, Copy)]
pub struct Line<'t, 'a> {
    /// Count of nodes above it.
    pub depth: usize,
    /// The node.
    pub node: &'t Node<'a>,
}

impl<'a> Tree<'a> {
    /// Builds the tree of callers of all rows.
    #[must_use]
    pub fn of(sites: &'a [Site]) -> Self {
        Self::of_stacks(&Stacks::of(sites, By::Place))
    }

    /// Builds the tree of places in the source: modules, directories, files, calls. `modules` has
    /// the module of each row.
    #[must_use]
    pub fn by_source(sites: &'a [Site], modules: &'a [String]) -> Self {
        Self::of_stacks(&Stacks::by_source(sites, modules))
    }

    fn of_stacks(all: &Stacks<'a>) -> Self {
        let mut this = Self { nodes: Vec::<Node<'a>>::new(), roots: Vec::new() };
        let mut known = HashMap::new();
        for stack in &all.stacks {
            let mut parent: Option<usize> = None;
            for &frame in &stack.frames {
                let at = *known.entry((parent, frame)).or_insert_with(|| {
                    let frame = all.frames[frame];
                    let at = this.nodes.len();
                    this.nodes.push(Node { frame, bytes: 0, calls: 0, children: Vec::new() });
                    match parent {
                        Some(parent) => this.nodes[parent].children.push(at),
                        None => this.roots.push(at),
                    }
                    at
                });
                let node = &mut this.nodes[at];
                node.bytes = node.bytes.saturating_add(stack.bytes);
                node.calls = node.calls.wrapping_add(stack.calls);
                parent = Some(at);
            }
        }
        this
    }

    /// Count of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True for a tree without nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The `most` largest nodes of at least `min` bytes, each below its caller, siblings in order.
    /// A caller is at least as large as each of its callees, so the caller of every line is in
    /// another line.
    #[must_use]
    pub fn lines(&self, order: Order, most: usize, min: i64) -> Vec<Line<'_, 'a>> {
        let weight = |at: usize| {
            let node = &self.nodes[at];
            let (bytes, calls) = (node.bytes, node.calls.cast_signed());
            // Of equal nodes the first one, which also puts a caller before its callees.
            match order {
                Order::Calls => (calls, bytes, std::cmp::Reverse(at)),
                Order::Size | Order::Tag | Order::Pinned => (bytes, calls, std::cmp::Reverse(at)),
            }
        };
        let chosen = self.choose(most, min, weight);
        let mut lines = Vec::new();
        let mut pending = Vec::new();
        let enter = |of: &[usize], depth: usize, pending: &mut Vec<(usize, usize)>| {
            let mut of: Vec<usize> = of.iter().copied().filter(|&at| chosen[at]).collect();
            of.sort_by(|&a, &b| self.compare(order, a, b));
            pending.extend(of.into_iter().rev().map(|at| (at, depth)));
        };
        enter(&self.roots, 0, &mut pending);
        while let Some((at, depth)) = pending.pop() {
            let node = &self.nodes[at];
            lines.push(Line { depth, node });
            enter(&node.children, depth + 1, &mut pending);
        }
        lines
    }

    /// Marks the `most` heaviest nodes of at least `min` bytes.
    fn choose<W: Ord>(&self, most: usize, min: i64, weight: impl Fn(usize) -> W) -> Vec<bool> {
        let mut chosen = vec![false; self.nodes.len()];
        let mut next: BinaryHeap<_> = self.roots.iter().map(|&at| (weight(at), at)).collect();
        let mut left = most;
        while left != 0
            && let Some((_, at)) = next.pop()
        {
            if self.nodes[at].bytes >= min {
                chosen[at] = true;
                left -= 1;
                next.extend(self.nodes[at].children.iter().map(|&at| (weight(at), at)));
            }
        }
        chosen
    }

    fn compare(&self, order: Order, a: usize, b: usize) -> Ordering {
        let (a, b) = (&self.nodes[a], &self.nodes[b]);
        let by_name = || a.frame.compare(b.frame);
        let by_calls = || b.calls.cast_signed().cmp(&a.calls.cast_signed());
        match order {
            Order::Size | Order::Pinned => {
                b.bytes.cmp(&a.bytes).then_with(by_calls).then_with(by_name)
            }
            Order::Calls => by_calls().then(b.bytes.cmp(&a.bytes)).then_with(by_name),
            Order::Tag => by_name(),
        }
    }
}
