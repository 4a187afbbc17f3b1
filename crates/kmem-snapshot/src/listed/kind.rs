//! The kind of a file, by its content.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use kmem_layout::blackbox::MAGIC;
use object::elf;

use super::{bad, unreadable};
use crate::core_file::other_file;
use crate::error::ReadError;
use crate::recording;

/// Kind of a file that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The core file of a process.
    Core,
    /// A black box.
    BlackBox,
    /// allocinfo text.
    Allocinfo,
    /// JSON.
    Json,
    /// A recording.
    Recording,
    /// Other text, which may be a log.
    Text,
}

impl Kind {
    /// Advice for a command that does not take files of this kind.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::Core => "a core file: read it with --core",
            Self::BlackBox => "a black box of kmem: read it with --blackbox",
            Self::Allocinfo => "allocinfo text: read it with --allocinfo",
            Self::Json => "JSON: read it with --allocinfo",
            Self::Recording => "a recording of kmem: read it with --recording",
            Self::Text => "text that is not allocinfo",
        }
    }
}

/// The kind of a file that begins with these bytes.
///
/// # Errors
///
/// The kind that was found instead of a known one.
pub(super) fn of_head(head: &[u8]) -> Result<Kind, String> {
    if head.is_empty() {
        return Err("empty file".to_owned());
    }
    if head.starts_with(&elf::ELFMAG) {
        let kind = head.get(16..).and_then(|rest| rest.first_chunk());
        let kind = kind.map(|kind| u16::from_le_bytes(*kind));
        return match kind {
            Some(elf::ET_CORE) => Ok(Kind::Core),
            _ => Err("an ELF program or library, not the core file of a process".to_owned()),
        };
    }
    if head.starts_with(&MAGIC.to_le_bytes()) {
        return Ok(Kind::BlackBox);
    }
    if head.starts_with(&recording::MAGIC) {
        return Ok(Kind::Recording);
    }
    if let Some(what) = other_file(head) {
        return Err(what.to_owned());
    }
    if head.starts_with(b"allocinfo - version") {
        return Ok(Kind::Allocinfo);
    }
    if head.trim_ascii_start().starts_with(b"{") {
        return Ok(Kind::Json);
    }
    if head.contains(&0) {
        let first: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        return Err(format!(
            "no core file, black box, recording, allocinfo text or JSON: it begins with the \
             bytes {}",
            first.join(" ")
        ));
    }
    Ok(Kind::Text)
}

/// Recognises a file. A pipe is text, and is not opened: bytes that are read from it are lost for
/// the next reader.
///
/// # Errors
///
/// [`ReadError::File`] when the file cannot be read, [`ReadError::BadFile`] when it is of no known
/// kind.
pub(crate) fn recognise(path: &Path) -> Result<Kind, ReadError> {
    // A named pipe must be opened once only: its writer ends when the first reader closes it.
    let metadata = fs::metadata(path).map_err(|source| unreadable(path, source))?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Ok(Kind::Text);
    }
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let mut source = BufReader::new(file);
    let head = source.fill_buf().map_err(|source| unreadable(path, source))?;
    of_head(head).map_err(|found| bad(path, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_by_their_first_bytes() {
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        elf.extend(elf::ET_CORE.to_le_bytes());
        for (head, kind) in [
            (&elf[..], Kind::Core),
            (b"kmem box\0\0", Kind::BlackBox),
            (b"kmem rec\x01\0", Kind::Recording),
            (b"allocinfo - version: 2.0\n", Kind::Allocinfo),
            (b"\n {\"pid\":1}", Kind::Json),
            (b"[    0.1] Linux version", Kind::Text),
        ] {
            assert_eq!(of_head(head), Ok(kind), "{head:?}");
        }
        elf[16] = 2;
        for (head, found) in [
            (&elf[..], "an ELF program or library"),
            (b"\x7fELF", "an ELF program or library"),
            (b"", "empty file"),
            (b"\x1f\x8b\x08", "compressed by gzip"),
            (b"ab\0c", "the bytes 61 62 00 63"),
        ] {
            assert!(of_head(head).unwrap_err().contains(found), "{head:?}");
        }
    }
}
