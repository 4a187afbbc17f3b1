//! The table of changes.

use std::io::{self, Write};

use super::{MAX_COLUMN, short, size};
use crate::diff::{Change, Diff, Held, State};
use crate::escape::printable;

/// Formats a size of any magnitude; beyond 8 EiB it stays there.
#[must_use]
pub fn size_of_sum(bytes: i128) -> String {
    size(i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX }))
}

/// Formats a change of bytes, such as `+55.0 MiB`.
#[must_use]
pub fn signed_size(bytes: i128) -> String {
    let sign = if bytes > 0 { "+" } else { "" };
    format!("{sign}{}", size_of_sum(bytes))
}

/// Writes `DELTA OBJECTS BEFORE AFTER`, the kind of change, `FUNCTION WHERE` for the first `lines`
/// changes, and one line with the sum of the others.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_diff(out: &mut impl Write, changes: &[Change], lines: usize) -> io::Result<()> {
    let (shown, rest) = changes.split_at(changes.len().min(lines));
    if shown.is_empty() && rest.is_empty() {
        return writeln!(out, "  (no change)");
    }
    let safe = |change: &Change| printable(&short(change.origin.function())).into_owned();
    let names: Vec<String> = shown.iter().map(safe).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = width.clamp("FUNCTION".len(), MAX_COLUMN);
    let [delta, objects, before, after] = ["DELTA", "OBJECTS", "BEFORE", "AFTER"];
    write!(out, "{delta:>11} {objects:>10} {before:>10} {after:>10}       ")?;
    writeln!(out, "{:width$}  WHERE", "FUNCTION")?;
    for (change, name) in shown.iter().zip(&names) {
        let mark = match change.state() {
            State::New => "new",
            State::Gone => "gone",
            State::Changed => "",
        };
        let location = change.origin.location();
        let cells = cells(change.delta(), change.before, change.after);
        let line = format!("{cells} {mark:<4}  {name:width$}  {}", printable(&location));
        writeln!(out, "{}", line.trim_end())?;
    }
    if !rest.is_empty() {
        let sum = |of: fn(&Change) -> Held| rest.iter().map(of).sum();
        let cells = cells(sum(Change::delta), sum(|of| of.before), sum(|of| of.after));
        writeln!(out, "{cells}       (in {} more rows)", rest.len())?;
    }
    Ok(())
}

fn cells(delta: Held, before: Held, after: Held) -> String {
    format!(
        "{:>11} {:>10} {:>10} {:>10}",
        signed_size(delta.bytes),
        format!("{:+}", delta.calls),
        size_of_sum(before.bytes),
        size_of_sum(after.bytes)
    )
}

/// Writes the sums: `before + delta = after`, in bytes and in objects.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_diff_totals(out: &mut impl Write, of: &Diff) -> io::Result<()> {
    let equation = |before: i128, delta: i128, after: i128| {
        let sign = if delta < 0 { '-' } else { '+' };
        format!("{before} {sign} {} = {after}", delta.unsigned_abs())
    };
    let (before, delta, after) = (of.before, of.delta(), of.after);
    writeln!(
        out,
        "total: {} bytes, {} objects",
        equation(before.bytes, delta.bytes, after.bytes),
        equation(before.calls, delta.calls, after.calls)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::{Origin, Site};
    use crate::symbols::Place;

    fn site(function: &str, bytes: i64, calls: u64) -> Site {
        let place =
            Place { module: "app".into(), function: Some(function.into()), ..Place::default() };
        let offset = function.bytes().map(u64::from).sum();
        Site { bytes, calls, ..Site::new(Origin::Place(Place { offset, ..place })) }
    }

    #[test]
    fn golden_table() {
        let before = [site("f", 1 << 20, 7), site("g", 4096, 2), site("k", 5, 1)];
        let after = [site("f", 3 << 20, 9), site("h\x1b", 512, 1), site("k", 6, 1)];
        let diff = Diff::of(&before, &after);
        let mut out = Vec::new();
        write_diff(&mut out, &diff.changes, 3).unwrap();
        write_diff_totals(&mut out, &diff).unwrap();
        let expected = "      \
      DELTA    OBJECTS     BEFORE      AFTER       FUNCTION  WHERE
   +2.0 MiB         +2    1.0 MiB    3.0 MiB       f         app+0x66
   -4.0 KiB         -2    4.0 KiB        0 B gone  g         app+0x67
     +512 B         +1        0 B      512 B new   h\\x1b     app+0x83
       +1 B         +0        5 B        6 B       (in 1 more rows)
total: 1052677 + 2093569 = 3146246 bytes, 10 + 1 = 11 objects
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        write_diff(&mut out, &[], 3).unwrap();
        assert_eq!(out, b"  (no change)\n");
    }
}
