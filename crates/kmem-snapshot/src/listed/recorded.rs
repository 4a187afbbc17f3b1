//! Rows of one moment of a recording.

use std::path::Path;

use super::{List, bad, note};
use crate::error::ReadError;
use crate::notes::Note;
use crate::recording::{At, Recording};

/// Reads the rows of a moment.
pub(super) fn read(path: &Path, at: At, notes: &mut Vec<Note>) -> Result<List, ReadError> {
    let recording = Recording::open(path)?;
    let number = recording.find(at)?;
    let moment = recording.moment(number)?;
    let about = recording.about();
    let first = recording.times().next().unwrap_or(0);
    let seconds = moment.time_ns.saturating_sub(first) as f64 / 1e9;
    let count = recording.times().len();
    notes.push(note(
        path,
        format!("moment {} of {count}, {seconds:.1} s after the first one", number + 1),
    ));
    if let Some(damage) = recording.damage() {
        notes.push(note(path, format!("{damage}; it is read up to there")));
    }
    if moment.torn != 0 {
        notes.push(Note::Torn(moment.torn));
    }
    let mut list = List {
        pid: about.pid,
        exe: about.exe.clone(),
        host: Some(about.host.clone()),
        time_ns: Some(moment.time_ns),
        accounting: moment.accounting(),
        build_ids: about.build_ids.clone(),
        ..List::default()
    };
    recording
        .sites(&moment)
        .into_iter()
        .try_for_each(|site| list.add(site))
        .map_err(|what| bad(path, what))?;
    Ok(list)
}
