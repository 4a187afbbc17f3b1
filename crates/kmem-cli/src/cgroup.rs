//! Files of a process's control groups, by the texts of `/proc/PID/cgroup` and
//! `/proc/self/mountinfo`. Formats: cgroups(7), proc(5).

use std::path::PathBuf;

/// Finds the file with the counters of a memory control group. The hierarchy of version 1 has the
/// memory controller wherever it is mounted.
pub(crate) fn memory_file(groups: &str, mounts: &str) -> Option<PathBuf> {
    let first = path_of(groups, |_, controllers| controllers.split(',').any(|c| c == "memory"));
    match first {
        Some(path) => Some(below(mounts, path, "cgroup", "memory")?.join("memory.oom_control")),
        None => Some(unified(groups, mounts)?.join("memory.events")),
    }
}

/// Finds the directory of a control group of version 2.
pub(crate) fn unified(groups: &str, mounts: &str) -> Option<PathBuf> {
    below(mounts, path_of(groups, |number, _| number == "0")?, "cgroup2", "")
}

/// The path of the hierarchy that is wanted by its number and its controllers.
fn path_of(groups: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        wanted(number, controllers).then_some(path)
    })
}

/// The directory of a path below the mount of a file system of this kind, with this option.
fn below(mounts: &str, path: &str, kind: &str, option: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let of_kind = system.next()? == kind;
        let options = system.nth(1).unwrap_or_default();
        if !of_kind || !(option.is_empty() || options.split(',').any(|o| o == option)) {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
        Some(PathBuf::from(point).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_each_version_is_found_below_its_mount() {
        let mounts = "30 1 0:26 / /sys/fs/cgroup rw shared:4 - tmpfs tmpfs rw\n\
                      31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let first = "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/user\n";
        let path = "/sys/fs/cgroup/memory/a/b/memory.oom_control";
        assert_eq!(memory_file(first, mounts), Some(path.into()));
        assert_eq!(unified(first, mounts), Some("/sys/fs/cgroup/unified/user".into()));
        let path = "/sys/fs/cgroup/unified/user/memory.events";
        assert_eq!(memory_file("0::/user\n", mounts), Some(path.into()));
        let inside = "32 30 0:28 /box /cg rw - cgroup2 cgroup2 rw\n";
        assert_eq!(memory_file("0::/box/a\n", inside), Some("/cg/a/memory.events".into()));
        assert_eq!(memory_file("0::/\n", "1 2 0:3 / / rw - ext4 x rw\n"), None);
        assert_eq!(memory_file("", mounts), None);
        assert_eq!(unified("4:memory:/a\n", mounts), None);
    }
}
