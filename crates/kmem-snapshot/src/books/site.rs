//! The site table: what each tag stands for.
//!
//! A site that makes no sense becomes [`Key::None`], and its row one of an unknown tag: what it
//! holds is counted all the same.

use std::collections::HashMap;
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use kmem::root::{MAX_DEPTH, RootBlock, Site, Text, site_kind};

use super::Source;
use super::record::{u16_at, u32_at, u64_at};
use super::root::{Root, bad};
use crate::error::ReadError;
use crate::escape;

/// Most bytes of texts that are copied: twice what the largest table of the deepest chains and
/// the longest names that people give would take.
const MAX_TEXTS: u64 = 256 << 20;

/// What a tag stands for, as the process says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Key {
    /// Nothing known: a reserved tag, or a site that made no sense.
    #[default]
    None,
    /// Return address of the call of an allocation function.
    Caller(u64),
    /// A tag compiled into the program, or a scope.
    Static(Arc<StaticTag>),
    /// Return addresses of a call and its callers, innermost first; never empty.
    Chain(Arc<[u64]>),
}

/// What a static tag says of itself: names from the process, decoded, bounded in length, but
/// not yet safe to print.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct StaticTag {
    /// Name of the module; empty for the main program.
    pub module: String,
    /// Source file.
    pub file: String,
    /// Line in the file.
    pub line: u32,
    /// Function, or name of the scope.
    pub function: String,
}

impl Key {
    /// The return addresses, innermost first; none for tags that have none.
    #[must_use]
    pub fn addresses(&self) -> &[u64] {
        match self {
            Self::None | Self::Static(_) => &[],
            Self::Caller(addr) => std::slice::from_ref(addr),
            Self::Chain(addresses) => addresses,
        }
    }
}

/// What the tags in use stand for, by tag.
pub(super) fn read(source: &Source<'_>, root: &Root) -> Result<Vec<Key>, ReadError> {
    let mut count = [0; 4];
    let at = root.at + offset_of!(RootBlock, site_count) as u64;
    source.memory.read(at, &mut count)?;
    let count = u32::from_le_bytes(count);
    if count > root.site_capacity {
        return Err(bad(
            root.at,
            format!("site_count is {count}, above site_capacity {}", root.site_capacity),
        ));
    }
    let bytes = root.records(source, "sites", root.sites, count, root.site_size)?;
    // After the sites, so that the texts of all of them are in it.
    let mut texts = Texts::read(source, root)?;
    let records = bytes.chunks_exact(root.site_size as usize);
    Ok(records.map(|record| texts.key(record).unwrap_or_default()).collect())
}

/// A copy of the memory that sites point into.
struct Texts {
    base: u64,
    bytes: Vec<u8>,
    /// Bytes that may yet be made into keys. Texts do not overlap, so an honest table never
    /// runs out; one that points everywhere at the same bytes does.
    left: usize,
    known: HashMap<(u32, u32, u64), Key>,
}

impl Texts {
    fn read(source: &Source<'_>, root: &Root) -> Result<Self, ReadError> {
        let mut this = Self { base: root.texts, bytes: Vec::new(), left: 0, known: HashMap::new() };
        if root.texts == 0 {
            return Ok(this);
        }
        let mut len = [0; 8];
        source.memory.read(root.at + offset_of!(RootBlock, texts_len) as u64, &mut len)?;
        let len = u64::from_le_bytes(len);
        if len == 0 {
            return Ok(this);
        }
        if len > MAX_TEXTS {
            return Err(bad(root.at, format!("texts_len is {len}, above {MAX_TEXTS}")));
        }
        // What was added after the mappings were read may lie beyond them: a site that needs it
        // is unknown for now.
        let readable = source.maps.readable_memory_at(root.texts, len);
        if readable == 0 {
            return Err(bad(
                root.at,
                format!("texts at {:#x}, {len} bytes, are not in the process's memory", root.texts),
            ));
        }
        this.bytes = vec![0; usize::try_from(readable).unwrap_or(0)];
        this.left = this.bytes.len();
        source.memory.read(root.texts, &mut this.bytes)?;
        Ok(this)
    }

    /// What the site stands for; none when it makes no sense.
    fn key(&mut self, record: &[u8]) -> Option<Key> {
        let addr = u64_at(record, offset_of!(Site, addr));
        let kind = u32_at(record, offset_of!(Site, kind));
        let count = u32_at(record, offset_of!(Site, count));
        let data = u64_at(record, offset_of!(Site, data));
        match kind {
            site_kind::CALLER if addr != 0 => return Some(Key::Caller(addr)),
            site_kind::STATIC | site_kind::CHAIN => {}
            _ => return None,
        }
        if let Some(key) = self.known.get(&(kind, count, data)) {
            return Some(key.clone());
        }
        let (key, used) =
            if kind == site_kind::STATIC { self.text(data)? } else { self.chain(data, count)? };
        self.left = self.left.checked_sub(used)?;
        self.known.insert((kind, count, data), key.clone());
        Some(key)
    }

    /// Bytes from `addr` on, `len` of them, where all lie in the texts.
    fn bytes(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(addr.checked_sub(self.base)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }

    fn text(&self, data: u64) -> Option<(Key, usize)> {
        let header = self.bytes(data, size_of::<Text>())?;
        let len = |offset| usize::from(u16_at(header, offset));
        let module = len(offset_of!(Text, module_len));
        let file = len(offset_of!(Text, file_len));
        let function = len(offset_of!(Text, function_len));
        let names = data.checked_add(size_of::<Text>() as u64)?;
        let names = self.bytes(names, module + file + function)?;
        let (module, names) = names.split_at_checked(module)?;
        let (file, function) = names.split_at_checked(file)?;
        let name = |bytes| escape::bounded(&String::from_utf8_lossy(bytes)).into_owned();
        let tag = StaticTag {
            module: name(module),
            file: name(file),
            line: u32_at(header, offset_of!(Text, line)),
            function: name(function),
        };
        let used = size_of::<Text>() + module.len() + file.len() + function.len();
        Some((Key::Static(Arc::new(tag)), used))
    }

    fn chain(&self, data: u64, count: u32) -> Option<(Key, usize)> {
        if count == 0 || count > MAX_DEPTH {
            return None;
        }
        let bytes = self.bytes(data, count as usize * size_of::<u64>())?;
        let words = bytes.chunks_exact(size_of::<u64>()).map(|word| u64_at(word, 0));
        let addresses: Arc<[u64]> = words.take_while(|&addr| addr != 0).collect();
        (!addresses.is_empty()).then_some((Key::Chain(addresses), bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_record_over_any_texts_is_survived(
            words in proptest::collection::vec(prop_oneof![8 => 1..60_u16, 1 => any::<u16>()], 0..300),
            base in prop_oneof![Just(0x1000_u64), any::<u64>(), Just(u64::MAX - 100)],
            records in proptest::collection::vec(
                (any::<u64>(), 0..5_u32, prop_oneof![9 => 0..40_u32, 1 => any::<u32>()], any::<u64>(), 0..500_u64, prop_oneof![9 => Just(true), 1 => Just(false)]),
                1..100,
            ),
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let left = bytes.len();
            let mut texts = Texts { base, bytes, left, known: HashMap::new() };
            let mut names = 0;
            for (addr, kind, count, data, near, is_near) in records {
                let data = if is_near { base.wrapping_add(near) } else { data };
                let mut record = [0; size_of::<Site>()];
                let mut put = |offset: usize, bytes: &[u8]| {
                    record[offset..offset + bytes.len()].copy_from_slice(bytes);
                };
                put(offset_of!(Site, addr), &addr.to_le_bytes());
                put(offset_of!(Site, kind), &kind.to_le_bytes());
                put(offset_of!(Site, count), &count.to_le_bytes());
                put(offset_of!(Site, data), &data.to_le_bytes());
                let known = texts.known.len();
                match texts.key(&record) {
                    Some(Key::Chain(addresses)) => {
                        prop_assert!((1..=MAX_DEPTH as usize).contains(&addresses.len()));
                    }
                    Some(Key::Static(tag)) if texts.known.len() > known => {
                        names += tag.module.chars().count() + tag.file.chars().count();
                        names += tag.function.chars().count();
                    }
                    _ => {}
                }
            }
            // However texts overlap, what is made of them is no more than they are.
            prop_assert!(names <= left);
        }
    }
}
