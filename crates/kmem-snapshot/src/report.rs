//! Tables and the accounting line, for people.

mod callers;
mod diff;
mod groups;
mod mappings;
mod name;
mod pinned;
mod slabinfo;
mod tree;

use std::io::{self, Write};

pub use diff::{signed_size, size_of_sum, write_diff, write_diff_totals};
pub use groups::{write_group_table, write_group_totals, write_groups};
pub use mappings::write_mapping_table;
pub use name::short;
pub use pinned::write_pinned_table;
pub use slabinfo::{write_group_slabinfo, write_named_caches, write_slabinfo};
pub use tree::write_tree;

use crate::books::{Accounting, Tables};
use crate::escape::printable;
use crate::sites::{Site, total};

/// Widest column of texts, in characters. A longer text pushes its line to the right.
const MAX_COLUMN: usize = 48;

/// Formats a size with a binary unit, such as `55.0 MiB`.
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
    // A number that would print as 1024.0 belongs to the next unit.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{sign}{scaled:.1} {}", UNITS[unit])
}

/// Formats an unsigned size with a binary unit, such as `55.0 MiB`.
#[must_use]
pub fn size_u(bytes: u64) -> String {
    size(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// A number of things, by the name of one and that of several.
#[must_use]
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Compares the rows that a filter admits with the live bytes and objects of all rows, `of`.
#[must_use]
pub fn filtered(sites: &[Site], of: (i64, u64)) -> String {
    let (bytes, calls) = total(sites);
    format!(
        "a filter is on: {} in {calls} live objects from {} call sites match, of {} in {}",
        size(bytes),
        sites.len(),
        size(of.0),
        of.1
    )
}

/// Writes `SIZE OBJECTS FUNCTION WHERE` for the first `lines` rows, and one line with the sum of
/// the others. Below a row with several callers, it writes the largest of them. A row of mapped
/// memory has `mapped` in the place of a count of objects.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_table(out: &mut impl Write, sites: &[Site], lines: usize) -> io::Result<()> {
    let (shown, rest) = sites.split_at(sites.len().min(lines));
    if shown.is_empty() {
        return writeln!(out, "  (nothing)");
    }
    let all = total(sites).0;
    let below: Vec<Vec<callers::Row>> = shown.iter().map(|site| callers::rows(site, all)).collect();
    let (names, width) = functions(shown);
    let wide = below.iter().flatten().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let width = width.max(wide.min(MAX_COLUMN));
    write_head(out, &header(), width)?;
    for ((site, name), below) in shown.iter().zip(&names).zip(&below) {
        let row = match site.mapped {
            Some(_) => format!("{:>10} {:>9}", size(site.bytes), "mapped"),
            None => cells(site.bytes, site.calls),
        };
        write_row(out, &row, name, width, &site.origin.location())?;
        for callers::Row { bytes, calls, name, location } in below {
            write_row(out, &cells(*bytes, *calls), name, width, location)?;
        }
    }
    write_rest(out, rest)
}

/// Writes the header of a table without rows.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_header(out: &mut impl Write) -> io::Result<()> {
    let (_, width) = functions(&[]);
    write_head(out, &header(), width)
}

fn header() -> String {
    format!("{:>10} {:>9}", "SIZE", "OBJECTS")
}

/// The columns of bytes and objects.
fn cells(bytes: i64, calls: u64) -> String {
    format!("{:>10} {calls:>9}", size(bytes))
}

/// Writes a table of rows: the columns of `header` and `cells`, then `FUNCTION WHERE`.
fn write_columns(
    out: &mut impl Write,
    header: &str,
    rows: &[Site],
    cells: impl Fn(&Site) -> String,
) -> io::Result<()> {
    let (names, width) = functions(rows);
    write_head(out, header, width)?;
    for (site, name) in rows.iter().zip(&names) {
        write_row(out, &cells(site), name, width, &site.origin.location())?;
    }
    Ok(())
}

/// Names of functions for a column, and its width in characters.
fn functions(rows: &[Site]) -> (Vec<String>, usize) {
    column(rows, "FUNCTION", |site| short(site.origin.function()))
}

fn write_head(out: &mut impl Write, header: &str, width: usize) -> io::Result<()> {
    writeln!(out, "{header}  {:width$}  WHERE", "FUNCTION")
}

fn write_row(
    out: &mut impl Write,
    cells: &str,
    name: &str,
    width: usize,
    location: &str,
) -> io::Result<()> {
    let line = format!("{cells}  {name:width$}  {}", printable(location));
    writeln!(out, "{}", line.trim_end())
}

/// Texts of a column, safe to print, and its width in characters.
fn column(rows: &[Site], header: &str, of: impl Fn(&Site) -> String) -> (Vec<String>, usize) {
    let texts: Vec<String> = rows.iter().map(|site| printable(&of(site)).into_owned()).collect();
    let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    (texts, width.clamp(header.len(), MAX_COLUMN))
}

/// Writes a line with the sum of the rows that a table leaves out.
fn write_rest(out: &mut impl Write, rest: &[Site]) -> io::Result<()> {
    if rest.is_empty() {
        return Ok(());
    }
    let (bytes, _) = total(rest);
    let objects = rest.iter().filter(|site| site.mapped.is_none());
    // Modulo 2^64, because a kernel writes -1 as 2^64 - 1.
    let calls = objects.map(|site| site.calls).fold(0, u64::wrapping_add);
    writeln!(out, "{:>10} {calls:>9}  (in {} more rows)", size(bytes), rest.len())
}

/// Writes `tracked + cached + overhead - untouched + unaccounted = resident`, and lines that
/// explain it.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_accounting(out: &mut impl Write, of: &Accounting) -> io::Result<()> {
    let rest = of.unaccounted();
    let less = |name: &str, bytes: Option<u64>| {
        let bytes = bytes.filter(|&bytes| bytes != 0);
        bytes.map(|bytes| format!(" - {name} {}", size_u(bytes))).unwrap_or_default()
    };
    writeln!(
        out,
        "tracked {} + cached {} + overhead {}{}{} + unaccounted {} = resident {}",
        size_u(of.tracked),
        size_u(of.cached),
        size_u(of.overhead),
        less("untouched", of.untouched),
        less("swapped", of.swapped),
        size(rest),
        size_u(of.resident)
    )?;
    if let (Some(parts), Some(other)) = (of.parts, of.other()) {
        let [mappings, stacks, code, files] =
            [parts.mappings, parts.stacks, parts.code, parts.files].map(size_u);
        writeln!(
            out,
            "  unaccounted: mappings {mappings} + stacks {stacks} + code {code} + files {files} + \
             other {}",
            size(other)
        )?;
    }
    if let Some(bytes) = of.page_tables {
        writeln!(out, "  page tables {}, which are not resident memory", size_u(bytes))?;
    }
    match of.tables {
        Tables::Counted => {}
        Tables::Estimated => writeln!(
            out,
            "  overhead is an estimate: the page map of the process cannot be read here, so kmem's \
             tables are as its smaps says"
        )?,
        Tables::Unknown => writeln!(
            out,
            "  overhead lacks kmem's tables, which are in unaccounted: which of their pages are \
             in memory cannot be told here"
        )?,
    }
    if of.untouched.is_none() && rest < 0 {
        writeln!(
            out,
            "  unaccounted is negative: memory was allocated and never touched, so it is not \
             resident"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::Parts;
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
            node: None,
            bytes,
            calls,
            tags: vec![8],
            mapped: None,
            pinned: None,
            accurate: true,
            chains: Vec::new(),
        };
        let sites = [site("f", 57_671_680, 7), site("evil\x1b[2J", 1024, 1), site("h", 512, 1)];
        let mut out = Vec::new();
        write_table(&mut out, &sites, 2).unwrap();
        let expected = "      SIZE   OBJECTS  FUNCTION     WHERE
  55.0 MiB         7  f            libx.so+0x10
   1.0 KiB         1  evil\\x1b[2J  libx.so+0x10
     512 B         1  (in 1 more rows)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        // The number of a kernel for -1.
        let mut out = Vec::new();
        let rows = [site("f", 64, 1), site("g", 64, u64::MAX), site("h", 64, 3)];
        write_table(&mut out, &rows, 1).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("     128 B         2  (in 2 more rows)\n"), "{text}");
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
            parts: Some(Parts { mappings: 512 << 10, code: 256 << 10, ..Parts::default() }),
            page_tables: Some(64 << 10),
        };
        let mut out = Vec::new();
        write_accounting(&mut out, &of).unwrap();
        let expected = "\
tracked 10.0 MiB + cached 1.0 MiB + overhead 1.0 MiB - untouched 9.0 MiB + unaccounted 1.0 MiB \
= resident 4.0 MiB
  unaccounted: mappings 512.0 KiB + stacks 0 B + code 256.0 KiB + files 0 B + other 256.0 KiB
  page tables 64.0 KiB, which are not resident memory
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
