//! Tables of groups, for people.

use std::io::{self, Write};

use super::{column, size, size_u, write_columns, write_rest};
use crate::books::Groups;
use crate::escape::printable;
use crate::sites::{GroupTotal, Site};

/// Writes the tree of groups, each below its parent and indented by two columns. Columns are the
/// memory charged to a group and those below it, its limits (`max` for none), and the memory
/// charged to itself. `-` stands for values that are not kept.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_groups(out: &mut impl Write, groups: &Groups) -> io::Result<()> {
    writeln!(
        out,
        "{:>10} {:>10} {:>10} {:>10} {:>10} {:>9}  GROUP",
        "CURRENT", "PEAK", "MAX", "HIGH", "OWN", "OBJECTS"
    )?;
    for group in groups.all() {
        // The root is not charged: it has no peak and no limits.
        let kept = |text: String| if group.is_root() { "-".to_owned() } else { text };
        let limit = |limit: Option<u64>| kept(limit.map_or("max".to_owned(), size_u));
        let name = if group.is_root() { "/" } else { &group.name };
        writeln!(
            out,
            "{:>10} {:>10} {:>10} {:>10} {:>10} {:>9}  {:indent$}{}",
            size_u(group.usage.current()),
            kept(size_u(group.peak)),
            limit(group.max),
            limit(group.high),
            size_u(group.own.current()),
            group.usage.objects,
            "",
            printable(name),
            indent = 2 * group.depth
        )?;
    }
    Ok(())
}

/// Writes `SIZE OBJECTS GROUP` for the first `lines` groups, and one line with the sum of the
/// others.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_group_totals(
    out: &mut impl Write,
    totals: &[GroupTotal],
    lines: usize,
) -> io::Result<()> {
    writeln!(out, "{:>10} {:>9}  GROUP", "SIZE", "OBJECTS")?;
    let (shown, rest) = totals.split_at(totals.len().min(lines));
    for total in shown {
        writeln!(out, "{:>10} {:>9}  {}", size(total.bytes), total.calls, printable(&total.group))?;
    }
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0_i64, |sum, of| sum.saturating_add(of.bytes));
        let calls = rest.iter().fold(0_u64, |sum, of| sum.saturating_add(of.calls));
        writeln!(out, "{:>10} {calls:>9}  (in {} more groups)", size(bytes), rest.len())?;
    }
    Ok(())
}

/// Writes `SIZE OBJECTS GROUP FUNCTION WHERE` for the first `lines` rows of groups, and one line
/// with the sum of the others.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_group_table(out: &mut impl Write, sites: &[Site], lines: usize) -> io::Result<()> {
    let (shown, rest) = sites.split_at(sites.len().min(lines));
    let group = |site: &Site| site.group.as_deref().unwrap_or("/").to_owned();
    let (_, width) = column(shown, "GROUP", group);
    let header = format!("{:>10} {:>9}  {:width$}", "SIZE", "OBJECTS", "GROUP");
    let cells = |site: &Site| {
        let group = group(site);
        let (size, group) = (size(site.bytes), printable(&group));
        format!("{size:>10} {:>9}  {group:width$}", site.calls)
    };
    write_columns(out, &header, shown, cells)?;
    write_rest(out, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::Origin;

    #[test]
    fn golden_tables() {
        let site = |group: &str, bytes| Site {
            origin: Origin::OtherSites,
            group: Some(group.into()),
            node: None,
            bytes,
            calls: 3,
            tags: vec![2],
            chains: Vec::new(),
            mapped: None,
            pinned: None,
            accurate: true,
        };
        let sites = [site("/a\x1b", 65_536), site("/", 10), site("/b", 7), site("/", 5)];
        let mut out = Vec::new();
        write_group_table(&mut out, &sites, 2).unwrap();
        let expected = "      SIZE   OBJECTS  GROUP   FUNCTION       WHERE
  64.0 KiB         3  /a\\x1b  (other sites)
      10 B         3  /       (other sites)
      12 B         6  (in 2 more rows)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);

        let mut totals = crate::sites::by_group(&sites);
        totals.sort_by_key(|of| std::cmp::Reverse(of.bytes));
        let mut out = Vec::new();
        write_group_totals(&mut out, &totals, 2).unwrap();
        let expected = "      SIZE   OBJECTS  GROUP
  64.0 KiB         3  /a\\x1b
      15 B         6  /
       7 B         3  (in 1 more groups)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
