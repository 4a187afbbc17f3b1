//! The table of what sites keep from being given back.

use std::io::{self, Write};

use super::{MAX_FUNCTION, name, size, size_u};
use crate::escape::printable;
use crate::sites::Site;

/// Writes `PINNED SOLE SIZE CALLS FUNCTION WHERE` for the first `lines` rows. There is no line
/// for the others: what rows pin does not add up, for several may pin one slab.
///
/// # Errors
///
/// Whatever the writer reports.
pub fn write_pinned_table(out: &mut impl Write, sites: &[Site], lines: usize) -> io::Result<()> {
    let shown = &sites[..sites.len().min(lines)];
    let names: Vec<_> =
        shown.iter().map(|s| printable(&name::short(s.origin.function())).into_owned()).collect();
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let width = width.clamp("FUNCTION".len(), MAX_FUNCTION);
    writeln!(
        out,
        "{:>10} {:>10} {:>10} {:>9}  {:width$}  WHERE",
        "PINNED", "SOLE", "SIZE", "CALLS", "FUNCTION"
    )?;
    for (site, name) in shown.iter().zip(&names) {
        let (pinned, sole) = match site.pinned {
            Some(of) => (size_u(of.pinned), size_u(of.sole)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let line = format!(
            "{pinned:>10} {sole:>10} {:>10} {:>9}  {name:width$}  {}",
            size(site.bytes),
            site.calls,
            printable(&site.origin.location())
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::Pinned;
    use crate::sites::Origin;

    #[test]
    fn golden_table() {
        let site = |pinned| Site {
            origin: Origin::OtherSites,
            group: None,
            bytes: 65_536,
            calls: 1000,
            tags: vec![2],
            chains: Vec::new(),
            pinned,
        };
        let pinned = Some(Pinned { pinned: 7 << 20, sole: 6 << 20 });
        let sites = [site(pinned), site(None), site(None)];
        let mut out = Vec::new();
        write_pinned_table(&mut out, &sites, 2).unwrap();
        let expected = "    PINNED       SOLE       SIZE     CALLS  FUNCTION       WHERE
   7.0 MiB    6.0 MiB   64.0 KiB      1000  (other sites)
         -          -   64.0 KiB      1000  (other sites)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
