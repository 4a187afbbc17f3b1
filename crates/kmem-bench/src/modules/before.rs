//! The kernel's earlier loaders: their order of steps, built from parts of kmem's loader.
//!
//! The whole file is read into memory. Before 6.4 the module's memory was allocated next, and then
//! its name was looked up. Since 6.4 the name is looked up first. A request that finds a module of
//! that name being loaded waits, and keeps its memory while it waits.

use kmem_module::elf::{Elf, Machine};
use kmem_module::image::Image;
use kmem_module::layout::{Layout, PerCpu, Wants};
use kmem_module::link::{Options, Resolve, link};
use kmem_module::modinfo::Modinfo;
use kmem_module::os::{Account, Gauge, Linux};
use kmem_module::relocate::{Far, Needs};
use kmem_module::source::{Source, Window};
use kmem_module::{Error, Result};
use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The step that finds a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// After the allocation of its memory: up to Linux 6.3.
    WithMemory,
    /// After reading its file: since Linux 6.4.
    WithFile,
}

/// A loader that never unloads.
pub(super) struct Old {
    found: Found,
    gauge: Arc<Gauge>,
    /// Names of modules, with the memory of live ones.
    names: Mutex<HashMap<String, Option<Image>>>,
    live: Condvar,
    wasted: AtomicU64,
}

const MOST: u64 = 64 << 20;

/// Resolves nothing: the modules of the storms have no imports.
struct Nothing;

impl Resolve for Nothing {
    fn resolve(&mut self, _: &std::ffi::CStr) -> Result<Option<u64>> {
        Ok(None)
    }

    fn percpu(&mut self, _: PerCpu) -> Result<u64> {
        Err(Error::noexec("the modules of the storms have no per-CPU variables"))
    }
}

impl Old {
    pub(super) fn new(found: Found) -> Self {
        Self {
            found,
            gauge: Arc::default(),
            names: Mutex::default(),
            live: Condvar::new(),
            wasted: AtomicU64::new(0),
        }
    }

    /// Bytes that duplicates took.
    pub(super) fn wasted(&self) -> u64 {
        self.wasted.load(Ordering::Relaxed)
    }

    /// Most bytes held.
    pub(super) fn peak(&self) -> u64 {
        self.gauge.peak()
    }

    /// Number of modules that are loaded or being loaded.
    pub(super) fn loaded(&self) -> u64 {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    pub(super) fn finit_module(&self, path: &Path) -> std::result::Result<(), String> {
        let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
        let len = file.metadata().map_err(|e| e.to_string())?.len();
        self.load(Source::File(file.as_fd(), len)).map_err(|e| e.to_string())
    }

    pub(super) fn init_module(&self, bytes: &[u8]) -> std::result::Result<(), String> {
        self.load(Source::Bytes(bytes)).map_err(|e| e.to_string())
    }

    /// Loads a module. Both system calls copy the whole file first.
    fn load(&self, source: Source<'_>) -> Result<()> {
        let account = Account::new(Arc::new(Linux), self.gauge.clone())?;
        let mut copy = account.buffer(source.len(), "the file")?;
        source.read(&account, 0, &mut copy, "the file")?;
        let source = Source::Bytes(&copy);
        let file = Elf::read(source, &account, Some(Machine::HERE))?;
        let name = Modinfo::read(&file, &account)?.name()?;
        let name = name.map_or_else(String::new, |name| name.to_string());
        // A duplicate holds this memory until the end of this function.
        let memory = match self.found {
            Found::WithMemory => Some(self::memory(&file, &account)?),
            Found::WithFile => None,
        };
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(state) = names.get(&name) {
            if state.is_some() {
                self.wasted.fetch_add(account.spent(), Ordering::Relaxed);
                return Ok(());
            }
            names = self.live.wait(names).unwrap_or_else(PoisonError::into_inner);
        }
        names.insert(name.clone(), None);
        drop(names);
        drop(memory);
        let options = Options { machine: Machine::HERE, base: None, most: MOST, this_module: 0 };
        let mut linked = link(&file, &account, &options, &mut Nothing)?;
        linked.image.seal()?;
        // SAFETY: no code of the module runs.
        if !unsafe { linked.image.finish_init() } {
            return Err(Error::noexec("not sealed"));
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(name, Some(linked.image));
        self.live.notify_all();
        Ok(())
    }
}

/// Allocates the module's memory, without contents.
fn memory(file: &Elf<'_>, account: &Account) -> Result<Image> {
    let symtab = kmem_module::elf::Symtab::read(file, account)?;
    let mut window = Window::new(file.source, account)?;
    let needs = Needs::count(file, &symtab, &mut window, account, Machine::HERE, Far::InReach)?;
    let wants = Wants { got: needs.got, veneers: needs.veneers, symbols: 0, most: MOST };
    Image::map(account, Layout::new(file, wants)?, None)
}
