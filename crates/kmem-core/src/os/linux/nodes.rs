//! NUMA nodes of Linux, from `/sys/devices/system/node`.
//!
//! The node of a CPU is in a table, which is filled once from the kernel's lists of CPUs. For a CPU
//! in no list, `getcpu` gives the node at its first use. A CPU that moves to another node while the
//! process runs keeps its old one here.
//!
//! Context: any, signal handlers included.

use core::ffi::CStr;

use super::path::Path;
use super::start::read_file;
use super::syscall::sys;
use crate::os::MAX_NODES;
use crate::sync::{AtomicU8, AtomicU32, Ordering};

/// The file with the list of nodes.
const ONLINE: &CStr = c"/sys/devices/system/node/online";
/// Most CPUs whose node is known: the most that Linux can be built for on x86-64. The nodes of
/// others are asked for at each question.
const MAX_CPUS: usize = 8192;
/// Most bytes of a file that is read: distances of [`MAX_NODES`] nodes, in three digits each.
const MOST: usize = 4 * MAX_NODES as usize;

/// The nodes of the machine, as far as they are known.
pub(super) struct Topology {
    /// Highest number of a node plus one; 0 until the kernel was asked.
    nodes: AtomicU32,
    /// The node of each CPU plus one; 0: not known.
    of_cpu: [AtomicU8; MAX_CPUS],
}

impl Topology {
    pub(super) const fn new() -> Self {
        Self { nodes: AtomicU32::new(0), of_cpu: [const { AtomicU8::new(0) }; MAX_CPUS] }
    }

    /// Highest number of a node plus one.
    pub(super) fn nodes(&self) -> u32 {
        let known = self.nodes.load(Ordering::Relaxed);
        if known != 0 { known } else { self.ask() }
    }

    /// Asks the kernel for the nodes, and for the CPUs of each.
    #[cold]
    #[inline(never)]
    fn ask(&self) -> u32 {
        let mut text = [0; MOST];
        let nodes = highest(read(ONLINE, &mut text)).map_or(1, |node| node.saturating_add(1));
        if nodes > 1 {
            for node in 0..nodes.min(MAX_NODES) {
                let list = read_of_node(node, b"cpulist", &mut text);
                ranges(list).for_each(|(first, last)| self.note(first..=last, node));
            }
        }
        self.nodes.store(nodes, Ordering::Relaxed);
        nodes
    }

    /// Notes the node of CPUs. Nodes with numbers that are too high count as node 0.
    fn note(&self, cpus: core::ops::RangeInclusive<u32>, node: u32) {
        let node = if node < MAX_NODES { node as u8 } else { 0 };
        for cpu in cpus.take_while(|&cpu| (cpu as usize) < MAX_CPUS) {
            self.of_cpu[cpu as usize].store(node + 1, Ordering::Relaxed);
        }
    }

    /// Node of a CPU, on which the calling thread runs. `None`: the thread does not know its CPU.
    #[inline]
    pub(super) fn node_of(&self, cpu: Option<u32>) -> u32 {
        self.known(cpu).unwrap_or_else(|| self.ask_for_cpu())
    }

    /// Node of a CPU, as far as it is known without a system call.
    #[inline]
    pub(super) fn known(&self, cpu: Option<u32>) -> Option<u32> {
        let node = self.of_cpu.get(cpu? as usize)?.load(Ordering::Relaxed);
        u32::from(node).checked_sub(1)
    }

    /// Asks the kernel for the CPU that the calling thread runs on. Returns its node.
    #[cold]
    #[inline(never)]
    fn ask_for_cpu(&self) -> u32 {
        let (mut cpu, mut node) = (0u32, 0u32);
        // SAFETY: the kernel fills both.
        if unsafe { sys!(libc::SYS_getcpu, &raw mut cpu, &raw mut node, 0) } != 0 {
            return 0;
        }
        self.known(Some(cpu)).unwrap_or_else(|| {
            self.note(cpu..=cpu, node);
            node
        })
    }
}

/// Writes the distance of each node from a node. Those that the kernel does not say are unchanged.
pub(super) fn distances(from: u32, to: &mut [u8]) {
    let (mut text, mut line) = ([0; MOST], [0; MOST]);
    let online = ranges(read(ONLINE, &mut text)).flat_map(|(first, last)| first..=last);
    // The file has a distance for each node that is online.
    let far = numbers(read_of_node(from, b"distance", &mut line));
    for (node, far) in online.zip(far) {
        let Some(to) = to.get_mut(node as usize) else { break };
        *to = far.min(255) as u8;
    }
}

/// The beginning of a file.
fn read<'a>(path: &CStr, text: &'a mut [u8]) -> &'a [u8] {
    let len = read_file(path, text);
    &text[..len]
}

/// The beginning of a file of a node.
fn read_of_node<'a>(node: u32, name: &[u8], text: &'a mut [u8]) -> &'a [u8] {
    let mut path = Path::new();
    let named = path.add(b"/sys/devices/system/node/node")
        && path.add_number(node.into())
        && path.add(b"/")
        && path.add(name);
    if named { read(path.name(), text) } else { &[] }
}

/// The ranges of a list like `0-3,8` from the kernel, each as its first and its last number.
fn ranges(list: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    list.split(|&byte| byte == b',').filter_map(|part| {
        let mut ends = numbers(part);
        let first = ends.next()?;
        Some((first, ends.next().unwrap_or(first)))
    })
}

/// The decimal numbers in a text. Those that are too large are left out.
fn numbers(text: &[u8]) -> impl Iterator<Item = u32> {
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0u32, |value, digit| {
            value.checked_mul(10)?.checked_add(u32::from(digit - b'0'))
        })
    };
    let parts = text.split(|byte| !byte.is_ascii_digit());
    parts.filter(|digits| !digits.is_empty()).filter_map(number)
}

/// Highest number of a list. `None`: the list has no number.
pub(super) fn highest(list: &[u8]) -> Option<u32> {
    numbers(list).max()
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn highest_number_of_a_list_is_found() {
        assert_eq!(highest(b"0\n"), Some(0));
        assert_eq!(highest(b"0-3,8,10-11\n"), Some(11));
        assert_eq!(highest(b""), None);
        assert_eq!(highest(b"99999999999999\n"), None);
    }

    #[test]
    fn ranges_of_a_list_have_both_ends() {
        assert_eq!(ranges(b"0-3,8,10-11\n").collect::<Vec<_>>(), [(0, 3), (8, 8), (10, 11)]);
        assert_eq!(ranges(b"\n").count(), 0, "a node without CPUs");
        assert_eq!(numbers(b"10 21 31\n").collect::<Vec<_>>(), [10, 21, 31]);
    }

    #[test]
    fn node_of_a_cpu_is_asked_for_once() {
        let topology = Topology::new();
        topology.note(0..=MAX_CPUS as u32, 3);
        assert_eq!(topology.node_of(Some(0)), 3, "not the answer of the kernel, which is 0");
        assert_eq!(topology.node_of(Some(MAX_CPUS as u32 - 1)), 3);
        assert_eq!(topology.node_of(None), 3, "the kernel says which CPU it is");
        topology.note(0..=0, MAX_NODES);
        assert_eq!(topology.node_of(Some(0)), 0, "nodes with higher numbers are node 0");
    }
}
