//! The list of a kernel's report on lack of memory, out of its log.
//!
//! ```text
//! [   41.207768] Memory allocations (profiling is currently turned on):
//! [   41.207789]     40.5 MiB     5184 mm/slub.c:2478 func:alloc_slab_page
//! [   41.207809]     33.0 MiB     8448 drivers/net/veth.c:310 [veth] func:veth_alloc_queues
//! ```
//!
//! Linux before 6.18 writes `Memory allocations:`. So does kmem in a process without memory.
//! Anything may stand before: a time, a host, a level. The kernel rounds the sizes to three digits.
//!
//! Source: `__show_mem` in Linux' `mm/show_mem.c`, `string_get_size` in `lib/string_helpers.c`.

use std::io::{BufRead, Read as _};
use std::num::NonZeroUsize;
use std::path::Path;

use super::{List, bad, note, text, unreadable};
use crate::error::ReadError;
use crate::escape::unword;
use crate::notes::Note;
use crate::sites::{Site, Tag};

/// First words of a list.
const HEAD: &str = "Memory allocations";
/// Most rows of a list.
const MAX_LIST: usize = 10;
/// Most lines of others between two rows: CPUs write to the log concurrently.
const MAX_OTHERS: usize = 20;
/// Longest line read whole, in bytes.
const MAX_LINE: u64 = 4096;
/// Most bytes that are searched for more lists behind the wanted one. A pipe may have no end.
const MAX_BEHIND: u64 = 64 << 20;

/// Reads the list with this number, from 1, or the last one.
pub(super) fn read(
    mut source: impl BufRead,
    path: &Path,
    number: Option<NonZeroUsize>,
    notes: &mut Vec<Note>,
) -> Result<List, ReadError> {
    let mut count = 0;
    // Bytes behind the head of the wanted list.
    let mut behind = 0;
    let mut rows: Vec<Site> = Vec::new();
    // Lines since the last row of an open list.
    let mut open = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut source).take(MAX_LINE);
        let read = limited.read_until(b'\n', &mut line).map_err(|e| unreadable(path, e))?;
        if number.is_some_and(|number| number.get() <= count) {
            behind += read as u64;
        }
        if read == 0 || behind > MAX_BEHIND {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        if is_head(&text) {
            let wanted = number.is_none_or(|number| number.get() > count);
            count += 1;
            open = Some(0).filter(|_| wanted);
            if wanted {
                rows.clear();
            }
        } else if let Some(others) = open {
            match row(&text) {
                Some(row) => {
                    rows.push(row);
                    open = Some(0).filter(|_| rows.len() < MAX_LIST);
                }
                None => open = Some(others + 1).filter(|&others| others <= MAX_OTHERS),
            }
        }
    }
    let absent =
        |what: String| ReadError::NothingRecorded { path: path.display().to_string(), what };
    if count == 0 {
        return Err(absent(format!(
            "no list \"{HEAD}:\" in it, which a kernel with memory allocation profiling writes \
             when memory is short, and no allocinfo text or JSON; `kmem top --kernel` reads the \
             kernel of this machine"
        )));
    }
    if let Some(number) = number.filter(|number| number.get() > count) {
        return Err(absent(format!(
            "{count} lists \"{HEAD}:\" in it, and no list {number}: choose one with --list"
        )));
    }
    let at = number.map_or(count, NonZeroUsize::get);
    let least = if behind > MAX_BEHIND { "at least " } else { "" };
    let what = format!(
        "list {at} of {least}{count}: its {} largest sites, with sizes that are rounded to three \
         digits",
        rows.len()
    );
    notes.push(note(path, what));
    let mut list = List::default();
    rows.into_iter().try_for_each(|row| list.add(row)).map_err(|what| bad(path, what))?;
    Ok(list)
}

/// True for the first line of a list of all memory, not of that of a group.
fn is_head(line: &str) -> bool {
    let Some((_, rest)) = line.split_once(HEAD) else { return false };
    let rest = rest.trim_end();
    rest == ":" || (rest.starts_with(" (profiling is currently") && rest.ends_with("):"))
}

/// Parses `.. SIZE UNIT CALLS FILE:LINE [MODULE] func:FUNCTION`; anything may stand before.
fn row(line: &str) -> Option<Site> {
    let (before, function) = line.split_once(" func:")?;
    let mut words = before.split_ascii_whitespace().rev();
    let mut place = words.next()?;
    let mut module = None;
    if let Some(name) = place.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        module = Some(unword(name).into_owned());
        place = words.next()?;
    }
    let calls = words.next()?.parse().ok()?;
    let unit = words.next()?;
    let bytes = size(words.next()?, unit)?;
    let (file, at) = place.rsplit_once(':')?;
    let tag = Tag {
        file: unword(file).into_owned(),
        line: at.parse().ok()?,
        module,
        function: unword(function.trim_end()).into_owned(),
    };
    Some(Site { bytes, calls, ..Site::new(text::origin(tag)) })
}

/// Bytes of a size such as `55.0 MiB`.
fn size(number: &str, unit: &str) -> Option<i64> {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let shift = 10 * UNITS.iter().position(|name| *name == unit)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = u32::try_from(part.len()).ok().filter(|&digits| digits <= 3)?;
    let scaled: u64 = format!("{whole}{part}").parse().ok()?;
    let bytes = (i128::from(scaled) << shift) / 10_i128.pow(digits);
    i64::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const LOG: &str = "\
[    1.000000] Memory allocations:
[    1.000001]      1023 KiB        1 mm/a.c:1 func:a
[   41.207768] Memory allocations (profiling is currently turned on):
[   41.207789]     40.5 MiB     5184 mm/slub.c:2478 func:alloc_slab_page
[   41.207790] systemd[1]: another CPU's line
[   41.207809]     33.0 MiB     8448 drivers/net/veth.c:310 [veth] func:veth_alloc_queues
[   41.207810] Out of memory: Killed process 7
[   31.000000] Memory allocations of the group:
[   31.000001]     1.00 KiB        1 mm/b.c:1 func:b
";

    /// Bytes, calls and tag of a row.
    type Listed = (i64, u64, Tag);

    fn read_list(text: &str, number: usize) -> Result<Vec<Listed>, String> {
        read_noted(text.as_bytes(), number).map(|(rows, _)| rows)
    }

    /// Rows, and the one note.
    fn read_noted(source: impl BufRead, number: usize) -> Result<(Vec<Listed>, String), String> {
        let mut notes = Vec::new();
        let list = read(source, Path::new("log"), NonZeroUsize::new(number), &mut notes);
        let list = list.map_err(|error| error.to_string())?;
        let row = |site: Site| (site.bytes, site.calls, site.origin.tag());
        let rows = list.heap.sites.into_iter().map(row).collect();
        let [note] = &notes[..] else { panic!("{notes:?}") };
        Ok((rows, note.to_string()))
    }

    #[test]
    fn the_last_list_is_read_and_lines_of_others_between_are_not() {
        let rows = read_list(LOG.split_once("Memory allocations of").unwrap().0, 0).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].0, rows[0].1), (42_467_328, 5184));
        assert_eq!((&*rows[0].2.file, rows[0].2.line), ("mm/slub.c", 2478));
        assert_eq!(rows[1].2.module.as_deref(), Some("veth"));
        assert_eq!(rows[1].0, 33 << 20);
    }

    #[test]
    fn lists_have_numbers_and_an_absent_one_is_told() {
        assert_eq!(read_list(LOG, 1).unwrap()[0].0, 1023 << 10);
        let error = read_list(LOG, 3).unwrap_err();
        assert!(error.contains("2 lists") && error.contains("no list 3"), "{error}");
        let error = read_list("nothing\n", 0).unwrap_err();
        assert!(error.contains("no list \"Memory allocations:\""), "{error}");
    }

    #[test]
    fn the_note_counts_the_lists_behind_the_wanted_one_too() {
        let log = LOG.split_once("[   31").unwrap().0.repeat(3);
        for (number, said) in [(0, "list 6 of 6: its 2"), (1, "list 1 of 6: its 1")] {
            let (_, note) = read_noted(log.as_bytes(), number).unwrap();
            assert!(note.contains(said), "{note}");
        }
        // The wanted list ends at the next head, and keeps its own rows alone.
        assert_eq!(read_list(&log, 3).unwrap(), read_list(LOG, 1).unwrap());
        assert_eq!(read_list(&log, 4).unwrap(), read_list(&log, 2).unwrap());
    }

    #[test]
    fn a_log_without_an_end_is_searched_up_to_a_bound() {
        let endless = io::BufReader::with_capacity(1 << 16, io::repeat(b'x'));
        let (rows, note) = read_noted(LOG.as_bytes().chain(endless), 1).unwrap();
        assert_eq!(rows.len(), 1);
        assert!(note.contains("list 1 of at least 2: its 1"), "{note}");
    }

    #[test]
    fn sizes_are_those_of_the_kernel() {
        for (number, unit, bytes) in [
            ("0", "B", Some(0)),
            ("55.0", "MiB", Some(55 << 20)),
            ("9.88", "KiB", Some(10_117)),
            ("1.5", "EiB", Some(3 << 59)),
            ("8", "EiB", None),
            ("18446744073709551616", "B", None),
            ("1.2345", "KiB", None),
            ("x", "KiB", None),
            ("1", "kB", None),
        ] {
            assert_eq!(size(number, unit), bytes, "{number} {unit}");
        }
    }
}
