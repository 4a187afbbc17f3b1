//! A reading of books that were copied earlier.

use super::provenance::Provenance;
use super::{By, Query, Reading, named, note_books, over_budget, pin};
use crate::books::Snapshot;
use crate::error::ReadError;
use crate::notes::Note;
use crate::sites::{Filter, resolve_mappings};
use crate::symbols::{Modules, Symbols};

impl Reading {
    /// Names all rows of a live process that were just copied, with memory outside of the heap if
    /// `mappings` is true.
    ///
    /// # Errors
    ///
    /// [`ReadError::ProfilingNever`]: the process keeps no books.
    pub fn of(snapshot: Snapshot, modules: &Modules, mappings: bool) -> Result<Self, ReadError> {
        let mut notes = Vec::new();
        note_books(&snapshot, Note::Torn, &mut notes)?;
        let mut symbols = Symbols::new(modules);
        let mut sites = named(&snapshot, &mut symbols, &Query::default(), By::Site);
        pin(&snapshot, &mut symbols, &mut sites, &Filter::default());
        let mut outside = Vec::new();
        if let Some(of) = snapshot.mappings.as_ref().filter(|_| mappings) {
            outside = resolve_mappings(&of.rows, &mut symbols, |_| true);
            notes.extend(of.faults.iter().cloned().map(Note::LeftOut));
            notes.extend((of.lost != 0).then_some(Note::MappingsLost(of.lost)));
        }
        notes.extend(over_budget(&snapshot));
        Ok(Self {
            snapshot,
            sites,
            mappings: outside,
            notes,
            provenance: Provenance::now().with_files(modules.build_ids()),
            accounted: true,
            ..Self::default()
        })
    }
}
