//! Collapsed stacks, the input of flame graphs: `root;..;leaf <bytes>`.
//!
//! Format: the `stackcollapse-*` programs of Gregg's FlameGraph.

use std::io::{self, Write};

use super::Stacks;

/// Writes one line for each stack.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_folded(out: &mut impl Write, of: &Stacks<'_>) -> io::Result<()> {
    let names: Vec<String> = of.frames.iter().map(|&frame| frame.word()).collect();
    for stack in &of.stacks {
        for (i, &frame) in stack.frames.iter().enumerate() {
            let separator = if i == 0 { "" } else { ";" };
            write!(out, "{separator}{}", names[frame])?;
        }
        writeln!(out, " {}", stack.bytes)?;
    }
    Ok(())
}
