//! File, function and line of a code object.

use super::interpreter::Found;
use super::layout::{BYTES, LENGTH};
use super::lines::{self, Table};
use super::pages::Pages;
use super::{Now, is_address};
use crate::os::Platform;

/// Most bytes of a file's name that are kept: its last ones.
const FILE: usize = 512;
/// Most bytes of a function's name that are kept: its last ones.
const FUNCTION: usize = 256;
/// Most letters of a text that are read.
const LETTERS: usize = 4096;
/// Bytes that are copied at once.
const WINDOW: usize = 256;

/// The name of an instruction.
pub struct Name {
    /// The line in the file; 0 if there is none.
    pub line: u32,
    file: Tail<FILE>,
    function: Tail<FUNCTION>,
}

impl Name {
    /// An empty name.
    pub const fn new() -> Self {
        Self { line: 0, file: Tail::new(), function: Tail::new() }
    }

    /// The source file.
    pub fn file(&self) -> &[u8] {
        self.file.bytes()
    }

    /// The function, with the names of those around it.
    pub fn function(&self) -> &[u8] {
        self.function.bytes()
    }
}

impl Default for Name {
    fn default() -> Self {
        Self::new()
    }
}

/// Memory that a key lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first address: that of an object of the interpreter.
    pub start: usize,
    /// Bytes from there up to the end of the instructions.
    pub len: usize,
    /// True: the keys in it are of one code object, until the block is freed.
    pub is_unique: bool,
}

/// The last bytes of a text of UTF-8.
struct Tail<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Tail<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, letter: char) {
        let mut encoded = [0; 4];
        let encoded = letter.encode_utf8(&mut encoded).as_bytes();
        if self.len + encoded.len() > N {
            // Half of it, so that this is rare; from the beginning of a letter on.
            let is_inside = |byte: &&u8| **byte & 0xc0 == 0x80;
            let cut = N / 2 + self.bytes[N / 2..].iter().take_while(is_inside).count();
            self.bytes.copy_within(cut..self.len, 0);
            self.len -= cut.min(self.len);
        }
        if let Some(room) = self.bytes.get_mut(self.len..self.len + encoded.len()) {
            room.copy_from_slice(encoded);
            self.len += encoded.len();
        }
    }
}

/// Bytes from an address on, copied in parts.
struct Bytes<'a, P> {
    memory: Memory<'a, P>,
    window: [u8; WINDOW],
    /// Bytes of the window that are copied, and the next one of them.
    have: usize,
    next: usize,
    /// Address of the next part, and bytes that are left behind it.
    at: usize,
    left: usize,
}

impl<'a, P: Platform> Bytes<'a, P> {
    fn new(memory: Memory<'a, P>, at: usize, left: usize) -> Self {
        Self { memory, window: [0; WINDOW], have: 0, next: 0, at, left }
    }
}

impl<P: Platform> Table for Bytes<'_, P> {
    fn next(&mut self) -> Option<u8> {
        if self.next == self.have {
            let wanted = self.left.min(WINDOW);
            self.have = self.memory.copy(self.at, &mut self.window[..wanted]);
            self.next = 0;
            self.at = self.at.wrapping_add(self.have);
            self.left -= self.have;
            if self.have == 0 {
                return None;
            }
        }
        self.next += 1;
        Some(self.window[self.next - 1])
    }
}

/// The memory of the interpreter: see [`Pages`].
struct Memory<'a, P> {
    platform: &'a P,
    pages: &'a Pages,
}

impl<P> Clone for Memory<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Memory<'_, P> {}

impl<P: Platform> Memory<'_, P> {
    fn word(self, at: usize) -> Option<usize> {
        self.pages.word(self.platform, at)
    }

    fn copy(self, at: usize, to: &mut [u8]) -> usize {
        self.pages.copy(self.platform, at, to)
    }
}

/// See [`super::Frames::name`].
pub(super) fn name(
    platform: &impl Platform,
    pages: &Pages,
    found: &Found,
    now: Now,
    name: &mut Name,
) -> Option<Block> {
    let memory = Memory { platform, pages };
    let (layout, code) = (&found.layout, now.code);
    if !is_address(code) || memory.word(code + 8)? != found.code_type {
        return None;
    }
    let field = |offset: u16| memory.word(code + usize::from(offset));
    text(memory, found, field(layout.file)?, &mut name.file)?;
    text(memory, found, field(layout.function)?, &mut name.function)?;
    let mut first = [0; 4];
    if memory.copy(code + usize::from(layout.first_line), &mut first) < first.len() {
        return None;
    }
    let first = u32::from_ne_bytes(first);
    let table = field(layout.table)?;
    let len = memory.word(table.checked_add(LENGTH)?)?;
    let mut bytes = Bytes::new(memory, table + BYTES, len);
    name.line = lines::line(layout.lines, &mut bytes, first, now.offset).unwrap_or(first);
    let (start, len) = match layout.instruction() {
        // The number of units of two bytes.
        Some(_) => (code, layout.bytecode() + 2 * (memory.word(code + LENGTH)? & 0xff_ffff)),
        None => {
            let bytes = memory.word(code + layout.bytecode())?;
            (bytes, BYTES + memory.word(bytes.checked_add(LENGTH)?)?)
        }
    };
    let is_in = now.key.wrapping_sub(start) < len;
    let is_unique = is_in && now.is_unique && !is_guarded(memory, start);
    Some(Block { start, len, is_unique })
}

/// Returns whether CPython's checks of memory put seven guard bytes before an object
/// (`PYTHONMALLOC=debug`). Then its block begins before it.
fn is_guarded(memory: Memory<'_, impl Platform>, at: usize) -> bool {
    memory.word(at.wrapping_sub(8)).is_some_and(|word| word >> 8 == 0xfd_fdfd_fdfd_fdfd)
}

/// Copies the end of a text (PEP 393).
fn text<const N: usize>(
    memory: Memory<'_, impl Platform>,
    found: &Found,
    at: usize,
    to: &mut Tail<N>,
) -> Option<()> {
    if !is_address(at) {
        return None;
    }
    let (len, state) = (memory.word(at + 16)?, memory.word(at + 32)? as u32);
    let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 != 0, state >> 6 & 1 != 0);
    if !is_compact || !matches!(kind, 1 | 2 | 4) {
        return None;
    }
    let header = if is_ascii { found.layout.ascii } else { found.layout.compact };
    let kind = kind as usize;
    let skipped = len.saturating_sub(LETTERS);
    let letters = len - skipped;
    let from = at.checked_add(usize::from(header) + kind.checked_mul(skipped)?)?;
    let mut bytes = Bytes::new(memory, from, letters * kind);
    for _ in 0..letters {
        let mut letter = 0;
        for byte in 0..kind {
            letter |= u32::from(bytes.next()?) << (8 * byte);
        }
        to.push(char::from_u32(letter).unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_end_and_whole_letters() {
        let mut tail = Tail::<16>::new();
        "abcdefgäöüxyzßÄÖÜ".chars().for_each(|letter| tail.push(letter));
        let text = core::str::from_utf8(tail.bytes()).expect("whole letters");
        assert!("abcdefgäöüxyzßÄÖÜ".ends_with(text) && text.len() > 7, "{text}");
    }
}
