//! All root blocks of a process, read one after the other.

use std::cell::RefCell;
use std::collections::BTreeMap;

use kmem_layout::root::is_root;

use super::root::Root;
use super::source::Source;
use crate::budget::Budget;
use crate::error::ReadError;
use crate::image::Image;
use crate::maps::Maps;
use crate::memory::Pages;

/// Work of looking at one root block, in bytes, besides the copies of its tables. Each mapping adds
/// to it, because tables are compared with the mappings.
const ROOT_WORK: u64 = 1 << 20;
const MAPPING_WORK: u64 = 64;

/// Address of every root block. Each copy of the library has one in a memfd of its own, or in a
/// mapping of the device of zeroes.
pub(crate) fn root_addresses(maps: &Maps) -> Vec<u64> {
    let mut by_file = BTreeMap::new();
    for mapping in maps.all() {
        if is_root(&mapping.path, mapping.offset) && mapping.readable {
            // All mappings of the device are of one file.
            let of_device = if mapping.offset == 0 { 0 } else { mapping.start };
            by_file.entry((mapping.inode, of_device)).or_insert(mapping.start);
        }
    }
    by_file.into_values().collect()
}

/// All that the root blocks of a process lead to.
pub(super) struct Followed<T> {
    pub(super) maps: Maps,
    pub(super) pages: Option<Pages>,
    /// One value per readable root block; empty only when there are no faults either.
    pub(super) kept: Vec<T>,
    /// Why the other root blocks could not be followed.
    pub(super) faults: Vec<ReadError>,
}

/// Most readings of a process whose mappings change meanwhile.
const MAX_READINGS: usize = 4;

/// Reads all root blocks of a process, and calls `each` to read where each one leads. A bad root
/// block does not hide a good one.
///
/// A process may end, start another program, or map a table behind the mappings that were read. So
/// faults count when the mappings are still the same; else the process is read again.
///
/// # Errors
///
/// - [`ReadError::NotInstrumented`] without a root block.
/// - [`ReadError::NotReady`] for a process that is starting.
/// - The last fault when no root block could be followed.
/// - Errors of access to the process.
pub(super) fn follow<T>(
    image: &Image<'_>,
    budget: &Budget,
    each: impl Fn(&Source<'_>, &Root) -> Result<T, ReadError>,
) -> Result<Followed<T>, ReadError> {
    let mut maps = image.maps()?;
    let mut readings = 0;
    loop {
        let mut followed = follow_in(image, &maps, budget, &each)?;
        if !followed.kept.is_empty() {
            return Ok(followed);
        }
        let Some(fault) = followed.faults.pop() else { return Ok(followed) };
        image.verify()?;
        let before = std::mem::replace(&mut maps, image.maps()?);
        readings += 1;
        if readings == MAX_READINGS || (before == maps && *maps == followed.maps) {
            return Err(fault);
        }
    }
}

/// Reads the root blocks that are in these mappings, and where they lead.
fn follow_in<T>(
    image: &Image<'_>,
    maps: &Maps,
    budget: &Budget,
    each: impl Fn(&Source<'_>, &Root) -> Result<T, ReadError>,
) -> Result<Followed<T>, ReadError> {
    let addresses = root_addresses(maps);
    let Some(&first) = addresses.first() else {
        return Err(image.not_instrumented()?);
    };
    let memory = image.memory();
    let (mut roots, mut kept, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for at in addresses {
        keep(Root::read(&memory, at), &mut roots, &mut faults)?;
    }
    // Mappings are read after the root blocks, so that they hold zones which have just grown.
    let maps = image.maps()?.into_owned();
    let pages = image.pages(first);
    let (pages_of, zones) = (pages.as_ref(), RefCell::default());
    let source = Source { memory: &memory, maps: &maps, pages: pages_of, budget, zones };
    for root in &roots {
        let work = ROOT_WORK + MAPPING_WORK * maps.all().len() as u64;
        let one = root.draw(budget.work(work)).and_then(|()| each(&source, root));
        keep(one, &mut kept, &mut faults)?;
    }
    Ok(Followed { maps, pages, kept, faults })
}

/// Most faults that are told one by one.
const MAX_FAULTS: usize = 8;

/// A sentence for each of some faults, the last one for all that are not told one by one.
pub(super) fn told(faults: &[ReadError]) -> Vec<String> {
    let (told, more) = faults.split_at(faults.len().min(MAX_FAULTS));
    let mut told: Vec<String> = told.iter().map(ToString::to_string).collect();
    if !more.is_empty() {
        told.push(format!("{} more root blocks cannot be followed", more.len()));
    }
    told
}

/// Sorts a result into the values or the faults. Fails with errors of access to the process.
fn keep<T>(
    result: Result<T, ReadError>,
    kept: &mut Vec<T>,
    faults: &mut Vec<ReadError>,
) -> Result<(), ReadError> {
    match result {
        Ok(value) => kept.push(value),
        Err(
            fault @ (ReadError::BadBooks { .. }
            | ReadError::NotReady { .. }
            | ReadError::TooLarge { .. }
            | ReadError::Memory { .. }
            | ReadError::NotInCore { .. }),
        ) => faults.push(fault),
        Err(other) => return Err(other),
    }
    Ok(())
}
