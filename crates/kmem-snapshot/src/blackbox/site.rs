//! The site table of a black box: the meaning of a tag.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use kmem_layout::blackbox::{BOX_TEXT, BoxSite};
use kmem_layout::site::{MAX_DEPTH, Text, site_kind};

use super::header::Header;
use crate::books::{Key, StaticTag};
use crate::memory::field;

/// Reads the meaning of a tag. None when its entry is unused, beyond the end of the file, or
/// makes no sense.
pub(super) fn read(file: &File, len: u64, header: &Header, tag: u32) -> Option<Key> {
    if tag >= header.site_capacity {
        return None;
    }
    let at = header.sites.checked_add(u64::from(tag) * u64::from(header.site_size))?;
    let mut bytes = [0; size_of::<BoxSite>()];
    if at.checked_add(bytes.len() as u64).is_none_or(|end| end > len) {
        return None;
    }
    file.read_exact_at(&mut bytes, at).ok()?;
    parse(&bytes)
}

fn parse(site: &[u8]) -> Option<Key> {
    let addr = field!(site, BoxSite.addr: u64);
    let text = site.get(offset_of!(BoxSite, text)..)?.get(..BOX_TEXT)?;
    match field!(site, BoxSite.kind: u32) {
        site_kind::CALLER if addr != 0 => Some(Key::Caller(addr)),
        site_kind::STATIC => {
            let (tag, _) = StaticTag::parse(site.get(offset_of!(BoxSite, tag)..)?, text)?;
            Some(Key::Static(Arc::new(tag)))
        }
        site_kind::CHAIN => {
            let count = field!(site, BoxSite.count: u32);
            if count > MAX_DEPTH {
                return None;
            }
            let words = text.get(..count as usize * size_of::<u64>()).unwrap_or(text);
            let tag = site.get(offset_of!(BoxSite, tag)..)?;
            Key::chain(words, field!(tag, Text.line: u32))
        }
        _ => None,
    }
}
