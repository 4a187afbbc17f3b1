//! `kmem group show`: the files of a group.

use std::io::{self, BufWriter, Write};

use kmem_snapshot::output;
use serde_json::{Map, Value};

use super::file::{FILES, File};
use crate::failure::{Failure, say_all};
use crate::options::One;

/// Arguments of `kmem group show`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    from: One,
    /// Path of the group, such as /tenants/a; / is the root
    group: String,
    /// Files to print; without any, all that the group has. With several files each line begins
    /// with the name of its file
    #[arg(value_enum, value_name = "FILE")]
    files: Vec<File>,
    /// Print JSON, with null for no limit
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: &Args) -> Result<(), Failure> {
    let (snapshot, notes) = args.from.target()?.snapshot()?;
    say_all(&notes);
    let groups = snapshot.groups_at(&args.group)?;
    let is_root = groups.iter().any(|group| group.is_root());
    let mut files = args.files.clone();
    if files.is_empty() {
        files = FILES.to_vec();
        files.retain(|file| !is_root || file.of_root);
    }
    // A file that is absent does not hide the others.
    let (files, absent): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| !is_root || file.of_root);
    let absent = absent.into_iter().map(|file| {
        Failure::Absent(format!(
            "/ is the root of the groups, which has no {}: memory is not charged to it; name a \
             group below it",
            file.name
        ))
    });
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let json = files.iter().map(|file| (file.name.to_owned(), file.contents(&groups).json()));
        output::json::write(&mut out, &Value::Object(json.collect::<Map<_, _>>()))?;
    } else {
        for file in &files {
            let name =
                if args.files.len() != 1 { format!("{}:", file.name) } else { String::new() };
            for line in file.contents(&groups).lines() {
                writeln!(out, "{name}{line}")?;
            }
        }
    }
    out.flush()?;
    Failure::of_inputs(absent.collect())
}
