//! Rows as allocinfo text.

use std::io::{self, Write};

use crate::allocinfo::{Version, write_header, write_row_with};
use crate::reading::Reading;
use crate::sites::Site;

/// Writes the header, and a line for each row. Version 2.0 has facts behind the function, where
/// they are known.
pub(super) fn write(
    out: &mut impl Write,
    version: Version,
    reading: &Reading,
    rows: &[Site],
) -> io::Result<()> {
    write_header(out, version)?;
    for site in rows {
        let mut extras = Vec::new();
        if version == Version::V2 {
            if let Some(counts) = reading.counts_of(&site.tags) {
                extras.push(("total_bytes", counts.allocated_bytes.to_string()));
                extras.push(("total_calls", counts.allocations.to_string()));
            }
            let group = site.group.as_ref().map(|group| ("group", group.to_string()));
            let mapped = site.mapped.map(|mapped| ("mapped", mapped.to_string()));
            let node = site.node.map(|node| ("node", node.to_string()));
            let accurate = (!site.accurate).then(|| ("accurate", "no".to_owned()));
            extras.extend([group, mapped, node, accurate].into_iter().flatten());
        }
        write_row_with(out, site.bytes, site.calls, &site.origin.tag(), extras)?;
    }
    Ok(())
}
