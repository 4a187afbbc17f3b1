//! Symbols: exports of modules, symbols of the process, and the versions that a module was built
//! for.

use std::ffi::{CStr, CString};
use std::fmt;
use std::ops::Range;

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

/// The definition of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its value, usually an address.
    pub value: u64,
    /// Its version, if it has one.
    pub version: Option<u32>,
    /// True if only modules with a licence compatible with the GPL may use it.
    pub gpl: bool,
}

/// Symbols that are defined outside of modules.
pub trait Core: Send + Sync {
    /// Finds the definition of a name.
    fn find(&self, name: &CStr) -> Option<Definition>;
}

/// The dynamic symbols of this process: its program and the libraries loaded with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

impl Core for Process {
    fn find(&self, name: &CStr) -> Option<Definition> {
        // SAFETY: a C string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!at.is_null()).then_some(Definition { value: at as u64, version: None, gpl: false })
    }
}

/// A symbol that a module exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name.
    pub name: CString,
    /// Its definition.
    pub is: Definition,
}

/// Reads the section of exports after relocation. `percpu` has the addresses of per-CPU variables.
///
/// # Errors
/// `ENOEXEC`: a name or value is not in the module's memory; `ENOMEM`.
pub fn exports(file: &Elf<'_>, image: &Image, percpu: &Range<u64>) -> Result<Vec<Export>> {
    let mut found = Vec::new();
    each_entry(file, image, "kmem_exports", EXPORT, |number, entry| {
        let bad = |what: fmt::Arguments<'_>| Error::noexec(format_args!("export {number}: {what}"));
        let name = image
            .string(u64_at(entry, 8))
            .ok_or_else(|| bad(format_args!("its name is not in the module")))?;
        let mut bytes = alloc::list(name.len() + 1)?;
        bytes.extend_from_slice(name);
        bytes.push(0);
        // Does not allocate: the bytes have no zero, and room for one.
        let name = CString::from_vec_with_nul(bytes)
            .map_err(|_| bad(format_args!("its name has a zero in it")))?;
        let value = u64_at(entry, 0);
        let kept = [Place::Text, Place::RoData, Place::RoAfterInit, Place::Data];
        let offset = image.offset(value);
        if !percpu.contains(&value)
            && offset.is_none_or(|offset| !image.layout.is_in(&kept, offset, 0))
        {
            return Err(bad(format_args!("{name:?} is not in what is kept of the module")));
        }
        let flags = u32_at(entry, 20);
        let version = (flags & FLAG_VERSION != 0).then(|| u32_at(entry, 16));
        let is = Definition { value, version, gpl: flags & FLAG_GPL != 0 };
        alloc::push(&mut found, Export { name, is })
    })?;
    Ok(found)
}

/// Calls `each` with the records of `size` bytes in a section, and their numbers. Does nothing
/// without such a section.
///
/// # Errors
/// `ENOEXEC`: the section has no whole records; those of `each`.
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

/// The versions of symbols that a module was built for.
pub struct Versions<'a> {
    records: Option<Part<'a>>,
    /// Numbers of the records, sorted by name and version.
    order: Vec<u32>,
}

impl<'a> Versions<'a> {
    /// Reads the section `__versions`, if there is one.
    ///
    /// # Errors
    /// `ENOEXEC`: it has no whole records; those of [`Elf::contents`].
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

    /// All names and versions, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u32)> + '_ {
        let records = self.records.as_deref().unwrap_or_default();
        self.order.iter().map(|&number| record(records, number))
    }

    /// Checks that a definition has the version that the module was built for, if it states one.
    ///
    /// # Errors
    /// `ENOEXEC`: it has not. The text names the symbol and both versions.
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
                "disagrees about the version of symbol {name}: built for {expected:#x}, there is \
                 {has}"
            )))
        };
        match found.version {
            Some(version) => refuse(format_args!("{version:#x}")),
            None => refuse(format_args!("none")),
        }
    }
}

/// The name and version of a record.
fn record(records: &[u8], number: u32) -> (&[u8], u32) {
    let entry = records.get(number as usize * VERSION..).unwrap_or_default();
    let name = entry.get(8..VERSION).unwrap_or_default();
    (name.split(|&b| b == 0).next().unwrap_or_default(), u64_at(entry, 0) as u32)
}

/// Returns whether a licence is compatible with the GPL, by the kernel's list.
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
