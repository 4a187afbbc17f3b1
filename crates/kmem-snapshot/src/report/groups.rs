//! Tables of groups, for people.

use std::io::{self, Write};

use super::{MAX_FUNCTION, short, size, size_u};
use crate::books::Groups;
use crate::escape::printable;
use crate::live::GroupTotal;
use crate::sites::Site;

/// Writes the tree of groups, each below its parent and two columns to the right, with what it
/// holds, its limits (`max`: none), and what it holds itself. `-` is what is not kept.
///
/// # Errors
///
/// Whatever the writer reports.
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

/// Writes `SIZE CALLS GROUP` for the first `lines` groups, and what the others hold.
///
/// # Errors
///
/// Whatever the writer reports.
pub fn write_group_totals(
    out: &mut impl Write,
    totals: &[GroupTotal],
    lines: usize,
) -> io::Result<()> {
    writeln!(out, "{:>10} {:>9}  GROUP", "SIZE", "CALLS")?;
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

/// Writes `SIZE CALLS GROUP FUNCTION WHERE` for the first `lines` rows of groups, and what the
/// others hold.
///
/// # Errors
///
/// Whatever the writer reports.
pub fn write_group_table(out: &mut impl Write, sites: &[Site], lines: usize) -> io::Result<()> {
    let (shown, rest) = sites.split_at(sites.len().min(lines));
    let names = |of: &dyn Fn(&Site) -> String| -> (Vec<String>, usize) {
        let names: Vec<String> = shown.iter().map(|site| printable(&of(site)).into()).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        (names, width)
    };
    let (groups, group_width) = names(&|site| site.group.as_deref().unwrap_or("/").to_owned());
    let (functions, width) = names(&|site| short(site.origin.function()));
    let group_width = group_width.clamp("GROUP".len(), MAX_FUNCTION);
    let width = width.clamp("FUNCTION".len(), MAX_FUNCTION);
    writeln!(
        out,
        "{:>10} {:>9}  {:group_width$}  {:width$}  WHERE",
        "SIZE", "CALLS", "GROUP", "FUNCTION"
    )?;
    for ((site, group), function) in shown.iter().zip(&groups).zip(&functions) {
        let line = format!(
            "{:>10} {:>9}  {group:group_width$}  {function:width$}  {}",
            size(site.bytes),
            site.calls,
            printable(&site.origin.location())
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0_i64, |sum, s| sum.saturating_add(s.bytes));
        let calls = rest.iter().fold(0_u64, |sum, s| sum.saturating_add(s.calls));
        writeln!(out, "{:>10} {calls:>9}  (in {} more rows)", size(bytes), rest.len())?;
    }
    Ok(())
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
            bytes,
            calls: 3,
            tags: vec![2],
            chains: Vec::new(),
            pinned: None,
        };
        let sites = [site("/a\x1b", 65_536), site("/", 10), site("/b", 7), site("/", 5)];
        let mut out = Vec::new();
        write_group_table(&mut out, &sites, 2).unwrap();
        let expected = "      SIZE     CALLS  GROUP   FUNCTION       WHERE
  64.0 KiB         3  /a\\x1b  (other sites)
      10 B         3  /       (other sites)
      12 B         6  (in 2 more rows)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);

        let mut totals = crate::live::by_group(&sites);
        totals.sort_by_key(|of| std::cmp::Reverse(of.bytes));
        let mut out = Vec::new();
        write_group_totals(&mut out, &totals, 2).unwrap();
        let expected = "      SIZE     CALLS  GROUP
  64.0 KiB         3  /a\\x1b
      15 B         6  /
       7 B         3  (in 1 more groups)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
