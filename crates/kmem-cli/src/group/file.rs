//! The files of a group, named as in cgroup v2. [`FILES`] is the one list of them.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use kmem_layout::group::{Limit, group_event};
use kmem_snapshot::books::Group;
use serde_json::Value;

/// A file of a group.
#[derive(Clone, Copy)]
pub(crate) struct File {
    /// Name of the file.
    pub(crate) name: &'static str,
    /// Help text.
    pub(crate) meaning: &'static str,
    /// True when the root has the file. As in cgroup v2, the root has no limits and no charge.
    pub(crate) of_root: bool,
    /// Source of the file's contents.
    pub(crate) source: Source,
}

/// Source of a file's contents.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// One number of bytes.
    Bytes(fn(&Group) -> u64),
    /// A limit in bytes, which can be written.
    Limit(Limit, fn(&Group) -> Option<u64>),
    /// Lines of a name and a number of bytes.
    Kinds(&'static [Key]),
    /// Lines of a name and a count.
    Counts(&'static [Key]),
}

/// A line of a file.
pub(crate) struct Key {
    /// Name of the line.
    pub(crate) name: &'static str,
    /// Help text.
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/groups.md"))]
    pub(crate) meaning: &'static str,
    /// The number.
    of: fn(&Group) -> u64,
}

/// All files of a group.
pub(crate) static FILES: [File; 7] = [
    File {
        name: "memory.current",
        meaning: "live allocations of the group and the groups below it, 4 bytes of metadata for \
                  each object and page, and what is reserved",
        of_root: true,
        source: Source::Bytes(|group| group.usage.current()),
    },
    File {
        name: "memory.peak",
        meaning: "highest sum of memory.current and of what CPUs keep ready, since its last reset",
        of_root: false,
        source: Source::Bytes(|group| group.peak),
    },
    File {
        name: "memory.low",
        meaning: "up to this use, the group is spared when a group above it needs memory back",
        of_root: false,
        source: Source::Limit(Limit::Low, |group| group.low),
    },
    File {
        name: "memory.high",
        meaning: "above this use, the shrinkers of the group are called",
        of_root: false,
        source: Source::Limit(Limit::High, |group| group.high),
    },
    File {
        name: "memory.max",
        meaning: "above this use, requests are refused",
        of_root: false,
        source: Source::Limit(Limit::Max, |group| group.max),
    },
    File {
        name: "memory.events",
        meaning: "number of times that each limit was met",
        of_root: false,
        source: Source::Counts(&EVENTS),
    },
    File {
        name: "memory.stat",
        meaning: "parts of memory.current by kind, and what CPUs keep ready",
        of_root: true,
        source: Source::Kinds(&STAT),
    },
];

/// Lines of `memory.events`.
static EVENTS: [Key; group_event::COUNT] = [
    Key {
        name: group_event::NAMES[group_event::LOW],
        meaning: "times that its shrinkers were called although its use was below low",
        of: |group| group.events[group_event::LOW],
    },
    Key {
        name: group_event::NAMES[group_event::HIGH],
        meaning: "times that its use was above high",
        of: |group| group.events[group_event::HIGH],
    },
    Key {
        name: group_event::NAMES[group_event::MAX],
        meaning: "times that its use was about to exceed max",
        of: |group| group.events[group_event::MAX],
    },
    Key {
        name: group_event::NAMES[group_event::OOM],
        meaning: "times that a request was refused, or exceeded max because it must not fail",
        of: |group| group.events[group_event::OOM],
    },
];

/// Lines of `memory.stat`.
static STAT: [Key; 7] = [
    Key { name: "slab", meaning: "objects of slabs", of: |group| group.usage.slab },
    Key {
        name: "pages",
        meaning: "page allocations, large blocks of malloc included",
        of: |group| group.usage.pages,
    },
    Key { name: "vmalloc", meaning: "areas of vmalloc", of: |group| group.usage.vmalloc },
    Key {
        name: "percpu",
        meaning: "per-CPU objects, one copy of each",
        of: |group| group.usage.percpu,
    },
    Key {
        name: "metadata",
        meaning: "the word of 4 bytes beside each object and page, which names its owner",
        of: |group| group.usage.metadata,
    },
    Key {
        name: "reserved",
        meaning: "charged by try_charge without an allocation",
        of: |group| group.usage.reserved,
    },
    Key {
        name: "cached",
        meaning: "charged, but not allocated and not part of memory.current: CPUs keep it ready",
        of: |group| group.cached,
    },
];

impl ValueEnum for File {
    fn value_variants<'a>() -> &'a [Self] {
        &FILES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.meaning))
    }
}

impl File {
    /// The limit that the file sets, if it can be written.
    pub(crate) fn limit(&self) -> Option<Limit> {
        match self.source {
            Source::Limit(limit, _) => Some(limit),
            Source::Bytes(_) | Source::Kinds(_) | Source::Counts(_) => None,
        }
    }

    /// Contents of the file. Each copy of kmem in the process has a group and a limit of its own;
    /// the file has the sums.
    pub(crate) fn contents(&self, groups: &[&Group]) -> Contents {
        let sum = |of: fn(&Group) -> u64| groups.iter().map(|group| of(group)).sum();
        match self.source {
            Source::Bytes(of) => Contents::Value(Some(sum(of))),
            Source::Limit(_, of) => {
                let mut limits = groups.iter().map(|group| of(group));
                Contents::Value(limits.try_fold(0_u64, |sum, of| sum.checked_add(of?)))
            }
            Source::Kinds(keys) | Source::Counts(keys) => {
                Contents::Keyed(keys.iter().map(|key| (key.name, sum(key.of))).collect())
            }
        }
    }
}

/// Contents of a file.
pub(crate) enum Contents {
    /// One number; none stands for no limit.
    Value(Option<u64>),
    /// Lines of a name and a number.
    Keyed(Vec<(&'static str, u64)>),
}

impl Contents {
    /// The lines of the file.
    pub(crate) fn lines(&self) -> Vec<String> {
        match self {
            Self::Value(None) => vec!["max".to_owned()],
            Self::Value(Some(bytes)) => vec![bytes.to_string()],
            Self::Keyed(lines) => lines.iter().map(|(key, n)| format!("{key} {n}")).collect(),
        }
    }

    /// The file as JSON.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::Value(bytes) => (*bytes).into(),
            Self::Keyed(lines) => lines.iter().map(|&(key, n)| (key, n)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kmem_testing::page::{check, names, sentence};

    use super::{FILES, Source};

    #[test]
    fn the_page_of_groups_says_which_files_there_are() {
        let mut files = String::from(
            "| file | access | the root has it | contents | meaning |\n|---|---|---|---|---|\n",
        );
        let mut keys = String::from("| file | line | meaning |\n|---|---|---|\n");
        for file in &FILES {
            let name = file.name;
            let access = if file.limit().is_some() { "read, write" } else { "read" };
            let contents = match file.source {
                Source::Bytes(_) => "bytes",
                Source::Limit(..) => "bytes, or `max` for no limit",
                Source::Kinds(_) => "lines of a name and bytes",
                Source::Counts(_) => "lines of a name and a count",
            };
            let root = if file.of_root { "yes" } else { "no" };
            let meaning = sentence(file.meaning);
            files += &format!("| `{name}` | {access} | {root} | {contents} | {meaning} |\n");
            if let Source::Kinds(lines) | Source::Counts(lines) = file.source {
                for key in lines {
                    let meaning = sentence(key.meaning);
                    keys += &format!("| `{name}` | `{}` | {meaning} |\n", key.name);
                }
            }
        }
        check("docs/groups.md", "files", &files);
        check("docs/groups.md", "lines", &keys);
    }

    #[test]
    fn the_page_of_statistics_names_files_and_lines_that_there_are() {
        for name in names("docs/statistics.md", "groups", 1) {
            let (name, line) = name.split_once(':').unwrap_or((&name, ""));
            let file = FILES.iter().find(|file| file.name == name).expect(name);
            let lines = match file.source {
                Source::Kinds(lines) | Source::Counts(lines) => lines,
                Source::Bytes(_) | Source::Limit(..) => &[],
            };
            assert!(line.is_empty() || lines.iter().any(|key| key.name == line), "{name}:{line}");
        }
    }
}
