//! Names of addresses: ELF files with symbols and DWARF, and maps of code made at run time.

use kmem_snapshot::{doors, symbols};

use crate::Answer;
use crate::files::with_file;

/// Resolves addresses in a file: its entry, and the one in the last eight bytes of the input.
pub(crate) fn read(bytes: &[u8], answer: &mut Answer) {
    let word = |at: Option<&[u8; 8]>| at.map_or(0, |word| u64::from_le_bytes(*word));
    let entry = word(bytes.get(24..).and_then(|rest| rest.first_chunk()));
    let last = word(bytes.last_chunk());
    with_file(bytes, |path| {
        for address in [entry, last] {
            if let Some(place) = symbols::probe(path, address) {
                answer.say(format!("{} {}", place.in_module(), place.location()));
            }
        }
    });
}

/// Finds the names of some addresses in a map.
pub(crate) fn perf_map(bytes: &[u8], answer: &mut Answer) {
    let text = String::from_utf8_lossy(bytes);
    for address in [0, 0x1000, 0x7f00_0000_0010, u64::MAX] {
        answer.say(format!("{:?}", doors::perf_map(&text, address)));
    }
}
