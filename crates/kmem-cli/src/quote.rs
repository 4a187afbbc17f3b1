//! Words for a shell.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use kmem_snapshot::escape::printable;

/// Writes a text as one word of a shell, whatever bytes it has. A plain word stays as it is. Text
/// that a terminal would obey, or that is not UTF-8, becomes `$'..'` with escapes, which bash, zsh
/// and ksh read.
pub(crate) fn quoted(text: &OsStr) -> String {
    let bytes = text.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"%+,-./:=@_".contains(byte);
    match text.to_str() {
        // At the beginning of a line, a word with `=` would set a variable.
        Some(plain) if !bytes.is_empty() && bytes.iter().all(is_plain) => plain.to_owned(),
        Some(safe) if safe.len() < 4096 && printable(safe) == safe => {
            format!("'{}'", safe.replace('\'', "'\\''"))
        }
        _ => {
            let mut word = String::from("$'");
            for &byte in bytes {
                match byte {
                    b'\'' | b'\\' => {
                        word.push('\\');
                        word.push(char::from(byte));
                    }
                    b' '..=b'~' => word.push(char::from(byte)),
                    // Three octal digits end by themselves.
                    _ => {
                        let _ = write!(word, "\\{byte:03o}");
                    }
                }
            }
            word.push('\'');
            word
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_back_every_word() {
        let hostile: [&[u8]; 9] = [
            b"",
            b"plain-1.0",
            b"a b",
            b"it's",
            b"$(reboot)`x`;&|<>",
            b"\x1b[31m\n\t",
            b"\xff\xfe1",
            "\u{202e}gnp".as_bytes(),
            b"~!#*?[]{}\\\"",
        ];
        let words: Vec<String> = hostile.iter().map(|of| quoted(OsStr::from_bytes(of))).collect();
        let script = format!("printf '%s\\0' {}", words.join(" "));
        assert!(script.chars().all(|c| !c.is_control() && c != '\u{202e}'), "{script}");
        let output = Command::new("bash").args(["-c", &script]).output().expect("a shell");
        let read: Vec<&[u8]> = output.stdout.split(|&byte| byte == 0).collect();
        assert_eq!(read[..read.len() - 1], hostile);
    }
}
