//! Files of configuration: `opt:val,opt:val` on each line, and comments.

/// The lines of a file without their comments. A comment begins with a `#` at the start of a line
/// or behind a blank, and ends with the line. So a value may hold a `#`.
///
/// # Examples
/// ```
/// let text = b"# servers\ndepth:8 # enough\nboxes:/var/tmp/a#b\n";
/// let lines: Vec<&[u8]> = kmem_core::conf::lines(text).collect();
/// assert_eq!(lines, [&b""[..], b"depth:8 ", b"boxes:/var/tmp/a#b", b""]);
/// ```
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').map(|line| {
        let starts_comment =
            |at: usize| line[at] == b'#' && (at == 0 || line[at - 1].is_ascii_whitespace());
        let end = (0..line.len()).find(|&at| starts_comment(at)).unwrap_or(line.len());
        &line[..end]
    })
}
