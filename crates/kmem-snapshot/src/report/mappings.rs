//! Tables of mapped memory.

use std::io::{self, Write};

use super::{size, size_u, write_columns};
use crate::sites::Site;

/// Writes `RESIDENT MAPPED RANGES FUNCTION WHERE` for the first `lines` rows, and one line with the
/// sum of the others.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_mapping_table(out: &mut impl Write, sites: &[Site], lines: usize) -> io::Result<()> {
    let (shown, rest) = sites.split_at(sites.len().min(lines));
    if shown.is_empty() {
        return writeln!(out, "  (nothing)");
    }
    let cells = |bytes: i64, mapped: u64, count: u64| {
        format!("{:>10} {:>10} {count:>7}", size(bytes), size_u(mapped))
    };
    let header = format!("{:>10} {:>10} {:>7}", "RESIDENT", "MAPPED", "RANGES");
    let row = |site: &Site| cells(site.bytes, site.mapped.unwrap_or(0), site.calls);
    write_columns(out, &header, shown, row)?;
    if rest.is_empty() {
        return Ok(());
    }
    let mut sum = (0_i64, 0_u64, 0_u64);
    for site in rest {
        sum.0 = sum.0.saturating_add(site.bytes);
        sum.1 = sum.1.saturating_add(site.mapped.unwrap_or(0));
        sum.2 = sum.2.saturating_add(site.calls);
    }
    writeln!(out, "{}  (in {} more rows)", cells(sum.0, sum.1, sum.2), rest.len())
}
