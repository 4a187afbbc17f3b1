//! Names from other processes and files, made safe to print.
//!
//! A hostile name could forge lines of output or send control sequences to a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

pub use crate::memory::MAX_NAME;
use crate::memory::bounded;

/// True for control characters, and for characters that reorder or hide text on a terminal.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
        )
}

/// Makes a name safe for people to read: control characters and characters that change the
/// direction of text become `\x1b` or `\u{202e}`. A long name keeps its end; see [`MAX_NAME`].
///
/// ```
/// assert_eq!(kmem_snapshot::escape::printable("a\x1b[31mb"), "a\\x1b[31mb");
/// ```
#[must_use]
pub fn printable(name: &str) -> Cow<'_, str> {
    let name = bounded(name);
    if !name.chars().any(is_unsafe) {
        return name;
    }
    let mut out = String::with_capacity(name.len() + 16);
    for c in name.chars() {
        if !is_unsafe(c) {
            out.push(c);
        } else if (c as u32) < 0x100 {
            let _ = write!(out, "\\x{:02x}", c as u32);
        } else {
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        }
    }
    Cow::Owned(out)
}

/// Makes a name one word of allocinfo text. White space, backslashes and unsafe characters become
/// octal escapes of their bytes (`\040`), as in `/proc/self/mounts`; `, ` becomes `,`. An empty
/// name becomes `?`, and a long one keeps its end; see [`MAX_NAME`].
#[must_use]
pub fn word(name: &str) -> Cow<'_, str> {
    let name = bounded(name);
    let special = |c: char| c.is_whitespace() || c == '\\' || is_unsafe(c);
    if !name.is_empty() && !name.chars().any(special) {
        return name;
    }
    let mut out = String::with_capacity(name.len() + 16);
    for c in name.replace(", ", ",").chars() {
        if special(c) {
            let mut utf8 = [0; 4];
            for byte in c.encode_utf8(&mut utf8).bytes() {
                let _ = write!(out, "\\{byte:03o}");
            }
        } else {
            out.push(c);
        }
    }
    if out.is_empty() {
        out.push('?');
    }
    Cow::Owned(out)
}

/// Replaces the octal escapes of [`word`] by their bytes. All other text stays as it is.
#[must_use]
pub fn unword(word: &str) -> Cow<'_, str> {
    if !word.contains('\\') {
        return Cow::Borrowed(word);
    }
    let mut rest = word.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    loop {
        rest = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest
            }
            [byte, rest @ ..] => {
                out.push(*byte);
                rest
            }
            [] => break,
        };
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_never_see_escape_sequences() {
        assert_eq!(printable("plain::name"), "plain::name");
        assert_eq!(printable("a\x1b[31mb\nc"), "a\\x1b[31mb\\x0ac");
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(printable(&"a".repeat(1 << 20)).len(), MAX_NAME + 3);
    }

    #[test]
    fn words_have_no_white_space_and_come_back() {
        assert_eq!(word("f<int, char>"), "f<int,char>");
        assert_eq!(word("operator new"), "operator\\040new");
        assert_eq!(unword("operator\\040new"), "operator new");
        assert_eq!(word(""), "?");
        for name in ["a b", "a\\b", "\\040", "tab\tnl\n", "ünï\u{2028}"] {
            let escaped = word(name);
            assert!(!escaped.chars().any(char::is_whitespace), "{escaped}");
            assert_eq!(unword(&escaped), name);
        }
        assert_eq!(unword("\\9zz\\04"), "\\9zz\\04");
    }
}
