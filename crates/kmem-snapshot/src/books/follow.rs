//! From root blocks to what they lead to: a bad one must not hide a good one.

use super::target::Target;
use super::{Root, Source, root_addresses};
use crate::error::ReadError;
use crate::memory::Pages;
use crate::process::Maps;

/// What the root blocks of a process led to.
pub(super) struct Followed<T> {
    pub(super) maps: Maps,
    pub(super) pages: Option<Pages>,
    /// What could be read; not empty, unless no root block led anywhere and none was bad.
    pub(super) kept: Vec<T>,
    /// Why others could not be followed.
    pub(super) faults: Vec<ReadError>,
}

/// Reads all root blocks of a process, and `each` what one of them leads to.
///
/// # Errors
/// There is no root block; none could be followed; or the process cannot be read.
pub(super) fn follow<T>(
    target: &Target<'_>,
    each: impl Fn(&Source<'_>, &Root) -> Result<T, ReadError>,
) -> Result<Followed<T>, ReadError> {
    let memory = target.memory();
    let addresses = root_addresses(&*target.maps()?);
    if addresses.is_empty() {
        return Err(target.not_instrumented()?);
    }
    let (mut roots, mut kept, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for &at in &addresses {
        keep(Root::read(&memory, at), &mut roots, &mut faults)?;
    }
    // After the roots, so that zones which have just grown are in it.
    let maps = target.maps()?.into_owned();
    let pages = target.pages(addresses[0]);
    let source = Source { memory: &memory, maps: &maps, pagemap: pages.as_ref() };
    for root in &roots {
        keep(each(&source, root), &mut kept, &mut faults)?;
    }
    if kept.is_empty()
        && let Some(fault) = faults.pop()
    {
        target.verify()?;
        return Err(fault);
    }
    Ok(Followed { maps, pages, kept, faults })
}

/// Collects what could be read.
fn keep<T>(
    result: Result<T, ReadError>,
    kept: &mut Vec<T>,
    faults: &mut Vec<ReadError>,
) -> Result<(), ReadError> {
    match result {
        Ok(value) => kept.push(value),
        Err(
            fault @ (ReadError::BadBooks { .. }
            | ReadError::Memory { .. }
            | ReadError::NotInCore { .. }),
        ) => faults.push(fault),
        Err(other) => return Err(other),
    }
    Ok(())
}
