//! `kmem group show`: the files of a group.

use std::io::{self, BufWriter, Write};

use clap::ValueEnum;
use kmem_layout::group::group_event;
use kmem_snapshot::books::Group;
use serde_json::{Map, Value};

use crate::failure::{Failure, say_all};
use crate::json;
use crate::options::One;

/// Arguments of `kmem group show`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    from: One,
    /// Path of the group, such as /tenants/a; / is the root
    group: String,
    /// Files to print: of one its contents as they are, of several each line behind the file's
    /// name; all that the group has, if none is named
    #[arg(value_enum)]
    files: Vec<File>,
    /// Print JSON instead; null for no limit
    #[arg(long)]
    json: bool,
}

/// A file of a group.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum File {
    /// Bytes in use by the group and those below it, with reserved bytes and 4 bytes for each
    /// object and page, which name its group
    #[value(name = "memory.current")]
    Current,
    /// The highest memory.current so far, with the stock of CPUs
    #[value(name = "memory.peak")]
    Peak,
    /// Up to this the group is spared when others need memory back
    #[value(name = "memory.low")]
    Low,
    /// Above this its shrinkers are called
    #[value(name = "memory.high")]
    High,
    /// Most that may be charged
    #[value(name = "memory.max")]
    Max,
    /// How often low, high and max were met, and a request was refused (oom)
    #[value(name = "memory.events")]
    Events,
    /// memory.current by kind: slab, pages, vmalloc, percpu, metadata, reserved; and cached:
    /// charged beyond that, in stock on CPUs
    #[value(name = "memory.stat")]
    Stat,
}

/// Content of a file.
enum Contents {
    /// One number; none stands for no limit.
    Value(Option<u64>),
    /// Lines of a name and a number.
    Keyed(Vec<(&'static str, u64)>),
}

impl File {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// True for the files of the root. As in cgroup v2, the root has no limits and no charge.
    fn is_of_root(self) -> bool {
        matches!(self, Self::Current | Self::Stat)
    }

    fn of(self, groups: &[&Group]) -> Contents {
        let sum = |of: &dyn Fn(&Group) -> u64| groups.iter().map(|group| of(group)).sum();
        // Each copy of kmem in the process has a group and a limit of its own.
        let limit = |of: &dyn Fn(&Group) -> Option<u64>| {
            groups.iter().map(|group| of(group)).try_fold(0_u64, |sum, of| sum.checked_add(of?))
        };
        match self {
            Self::Current => Contents::Value(Some(sum(&|group| group.usage.current()))),
            Self::Peak => Contents::Value(Some(sum(&|group| group.peak))),
            Self::Low => Contents::Value(limit(&|group| group.low)),
            Self::High => Contents::Value(limit(&|group| group.high)),
            Self::Max => Contents::Value(limit(&|group| group.max)),
            Self::Events => {
                let names = group_event::NAMES.iter().enumerate();
                Contents::Keyed(names.map(|(at, &name)| (name, sum(&|g| g.events[at]))).collect())
            }
            Self::Stat => Contents::Keyed(vec![
                ("slab", sum(&|group| group.usage.slab)),
                ("pages", sum(&|group| group.usage.pages)),
                ("vmalloc", sum(&|group| group.usage.vmalloc)),
                ("percpu", sum(&|group| group.usage.percpu)),
                ("metadata", sum(&|group| group.usage.metadata)),
                ("reserved", sum(&|group| group.usage.reserved)),
                ("cached", sum(&|group| group.cached)),
            ]),
        }
    }
}

impl Contents {
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Value(None) => vec!["max".to_owned()],
            Self::Value(Some(bytes)) => vec![bytes.to_string()],
            Self::Keyed(lines) => lines.iter().map(|(key, n)| format!("{key} {n}")).collect(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Value(bytes) => (*bytes).into(),
            Self::Keyed(lines) => lines.iter().map(|&(key, n)| (key, n)).collect(),
        }
    }
}

pub(super) fn main(args: &Args) -> Result<(), Failure> {
    let (snapshot, notes) = args.from.target()?.snapshot()?;
    say_all(&notes);
    let groups = snapshot.groups_at(&args.group)?;
    let is_root = groups.iter().any(|group| group.is_root());
    let mut files = args.files.clone();
    if files.is_empty() {
        files = File::value_variants().to_vec();
        files.retain(|file| !is_root || file.is_of_root());
    }
    if let Some(file) = files.iter().find(|file| is_root && !file.is_of_root()) {
        return Err(Failure::Absent(format!(
            "/ is the root of the groups, which has no {}: memory is not charged to it",
            file.name()
        )));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let json = files.iter().map(|file| (file.name(), file.of(&groups).json()));
        json::write(&mut out, &Value::Object(json.collect::<Map<_, _>>()))?;
    } else {
        for file in &files {
            let name = if files.len() > 1 { file.name() + ":" } else { String::new() };
            for line in file.of(&groups).lines() {
                writeln!(out, "{name}{line}")?;
            }
        }
    }
    out.flush()?;
    Ok(())
}
