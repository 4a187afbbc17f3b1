//! `kmem man` and `kmem completions`: pages and scripts that are made from the arguments.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap_complete::Shell;

use crate::examples::command;
use crate::failure::Failure;

/// Arguments of `kmem completions`.
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Print the script of this shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `kmem man`.
#[derive(clap::Args)]
pub(crate) struct Man {
    /// Write a page for each command into this directory, instead of kmem(1) to standard output
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "kmem", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

pub(crate) fn man(args: &Man) -> Result<(), Failure> {
    match &args.dir {
        Some(dir) => {
            let failed = |error| Failure::Trouble(format!("{}: {error}", dir.display()));
            std::fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(command(), dir).map_err(failed)
        }
        None => {
            let mut page = Vec::new();
            let mut command = command().disable_help_subcommand(true);
            command.build();
            clap_mangen::Man::new(command).render(&mut page)?;
            Ok(io::stdout().write_all(&page)?)
        }
    }
}
