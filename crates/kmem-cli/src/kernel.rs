//! `kmem kernel`: the memory of the Linux kernel, as an account.

use std::io::{self, Write};

use kmem_snapshot::KernelMemory;
use kmem_snapshot::output;
use kmem_snapshot::report::{size, size_u};
use serde_json::json;

use crate::failure::{Failure, say_all};

/// Arguments of `kmem kernel`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON, in bytes
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let mut notes = Vec::new();
    let of = KernelMemory::take(&mut notes)?;
    say_all(&notes);
    let mut out = io::stdout().lock();
    if args.json {
        let value = json!({
            "managed": of.managed,
            "free": of.free,
            "in_use": of.in_use(),
            "tracked": of.tracked,
            "call_sites": of.sites,
            "slab_free": of.slab_free,
            "not_tracked": of.not_tracked(),
            "slab": of.slab,
            "slabs": of.slabs,
            "slab_tracked": of.slab_tracked,
        });
        output::json::write(&mut out, &value)?;
        return Ok(());
    }
    let [managed, free, in_use] = [of.managed, of.free, of.in_use()].map(size_u);
    writeln!(out, "managed {managed} = free {free} + in use {in_use}")?;
    writeln!(
        out,
        "in use {in_use} = tracked {} + free in slabs {} + not tracked {}",
        size(of.tracked),
        size_u(of.slab_free),
        size(of.not_tracked())
    )?;
    writeln!(out, "  tracked: pages and objects of {} call sites", of.sites)?;
    writeln!(
        out,
        "  slabs: {} in {}, {} of them with a call site",
        size_u(of.slab),
        of.slabs,
        size(of.slab_tracked)
    )?;
    Ok(())
}
