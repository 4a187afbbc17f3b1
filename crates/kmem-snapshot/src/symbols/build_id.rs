//! Build ids of ELF files: the contents of their `.note.gnu.build-id`.

use std::io::Read;

use super::bytes::ReadSeek;
use super::elf::build_id_in;

/// Bytes at the start of a file in which the note is looked for.
const PAGE: u64 = 4096;

/// A build id in lowercase hexadecimal digits.
pub(super) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The build id of a file, whose position is at its start before and after.
pub(super) fn of(mut source: &mut dyn ReadSeek) -> Option<String> {
    let mut page = Vec::new();
    let read = Read::take(&mut source, PAGE).read_to_end(&mut page);
    source.rewind().ok()?;
    read.ok()?;
    build_id_in(&page).map(|id| hex(&id))
}
