//! JSON without characters that are unsafe on a terminal.

use std::io::{self, Write};

use crate::escape::is_unsafe;

/// A writer of JSON text, in whole characters. It writes unsafe characters as `\uXXXX`. They are in
/// strings only, apart from the ends of lines, which strings have as `\n`.
pub(super) struct Escaped<W>(pub(super) W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let part = str::from_utf8(text).map_err(io::Error::other)?;
        let mut done = 0;
        for (at, c) in part.char_indices().filter(|&(_, c)| c != '\n' && is_unsafe(c)) {
            self.0.write_all(&text[done..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(self.0, "\\u{unit:04x}")?;
            }
            done = at + c.len_utf8();
        }
        self.0.write_all(&text[done..])?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
