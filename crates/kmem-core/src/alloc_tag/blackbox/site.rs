//! The sites of a black box: the meaning of a tag, as bytes.

use crate::codetag::{Names, Sites};
use crate::units::TagId;
use core::mem::offset_of;
use kmem_layout::blackbox::{BOX_TEXT, BoxSite};
use kmem_layout::site::{Text, site_kind};

/// Fills in the site of a tag, but for its kind, which it returns. `None`: the tag has no site.
pub(super) fn write_site(
    entry: &mut [u8; size_of::<BoxSite>()],
    sites: &Sites,
    tag: TagId,
) -> Option<u32> {
    let frames = sites.frames(tag);
    if let Some(names) = sites.names(tag) {
        write_names(entry, names);
        return Some(site_kind::STATIC);
    }
    let first = frames.first()?;
    put(entry, offset_of!(BoxSite, addr), &first.to_le_bytes());
    if frames.len() == 1 {
        return Some(site_kind::CALLER);
    }
    let mut count = 0u32;
    for frame in frames.iter().take(BOX_TEXT / size_of::<u64>()) {
        let at = offset_of!(BoxSite, text) + count as usize * size_of::<u64>();
        put(entry, at, &frame.to_le_bytes());
        count += 1;
    }
    put(entry, offset_of!(BoxSite, count), &count.to_le_bytes());
    let skip = offset_of!(BoxSite, tag) + offset_of!(Text, line);
    put(entry, skip, &sites.skip(tag).to_le_bytes());
    Some(site_kind::CHAIN)
}

/// Copies names as far as there is room. Of a file's name the end is kept: it is cut in front.
fn write_names(entry: &mut [u8], names: Names<'_>) {
    let module = &names.module[..names.module.len().min(64)];
    let function = &names.function[..names.function.len().min(96)];
    let room = BOX_TEXT - module.len() - function.len();
    let file = &names.file[names.file.len().saturating_sub(room)..];
    let tag = offset_of!(BoxSite, tag);
    put(entry, tag + offset_of!(Text, line), &names.line.to_le_bytes());
    let mut at = offset_of!(BoxSite, text);
    for (name, len) in [
        (module, offset_of!(Text, module_len)),
        (file, offset_of!(Text, file_len)),
        (function, offset_of!(Text, function_len)),
    ] {
        put(entry, tag + len, &(name.len() as u16).to_le_bytes());
        put(entry, at, name);
        at += name.len();
    }
}

fn put(entry: &mut [u8], at: usize, bytes: &[u8]) {
    entry[at..at + bytes.len()].copy_from_slice(bytes);
}
