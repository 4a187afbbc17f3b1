//! Names for rows that are known by module and offset alone, out of files that no process maps.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Reading, nameless};
use crate::budget::Budget;
use crate::error::ReadError;
use crate::listed;
use crate::notes::Note;
use crate::program::base_name;
use crate::sites::{Origin, Site};
use crate::symbols::{DebugFiles, Elf, Place};

/// Most files that names come from.
const MAX_FILES: usize = 4096;

/// Calls of a reading, in rows and in chains of callers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Symbolized {
    /// Calls without a line of source before.
    pub without: u64,
    /// Those of them that have a line now, or at least a function.
    pub named: u64,
}

/// Modules by their base names, which are all that a row has of them.
struct Names<'a, 'f> {
    files: DebugFiles<'f>,
    /// Path and build id. None: two files of this name.
    known: HashMap<&'a str, Option<(&'a str, &'a str)>>,
    elves: HashMap<&'a str, Option<Elf>>,
    budget: Budget,
    of: Symbolized,
}

impl<'a, 'f> Names<'a, 'f> {
    fn new(build_ids: &'a BTreeMap<String, String>, files: DebugFiles<'f>) -> Self {
        let mut known = HashMap::new();
        for (path, id) in build_ids {
            let file = (path.as_str(), id.as_str());
            match known.entry(base_name(path)) {
                Entry::Vacant(at) => _ = at.insert(Some(file)),
                Entry::Occupied(mut at) => {
                    if at.get().is_some_and(|(_, other)| other != id) {
                        at.insert(None);
                    }
                }
            }
        }
        let (elves, budget, of) = (HashMap::new(), Budget::default(), Symbolized::default());
        Self { files, known, elves, budget, of }
    }

    fn name(&mut self, place: &mut Place) {
        if place.source.is_some() || place.module.is_empty() {
            return;
        }
        self.of.without += 1;
        let Some((&module, Some((path, id)))) = self.known.get_key_value(place.module.as_str())
        else {
            return;
        };
        let is_room = self.elves.len() < MAX_FILES;
        let elf = match self.elves.entry(module) {
            Entry::Occupied(at) => at.into_mut(),
            Entry::Vacant(at) if is_room => {
                at.insert(self.files.open(path, id, &self.budget.share()))
            }
            Entry::Vacant(_) => return,
        };
        let Some(elf) = elf else { return };
        let function = place.function.take();
        let was_nameless = function.is_none();
        place.name(elf);
        place.function = place.function.take().or(function);
        if place.source.is_some() || (was_nameless && place.function.is_some()) {
            self.of.named += 1;
        }
    }

    fn site(&mut self, mut site: Site) -> Site {
        if let Origin::Place(place) = &mut site.origin {
            self.name(place);
        }
        for place in site.chains.iter_mut().flat_map(|chain| &mut chain.frames) {
            self.name(Arc::make_mut(place));
        }
        site
    }
}

impl Reading {
    /// Names calls that have no line of source, by the build ids of their modules. Rows of one
    /// place become one row.
    ///
    /// # Errors
    ///
    /// [`ReadError::BadSetting`] when the numbers of rows that become one add up to more than 64
    /// bits.
    pub fn symbolize(&mut self, files: DebugFiles<'_>) -> Result<Symbolized, ReadError> {
        let build_ids = self.provenance.build_ids.clone();
        let mut names = Names::new(&build_ids, files);
        for sites in [&mut self.sites, &mut self.mappings] {
            let named = std::mem::take(sites).into_iter().map(|site| names.site(site));
            *sites = listed::added_up(named).map_err(ReadError::BadSetting)?;
        }
        self.notes.retain(|note| !matches!(note, Note::Nameless { .. }));
        let rows = self.sites.iter().chain(&self.mappings);
        let path_of = |place: &Place| names.known.get(place.module.as_str())?.map(|(path, _)| path);
        self.notes.extend(nameless::note(rows, path_of, &build_ids));
        Ok(names.of)
    }
}
