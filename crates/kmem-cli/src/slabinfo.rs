//! `kmem slabinfo`: the size classes of a process, in the columns of `/proc/slabinfo`.

use std::io::{self, BufWriter, Write};

use kmem_snapshot::report;

use crate::failure::{Failure, say_all};
use crate::options::Whole;

/// Arguments of `kmem slabinfo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    from: Whole,
    /// Count only live objects of this group, such as /tenants/a, and of the groups below it, in
    /// <active_objs> and <num_objs>. Slabs are those of all groups
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let (snapshot, notes) = args.from.target()?.snapshot()?;
    say_all(&notes);
    let caches = snapshot.caches(args.group.as_deref())?;
    let mut out = BufWriter::new(io::stdout().lock());
    match args.group {
        None => report::write_slabinfo(&mut out, &caches)?,
        Some(_) => report::write_group_slabinfo(&mut out, &caches)?,
    }
    out.flush()?;
    Ok(())
}
