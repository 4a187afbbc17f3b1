//! Symbols: what modules export, what the process has, and the versions that a module was built for.

use std::ffi::{CStr, CString};
use std::fmt;

use crate::alloc::{self, Lossy};
use crate::elf::{Elf, u32_at, u64_at};
use crate::error::{Error, Result};
use crate::image::Image;
use crate::layout::Part as Place;
use crate::os::Account;
use crate::source::Part;

/// Bytes of a `struct kmem_export`.
const EXPORT: usize = 24;
/// Bytes of a `struct modversion_info`.
const VERSION: usize = 64;
const FLAG_GPL: u32 = 1;
const FLAG_VERSION: u32 = 2;

/// What stands for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its value, nearly always an address.
    pub value: u64,
    /// Its version, if it has one.
    pub version: Option<u32>,
    /// Only for modules whose licence is compatible with the GPL.
    pub gpl: bool,
}

/// The symbols that are there without any module.
pub trait Core: Send + Sync {
    /// Looks a name up.
    fn find(&self, name: &CStr) -> Option<Definition>;
}

/// The dynamic symbols of this process: its program and the libraries loaded with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

impl Core for Process {
    fn find(&self, name: &CStr) -> Option<Definition> {
        // SAFETY: a C string; the result is only compared.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!at.is_null()).then_some(Definition { value: at as u64, version: None, gpl: false })
    }
}

/// A name that a module exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name.
    pub name: CString,
    /// What it stands for.
    pub is: Definition,
}

/// Reads the section of exports, which has been relocated.
///
/// # Errors
/// `ENOEXEC` for an entry whose name or value is not in the module.
pub fn exports(file: &Elf<'_>, image: &Image) -> Result<Vec<Export>> {
    let mut found = Vec::new();
    each_entry(file, image, "kmem_exports", EXPORT, |number, entry| {
        let bad = |what: fmt::Arguments<'_>| Error::noexec(format_args!("export {number}: {what}"));
        let name = image
            .string(u64_at(entry, 8))
            .ok_or_else(|| bad(format_args!("its name is not in the module")))?;
        let mut bytes = alloc::list(name.len() + 1)?;
        bytes.extend_from_slice(name);
        bytes.push(0);
        // Without a zero in it, and no larger than its room: this takes no memory.
        let name = CString::from_vec_with_nul(bytes)
            .map_err(|_| bad(format_args!("its name has a zero in it")))?;
        let value = u64_at(entry, 0);
        let kept = [Place::Text, Place::RoData, Place::RoAfterInit, Place::Data];
        let offset = image.offset(value);
        if offset.is_none_or(|offset| !image.layout.is_in(&kept, offset, 0)) {
            return Err(bad(format_args!("{name:?} is not in what is kept of the module")));
        }
        let flags = u32_at(entry, 20);
        let version = (flags & FLAG_VERSION != 0).then(|| u32_at(entry, 16));
        let is = Definition { value, version, gpl: flags & FLAG_GPL != 0 };
        alloc::push(&mut found, Export { name, is })
    })?;
    Ok(found)
}

/// Calls `each` with the records of a section.
pub(crate) fn each_entry(
    file: &Elf<'_>,
    image: &Image,
    section: &str,
    size: usize,
    mut each: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let Some((number, found)) = file.find(section) else { return Ok(()) };
    let Some(offset) = image.layout.section(number) else { return Ok(()) };
    if found.size % size as u64 != 0 {
        return Err(Error::noexec(format_args!(
            "{section}: {} bytes are no whole records of {size}",
            found.size
        )));
    }
    let bytes = &image.bytes()[offset as usize..][..found.size as usize];
    bytes.chunks_exact(size).enumerate().try_for_each(|(number, entry)| each(number, entry))
}

/// The versions that a module says it was built for.
pub struct Versions<'a> {
    records: Option<Part<'a>>,
    /// Numbers of the records, by name and version.
    order: Vec<u32>,
}

impl<'a> Versions<'a> {
    /// Reads `__versions`.
    ///
    /// # Errors
    /// `ENOEXEC` for records that are none; `ENOMEM`.
    pub fn read(file: &Elf<'a>, account: &Account) -> Result<Self> {
        let Some((number, section)) = file.find("__versions") else {
            return Ok(Self { records: None, order: Vec::new() });
        };
        let bytes = file.contents(account, &section, "__versions")?;
        if bytes.len() % VERSION != 0 {
            let len = bytes.len();
            return Err(Error::noexec(format_args!(
                "__versions (section {number}): {len} bytes are no whole records of {VERSION}"
            )));
        }
        let count = (bytes.len() / VERSION) as u32;
        let mut order = alloc::list(count as usize)?;
        order.extend(0..count);
        order.sort_unstable_by(|&a, &b| record(&bytes, a).cmp(&record(&bytes, b)));
        Ok(Self { records: Some(bytes), order })
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u32)> + '_ {
        let records = self.records.as_deref().unwrap_or_default();
        self.order.iter().map(|&number| record(records, number))
    }

    /// Whether a definition is what the module was built for.
    ///
    /// # Errors
    /// `ENOEXEC` names the symbol and both versions.
    pub fn check(&self, name: &[u8], found: &Definition) -> Result<()> {
        let records = self.records.as_deref().unwrap_or_default();
        let of = |number: &u32| record(records, *number);
        let Ok(at) = self.order.binary_search_by(|number| of(number).0.cmp(name)) else {
            return Ok(());
        };
        let expected = of(&self.order[at]).1;
        if found.version == Some(expected) {
            return Ok(());
        }
        let name = Lossy(name);
        let refuse = |has: fmt::Arguments<'_>| {
            Err(Error::noexec(format_args!(
                "disagrees about the version of symbol {name}: built for {expected:#x}, there is {has}"
            )))
        };
        match found.version {
            Some(version) => refuse(format_args!("{version:#x}")),
            None => refuse(format_args!("none")),
        }
    }
}

/// Name and version of a record.
fn record(records: &[u8], number: u32) -> (&[u8], u32) {
    let entry = records.get(number as usize * VERSION..).unwrap_or_default();
    let name = entry.get(8..VERSION).unwrap_or_default();
    (name.split(|&b| b == 0).next().unwrap_or_default(), u64_at(entry, 0) as u32)
}

/// Whether a licence is compatible with the GPL, as the kernel has it.
#[must_use]
pub fn is_gpl_compatible(licence: &[u8]) -> bool {
    matches!(
        licence,
        b"GPL"
            | b"GPL v2"
            | b"GPL and additional rights"
            | b"Dual BSD/GPL"
            | b"Dual MIT/GPL"
            | b"Dual MPL/GPL"
    )
}
