//! `kmem slabinfo`: the size classes of a process, in the columns of `/proc/slabinfo`.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use kmem_snapshot::books::{Books, Cache};
use kmem_snapshot::report;

use crate::failure::Failure;
use crate::group;
use crate::source::{self, Whole};

/// Arguments of `kmem slabinfo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    from: Whole,
    /// Only caches of which this group, such as /tenants/a, or one below it holds objects: these
    /// are <active_objs> and <num_objs>; the slabs are shared by all groups, and all are counted
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let snapshot = source::whole(&args.from)?;
    if let Some(path) = &args.group {
        group::find(&snapshot, path)?;
    }
    let caches = snapshot.books.iter().map(|books| match &args.group {
        None => books.caches.clone(),
        Some(path) => books.caches_of(&below(books, path)),
    });
    let caches = merged(caches.flatten());
    let mut out = BufWriter::new(io::stdout().lock());
    match args.group {
        None => report::write_slabinfo(&mut out, &caches)?,
        Some(_) => report::write_group_slabinfo(&mut out, &caches)?,
    }
    out.flush()?;
    Ok(())
}

/// A group and those below it, where there is one of that path.
fn below(books: &Books, path: &str) -> std::ops::Range<usize> {
    books.groups.find(path).map_or(0..0, |at| books.groups.below(at))
}

/// Adds up the caches of several copies of kmem.
fn merged(caches: impl Iterator<Item = Cache>) -> Vec<Cache> {
    let mut sums: BTreeMap<(u32, u32, u32), Cache> = BTreeMap::new();
    for cache in caches {
        let key = (cache.size, cache.objects_per_slab, cache.pages_per_slab);
        let sum =
            sums.entry(key).or_insert(Cache { active: 0, slabs: 0, active_slabs: 0, ..cache });
        sum.active = sum.active.saturating_add(cache.active);
        sum.slabs = sum.slabs.saturating_add(cache.slabs);
        sum.active_slabs = sum.active_slabs.saturating_add(cache.active_slabs);
    }
    sums.into_values().collect()
}
