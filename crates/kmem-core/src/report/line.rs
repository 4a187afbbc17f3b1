//! Text of diagnostics, composed on the stack.

use core::fmt;

/// Longest line, in bytes.
const MOST: usize = 400;

/// A line of text. Text beyond its end is lost; writing never fails.
pub struct Line {
    text: [u8; MOST],
    len: usize,
}

impl Line {
    /// An empty line.
    pub const fn new() -> Self {
        Self { text: [0; MOST], len: 0 }
    }

    /// Appends formatted text.
    pub fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a line never fails.
        let _ = fmt::Write::write_fmt(self, text);
    }

    /// The text so far.
    pub fn text(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MOST - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.text[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// Prints a line of formatted text on a platform's console.
macro_rules! print {
    ($platform:expr, $($text:tt)*) => {{
        let mut line = $crate::report::Line::new();
        line.add(format_args!($($text)*));
        $crate::os::Console::print($platform, line.text());
    }};
}
pub(crate) use print;

/// Displays bytes from outside, with unprintable ones replaced by `?`.
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        replaced(self.0, |byte| byte.is_ascii_graphic() || byte == b' ', f)
    }
}

/// Displays bytes from outside as one word: blanks, too, are replaced by `?`.
pub struct Word<'a>(pub &'a [u8]);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        replaced(self.0, |byte| byte.is_ascii_graphic(), f)
    }
}

fn replaced(bytes: &[u8], keep: impl Fn(u8) -> bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for part in bytes.chunk_by(|&a, &b| keep(a) && keep(b)) {
        match core::str::from_utf8(part) {
            Ok(text) if keep(part[0]) => f.write_str(text)?,
            _ => part.iter().try_for_each(|_| f.write_str("?"))?,
        }
    }
    Ok(())
}

/// Displays bytes with a binary unit and one decimal: `55.0 MiB`.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let unit = (64 - self.0.leading_zeros()).saturating_sub(1) / 10;
        let mut text = Line::new();
        if unit == 0 {
            text.add(format_args!("{} B", self.0));
        } else {
            let tenths = (self.0 >> (10 * (unit - 1))) * 10 / 1024;
            text.add(format_args!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit as usize]));
        }
        f.pad(core::str::from_utf8(text.text()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn sizes_have_one_decimal_and_are_aligned() {
        let of = |bytes| format!("{:>10}", Size(bytes));
        assert_eq!(of(0), "       0 B");
        assert_eq!(of(1023), "    1023 B");
        assert_eq!(of(1024), "   1.0 KiB");
        assert_eq!(of(57_671_680), "  55.0 MiB");
        assert_eq!(of(u64::MAX), "  15.9 EiB");
    }

    #[test]
    fn a_long_line_is_cut_not_overrun() {
        let mut line = Line::new();
        for _ in 0..100 {
            line.add(format_args!("{}", Printable(b"0123456789\x1b")));
        }
        assert_eq!(line.text().len(), 400);
        assert!(!line.text().contains(&0x1b));
    }

    #[test]
    fn only_printable_bytes_are_shown() {
        assert_eq!(format!("{}", Printable(b"a b\x00\xffc\n")), "a b??c?");
        assert_eq!(format!("{}", Word(b"a b")), "a?b");
        assert_eq!(format!("{}", Printable(b"")), "");
    }
}
