//! The loader: `finit_module`, `init_module`, `delete_module` and `request_module`.
//!
//! ```text
//! absent -> probing -> loading -> coming -> live -> going -> absent
//!           64 KiB     memory     init      used    exit
//! ```
//!
//! | state   | of the module                                   | other requests for it           |
//! |---------|-------------------------------------------------|---------------------------------|
//! | probing | its file is claimed, a window of it is read     | wait                            |
//! | loading | its name is claimed, then it has memory         | wait                            |
//! | coming  | exports and tags are published, init runs       | wait, also for its symbols      |
//! | live    | it is complete                                  | `EEXIST`; may hold and use it   |
//! | going   | it is not held, exit runs                       | wait                            |
//! | left    | exit has run, its allocations are live          | `EBUSY`; may unload it again    |
//!
//! State `left` exists with [`WhenLive::Refuse`] only.
//!
//! Lock order: the registry's lock, then a module's body. No thread holds either while it runs code
//! of a module.

mod coming;
mod file;
mod load;
mod parameters;
mod provided;
mod unload;

use std::ffi::CString;
use std::fmt;
use std::hash::RandomState;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::alloc::Shared;
use crate::board::{Board, reason, state};
use crate::completion::Slots;
use crate::error::{Error, Result};
use crate::libkmem::Libkmem;
use crate::module::{Held, Module, lock};
use crate::name::Name;
use crate::os::{Account, Gauge, Linux, Os};
use crate::registry::{Attempt, Registry, Slot};
use crate::signature::Verify;
use crate::stats::{Stat, Stats};
use crate::symbols::{Core, Process};
use crate::tags::Books;

/// Flags of [`Loader::finit_module`], with the system call's values.
pub mod flags {
    /// Accepts symbols of other versions than the module was built for.
    pub const IGNORE_MODVERSIONS: u32 = 1;
    /// Accepts a module of another ABI.
    pub const IGNORE_VERMAGIC: u32 = 2;
    /// The file is compressed.
    pub const COMPRESSED_FILE: u32 = 4;
    pub(crate) const ALL: u32 = 7;
}

/// Flags of [`Loader::delete_module`], with the system call's values.
pub mod delete {
    /// Fails instead of waiting while the module is held.
    pub const NONBLOCK: u32 = libc::O_NONBLOCK.cast_unsigned();
    /// Unloads a module that has an init and no exit, or live allocations.
    pub const FORCE: u32 = libc::O_TRUNC.cast_unsigned();
}

/// The treatment of a module whose allocations are live after its exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenLive {
    /// It is unloaded. Its tags stay in the books, and a warning lists the call sites.
    #[default]
    KeepTags,
    /// It stays mapped under its name, so pointers into it stay valid. The result is `EBUSY` with
    /// the call sites. Another call unloads it once they are freed, or with [`delete::FORCE`].
    Refuse,
}

/// Settings of a loader.
pub struct Config {
    /// The platform.
    pub os: Arc<dyn Os>,
    /// Symbols of the process.
    pub core: Box<dyn Core>,
    /// The allocator of modules: it is told of static tags, and has the memory of modules.
    pub books: Arc<dyn Books>,
    /// The treatment of a module whose allocations are live after its exit.
    pub when_live: WhenLive,
    /// Most bytes of a module's memory, and of a decompressed file.
    pub most: u64,
    /// Writes the names of functions to `/tmp/perf-PID.map`, for perf.
    pub perf_map: bool,
    /// Checks signatures. With it only signed modules are loaded; without it signatures are not
    /// checked.
    pub verify: Option<Arc<dyn Verify>>,
    /// Directories that [`Loader::request_module`] searches, in order.
    pub search_path: Vec<PathBuf>,
    /// Most calls of [`Loader::request_module`] served at once.
    pub most_requests: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            os: Arc::new(Linux),
            core: Box::new(Process),
            books: Arc::new(Libkmem),
            when_live: WhenLive::KeepTags,
            most: 64 << 20,
            perf_map: false,
            verify: None,
            search_path: Vec::new(),
            most_requests: 50,
        }
    }
}

/// A loader. Clones refer to one loader.
#[derive(Clone)]
pub struct Loader(pub(crate) Arc<Inner>);

/// The shared state of a loader.
pub struct Inner {
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) board: Arc<Board>,
    pub(crate) slots: Slots,
    gauge: Arc<Gauge>,
    key: RandomState,
}

/// Information about a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub size: u64,
    /// Bytes of its code.
    pub text: u64,
    /// Number of times that it is held, by modules that use it included.
    pub refcount: u32,
    /// Names of modules that use it.
    pub users: Vec<String>,
    /// `Loading`, `Live` or `Unloading`.
    pub state: &'static str,
    /// Its address, or 0 if addresses are hidden.
    pub base: u64,
}

/// A symbol of a live module, which is held as long as this value lives.
pub struct Symbol {
    /// Its address.
    pub address: u64,
    /// A hold on its module.
    pub module: Held,
}

impl Loader {
    /// Makes a loader and its board.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(config: Config) -> Result<Self> {
        let board = Board::new()
            .ok_or_else(|| Error::nomem(crate::board::SIZE as u64, "the board of modules"))?;
        Ok(Self(Arc::new(Inner {
            slots: Slots::new(config.most_requests),
            config,
            registry: Registry::default(),
            board: Arc::new(board),
            gauge: Arc::default(),
            key: RandomState::new(),
        })))
    }

    /// The present statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.show_held();
        crate::stats::of(&self.0.board)
    }

    /// Bytes that the loader holds for modules and requests.
    #[must_use]
    pub fn gauge(&self) -> &Gauge {
        &self.0.gauge
    }

    /// All modules, sorted by name. Without `addresses`, base addresses are 0.
    #[must_use]
    pub fn modules(&self, addresses: bool) -> Vec<Info> {
        let tables = self.0.registry.lock();
        let mut all: Vec<Info> = tables
            .names
            .values()
            .filter_map(|slot| {
                let (module, state) = match slot {
                    Slot::Loading(_, module) => (module.as_ref()?, "Loading"),
                    Slot::Live(module) => (module, "Live"),
                    Slot::Going(_, module) | Slot::Left(module) => (module, "Unloading"),
                };
                let entry = module.entry();
                Some(Info {
                    name: module.name.to_string(),
                    size: entry.size.load(Ordering::Relaxed),
                    text: entry.text.load(Ordering::Relaxed),
                    refcount: module.refcount(),
                    users: tables.users(&module.name),
                    state,
                    base: if addresses { entry.base.load(Ordering::Relaxed) } else { 0 },
                })
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// All modules in the layout of `/proc/modules`. Without `addresses`, base addresses are 0.
    #[must_use]
    pub fn proc_modules(&self, addresses: bool) -> String {
        self.modules(addresses).iter().fold(String::new(), |text, m| {
            let users: String = m.users.iter().map(|user| format!("{user},")).collect();
            let users = if users.is_empty() { "-" } else { &users };
            let Info { name, size, refcount, state, base, .. } = m;
            format!("{text}{name} {size} {refcount} {users} {state} {base:#018x}\n")
        })
    }

    /// Number of threads that wait for requests of other threads.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.registry.lock().waiting()
    }

    /// Finds a symbol that a live module exports, and holds the module.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.exported(name, |module, address, live| {
            live.then(|| Some(Symbol { address, module: Held::new(module)? }))?
        })
    }

    /// Finds the address of a symbol that a live module exports. Holds the module until
    /// [`Loader::symbol_put`].
    #[must_use]
    pub fn symbol_get(&self, name: &str) -> Option<u64> {
        self.exported(name, |module, address, live| (live && module.try_get()).then_some(address))
    }

    /// Releases the module that exports a symbol once. False: no module exports it.
    pub fn symbol_put(&self, name: &str) -> bool {
        let module = self.exported(name, |module, _, _| Some(module.clone()));
        module.as_deref().map(Module::put).is_some()
    }

    /// Calls `find` with a symbol's module, its address, and whether the module is live.
    fn exported<T>(
        &self,
        name: &str,
        find: impl FnOnce(&Shared<Module>, u64, bool) -> Option<T>,
    ) -> Option<T> {
        let name = CString::new(name).ok()?;
        let tables = self.0.registry.lock();
        let (module, is) = tables.exports.get(&*name)?;
        let live = matches!(tables.names.get(&module.name), Some(Slot::Live(_)));
        find(module, is.value, live)
    }
}

impl crate::registry::Tables {
    /// The modules that use a module, in any order.
    fn users_of<'t>(&'t self, name: &'t str) -> impl Iterator<Item = &'t Shared<Module>> {
        self.names
            .values()
            .filter_map(|slot| match slot {
                Slot::Loading(_, module) => module.as_ref(),
                Slot::Live(module) | Slot::Going(_, module) | Slot::Left(module) => Some(module),
            })
            .filter(move |module| lock(&module.body).uses.iter().any(|used| *used.name == *name))
    }

    /// Names of the modules that use a module, sorted.
    fn users(&self, name: &str) -> Vec<String> {
        let mut users: Vec<String> =
            self.users_of(name).map(|module| module.name.to_string()).collect();
        users.sort();
        users
    }

    /// Names of the modules that use a module, sorted, as text. Allocates nothing.
    fn users_text<'t>(&'t self, name: &'t str, between: &'t str) -> UsersText<'t> {
        UsersText { tables: self, name, between }
    }
}

struct UsersText<'t> {
    tables: &'t crate::registry::Tables,
    name: &'t str,
    between: &'t str,
}

impl fmt::Display for UsersText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last: Option<Name> = None;
        loop {
            let after = |name: &Name| last.is_none_or(|last| *last < **name);
            let users = self.tables.users_of(self.name).map(|module| module.name);
            let Some(next) = users.filter(after).min_by(|a, b| a.cmp(b)) else { return Ok(()) };
            if last.is_some() {
                f.write_str(self.between)?;
            }
            f.write_str(&next)?;
            last = Some(next);
        }
    }
}

impl Inner {
    fn account(&self) -> Result<Account> {
        Account::new(self.config.os.clone(), self.gauge.clone())
    }

    fn count(&self, stat: Stat, more: u64) {
        self.board.header().stats[stat as usize].fetch_add(more, Ordering::Relaxed);
    }

    fn show_held(&self) {
        let header = self.board.header();
        header.held.store(self.gauge.now(), Ordering::Relaxed);
        header.held_peak.store(self.gauge.peak(), Ordering::Relaxed);
    }

    /// Counts a request for a module that is loaded, which took `bytes` bytes.
    fn count_duplicate(&self, name: &str, bytes: u64) {
        self.count(Stat::FailedBecoming, 1);
        self.count(Stat::BecomingBytes, bytes);
        let _tables = self.registry.lock();
        self.board.change(|| self.board.count_failed(name, reason::BECOMING));
    }

    /// Makes a module with an entry on the board.
    ///
    /// # Errors
    /// `ENOMEM`: there is no free entry, or no memory.
    fn new_module(self: &Arc<Self>, name: Name) -> Result<Shared<Module>> {
        let _tables = self.registry.lock();
        let entries = self.board.modules();
        let free =
            entries.iter().position(|entry| entry.state.load(Ordering::Relaxed) == state::FREE);
        let slot = free.ok_or_else(|| {
            Error::new(
                crate::error::Errno::ENOMEM,
                format_args!("{} modules are there", entries.len()),
            )
        })?;
        let module = Module::new(name, Arc::downgrade(self), self.board.clone(), slot);
        let module = Shared::new(module)?;
        self.board.change(|| {
            let entry = &entries[slot];
            crate::board::store_text(&entry.name, name.as_bytes());
            crate::board::store_text(&entry.users, b"");
            for word in [&entry.base, &entry.size, &entry.text, &entry.symbols] {
                word.store(0, Ordering::Relaxed);
            }
            entry.refs.store(0, Ordering::Relaxed);
            self.board.header().module_used.fetch_max(slot as u32 + 1, Ordering::Relaxed);
            entry.state.store(state::COMING, Ordering::Release);
        });
        Ok(module)
    }

    /// Ends an attempt whose thread ended first, and takes its module down.
    pub(crate) fn give_up(self: &Arc<Self>, attempt: &Shared<Attempt>) {
        let found = self.registry.lock().forget(attempt);
        if let Some((_, Some(module))) = found {
            self.take_down(&module);
        }
        attempt.give_place(&self.slots);
        let error =
            Error::new(crate::error::Errno::EINTR, "the thread that did this ended in between");
        self.registry.end(attempt, None, Err(error), |_| {});
        self.show_held();
    }
}
