//! Information about a module: `key=value` strings in the section `.modinfo`.

use crate::alloc::Lossy;
use crate::elf::Elf;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::os::Account;
use crate::source::Part;

/// Most bytes of one entry.
const MAX_ENTRY: usize = 64 << 10;

/// The checked entries of a module.
pub struct Modinfo<'a>(Part<'a>);

impl<'a> Modinfo<'a> {
    /// Reads `.modinfo`. A file without it has no entries.
    ///
    /// # Errors
    /// `ENOEXEC`: an entry does not end, or is longer than 64 KiB; those of [`Elf::contents`].
    pub fn read(elf: &Elf<'a>, account: &Account) -> Result<Self> {
        let Some((number, section)) = elf.find(".modinfo") else {
            return Ok(Self(Part::Borrowed(&[])));
        };
        let bytes = elf.contents(account, &section, ".modinfo")?;
        if bytes.last().is_some_and(|&last| last != 0) {
            return Err(Error::noexec(format_args!(
                ".modinfo (section {number}) does not end with a zero"
            )));
        }
        if let Some(long) = bytes.split(|&b| b == 0).find(|entry| entry.len() > MAX_ENTRY) {
            let (len, start) = (long.len(), Lossy(&long[..16]));
            return Err(Error::noexec(format_args!(
                ".modinfo: {start:?}.. has {len} bytes, more than {MAX_ENTRY}"
            )));
        }
        Ok(Self(bytes))
    }

    /// Keys and values in order. An entry without `=` is a key with an empty value.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        self.0.split(|&b| b == 0).filter(|entry| !entry.is_empty()).map(|entry| {
            match entry.iter().position(|&b| b == b'=') {
                Some(at) => (&entry[..at], &entry[at + 1..]),
                None => (entry, &[][..]),
            }
        })
    }

    /// The first value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries().find(|entry| entry.0 == key.as_bytes()).map(|(_, value)| value)
    }

    /// The module's name: its entry `name`, else that of its source file.
    ///
    /// # Errors
    /// `ENOEXEC`: it is no name.
    pub fn name(&self) -> Result<Option<Name>> {
        name_of(self.get("name"), self.get(SOURCE_FILE))
    }
}

/// Key of the source file, which names a module without an entry `name`.
pub const SOURCE_FILE: &str = "kmem_source";

/// The name by the values of `name` and [`SOURCE_FILE`].
pub(crate) fn name_of(name: Option<&[u8]>, source: Option<&[u8]>) -> Result<Option<Name>> {
    if let Some(name) = name {
        return Name::of(name).map(Some);
    }
    source.map(Name::of_path).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &'static [u8]) -> Modinfo<'static> {
        Modinfo(Part::Borrowed(bytes))
    }

    #[test]
    fn entries_are_keys_and_values() {
        let info = of(b"license=GPL\0\0alias=a\0alias=b=c\0odd\0name=snd-hda\0");
        assert_eq!(info.get("license"), Some(&b"GPL"[..]));
        let aliases = info.entries().filter(|entry| entry.0 == b"alias").map(|entry| entry.1);
        assert_eq!(aliases.collect::<Vec<_>>(), [&b"a"[..], b"b=c"]);
        assert_eq!(info.get("odd"), Some(&b""[..]));
        assert_eq!(info.name().unwrap().as_deref(), Some("snd_hda"));
        assert_eq!(of(b"").name(), Ok(None));
        assert_eq!(of(b"kmem_source=a/plug-in.c\0").name().unwrap().as_deref(), Some("plug_in"));
    }
}
