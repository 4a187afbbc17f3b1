//! A rival in a process of its own, measured in the same run.
//!
//! The child is this program. It first writes a line of JSON: the object that contains malloc, and
//! the version of the allocator. Then each line of its standard input names a row. For each row the
//! child makes a visit, and writes the samples as a line of JSON.

use crate::Failure;
use crate::affinity::{Places, allowed};
use crate::conversation::{Conversation, answer};
use crate::machine::Machine;
use crate::preload::untuned;
use crate::rivals::{Allocator, load};
use crate::workload::{Inputs, Workload, visit};
use serde::{Deserialize, Serialize};
use std::io::stdin;
use std::process::Command;

/// Options of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    allocator: String,
}

/// The first line of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// The object that contains malloc.
    pub(crate) object: String,
    /// The allocator's version.
    pub(crate) version: String,
}

/// Serves visits until the input ends.
pub(crate) fn serve(options: &Options) -> Result<(), Failure> {
    let allocator = Allocator::wanted(&options.allocator)?;
    let loaded = load(allocator).map_err(Failure::Failed)?;
    let object = loaded.object.to_string_lossy().into_owned();
    answer(&Greeting { object, version: loaded.version })?;
    let (inputs, places) = (Inputs::default(), Places::among(&allowed()));
    for line in stdin().lines() {
        let line = line?;
        let workload = Workload::of_row(&line)
            .ok_or_else(|| Failure::Failed(format!("no workload {line}")))?;
        answer(&visit(workload, &loaded.heap, &inputs, places))?;
    }
    Ok(())
}

/// A hidden subcommand of this program, which measures an allocator in a process of its own.
pub(crate) fn program(subcommand: &str, allocator: Allocator) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    untuned(&mut command).args([subcommand, "--allocator", allocator.name()]);
    if let Some(library) = allocator.preload()? {
        command.env("LD_PRELOAD", library);
    }
    if let Some(conf) = allocator.configuration() {
        command.env("KMEM_CONF", conf);
    }
    Ok(command)
}

/// Measures each allocator in processes of its own, all of them in turn in each round. A rival that
/// cannot be measured is left out, and the machine tells the reason.
pub(crate) fn in_turn<T>(
    allocators: &[Allocator],
    rounds: u32,
    machine: &mut Machine,
    mut measure: impl FnMut(Allocator) -> Result<T, String>,
) -> Result<Vec<(Allocator, Vec<T>)>, Failure> {
    let mut all: Vec<_> = allocators.iter().map(|&allocator| (allocator, Vec::new())).collect();
    for _ in 0..rounds {
        for (allocator, of) in &mut all {
            match measure(*allocator) {
                Ok(new) => of.push(new),
                Err(reason) if allocator.is_kmem() => return Err(Failure::Failed(reason)),
                Err(reason) => {
                    machine.missing.insert(allocator.name().to_owned(), reason);
                }
            }
        }
    }
    Ok(all)
}

/// The parent's end of a child.
#[derive(Debug)]
pub(crate) struct Remote(Conversation);

impl Remote {
    /// Starts a child for `allocator`.
    pub(crate) fn start(allocator: Allocator) -> Result<(Self, Greeting), String> {
        let mut conversation = Conversation::start(&mut program("child", allocator)?)?;
        let greeting = conversation.read()?;
        Ok((Self(conversation), greeting))
    }

    /// Makes one visit in the child.
    pub(crate) fn visit(&mut self, workload: Workload) -> Result<Vec<Vec<f64>>, String> {
        self.0.tell(workload.rows()[0])?;
        self.0.read()
    }
}
