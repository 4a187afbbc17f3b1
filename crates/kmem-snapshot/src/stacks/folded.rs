//! Collapsed stacks, which flame graphs are made from: `root;..;leaf <bytes>`.

use std::io::{self, Write};

use super::{Frame, Stacks};
use crate::escape::printable;

/// The name of a frame as it stands in a line: without semicolons, white space and control
/// characters, and never empty.
pub(super) fn name(frame: Frame<'_>) -> String {
    let name = frame.name().replace(", ", ",");
    let safe = |c: char| match c {
        ';' => ':',
        c if c.is_whitespace() => '_',
        c => c,
    };
    let name: String = printable(&name).chars().map(safe).collect();
    if name.is_empty() { "?".to_owned() } else { name }
}

/// Writes a line for each stack.
///
/// # Errors
///
/// Whatever the writer reports.
pub fn write_folded(out: &mut impl Write, of: &Stacks<'_>) -> io::Result<()> {
    let names: Vec<String> = of.frames.iter().map(|&frame| name(frame)).collect();
    for stack in &of.stacks {
        for (i, &frame) in stack.frames.iter().enumerate() {
            let separator = if i == 0 { "" } else { ";" };
            write!(out, "{separator}{}", names[frame])?;
        }
        writeln!(out, " {}", stack.bytes)?;
    }
    Ok(())
}
