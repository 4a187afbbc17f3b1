//! From a return address to the place in the source that called.
//!
//! Two steps, because a process may end in between: [`Modules::open`] opens, while the
//! process is there, the files behind the mappings that hold the addresses; [`Symbols`] then
//! reads them. In order of preference a place comes from DWARF (in the file, or in a separate
//! debug file found by build-id or debug link), from the symbol table, from a perf map of code
//! made at run time, or is left as module and offset.

mod debug_file;
mod demangle;
mod dwarf;
mod elf;
mod library_code;
mod modules;
mod perf_map;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use modules::Modules;

use elf::Elf;
use modules::Image;

/// Where a call was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Base name of the module; empty when the address is in no mapping.
    pub module: String,
    /// The module is the main executable.
    pub main: bool,
    /// Address in the module, as `addr2line -e module` takes it; a plain address when there
    /// is no module.
    pub offset: u64,
    /// Function, demangled.
    pub function: Option<String>,
    /// Source file and line.
    pub source: Option<(String, u32)>,
}

impl Place {
    /// `module+0xoffset`, or the address in no module.
    #[must_use]
    pub fn in_module(&self) -> String {
        if self.module.is_empty() {
            format!("{:#x}", self.offset)
        } else {
            format!("{}+{:#x}", self.module, self.offset)
        }
    }

    /// `file:line`, or else `module+0xoffset`.
    #[must_use]
    pub fn location(&self) -> String {
        match &self.source {
            Some((file, line)) => format!("{file}:{line}"),
            None => self.in_module(),
        }
    }

    /// The language's own library rather than the program: see its caller.
    #[must_use]
    pub fn is_library(&self) -> bool {
        let file = self.source.as_ref().map_or("", |(file, _)| file.as_str());
        library_code::is_library(self.function.as_deref().unwrap_or(""), file)
            || library_code::module_is_library(&self.module)
    }
}

/// Resolves return addresses of one process.
pub struct Symbols<'a> {
    modules: &'a Modules,
    elves: HashMap<usize, Option<Elf>>,
    known: HashMap<u64, Arc<Place>>,
}

impl<'a> Symbols<'a> {
    /// Resolves addresses in these modules.
    #[must_use]
    pub fn new(modules: &'a Modules) -> Self {
        Self { modules, elves: HashMap::new(), known: HashMap::new() }
    }

    /// The place that calls with this return address.
    pub fn resolve(&mut self, return_address: u64) -> Place {
        Place::clone(&self.shared(return_address))
    }

    /// The same, shared by all who ask for this address.
    pub(crate) fn shared(&mut self, return_address: u64) -> Arc<Place> {
        if let Some(place) = self.known.get(&return_address) {
            return Arc::clone(place);
        }
        // The call is the instruction before.
        let place = Arc::new(self.lookup(return_address.saturating_sub(1)));
        self.known.insert(return_address, Arc::clone(&place));
        place
    }

    fn lookup(&mut self, addr: u64) -> Place {
        let Some((number, found)) = self.modules.find(addr) else {
            return Place {
                function: self.modules.perf_map().and_then(|map| map.find(addr)),
                offset: addr,
                ..Place::default()
            };
        };
        let mut place = Place {
            module: found.name.to_owned(),
            main: found.main,
            offset: found.file_offset,
            ..Place::default()
        };
        let elf = match found.image {
            Image::Missing => return place,
            Image::Anonymous => {
                place.offset = addr;
                place.module.clear();
                place.function = self.modules.perf_map().and_then(|map| map.find(addr));
                return place;
            }
            Image::Elf => self.elves.entry(number).or_insert_with(|| self.modules.load(number)),
        };
        let Some(elf) = elf else { return place };
        let Some(address) = elf.address_of(place.offset) else {
            return place;
        };
        place.offset = address;
        elf.name(&mut place);
        place
    }
}

/// Resolves one address of a file that no process maps.
#[must_use]
pub fn probe(path: &Path, address: u64) -> Option<Place> {
    let file = debug_file::open_regular(path)?;
    let search = debug_file::SearchPath { module: path, roots: &[PathBuf::from("/")] };
    let elf = Elf::parse(Box::new(file), &search)?;
    let mut place = Place { offset: address, ..Place::default() };
    elf.name(&mut place);
    Some(place)
}
