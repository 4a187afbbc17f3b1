//! Collapsed stacks, the input of flame graphs: `root;..;leaf <bytes>`, and with two numbers
//! `root;..;leaf <before> <after>`, the input of flame graphs of a difference.
//!
//! Format: the `stackcollapse-*` programs and `difffolded.pl` of Gregg's FlameGraph.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::stacks::{Stack, Stacks};

impl Stacks<'_> {
    /// The frames of each stack as one text, and the stack.
    fn folded(&self) -> impl Iterator<Item = (String, &Stack)> {
        let names: Vec<String> = self.frames.iter().map(|&frame| frame.word()).collect();
        self.stacks.iter().map(move |stack| {
            let frames: Vec<&str> = stack.frames.iter().map(|&frame| &*names[frame]).collect();
            (frames.join(";"), stack)
        })
    }
}

/// Writes one line for each stack.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_folded(out: &mut impl Write, of: &Stacks<'_>) -> io::Result<()> {
    of.folded().try_for_each(|(frames, stack)| writeln!(out, "{frames} {}", stack.bytes))
}

/// A stack, with its bytes before and afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedChange {
    /// The frames, outermost first, joined by semicolons.
    pub frames: String,
    /// Bytes before.
    pub before: i128,
    /// Bytes afterwards.
    pub after: i128,
}

/// Compares stacks by the names of their frames. Stacks that did not change are part of a flame
/// graph, too. The largest change comes first, whatever its sign.
#[must_use]
pub fn folded_changes(before: &Stacks<'_>, after: &Stacks<'_>) -> Vec<FoldedChange> {
    let mut all: BTreeMap<String, (i128, i128)> = BTreeMap::new();
    for (frames, stack) in before.folded() {
        all.entry(frames).or_default().0 += i128::from(stack.bytes);
    }
    for (frames, stack) in after.folded() {
        all.entry(frames).or_default().1 += i128::from(stack.bytes);
    }
    let change = |(frames, (before, after))| FoldedChange { frames, before, after };
    let mut changes: Vec<FoldedChange> = all.into_iter().map(change).collect();
    changes.sort_by_key(|of| -(of.after - of.before).abs());
    changes
}

impl FoldedChange {
    /// Writes a line: the frames, the bytes before, the bytes afterwards.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} {} {}", self.frames, self.before, self.after)
    }
}
