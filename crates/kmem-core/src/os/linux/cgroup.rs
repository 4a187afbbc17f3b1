//! The memory limit of the process's control groups (cgroups(7)), of version 1 or 2.
//!
//! A container's limit is that of its own group or of one above it. The kernel ends a process of a
//! group that would exceed it, even if the process could give memory back.

use super::path::Path;
use super::start::{read_file, read_number};

/// Bytes that the process's groups may have; `usize::MAX` if there is no limit, or none to be seen.
pub(super) fn memory_limit() -> usize {
    let mut text = [0; 2048];
    let len = read_file(c"/proc/self/cgroup", &mut text);
    let lines = text[..len].split(|&byte| byte == b'\n');
    lines.map(least_of_line).min().unwrap_or(usize::MAX)
}

/// The least limit of the group in a line of `/proc/self/cgroup`, and of all groups above it.
fn least_of_line(line: &[u8]) -> usize {
    let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return usize::MAX };
    let is_memory = controllers.split(|&byte| byte == b',').any(|name| name == b"memory");
    let (root, file) = match controllers {
        b"" => (&b"/sys/fs/cgroup"[..], &b"/memory.max"[..]),
        _ if is_memory => (&b"/sys/fs/cgroup/memory"[..], &b"/memory.limit_in_bytes"[..]),
        _ => return usize::MAX,
    };
    let (mut group, mut least) = (group.strip_suffix(b"/").unwrap_or(group), usize::MAX);
    loop {
        let mut path = Path::new();
        if path.add(root) && path.add(group) && path.add(file) {
            least = least.min(read_number(path.name()).unwrap_or(usize::MAX));
        }
        let Some(slash) = group.iter().rposition(|&byte| byte == b'/') else { return least };
        group = &group[..slash];
    }
}
