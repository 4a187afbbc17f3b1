//! Tables and the accounting line, for people.

mod groups;
mod name;
mod pinned;
mod slabinfo;
mod tree;

use std::io::{self, Write};

pub use groups::{write_group_table, write_group_totals, write_groups};
pub use name::short;
pub use tree::write_tree;

use crate::books::{Accounting, Tables};
use crate::escape::printable;
use crate::sites::Site;

pub use pinned::write_pinned_table;
pub use slabinfo::{write_group_slabinfo, write_slabinfo};

/// Widest function column; longer names push their line to the right.
const MAX_FUNCTION: usize = 48;

/// A size with a binary unit: `55.0 MiB`.
#[must_use]
pub fn size(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let magnitude = bytes.unsigned_abs();
    if magnitude < 1024 {
        return format!("{bytes} B");
    }
    let sign = if bytes < 0 { "-" } else { "" };
    let mut unit = 0;
    let mut scaled = magnitude as f64 / 1024.0;
    // What would print as 1024.0 belongs to the next unit.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{sign}{scaled:.1} {}", UNITS[unit])
}

/// The same for an unsigned number of bytes.
#[must_use]
pub fn size_u(bytes: u64) -> String {
    size(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Writes `SIZE CALLS FUNCTION WHERE` for the first `lines` rows, and what the others hold.
///
/// # Errors
///
/// Whatever the writer reports.
pub fn write_table(out: &mut impl Write, sites: &[Site], lines: usize) -> io::Result<()> {
    let shown = &sites[..sites.len().min(lines)];
    if shown.is_empty() {
        return writeln!(out, "  (nothing)");
    }
    let names: Vec<_> =
        shown.iter().map(|s| printable(&short(s.origin.function())).into_owned()).collect();
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let width = width.clamp("FUNCTION".len(), MAX_FUNCTION);
    write_header(out, width)?;
    for (site, name) in shown.iter().zip(&names) {
        let location = site.origin.location();
        let line = format!(
            "{:>10} {:>9}  {name:width$}  {}",
            size(site.bytes),
            site.calls,
            printable(&location)
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    let rest = &sites[shown.len()..];
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0_i64, |sum, s| sum.saturating_add(s.bytes));
        let calls = rest.iter().fold(0_u64, |sum, s| sum.saturating_add(s.calls));
        writeln!(out, "{:>10} {calls:>9}  (in {} more rows)", size(bytes), rest.len())?;
    }
    Ok(())
}

/// Writes the header of a table whose function column is `width` characters wide.
///
/// # Errors
///
/// Whatever the writer reports.
pub fn write_header(out: &mut impl Write, width: usize) -> io::Result<()> {
    writeln!(out, "{:>10} {:>9}  {:width$}  WHERE", "SIZE", "CALLS", "FUNCTION")
}

/// Writes `tracked + cached + overhead + unaccounted = resident`, and what explains it.
///
/// # Errors
///
/// Whatever the writer reports.
pub fn write_accounting(out: &mut impl Write, of: &Accounting) -> io::Result<()> {
    let rest = of.unaccounted();
    writeln!(
        out,
        "tracked {} + cached {} + overhead {} + unaccounted {} = resident {}",
        size_u(of.tracked),
        size_u(of.cached),
        size_u(of.overhead),
        size(rest),
        size_u(of.resident)
    )?;
    match of.tables {
        Tables::Counted => {}
        Tables::Estimated => writeln!(
            out,
            "  overhead is an estimate: the page map of the process cannot be read here, so kmem's tables are as its smaps says"
        )?,
        Tables::Unknown => writeln!(
            out,
            "  overhead lacks kmem's tables, which are in unaccounted: neither pagemap nor smaps of the process can be read here"
        )?,
    }
    let untouched = of.untouched.filter(|&bytes| bytes != 0);
    let swapped = of.swapped.filter(|&bytes| bytes != 0);
    match (untouched, rest < 0) {
        (Some(bytes), true) => writeln!(
            out,
            "  unaccounted is negative: {} of the pages in use were never touched, so they are not resident",
            size_u(bytes)
        )?,
        (Some(bytes), false) => writeln!(
            out,
            "  untouched {}: pages in use that were never touched, so they are not resident",
            size_u(bytes)
        )?,
        (None, true) => writeln!(
            out,
            "  unaccounted is negative: memory was allocated and never touched, so it is not resident"
        )?,
        (None, false) => {}
    }
    if let Some(bytes) = swapped {
        writeln!(out, "  swapped {}: pages in use that are in swap", size_u(bytes))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Origin;
    use crate::symbols::Place;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (57_671_680, "55.0 MiB"),
            (1_048_575, "1.0 MiB"),
            (-4096, "-4.0 KiB"),
            (i64::MAX, "8.0 EiB"),
            (i64::MIN, "-8.0 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn golden_table() {
        let site = |function: &str, bytes, calls| Site {
            origin: Origin::Place(Place {
                module: "libx.so".into(),
                offset: 0x10,
                function: Some(function.into()),
                ..Place::default()
            }),
            group: None,
            bytes,
            calls,
            tags: vec![8],
            pinned: None,
            chains: Vec::new(),
        };
        let sites = [site("f", 57_671_680, 7), site("evil\x1b[2J", 1024, 1), site("h", 512, 1)];
        let mut out = Vec::new();
        write_table(&mut out, &sites, 2).unwrap();
        let expected = "      SIZE     CALLS  FUNCTION     WHERE
  55.0 MiB         7  f            libx.so+0x10
   1.0 KiB         1  evil\\x1b[2J  libx.so+0x10
     512 B         1  (in 1 more rows)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn golden_accounting() {
        let of = Accounting {
            tracked: 10 << 20,
            cached: 1 << 20,
            overhead: 1 << 20,
            resident: 4 << 20,
            tables: Tables::Counted,
            untouched: Some(9 << 20),
            swapped: Some(0),
        };
        let mut out = Vec::new();
        write_accounting(&mut out, &of).unwrap();
        let expected = "tracked 10.0 MiB + cached 1.0 MiB + overhead 1.0 MiB + unaccounted -8.0 MiB = resident 4.0 MiB
  unaccounted is negative: 9.0 MiB of the pages in use were never touched, so they are not resident
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn what_is_no_count_is_said() {
        let text = |tables| {
            let mut out = Vec::new();
            write_accounting(&mut out, &Accounting { tables, ..Accounting::default() }).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(Tables::Counted).lines().count(), 1);
        assert!(text(Tables::Estimated).contains("\n  overhead is an estimate: "));
        assert!(text(Tables::Unknown).contains("\n  overhead lacks kmem's tables"));
    }
}
