//! Rows without a name, and the file that has the names.

use std::collections::BTreeMap;

use crate::maps::Maps;
use crate::notes::Note;
use crate::sites::{Origin, Site};
use crate::symbols::{Place, debug_path};

/// Nameless memory is worth a note if it is one part in this many of the memory of all rows.
const WORTH: i64 = 100;

/// [`note`] on rows of a process with these mappings.
pub(crate) fn note_of_process<'a>(
    rows: impl Iterator<Item = &'a Site>,
    maps: &'a Maps,
    build_ids: &BTreeMap<String, String>,
) -> Option<Note> {
    note(rows, |place| Some(maps.find(place.address)?.path.as_str()), build_ids)
}

/// A note on the file of the most nameless memory, by the layout of separate debug files (GDB
/// manual, "Debugging Information in Separate Files"). None where the build id of that file is not
/// known, or the debug file is there.
pub(super) fn note<'a>(
    rows: impl Iterator<Item = &'a Site>,
    path_of: impl Fn(&Place) -> Option<&'a str>,
    build_ids: &BTreeMap<String, String>,
) -> Option<Note> {
    let mut of_files: BTreeMap<&str, i64> = BTreeMap::new();
    let (mut all, mut nameless) = (0_i64, 0_i64);
    for site in rows {
        all = all.saturating_add(site.bytes);
        let Origin::Place(place) = &site.origin else { continue };
        if place.function.is_some() {
            continue;
        }
        nameless = nameless.saturating_add(site.bytes);
        if let Some(path) = path_of(place) {
            let sum = of_files.entry(path).or_default();
            *sum = sum.saturating_add(site.bytes);
        }
    }
    let (path, bytes) = of_files.into_iter().max_by_key(|&(_, bytes)| bytes)?;
    let debug = debug_path(build_ids.get(path)?)?;
    if nameless < all / WORTH || bytes <= 0 || debug.exists() {
        return None;
    }
    let debug = debug.display().to_string();
    Some(Note::Nameless { nameless, bytes, path: path.to_owned(), debug })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Mapping;
    use crate::process::Process;

    fn row(address: u64, function: Option<&str>, bytes: i64) -> Site {
        let function = function.map(Into::into);
        let place = Place { address, function, ..Place::default() };
        Site { bytes, ..Site::new(Origin::Place(place)) }
    }

    #[test]
    fn the_file_with_most_nameless_memory_is_named_if_its_build_id_is_known() {
        let maps = Process::open(std::process::id()).unwrap().maps().unwrap();
        let mut files: Vec<&Mapping> =
            maps.overlapping(0..u64::MAX).filter(|of| of.is_file()).collect();
        files.dedup_by_key(|of| &of.path);
        let [small, large] = [files[0], files[1]];
        let ids: BTreeMap<_, _> =
            [(large.path.clone(), "ffff0123".to_owned()), (small.path.clone(), "f".to_owned())]
                .into();
        let rows = [
            row(small.start, None, 10),
            row(large.start, None, 20),
            row(large.start + 8, None, 30),
            row(small.start, Some("main"), 900),
        ];
        let debug = "/usr/lib/debug/.build-id/ff/ff0123.debug".to_owned();
        let path = large.path.clone();
        let expected = Note::Nameless { nameless: 60, bytes: 50, path, debug };
        assert_eq!(note_of_process(rows.iter(), &maps, &ids), Some(expected));
        // An id that is no id, a file without one, names for all, and next to nothing.
        assert_eq!(note_of_process(rows[..1].iter(), &maps, &ids), None);
        assert_eq!(note_of_process(rows.iter(), &maps, &BTreeMap::new()), None);
        assert_eq!(note_of_process(rows[3..].iter(), &maps, &ids), None);
        let rows = [row(large.start, None, 1), row(large.start, Some("main"), 200)];
        assert_eq!(note_of_process(rows.iter(), &maps, &ids), None);
    }
}
