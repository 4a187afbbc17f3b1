//! Trees of callers and of sources, for people.

use std::io::{self, Write};

use super::{short, size};
use crate::escape::printable;
use crate::stacks::Line;

/// Writes `SIZE OBJECTS` and the title of the tree, and a line for each node. Nodes are below their
/// caller and indented by two columns. The last line has the count of `hidden` nodes.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_tree(
    out: &mut impl Write,
    title: &str,
    lines: &[Line<'_, '_>],
    hidden: usize,
) -> io::Result<()> {
    if lines.is_empty() {
        writeln!(out, "  (nothing)")?;
    } else {
        writeln!(out, "{:>10} {:>9}  {title}", "SIZE", "OBJECTS")?;
    }
    for Line { depth, node } in lines {
        let line = format!(
            "{:>10} {:>9}  {:indent$}{}  {}",
            size(node.bytes),
            node.calls,
            "",
            printable(&short(node.frame.function())),
            printable(&node.frame.location()),
            indent = 2 * depth
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    if hidden != 0 {
        writeln!(out, "{:>10} {:>9}  ({hidden} more nodes)", "", "")?;
    }
    Ok(())
}
