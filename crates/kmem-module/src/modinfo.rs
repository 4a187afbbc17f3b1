//! What a module says of itself: `key=value` strings in the section `.modinfo`.

use crate::elf::Elf;
use crate::error::{Error, Result};
use crate::os::Account;
use crate::source::Part;

/// Most bytes of one entry.
const MAX_ENTRY: usize = 64 << 10;
/// Bytes of a module's name with its end, as in the kernel.
pub const MODULE_NAME_LEN: usize = 56;

/// The entries, checked to be strings.
pub struct Modinfo<'a>(Part<'a>);

impl<'a> Modinfo<'a> {
    /// Reads `.modinfo`; a file without one has no entries.
    ///
    /// # Errors
    /// `ENOEXEC` for an entry that does not end; `ENOMEM`, or what reading says.
    pub fn read(elf: &Elf<'a>, account: &Account) -> Result<Self> {
        let Some((number, section)) = elf.find(".modinfo") else {
            return Ok(Self(Part::Borrowed(&[])));
        };
        let bytes = elf.contents(account, &section, ".modinfo")?;
        if bytes.last().is_some_and(|&last| last != 0) {
            return Err(Error::noexec(format!(
                ".modinfo (section {number}) does not end with a zero"
            )));
        }
        if let Some(long) = bytes.split(|&b| b == 0).find(|entry| entry.len() > MAX_ENTRY) {
            let (len, start) = (long.len(), String::from_utf8_lossy(&long[..16]).into_owned());
            return Err(Error::noexec(format!(
                ".modinfo: {start:?}.. has {len} bytes, more than {MAX_ENTRY}"
            )));
        }
        Ok(Self(bytes))
    }

    /// Entries in order; what has no `=` is a key without a value.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        self.0.split(|&b| b == 0).filter(|entry| !entry.is_empty()).map(|entry| {
            match entry.iter().position(|&b| b == b'=') {
                Some(at) => (&entry[..at], &entry[at + 1..]),
                None => (entry, &[][..]),
            }
        })
    }

    /// All values of a key.
    pub fn all<'s>(&'s self, key: &'s str) -> impl Iterator<Item = String> + 's {
        let of_key = move |entry: &(&[u8], &[u8])| entry.0 == key.as_bytes();
        self.entries().filter(of_key).map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    }

    /// The first value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        self.all(key).next()
    }

    /// The module's name: as it says, else that of its source file.
    ///
    /// # Errors
    /// `ENOEXEC` for one that is no name.
    pub fn name(&self) -> Result<Option<String>> {
        name_of(self.get("name").as_deref(), self.get(SOURCE_FILE).as_deref())
    }
}

/// The entry with the source file, from which a module has its name if it gives none.
pub const SOURCE_FILE: &str = "kmem_source";

/// The name that two entries give.
pub(crate) fn name_of(name: Option<&str>, source: Option<&str>) -> Result<Option<String>> {
    if let Some(name) = name {
        return normal(name).map(Some);
    }
    source.map(of_path).transpose()
}

/// The name that a path gives a module: without directories and from the first dot on.
///
/// # Errors
/// `ENOEXEC`: it gives none.
pub fn of_path(path: &str) -> Result<String> {
    let file = path.rsplit('/').next().unwrap_or(path);
    normal(file.split('.').next().unwrap_or(file))
}

/// A name as the kernel writes it, with `_` for `-`.
///
/// # Errors
/// `ENOEXEC` for one that is empty, too long or of other characters than letters, digits and `_`.
pub fn normal(name: &str) -> Result<String> {
    let fits = !name.is_empty()
        && name.len() < MODULE_NAME_LEN
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if !fits {
        let start: String = name.chars().take(MODULE_NAME_LEN).collect();
        return Err(Error::noexec(format!("{start:?} is no name for a module")));
    }
    Ok(name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    fn of(bytes: &'static [u8]) -> Modinfo<'static> {
        Modinfo(Part::Borrowed(bytes))
    }

    #[test]
    fn entries_are_keys_and_values() {
        let info = of(b"license=GPL\0\0alias=a\0alias=b=c\0odd\0name=snd-hda\0");
        assert_eq!(info.get("license").as_deref(), Some("GPL"));
        assert_eq!(info.all("alias").collect::<Vec<_>>(), ["a", "b=c"]);
        assert_eq!(info.get("odd").as_deref(), Some(""));
        assert_eq!(info.name().unwrap().as_deref(), Some("snd_hda"));
        assert_eq!(of(b"").name(), Ok(None));
        assert_eq!(of(b"kmem_source=a/plug-in.c\0").name().unwrap().as_deref(), Some("plug_in"));
    }

    #[test]
    fn odd_names_are_refused() {
        for bad in ["", "a b", "../x", "a\u{e9}", &"x".repeat(56)] {
            assert_eq!(normal(bad).unwrap_err().errno, Errno::ENOEXEC, "{bad}");
        }
        assert_eq!(normal(&"x".repeat(55)).unwrap().len(), 55);
    }
}
