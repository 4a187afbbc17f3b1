//! Time, machine and files that the rows of a reading come from.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{Opened, Target};
use crate::blackbox::Moment;
use crate::books::Snapshot;
use crate::clock::now_ns;
use crate::listed::List;

/// Time, machine and files that rows come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Name of the machine on which the rows were read: this one, or that in JSON of kmem.
    pub host: String,
    /// Time of the rows in nanoseconds since 1970. It is that of the reading, of the record of a
    /// black box, or in JSON. Others have that of the last write to the core file, text or log.
    pub time_ns: u64,
    /// Build ids in lowercase hexadecimal digits, by the paths that mappings have.
    pub build_ids: BTreeMap<String, String>,
}

impl Provenance {
    pub(super) fn of(
        target: &Target,
        opened: &Opened,
        snapshot: &Snapshot,
        moment: Option<&Moment>,
    ) -> Self {
        let now = Self::now();
        let time_ns = match (target, opened) {
            (Target::Core { path, .. }, _) => written_ns(path),
            (_, Opened::BlackBox(of)) => {
                moment.or(of.moment()).map_or(of.started_ns(), |moment| moment.time_ns)
            }
            _ => snapshot.time_ns,
        };
        Self { time_ns, ..now }
    }

    /// That of a list. JSON of kmem tells its machine, its time and its files.
    pub(super) fn of_list(target: &Target, list: &List) -> Self {
        let now = Self::now();
        let time_ns = list.time_ns.unwrap_or_else(|| match target {
            Target::List(path) | Target::KernelLog { path, .. } => written_ns(path),
            _ => now.time_ns,
        });
        let host = list.host.clone().unwrap_or(now.host);
        Self { host, time_ns, build_ids: list.build_ids.clone() }
    }

    pub(super) fn now() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim_end().to_owned();
        Self { host, time_ns: now_ns(), build_ids: BTreeMap::new() }
    }

    pub(super) fn with_files(mut self, build_ids: &BTreeMap<String, String>) -> Self {
        self.build_ids.clone_from(build_ids);
        self
    }
}

/// Time of the last write to a file, in nanoseconds since 1970; 0 if the system does not tell.
fn written_ns(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |of| {
        let ns = i128::from(of.mtime()) * 1_000_000_000 + i128::from(of.mtime_nsec());
        u64::try_from(ns).unwrap_or(0)
    })
}
