//! Rows of allocinfo text.

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use super::{List, bad, note, note_merged, unreadable};
use crate::allocinfo::{LineError, Reader, Row};
use crate::books::{StaticTag, Table};
use crate::error::ReadError;
use crate::notes::Note;
use crate::sites::{Mapped, Origin, Site, Tag};
use crate::symbols::Place;

/// Reads allocinfo text.
pub(super) fn read(
    source: impl BufRead,
    path: &Path,
    notes: &mut Vec<Note>,
) -> Result<List, ReadError> {
    let fault = |error| match error {
        LineError::Io { source, .. } => unreadable(path, source),
        other => bad(path, other.to_string()),
    };
    let reader = Reader::new(source).map_err(fault)?;
    let mut list = List::default();
    let (mut lines, mut inaccurate) = (0, 0_u64);
    for row in reader {
        let row = row.map_err(fault)?;
        lines += 1;
        let site = site(row);
        inaccurate += u64::from(!site.accurate);
        list.add(site).map_err(|what| bad(path, what))?;
    }
    note_merged(path, lines, "lines", &list, notes);
    if inaccurate != 0 {
        let what = format!(
            "the kernel marks {inaccurate} lines as not accurate: it could not count all of their \
             allocations"
        );
        notes.push(note(path, what));
    }
    Ok(list)
}

fn site(row: Row) -> Site {
    let mapped = row.extras.iter().find(|(key, _)| key == "mapped");
    Site {
        bytes: row.bytes,
        calls: row.calls,
        mapped: mapped.and_then(|(_, value)| value.parse().ok()),
        accurate: !row.extras.iter().any(|(key, value)| key == "accurate" && value == "no"),
        ..Site::new(origin(row.tag))
    }
}

/// The origin that a line stands for; see the table in [`allocinfo`](crate::allocinfo).
pub(super) fn origin(tag: Tag) -> Origin {
    reserved(&tag).or_else(|| call(&tag)).unwrap_or_else(|| {
        let Tag { file, line, module, function } = tag;
        let module = module.unwrap_or_default();
        Origin::Static(Arc::new(StaticTag { module, file, line, function }))
    })
}

/// Memory without a place, by the names that kmem gives it.
fn reserved(tag: &Tag) -> Option<Origin> {
    let Tag { file, line: 0, function, .. } = tag else { return None };
    let path = || Some(file.clone()).filter(|file| file.starts_with(['/', '[']));
    match (file.as_str(), function.as_str()) {
        ("kmem", "not_tagged") => Some(Origin::NotTagged),
        ("kmem", "other_sites") => Some(Origin::OtherSites),
        ("kmem", name) => Mapped::without_path(name).map(Origin::Mapped).or_else(|| {
            if let Some(number) = name.strip_prefix("unknown_tag_") {
                return number.parse().ok().map(Origin::Unknown);
            }
            Table::ALL.into_iter().find(|table| table.name() == name).map(Origin::Metadata)
        }),
        (_, name) => Some(Origin::Mapped(Mapped::with_path(name, path()?)?)),
    }
}

/// A call without a source: `module+0xoffset`.
fn call(tag: &Tag) -> Option<Origin> {
    let (module, offset) = tag.file.rsplit_once("+0x").filter(|_| tag.line == 0)?;
    let place = Place {
        module: module.to_owned(),
        main: tag.module.is_none(),
        offset: u64::from_str_radix(offset, 16).ok()?,
        address: 0,
        function: Some(tag.function.clone()).filter(|function| *function != tag.file),
        source: None,
    };
    let origin = Origin::Place(place);
    // Other spellings would not come back as they were.
    (origin.tag() == *tag).then_some(origin)
}
