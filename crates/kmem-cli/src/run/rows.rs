//! Rows of the command's own process at its end, for `kmem run --format`.

use kmem_snapshot::{Query, Reading, Target, When};

use super::boxes::Boxes;
use super::watch::{Ended, LastReading};
use crate::failure::Failure;

/// Reads the rows: those of the exit, or those of the last record in the box of a process that a
/// signal ended. `mmap`: with memory outside of the heap.
///
/// # Errors
///
/// [`Failure`] when the process left no rows.
pub(crate) fn reading(ended: Ended, mmap: bool) -> Result<Reading, Failure> {
    let Ended { main, boxes, .. } = ended;
    let read = match main {
        Some(Ok(LastReading { snapshot, modules })) => {
            let mut reading = Reading::of(snapshot, &modules, mmap)?;
            if !mmap {
                reading.snapshot.accounting.parts = None;
            }
            return Ok(reading);
        }
        Some(Err(error)) => Err(error.into()),
        None => Err(Failure::Trouble(
            "no rows: the process left no exit report; run it without --format to see why"
                .to_owned(),
        )),
    };
    match last_record(&boxes) {
        Some(target) => Ok(target.read(&Query { mappings: mmap, ..Query::default() })?),
        None => read,
    }
}

/// The newest record of the command's own process.
pub(super) fn last_record(boxes: &Boxes) -> Option<Target> {
    let own = boxes.kept().iter().find(|held| boxes.is_main(held))?;
    Some(Target::BlackBox { path: own.path.clone(), exe: None, when: When::Newest })
}
