//! The identity of a process. Its number alone may be that of a later process, or of one in another
//! container.

use super::descriptor::Descriptor;
use super::path::{Path, process};
use super::start::read_file;
use crate::os::Owner;

/// This process.
pub(super) fn this() -> Owner {
    let namespace = Descriptor::open(c"/proc/self/ns/pid", libc::O_RDONLY).ok();
    let status = namespace.and_then(|file| file.status());
    let pid = process();
    let pid_namespace = status.map_or(0, |status| status.st_ino);
    // `/proc` may be that of another namespace, where `pid` is of another process.
    let start_ticks = start_ticks(stat(None, &mut [0; 1024]));
    Owner { pid, start_ticks: start_ticks.unwrap_or(0), pid_namespace }
}

/// Returns whether a process is alive, if it is of the namespace of this one. The number of another
/// namespace says nothing here.
pub(super) fn is_alive(owner: &Owner) -> bool {
    let is_here = owner.pid_namespace != 0 && owner.pid_namespace == this().pid_namespace;
    let start = |pid| start_ticks(stat(Some(pid), &mut [0; 1024]));
    is_here && start(owner.pid) == Some(owner.start_ticks)
}

/// Start of a process in its `stat`, in clock ticks since boot. `None`: there is no such process,
/// or no `/proc`.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    core::str::from_utf8(field(stat, 22)?).ok()?.parse().ok()
}

/// Returns whether a process is stopped, by a signal or a tracer. False where that cannot be told.
pub(super) fn is_stopped(pid: u32) -> bool {
    matches!(field(stat(Some(pid), &mut [0; 1024]), 3), Some(b"T" | b"t"))
}

/// The text of `/proc/PID/stat`, or of this process; empty if there is no such process, or no
/// `/proc`.
fn stat(pid: Option<u32>, text: &mut [u8; 1024]) -> &[u8] {
    let mut path = Path::new();
    let name = |path: &mut Path| match pid {
        Some(pid) => path.add_number(pid.into()),
        None => path.add(b"self"),
    };
    let named = path.add(b"/proc/") && name(&mut path) && path.add(b"/stat");
    let len = if named { read_file(path.name(), text) } else { 0 };
    &text[..len]
}

/// A field of `/proc/PID/stat`, from the third on, by its number in proc(5). The name in field 2
/// may hold spaces and parentheses, so fields are counted from the last `)`.
fn field(stat: &[u8], number: usize) -> Option<&[u8]> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    stat[name_end..].split(|&byte| byte == b' ').nth(number - 2)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn start_is_found_behind_a_name_with_parentheses() {
        let stat = b"7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 93939 8 9\n";
        assert_eq!(field(stat, 22), Some(&b"93939"[..]));
        assert_eq!(field(stat, 3), Some(&b"S"[..]));
        assert_eq!(field(b"7 (a", 22), None);
        assert_eq!(field(b"7 (a) S 1", 22), None);
        assert_eq!(field(b"", 22), None);
    }

    #[test]
    fn another_start_or_namespace_is_another_process() {
        let this = this();
        assert!(this.pid == std::process::id() && this.start_ticks != 0);
        assert!(is_alive(&this));
        assert!(!is_alive(&Owner { start_ticks: this.start_ticks + 1, ..this }));
        assert!(!is_alive(&Owner { pid_namespace: this.pid_namespace + 1, ..this }));
        assert!(!is_alive(&Owner { pid_namespace: 0, ..this }));
    }
}
