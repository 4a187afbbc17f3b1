//! `kmem lsmod`: the modules of a running process.

use std::io::{self, BufWriter, Write};

use kmem_snapshot::escape::printable;
use kmem_snapshot::modules::{Board, Module};
use kmem_snapshot::{Process, output};
use serde_json::{Value, json};

use crate::failure::{Failure, say};
use crate::process::Named;

/// Arguments of `kmem lsmod`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Named,
    /// Add the address of each module
    #[arg(short, long)]
    addresses: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads the boards of a process. Prints a message for each that may not be of one moment.
pub(crate) fn boards(pid: u32) -> Result<Vec<Board>, Failure> {
    let boards = Process::open(pid)?.module_boards()?;
    for board in boards.iter().filter(|board| board.torn) {
        say(&format!("board of modules at {:#x}: it kept changing while it was read", board.at));
    }
    Ok(boards)
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let pid = args.pid.pid()?;
    let boards = boards(pid)?;
    let modules = || boards.iter().flat_map(|board| &board.modules);
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let rows: Vec<Value> = modules().map(|module| row(module, args.addresses)).collect();
        output::json::write_pretty(&mut out, &json!({ "pid": pid, "modules": rows }))?;
    } else {
        // The columns of lsmod(8).
        writeln!(out, "Module                  Size  Used by")?;
        for module in modules() {
            let Module { name, size, refcount, users, state, base, .. } = module;
            let (name, users) = (printable(name), printable(users));
            write!(out, "{name:<19} {size:>8}  {refcount} {users}")?;
            if *state != "Live" {
                write!(out, " ({state})")?;
            }
            if args.addresses {
                write!(out, " {base:#018x}")?;
            }
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(())
}

fn row(module: &Module, addresses: bool) -> Value {
    let users: Vec<&str> = module.users.split(',').filter(|user| !user.is_empty()).collect();
    let mut row = json!({
        "name": module.name,
        "bytes": module.size,
        "text_bytes": module.text,
        "refcount": module.refcount,
        "used_by": users,
        "state": module.state,
    });
    if addresses {
        row["address"] = json!(module.base);
    }
    row
}
