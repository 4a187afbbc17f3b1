//! `kmem slabinfo`: the size classes of a process and the caches that it named, in the columns of
//! `/proc/slabinfo`.

use std::io::{self, BufWriter, Write};

use kmem_snapshot::report;

use crate::failure::{Failure, say, say_all};
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
    let group = args.group.as_deref();
    let caches = snapshot.caches(group)?;
    let mut named = snapshot.named_caches(group)?;
    if group.is_some() {
        named.retain(|of| of.cache.active != 0);
        if !snapshot.tells_caches_by_group() {
            say("caches of one size share slabs, so this process does not know whose objects are \
                 in which cache; KMEM_CONF=check_caches:1 makes it know");
        }
    }
    let mut out = BufWriter::new(io::stdout().lock());
    match args.group {
        None => report::write_slabinfo(&mut out, &caches)?,
        Some(_) => report::write_group_slabinfo(&mut out, &caches)?,
    }
    report::write_named_caches(&mut out, &named)?;
    out.flush()?;
    Ok(())
}
