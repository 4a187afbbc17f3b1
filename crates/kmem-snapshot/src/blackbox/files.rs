//! The files that had code: the first page of each, by the address at which it was mapped.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use kmem_layout::blackbox::{BOX_PAGE, BoxHeader};

use super::header::Header;
use crate::memory::u64_at;

/// First pages of mapped files, by their addresses.
pub(crate) type FirstPages = BTreeMap<u64, [u8; BOX_PAGE]>;

/// Reads the first pages. Those beyond the end of a file that was cut off are left out.
pub(super) fn read(file: &File, header: &Header) -> FirstPages {
    let (at, capacity) = header.files;
    let page = |nth: usize| {
        let offset = BoxHeader::file_addresses(capacity) + nth * BOX_PAGE;
        let mut page = [0; BOX_PAGE];
        file.read_exact_at(&mut page, at.checked_add(offset as u64)?).ok().map(|()| page)
    };
    let mut addresses = vec![0; capacity as usize * size_of::<u64>()];
    if at == 0 || file.read_exact_at(&mut addresses, at).is_err() {
        return FirstPages::new();
    }
    let used = addresses.chunks_exact(size_of::<u64>()).map(|word| u64_at(word, 0)).enumerate();
    used.filter(|&(_, start)| start != 0)
        .filter_map(|(nth, start)| Some((start, page(nth)?)))
        .collect()
}
