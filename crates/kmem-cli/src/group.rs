//! `kmem group`: the groups that memory is charged to, and their limits.

mod create;
pub(crate) mod file;
pub(crate) mod set;
mod show;

use std::io::{self, BufWriter, Write};

use kmem_snapshot::books::{Group, Groups};
use kmem_snapshot::{output, report};
use serde_json::{Value, json};

use crate::failure::{Failure, say_all};
use crate::options::One;

/// Arguments of `kmem group`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the tree of groups, with the memory and the limits of each
    Ls(Ls),
    /// Print the files of a group, named as in cgroup v2
    Show(show::Args),
    /// Set limits of a group in a running process
    Set(set::Args),
    /// Make a group in a running process, which finds it by its path
    Create(create::Create),
    /// Delete a group in a running process, so that its parent pays for what it holds
    Rm(create::Remove),
}

#[derive(clap::Args)]
struct Ls {
    #[command(flatten)]
    from: One,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Ls(args) => ls(args),
        Command::Show(args) => show::main(args),
        Command::Set(args) => set::main(args),
        Command::Create(args) => create::create(args),
        Command::Rm(args) => create::remove(args),
    }
}

fn ls(args: &Ls) -> Result<(), Failure> {
    let (snapshot, notes) = args.from.target()?.snapshot()?;
    say_all(&notes);
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let all = snapshot.books.iter().map(|books| {
            let groups = &books.groups;
            let of = |(at, group)| json_of(groups, at, group);
            let groups: Vec<Value> = groups.all().iter().enumerate().map(of).collect();
            json!({ "root": books.root, "groups": groups })
        });
        let copies: Vec<Value> = all.collect();
        let json = json!({ "pid": snapshot.pid, "exe": snapshot.exe, "copies": copies });
        output::json::write(&mut out, &json)?;
    } else {
        for books in &snapshot.books {
            if snapshot.books.len() > 1 {
                writeln!(out, "root: {:#x}", books.root)?;
            }
            report::write_groups(&mut out, &books.groups)?;
        }
    }
    out.flush()?;
    Ok(())
}

/// A group as JSON, in bytes. Null stands for no limit, and for values that are not kept.
fn json_of(groups: &Groups, at: usize, group: &Group) -> Value {
    let (usage, own) = (&group.usage, &group.own);
    json!({
        "group": groups.path(at),
        "current": usage.current(),
        "own": own.current(),
        "cached": group.cached,
        "reserved": usage.reserved,
        "objects": usage.objects,
        "own_objects": own.objects,
        "peak": (!group.is_root()).then_some(group.peak),
        "max": group.max,
        "high": group.high,
        "low": group.low,
    })
}
