//! The site table of a black box: what a tag stands for.

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use kmem::blackbox::{BOX_TEXT, BoxSite};
use kmem::root::{MAX_DEPTH, Text, site_kind};

use super::header::Header;
use crate::books::record::{u16_at, u32_at, u64_at};
use crate::books::{Key, StaticTag};
use crate::escape;

/// What the tag stands for; none when its entry is unused, beyond the end of the file, or makes
/// no sense.
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
    let addr = u64_at(site, offset_of!(BoxSite, addr));
    let text = site.get(offset_of!(BoxSite, text)..)?.get(..BOX_TEXT)?;
    match u32_at(site, offset_of!(BoxSite, kind)) {
        site_kind::CALLER if addr != 0 => Some(Key::Caller(addr)),
        site_kind::STATIC => {
            let tag = site.get(offset_of!(BoxSite, tag)..)?;
            let len = |offset| usize::from(u16_at(tag, offset));
            let (module, rest) = text.split_at_checked(len(offset_of!(Text, module_len)))?;
            let (file, rest) = rest.split_at_checked(len(offset_of!(Text, file_len)))?;
            let function = rest.get(..len(offset_of!(Text, function_len)))?;
            let name = |bytes| escape::bounded(&String::from_utf8_lossy(bytes)).into_owned();
            Some(Key::Static(Arc::new(StaticTag {
                module: name(module),
                file: name(file),
                line: u32_at(tag, offset_of!(Text, line)),
                function: name(function),
            })))
        }
        site_kind::CHAIN => {
            let count = u32_at(site, offset_of!(BoxSite, count));
            if count > MAX_DEPTH {
                return None;
            }
            let words = text.chunks_exact(8).take(count as usize).map(|word| u64_at(word, 0));
            let addresses: Arc<[u64]> = words.take_while(|&addr| addr != 0).collect();
            (!addresses.is_empty()).then_some(Key::Chain(addresses))
        }
        _ => None,
    }
}
