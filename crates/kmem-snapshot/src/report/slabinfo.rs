//! The text of `/proc/slabinfo`, version 2.1 (slabinfo(5); `mm/slab_common.c` in Linux).

use std::io::{self, Write};

use crate::books::{Cache, NamedCache};
use crate::escape::printable;

/// Writes the two lines at the top and one for each cache.
///
/// The columns are the kernel's. `limit` is the most objects that a CPU keeps, `batchcount` the
/// count that one refill moves, `active_slabs` the slabs with a live object. `sharedfactor` and
/// `sharedavail` are 0, because no cache has a shared array of its own.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_slabinfo(out: &mut impl Write, caches: &[Cache]) -> io::Result<()> {
    writeln!(out, "slabinfo - version: 2.1")?;
    writeln!(
        out,
        "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : \
         tunables <limit> <batchcount> <sharedfactor> : \
         slabdata <active_slabs> <num_slabs> <sharedavail>"
    )?;
    for cache in caches {
        write_line(out, &cache.name(), cache, cache.room())?;
    }
    Ok(())
}

/// Writes a line for each cache that the program named. The first two columns count its objects.
/// Caches of one size share slabs, which are in the lines of [`write_slabinfo`]. White space in a
/// name becomes `_`, because it separates columns.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_named_caches(out: &mut impl Write, caches: &[NamedCache]) -> io::Result<()> {
    caches.iter().try_for_each(|NamedCache { name, cache }| {
        let name = printable(name).replace(char::is_whitespace, "_");
        write_line(out, &name, cache, cache.active)
    })
}

/// Writes the two lines at the top and one for each cache of which a group holds objects. Both of
/// the first columns count the group's objects; the slabs are those of the cache, which all groups
/// share.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_group_slabinfo(out: &mut impl Write, caches: &[Cache]) -> io::Result<()> {
    write_slabinfo(out, &[])?;
    let held = caches.iter().filter(|cache| cache.active != 0);
    held.into_iter().try_for_each(|cache| write_line(out, &cache.name(), cache, cache.active))
}

fn write_line(out: &mut impl Write, name: &str, of: &Cache, objects: u64) -> io::Result<()> {
    writeln!(
        out,
        "{:<17} {:>6} {:>6} {:>6} {:>4} {:>4} : tunables {:>4} {:>4} {:>4} : \
         slabdata {:>6} {:>6} {:>6}",
        name,
        of.active,
        objects,
        of.size,
        of.objects_per_slab,
        of.pages_per_slab,
        of.limit,
        of.batch,
        0,
        of.active_slabs,
        of.slabs,
        0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_a_kernel() {
        let file = include_str!("../../tests/data/slabinfo-6.12.txt");
        let mut caches = Vec::new();
        let lines = || file.lines().skip(2).filter(|line| line.starts_with("kmalloc-"));
        for line in lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| fields[at].parse::<u64>().unwrap();
            caches.push((
                fields[0].to_owned(),
                Cache {
                    size: number(3) as u32,
                    request: number(3) as u32,
                    objects_per_slab: number(4) as u32,
                    pages_per_slab: number(5) as u32,
                    limit: number(8) as u16,
                    batch: number(9) as u16,
                    active: number(1),
                    active_slabs: number(13),
                    slabs: number(14),
                },
            ));
        }
        assert!(caches.len() > 10);
        let mut ours = Vec::new();
        write_slabinfo(&mut ours, &caches.iter().map(|cache| cache.1).collect::<Vec<_>>()).unwrap();
        let ours = String::from_utf8(ours).unwrap();
        assert_eq!(
            ours.lines().take(2).collect::<Vec<_>>(),
            file.lines().take(2).collect::<Vec<_>>()
        );
        for ((ours, (name, cache)), theirs) in ours.lines().skip(2).zip(&caches).zip(lines()) {
            // All but the names: a kernel abbreviates them (kmalloc-8k), or has several of a size.
            let named = ours.replacen(&format!("{:<17}", cache.name()), &format!("{name:<17}"), 1);
            assert_eq!(named, theirs);
        }
    }
}
