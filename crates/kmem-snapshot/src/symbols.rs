//! From a return address to the place in the source that made the call.
//!
//! This takes two steps, because a process may end in between. [`Modules::open`] opens the files
//! behind the mappings that hold the addresses, while the process runs. [`Symbols`] reads them
//! later. The first source that knows a place names it. Sources are DWARF, the symbol table, a perf
//! map of code made at run time, and last module and offset. DWARF is in the file or in a separate
//! debug file.
//!
//! ```text
//! elf          names in one ELF file
//! functions    its functions, by the symbol table
//! metered      DWARF, read within a budget
//! debug_file   separate debug files
//! build_id     build ids of ELF files
//! by_build_id  names in files that no process maps
//! bytes        an ELF file, read within a budget
//! dead         files of a process that has ended
//! live         files of a process that runs
//! kept         names that are kept from one reading to the next
//! loaded       modules of kmem's loader
//! perf_map     names of code made at run time
//! ```

mod build_id;
mod by_build_id;
mod bytes;
mod dead;
mod debug_file;
mod elf;
mod functions;
mod kept;
mod live;
mod loaded;
mod metered;
mod perf_map;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use by_build_id::DebugFiles;
pub(crate) use by_build_id::debug_path;
pub use kept::Kept;

use crate::blackbox::BlackBox;
use crate::budget::Budget;
use crate::core_file::CoreFile;
use crate::maps::{Mapping, Maps, unmarked};
use crate::memory::Memory;
use crate::process::Process;
use bytes::ReadSeek;
use debug_file::SearchPath;
pub(crate) use elf::Elf;
use loaded::Loaded;
use perf_map::PerfMap;

/// The place of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Base name of the module; empty when the address is in no mapping.
    pub module: String,
    /// True when the module is the main executable.
    pub main: bool,
    /// Address in the module, as `addr2line -e MODULE` takes it; the plain address when there is
    /// no module.
    pub offset: u64,
    /// Address in the process: the return address of the call, minus 1. It is 0 where the place is
    /// of no process.
    pub address: u64,
    /// Function, demangled.
    pub function: Option<String>,
    /// Source file and line.
    pub source: Option<(String, u32)>,
}

impl Place {
    /// `module+0xoffset`, or the address without a module.
    #[must_use]
    pub fn in_module(&self) -> String {
        if self.module.is_empty() {
            format!("{:#x}", self.offset)
        } else {
            format!("{}+{:#x}", self.module, self.offset)
        }
    }

    /// `file:line`, or `module+0xoffset` without a source.
    #[must_use]
    pub fn location(&self) -> String {
        match &self.source {
            Some((file, line)) => format!("{file}:{line}"),
            None => self.in_module(),
        }
    }

    /// True for two addresses that are shown as one place.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        let of = |place: &Self| (place.module.clone(), place.location(), place.function.clone());
        of(self) == of(other)
    }

    /// True for code of the language's own library, whose caller tells more.
    #[must_use]
    pub fn is_library(&self) -> bool {
        let file = self.source.as_ref().map_or("", |(file, _)| file.as_str());
        elf::is_library(self.function.as_deref().unwrap_or(""), file) || self.is_in_library()
    }

    /// True for code in an object that is library code as a whole.
    pub(crate) fn is_in_library(&self) -> bool {
        elf::is_library_module(&self.module)
    }

    /// Fills in the names of `offset`, a virtual address of the file.
    pub(crate) fn name(&mut self, elf: &Elf) {
        (self.function, self.source) = elf.names(self.offset).into();
    }
}

/// Memory of a place, in bytes, besides its names.
const PLACE: u64 = 256;
/// Most files that names come from.
const MAX_MODULES: usize = 4096;
/// Most files that are told one by one.
const MAX_MISMATCHES: usize = 100;

/// Sentences about files that are not, or may not be, those that a process had.
#[derive(Default)]
struct Mismatches {
    texts: Vec<String>,
    more: u64,
}

impl Mismatches {
    fn push(&mut self, text: String) {
        if self.texts.len() < MAX_MISMATCHES {
            self.texts.push(text);
        } else {
            self.more += 1;
        }
    }

    fn told(mut self) -> Vec<String> {
        if self.more != 0 {
            self.texts
                .push(format!("{} more files give no names, or may give wrong ones", self.more));
        }
        self.texts
    }
}

/// Modules that are borrowed, or kept for as long as their symbols.
enum Source<'a> {
    Borrowed(&'a Modules),
    Own(Box<Modules>),
}

impl Deref for Source<'_> {
    type Target = Modules;

    fn deref(&self) -> &Modules {
        match self {
            Self::Borrowed(modules) => modules,
            Self::Own(modules) => modules,
        }
    }
}

/// Resolves return addresses of one process.
pub struct Symbols<'a> {
    modules: Source<'a>,
    elves: HashMap<usize, Option<Elf>>,
    known: HashMap<u64, Arc<Place>>,
    /// The place of all addresses that the budget has no room for.
    beyond: Arc<Place>,
}

impl<'a> Symbols<'a> {
    /// Resolves addresses in these modules.
    #[must_use]
    pub fn new(modules: &'a Modules) -> Self {
        Self::from(Source::Borrowed(modules))
    }

    fn from(modules: Source<'a>) -> Self {
        let beyond = Arc::new(Place::default());
        Self { modules, elves: HashMap::new(), known: HashMap::new(), beyond }
    }

    /// The module and the offset of a call, without names: nothing of the file is read.
    pub(crate) fn unnamed(&self, return_address: u64) -> Place {
        let address = return_address.saturating_sub(1);
        match self.modules.find(address) {
            Some((number, offset)) => {
                let module = &self.modules.modules[number];
                let (name, main) = (module.name.clone(), module.main);
                Place { module: name, main, offset, address, ..Place::default() }
            }
            None => Place { offset: address, address, ..Place::default() },
        }
    }

    /// The place of the call that returns to this address.
    pub fn resolve(&mut self, return_address: u64) -> Place {
        Place::clone(&self.shared(return_address))
    }

    /// The place of the call that returns to this address, shared by all lookups of it.
    pub(crate) fn shared(&mut self, return_address: u64) -> Arc<Place> {
        if let Some(place) = self.known.get(&return_address) {
            return Arc::clone(place);
        }
        // The call is the instruction before the return address.
        let place = self.lookup(return_address.saturating_sub(1));
        let source = place.source.as_ref().map_or(0, |(file, _)| file.len());
        let names = place.module.len() + place.function.as_ref().map_or(0, String::len) + source;
        if let Err(over) = self.modules.budget.memory(PLACE + names as u64) {
            if !self.modules.told.replace(true) {
                self.modules.budget.remark(format!("names of all call sites are {over}"));
            }
            return Arc::clone(&self.beyond);
        }
        let place = Arc::new(place);
        self.known.insert(return_address, Arc::clone(&place));
        place
    }

    fn lookup(&mut self, addr: u64) -> Place {
        let made_at_run_time = || Place {
            function: self.modules.perf_map().and_then(|map| map.find(addr)),
            offset: addr,
            address: addr,
            ..Place::default()
        };
        let Some((number, offset)) = self.modules.find(addr) else {
            return made_at_run_time();
        };
        let module = &self.modules.modules[number];
        let (name, main) = (module.name.clone(), module.main);
        let mut place = Place { module: name, main, offset, address: addr, ..Place::default() };
        let elf = match module.backing {
            Backing::Missing => return place,
            Backing::Anonymous => return Place { main, ..made_at_run_time() },
            Backing::Elf => self.elves.entry(number).or_insert_with(|| self.modules.load(number)),
        };
        let Some(elf) = elf else { return place };
        if module.is_loaded {
            (place.function, place.source) = elf.names(addr).into();
        } else {
            let Some(address) = elf.address_of(place.offset) else {
                return place;
            };
            place.offset = address;
            place.name(elf);
        }
        if let Some(over) = elf.refused() {
            let path = module.path.display();
            self.modules.budget.remark(format!("{path}: its names are {over}; some are left out"));
        }
        place
    }
}

impl Symbols<'static> {
    /// Resolves addresses in these modules, and keeps them.
    pub(crate) fn of(modules: Modules) -> Self {
        Self::from(Source::Own(Box::new(modules)))
    }
}

/// Finds the name of an address in the text of a map of code made at run time.
pub(crate) fn named_by_map(text: &str, address: u64) -> Option<String> {
    perf_map::PerfMap::parse(text).find(address)
}

/// Resolves one virtual address of a file that no process maps.
#[must_use]
pub fn probe(path: &Path, address: u64) -> Option<Place> {
    let file = debug_file::open(path, 0)?;
    let search = SearchPath { module: path, roots: &[PathBuf::from("/")] };
    let elf = Elf::parse(Box::new(file), &search, &Budget::default())?;
    let mut place = Place { offset: address, ..Place::default() };
    place.name(&elf);
    Some(place)
}

/// Content of the mappings of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    /// An ELF file or image that was opened.
    Elf,
    /// A file that cannot be opened, or is no longer the one that was mapped.
    Missing,
    /// No file: code made at run time.
    Anonymous,
}

struct Module {
    name: String,
    path: PathBuf,
    main: bool,
    backing: Backing,
    /// True for a module of kmem's loader, whose file has absolute addresses.
    is_loaded: bool,
    source: RefCell<Option<Box<dyn ReadSeek>>>,
}

impl Module {
    fn new(mapping: &Mapping, exe: &str, source: Option<Box<dyn ReadSeek>>) -> Self {
        let path = Path::new(&mapping.path);
        let is_file = mapping.is_file() || mapping.path == "[vdso]";
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        Self {
            name: if is_file { name } else { String::new() },
            path: path.to_owned(),
            main: mapping.is_file() && mapping.path == exe,
            backing: match source {
                Some(_) => Backing::Elf,
                None if is_file => Backing::Missing,
                None => Backing::Anonymous,
            },
            is_loaded: false,
            source: RefCell::new(source),
        }
    }

    /// A module of kmem's loader.
    fn loaded(name: String, source: Box<dyn ReadSeek>) -> Self {
        Self {
            path: PathBuf::from(&name),
            name,
            main: false,
            backing: Backing::Elf,
            is_loaded: true,
            source: RefCell::new(Some(source)),
        }
    }
}

struct Mapped {
    start: u64,
    end: u64,
    file_offset: u64,
    module: usize,
}

/// The modules of one process that hold addresses of interest: the files behind its mappings.
#[derive(Default)]
pub struct Modules {
    mapped: Vec<Mapped>,
    /// Code of modules of kmem's loader, in memory that the mappings do not name. The first that
    /// has an address counts.
    loaded: Vec<Mapped>,
    modules: Vec<Module>,
    /// The root directory of the process, held open: it can be followed after the process ended.
    root: Option<File>,
    perf_map: OnceCell<Option<PerfMap>>,
    /// Of a live process: its pid and its user, which name and own its perf map.
    perf_owner: Option<(u32, u32)>,
    mismatches: Vec<String>,
    /// Build ids by the path of the mapping.
    build_ids: BTreeMap<String, String>,
    budget: Budget,
    /// True when a remark has told that the budget has no room for more places.
    told: Cell<bool>,
}

impl Modules {
    /// Opens the modules that hold `addresses`. A module that cannot be opened gives no names.
    #[must_use]
    pub fn open(process: &Process, maps: &Maps, addresses: &[u64], budget: &Budget) -> Self {
        let memory = Memory::Live(process.memory());
        let exe = fs::read_link(process.path("exe")).unwrap_or_default();
        let exe = exe.to_string_lossy();
        let exe = unmarked(&exe).0.to_owned();
        let owner = fs::metadata(process.path("")).map_or(u32::MAX, |m| m.uid());
        let mut this = Self {
            root: File::open(process.path("root")).ok(),
            perf_owner: Some((process.inner_pid(), owner)),
            budget: budget.clone(),
            ..Self::default()
        };
        let source = |mapping: &Mapping| live::source_of(process, &memory, maps, mapping);
        this.add(maps, addresses, &exe, source);
        // The program has a build id even if none of the addresses is in it.
        let mut own = maps.all().iter().filter(|mapping| mapping.path == exe);
        if !this.modules.iter().any(|module| module.main)
            && let Some(mapping) = own.next()
        {
            this.add_build_id(mapping, source(mapping).as_mut());
        }
        this.add_loaded(loaded::find(process, addresses, budget, MAX_MODULES));
        this
    }

    /// Adds modules of kmem's loader.
    fn add_loaded(&mut self, all: Vec<Loaded>) {
        let mut inits = Vec::new();
        for Loaded { name, base, code, source } in all {
            let module = self.modules.len();
            self.modules.push(Module::loaded(name, source));
            for (number, Range { start, end }) in code.into_iter().enumerate() {
                let list = if number == 0 { &mut self.loaded } else { &mut inits };
                list.push(Mapped { start, end, file_offset: start - base, module });
            }
        }
        // Memory of a module's init may have been given to another since.
        self.loaded.append(&mut inits);
    }

    /// Opens the modules of a dead process, by name on this machine. `exe` replaces the
    /// executable. A file whose build-id differs from that in the core gives no names; see
    /// [`Modules::mismatches`].
    #[must_use]
    pub fn of_core(core: &CoreFile, addresses: &[u64], exe: Option<&Path>) -> Self {
        let name = unmarked(core.exe()).0;
        let mut mismatches = Mismatches::default();
        let mut this = Self { budget: core.budget().clone(), ..Self::default() };
        this.add(core.maps(), addresses, name, |mapping| {
            let path = exe.filter(|_| mapping.path == name).unwrap_or(Path::new(&mapping.path));
            dead::source_of(core, mapping, path, &mut mismatches)
        });
        this.mismatches = mismatches.told();
        this
    }

    /// Opens the modules of the process of a black box, by name on this machine. `maps` are those
    /// of a record. `other` replaces the executable. A file whose build-id is not that in the box
    /// gives no names. Where the box has none, a file with another inode number gives names; see
    /// [`Modules::mismatches`].
    #[must_use]
    pub fn of_box(
        of: &BlackBox,
        maps: &Maps,
        addresses: &[u64],
        other: Option<&Path>,
        budget: &Budget,
    ) -> Self {
        let name = unmarked(of.exe()).0;
        let pages = of.first_pages();
        let mut mismatches = Mismatches::default();
        let mut this = Self { budget: budget.clone(), ..Self::default() };
        this.add(maps, addresses, name, |mapping| {
            let other = other.filter(|_| mapping.path == name);
            let first = dead::first_mapping(maps, mapping);
            let page = first.and_then(|first| pages.get(first));
            dead::source_in_box(mapping, page.as_ref(), other, &mut mismatches)
        });
        this.mismatches = mismatches.told();
        this
    }

    /// Build ids in lowercase hexadecimal digits, by the paths that mappings have.
    #[must_use]
    pub fn build_ids(&self) -> &BTreeMap<String, String> {
        &self.build_ids
    }

    fn add_build_id(&mut self, mapping: &Mapping, source: Option<&mut Box<dyn ReadSeek>>) {
        if let Some(id) = source.and_then(|source| build_id::of(source)) {
            self.build_ids.insert(mapping.path.clone(), id);
        }
    }

    /// A sentence for each file that is not, or may not be, the one that the process had.
    #[must_use]
    pub fn mismatches(&self) -> &[String] {
        &self.mismatches
    }

    fn add(
        &mut self,
        maps: &Maps,
        addresses: &[u64],
        exe: &str,
        mut source_of: impl FnMut(&Mapping) -> Option<Box<dyn ReadSeek>>,
    ) {
        let (mut by_file, mut met) = (HashMap::new(), HashSet::new());
        let mut beyond = 0_u64;
        for &address in addresses {
            let Some(mapping) = maps.find(address.saturating_sub(1)) else {
                continue;
            };
            if !met.insert(mapping.start) {
                continue;
            }
            let key = (mapping.device, mapping.inode, mapping.path.as_str());
            if self.modules.len() >= MAX_MODULES && !by_file.contains_key(&key) {
                beyond += 1;
                continue;
            }
            let module = *by_file.entry(key).or_insert_with(|| {
                let mut source = source_of(mapping);
                self.add_build_id(mapping, source.as_mut());
                self.modules.push(Module::new(mapping, exe, source));
                self.modules.len() - 1
            });
            self.mapped.push(Mapped {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.offset,
                module,
            });
        }
        self.mapped.sort_by_key(|m| m.start);
        if beyond != 0 {
            self.budget.remark(format!(
                "{beyond} mapped files give no names: names come from {MAX_MODULES} files at most"
            ));
        }
    }

    /// Finds the module at `addr`. Returns its index, and the offset of the byte in its file.
    fn find(&self, addr: u64) -> Option<(usize, u64)> {
        let loaded = self.loaded.iter().find(|m| (m.start..m.end).contains(&addr));
        let after = self.mapped.partition_point(|m| m.start <= addr);
        let mapped = self.mapped[..after].last().filter(|m| addr < m.end);
        let mapped = loaded.or(mapped)?;
        Some((mapped.module, (addr - mapped.start).wrapping_add(mapped.file_offset)))
    }

    /// Parses a module. None when it is no ELF file, and on every later call.
    fn load(&self, number: usize) -> Option<Elf> {
        let module = &self.modules[number];
        let source = module.source.borrow_mut().take()?;
        let mut roots = vec![PathBuf::from("/")];
        roots.extend(self.root_path());
        let share = self.budget.share();
        let search = SearchPath { module: &module.path, roots: &roots };
        let elf = if elf::is_library_module(&module.name) {
            Elf::without_lines(source, &share)
        } else {
            Elf::parse(source, &search, &share)
        };
        if elf.is_none() {
            if let Some(over) = share.refused() {
                let path = module.path.display();
                self.budget.remark(format!("{path}: its names are {over}; no names from it"));
            }
            share.give_back(share.kept());
        }
        elf
    }

    /// Names of code made at run time.
    fn perf_map(&self) -> Option<&PerfMap> {
        let map = self.perf_map.get_or_init(|| {
            let (pid, owner) = self.perf_owner?;
            let root = self.root_path().unwrap_or_else(|| PathBuf::from("/"));
            PerfMap::open(&root.join(format!("tmp/perf-{pid}.map")), owner)
        });
        map.as_ref()
    }

    fn root_path(&self) -> Option<PathBuf> {
        let root = self.root.as_ref()?;
        Some(PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())))
    }
}
