//! A load without running the module: checks the file, links it, seals the memory, and drops it.

use std::ffi::CStr;

use crate::elf::Elf;
use crate::error::Result;
use crate::layout::PerCpu;
use crate::link::{Options, Resolve, link};
use crate::modinfo::Modinfo;
use crate::name::Name;
use crate::os::Account;
use crate::source::Source;
use crate::symbols::{Core, Versions};

/// Properties of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its name, if `.modinfo` has one.
    pub name: Option<Name>,
    /// Bytes of its memory after init.
    pub size: u64,
    /// Bytes of its code.
    pub text: u64,
    /// Number of symbols that it imports.
    pub imports: usize,
    /// Number of symbols that it exports to other modules.
    pub exports: usize,
}

struct Imports<'a> {
    core: &'a dyn Core,
    versions: &'a Versions<'a>,
    count: usize,
    base: Option<u64>,
}

impl Resolve for Imports<'_> {
    fn resolve(&mut self, name: &CStr) -> Result<Option<u64>> {
        let Some(found) = self.core.find(name) else { return Ok(None) };
        self.versions.check(name.to_bytes(), &found)?;
        self.count += 1;
        Ok(Some(found.value))
    }

    /// An address without memory: the module is not run.
    fn percpu(&mut self, _: PerCpu) -> Result<u64> {
        Ok(self.base.unwrap_or(1 << 40))
    }
}

/// Tries a module out. With [`Options::base`] its memory is not sealed.
///
/// # Errors
/// Those of [`link`] and of the checks before it.
pub fn try_out(
    source: Source<'_>,
    account: &Account,
    core: &dyn Core,
    options: &Options,
) -> Result<Report> {
    let file = Elf::read(source, account, Some(options.machine))?;
    let name = Modinfo::read(&file, account)?.name()?;
    let versions = Versions::read(&file, account)?;
    let mut imports = Imports { core, versions: &versions, count: 0, base: options.base };
    let mut linked = link(&file, account, options, &mut imports)?;
    if options.base.is_none() {
        linked.image.seal()?;
    }
    let layout = &linked.image.layout;
    Ok(Report {
        name,
        size: layout.kept(),
        text: layout.text,
        imports: imports.count,
        exports: linked.exports.len(),
    })
}
