//! The name of a module, found through a window of 64 KiB. A duplicate of a loaded module needs no
//! more memory than that.
//!
//! The search goes from the ELF header to the names of sections, from `.modinfo` there to its
//! section, and to `name=` in it. Each step reads the file in one direction. The result is not
//! trusted: the whole file is checked later.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use crate::elf::constants as elf;
use crate::elf::{HEADER, Header, Machine, SECTION, Section};
use crate::error::Result;
use crate::modinfo;
use crate::name::Name;
use crate::os::Account;
use crate::source::Window;

/// Most places of `.modinfo` in the names of sections. There can be several: `.rela.modinfo` ends
/// with it.
const MAX_PLACES: usize = 8;
const MODINFO: &[u8] = b".modinfo\0";

/// Finds the name of a module in its `.modinfo`. `None`: it has none.
///
/// # Errors
/// `ENOEXEC`: it is no module, or the name is wrong; those of [`Window::bytes`].
pub fn name(window: &mut Window<'_>, account: &Account) -> Result<Option<Name>> {
    let len = window.source().len();
    let start = window.some(account, 0, len.min(HEADER), "the ELF header")?;
    let header = Header::parse(start, len, Some(Machine::HERE))?;
    let entry = window.bytes(account, header.entry(header.shstrndx), SECTION, "section names")?;
    let names = Section::of(entry);
    let places = places(window, account, &names)?;
    let mut found = None;
    for number in 1..header.shnum {
        let entry = window.bytes(account, header.entry(number), SECTION, "the section table")?;
        let section = Section::of(entry);
        if section.kind == elf::SHT_PROGBITS && places.found[..places.len].contains(&section.name) {
            found = Some(section);
            break;
        }
    }
    let Some(section) = found else { return Ok(None) };
    let (mut name, mut source) = (None, None);
    each_string(window, account, &section, |entry| {
        if let Some(value) = entry.strip_prefix(b"name=") {
            name.get_or_insert_with(|| Name::of(value));
        } else if let Some(rest) = entry.strip_prefix(modinfo::SOURCE_FILE.as_bytes())
            && let Some(value) = rest.strip_prefix(b"=")
        {
            source.get_or_insert_with(|| Name::of_path(value));
        }
    })?;
    name.or(source).transpose()
}

/// Finds the places of `.modinfo` in the names of sections.
fn places(window: &mut Window<'_>, account: &Account, names: &Section) -> Result<Places> {
    let mut places = Places { found: [0; MAX_PLACES], len: 0 };
    let mut at = 0;
    while at < names.size && places.len < MAX_PLACES {
        let what = "section names";
        let left = names.size - at;
        let bytes = window.some(account, names.offset.saturating_add(at), left, what)?;
        let found = bytes.windows(MODINFO.len()).enumerate().filter(|(_, w)| *w == MODINFO);
        for (i, _) in found.take(MAX_PLACES - places.len) {
            places.found[places.len] = (at + i as u64) as u32;
            places.len += 1;
        }
        let got = bytes.len() as u64;
        if got == left {
            break;
        }
        // Windows overlap, so that a place across their border is found.
        at += got.saturating_sub(MODINFO.len() as u64 - 1).max(1);
    }
    Ok(places)
}

/// Offsets in the names of sections.
struct Places {
    found: [u32; MAX_PLACES],
    len: usize,
}

/// Most bytes of a string that is read here; names are shorter.
const MAX_STRING: u64 = 4096;

/// Calls `each` with the strings of a section. Skips strings that are too long.
fn each_string(
    window: &mut Window<'_>,
    account: &Account,
    section: &Section,
    mut each: impl FnMut(&[u8]),
) -> Result<()> {
    let mut at = 0;
    let mut whole = true;
    while at < section.size {
        let left = section.size - at;
        let offset = section.offset.saturating_add(at);
        let bytes = window.some(account, offset, left.min(MAX_STRING), ".modinfo")?;
        match bytes.iter().position(|&b| b == 0) {
            Some(end) => {
                if whole {
                    each(&bytes[..end]);
                }
                whole = true;
                at += end as u64 + 1;
            }
            None => {
                whole = false;
                at += bytes.len() as u64;
            }
        }
    }
    Ok(())
}

/// A hash of all bytes of a source, to compare contents. The key is secret, so collisions cannot be
/// made.
///
/// # Errors
/// Those of [`Window::some`].
pub fn digest(window: &mut Window<'_>, account: &Account, key: &RandomState) -> Result<u64> {
    let len = window.source().len();
    let mut hasher = key.build_hasher();
    hasher.write_u64(len);
    let mut at = 0;
    while at < len {
        let bytes = window.some(account, at, len - at, "the file")?;
        hasher.write(bytes);
        at += bytes.len() as u64;
    }
    Ok(hasher.finish())
}
