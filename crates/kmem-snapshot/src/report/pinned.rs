//! The table of the memory that sites keep from being given back.

use std::io::{self, Write};

use super::{size, size_u, write_columns};
use crate::sites::Site;

/// Writes `PINNED SOLE SIZE OBJECTS FUNCTION WHERE` for the first `lines` rows. The others have no
/// line with their sum: pinned bytes do not add up, because several rows may pin one slab.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_pinned_table(out: &mut impl Write, sites: &[Site], lines: usize) -> io::Result<()> {
    let header = format!("{:>10} {:>10} {:>10} {:>9}", "PINNED", "SOLE", "SIZE", "OBJECTS");
    let cells = |site: &Site| {
        let (pinned, sole) = match site.pinned {
            Some(of) => (size_u(of.pinned), size_u(of.sole)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        format!("{pinned:>10} {sole:>10} {:>10} {:>9}", size(site.bytes), site.calls)
    };
    write_columns(out, &header, &sites[..sites.len().min(lines)], cells)
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
            node: None,
            bytes: 65_536,
            calls: 1000,
            tags: vec![2],
            chains: Vec::new(),
            mapped: None,
            pinned,
            accurate: true,
        };
        let pinned = Some(Pinned { pinned: 7 << 20, sole: 6 << 20 });
        let sites = [site(pinned), site(None), site(None)];
        let mut out = Vec::new();
        write_pinned_table(&mut out, &sites, 2).unwrap();
        let expected = "    PINNED       SOLE       SIZE   OBJECTS  FUNCTION       WHERE
   7.0 MiB    6.0 MiB   64.0 KiB      1000  (other sites)
         -          -   64.0 KiB      1000  (other sites)
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
