//! Tables of CPython: places of fields, and lines of instructions.

use crate::Answer;

#[path = "../../kmem-core/src/frames/layout.rs"]
#[allow(dead_code, reason = "the layouts of released versions are no input")]
mod layout;
#[path = "../../kmem-core/src/frames/lines.rs"]
mod lines;

use layout::{Layout, Lines, OFFSETS};
use lines::Table;

/// Bytes of a table.
struct Bytes<'a>(&'a [u8]);

impl Table for Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

/// Reads the first line and an offset, then a table of lines of each kind. Reads all of it as the
/// words that a runtime says of itself.
pub(crate) fn read(bytes: &[u8], answer: &mut Answer) {
    let mut offsets = [0; OFFSETS];
    for (word, part) in offsets.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(part.try_into().expect("eight bytes"));
    }
    answer.say(format!("{:?}", Layout::of_offsets(13, &offsets)));
    let Some((head, table)) = bytes.split_first_chunk::<8>() else { return };
    let word = u64::from_le_bytes(*head);
    let (first, offset) = (word as u32, (word >> 32) as usize);
    for kind in [Lines::Starts, Lines::Ranges, Lines::Locations] {
        answer.say(format!("{:?}", lines::line(kind, &mut Bytes(table), first, offset)));
    }
}
