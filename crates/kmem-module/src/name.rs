//! Names of modules: values of a fixed size, which allocate nothing.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::alloc::Lossy;
use crate::error::{Error, Result};

/// Bytes of the longest name with its zero byte, as in the kernel.
pub const MODULE_NAME_LEN: usize = 56;

/// The name of a module: letters, digits and `_`.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; MODULE_NAME_LEN - 1],
    len: u8,
}

impl Name {
    /// Makes a name, with `_` for `-` as in the kernel.
    ///
    /// # Errors
    /// `ENOEXEC`: it is empty, longer than 55 bytes, or has other characters than letters, digits,
    /// `_` and `-`.
    pub fn of(name: &[u8]) -> Result<Self> {
        let fits = !name.is_empty()
            && name.len() < MODULE_NAME_LEN
            && name.iter().all(|&b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !fits {
            let start = Lossy(&name[..name.len().min(MODULE_NAME_LEN)]);
            return Err(Error::noexec(format_args!("{start:?} is no name for a module")));
        }
        let mut bytes = [0; MODULE_NAME_LEN - 1];
        for (to, &from) in bytes.iter_mut().zip(name) {
            *to = if from == b'-' { b'_' } else { from };
        }
        Ok(Self { bytes, len: name.len() as u8 })
    }

    /// Makes a name from a path: the file name up to the first dot.
    ///
    /// # Errors
    /// `ENOEXEC`: it is no name, as for [`Name::of`].
    pub fn of_path(path: &[u8]) -> Result<Self> {
        let file = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        Self::of(file.split(|&b| b == b'.').next().unwrap_or(file))
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        // `of` accepts ASCII only.
        std::str::from_utf8(&self.bytes[..self.len.into()]).unwrap_or_default()
    }
}

// `Eq` and `Hash` are those of the text, so that tables with names can be searched by text.
impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    #[test]
    fn odd_names_are_refused() {
        for bad in ["", "a b", "../x", "a\u{e9}", &"x".repeat(56)] {
            assert_eq!(Name::of(bad.as_bytes()).unwrap_err().errno, Errno::ENOEXEC, "{bad}");
        }
        assert_eq!(Name::of("x".repeat(55).as_bytes()).unwrap().len(), 55);
        assert_eq!(&*Name::of_path(b"a/snd-hda.ko.xz").unwrap(), "snd_hda");
    }
}
