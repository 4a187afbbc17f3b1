//! `/tmp/perf-PID.map`: names of code made at run time, written by just-in-time compilers.
//!
//! Format: `tools/perf/Documentation/jit-interface.txt` in Linux.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::process::open_regular;

/// Most bytes read.
const MAX_FILE: u64 = 64 << 20;

/// Most entries kept.
const MAX_ENTRIES: usize = 1 << 20;

/// Names of address ranges.
#[derive(Debug, Default)]
pub(super) struct PerfMap {
    /// Start, length and name, in order of start.
    entries: Vec<(u64, u64, String)>,
}

impl PerfMap {
    /// Opens the map that `owner` wrote. Every user may write to `/tmp`, so only a regular file of
    /// this user or of root is accepted.
    pub(super) fn open(path: &Path, owner: u32) -> Option<Self> {
        let (file, metadata) = open_regular(path, libc::O_NOFOLLOW).ok()?;
        if metadata.uid() != owner && metadata.uid() != 0 {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Parses lines `START SIZE name`; the numbers are hexadecimal.
    pub(super) fn parse(text: &str) -> Self {
        let mut entries: Vec<_> = text
            .lines()
            .filter_map(|line| {
                let (start, rest) = line.split_once(' ')?;
                let (len, name) = rest.split_once(' ')?;
                let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
                Some((hex(start)?, hex(len)?, name.to_owned()))
            })
            .take(MAX_ENTRIES)
            .collect();
        // The sort is stable, so of two entries with one start the newer one is found.
        entries.sort_by_key(|e| e.0);
        Self { entries }
    }

    /// Finds the name of the code at `addr`.
    pub(super) fn find(&self, addr: u64) -> Option<String> {
        let after = self.entries.partition_point(|e| e.0 <= addr);
        let (start, len, name) = self.entries.get(..after)?.last()?;
        (addr - start < *len).then(|| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ranges() {
        let map = PerfMap::parse(
            "1000 10 LazyCompile:~f a.js:1\n2000 20 g\nzz 1 x\n1000 8 newer\n3000\n",
        );
        assert_eq!(map.find(0x1004).as_deref(), Some("newer"));
        assert_eq!(map.find(0x201f).as_deref(), Some("g"));
        assert_eq!(map.find(0x2020), None);
        assert_eq!(map.find(0), None);
    }

    #[test]
    fn only_regular_files_of_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf-1.map");
        std::fs::write(&path, "10 10 f\n").unwrap();
        let uid = std::fs::metadata(&path).unwrap().uid();
        assert!(PerfMap::open(&path, uid).is_some());
        let link = dir.path().join("perf-2.map");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(PerfMap::open(&link, uid).is_none());
        assert!(PerfMap::open(Path::new("/dev/zero"), 0).is_none());
        if uid != 0 {
            assert!(PerfMap::open(&path, uid + 1).is_none());
        }
    }
}
