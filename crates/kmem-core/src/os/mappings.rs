//! The text of the process's mappings, as [`Process::mappings`] copies it: `/proc/PID/maps`
//! (proc(5)).

#[cfg(doc)]
use super::Process;
use core::ops::Range;

/// One line: `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Its addresses.
    pub range: Range<usize>,
    /// True if its bytes may be executed.
    pub is_code: bool,
    /// Offset of its first byte in the file.
    pub offset: usize,
    /// Inode number of the file; 0: it has none.
    pub inode: usize,
    /// Path of the file, or a name in brackets; may be empty.
    pub path: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// `None`: the line was cut off.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut range = fields.next()?.split(|&byte| byte == b'-');
        let (start, end) = (number(range.next()?, 16)?, number(range.next()?, 16)?);
        let is_code = fields.next()?.get(2) == Some(&b'x');
        let offset = number(fields.next()?, 16)?;
        let inode = number(fields.nth(1)?, 10)?;
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        Some(Self { range: start..end, is_code, offset, inode, path })
    }
}

/// The lines of a text. Those that were cut off are left out.
pub fn lines(text: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(Mapping::parse)
}

fn number(digits: &[u8], base: u32) -> Option<usize> {
    digits.iter().try_fold(0usize, |value, &digit| {
        let digit = (digit as char).to_digit(base)? as usize;
        value.checked_mul(base as usize)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_addresses_code_offset_inode_and_path() {
        let text = b"7f00-7f10 r-xp 00002000 08:01 43                 /usr/bin/a b\n\
            7f20-7f30 rw-p 00000000 00:00 0 \n\
            7f40-7f50 r--p 000";
        let mut lines = lines(text);
        let (range, path) = (0x7f00..0x7f10, &b"/usr/bin/a b"[..]);
        let code = Mapping { range, is_code: true, offset: 0x2000, inode: 43, path };
        assert_eq!(lines.next(), Some(code));
        let (range, path) = (0x7f20..0x7f30, &b""[..]);
        let memory = Mapping { range, is_code: false, offset: 0, inode: 0, path };
        assert_eq!(lines.next(), Some(memory));
        assert_eq!(lines.next(), None, "it was cut off");
    }

    #[test]
    fn a_line_with_other_words_is_left_out() {
        for text in ["", "7f00", "7f00-zz r-xp 0 0 0", "-", "1-2 r-xp 0 08:01", "1-2 r 0 08:01 +1"]
        {
            assert_eq!(lines(text.as_bytes()).next(), None, "{text}");
        }
        let long = b"11111111111111111-2 r-xp 0 08:01 1";
        assert_eq!(lines(long).next(), None);
    }
}
