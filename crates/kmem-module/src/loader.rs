//! The loader: `finit_module`, `init_module`, `delete_module` and `request_module`, as values.
//!
//! ```text
//! absent -> probing -> loading -> coming -> live -> going -> absent
//!           64 KiB     memory     init      used    exit
//! ```
//!
//! | state | what there is | others who want it |
//! |---|---|---|
//! | probing | a window of the file, its file claimed | wait |
//! | loading | the name claimed, then memory | wait |
//! | coming | exports and tags published, init runs | wait; for its symbols, too |
//! | live | all | `EEXIST`; may hold it and use its symbols |
//! | going | nobody holds it, exit runs | wait |
//! | left | exit has run, what the module allocated is live (if that is refused) | `EBUSY`; may unload it again |
//!
//! Lock order: the registry's lock, then a module's body. Neither is held while code of a module runs.

mod coming;
mod file;
mod load;
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
use crate::module::{Held, Module, lock};
use crate::name::Name;
use crate::os::{Account, Gauge, Linux, Os};
use crate::registry::{Attempt, Registry, Slot};
use crate::signature::Verify;
use crate::stats::{Stat, Stats};
use crate::symbols::{Core, Process};
use crate::tags::{Books, Libkmem};

/// Flags of [`Loader::finit_module`], with the system call's values.
pub mod flags {
    /// Takes symbols of other versions than the module was built for.
    pub const IGNORE_MODVERSIONS: u32 = 1;
    /// Takes a module of another ABI.
    pub const IGNORE_VERMAGIC: u32 = 2;
    /// The file is compressed.
    pub const COMPRESSED_FILE: u32 = 4;
    pub(crate) const ALL: u32 = 7;
}

/// Flags of [`Loader::delete_module`], with the system call's values.
pub mod delete {
    /// Does not wait until nobody holds it.
    pub const NONBLOCK: u32 = libc::O_NONBLOCK.cast_unsigned();
    /// Unloads a module that has no exit.
    pub const FORCE: u32 = libc::O_TRUNC.cast_unsigned();
}

/// What is done when a module is unloaded, its exit has run, and allocations of its sites are live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenLive {
    /// The module goes; its tags stay in the books, and a warning names the sites.
    #[default]
    KeepTags,
    /// The module stays mapped, with its name, until they are freed and it is unloaded once more: `EBUSY` names the
    /// sites. What they point to in the module stays good. [`delete::FORCE`] unloads it nevertheless.
    Refuse,
}

/// What a loader goes by.
pub struct Config {
    /// The platform.
    pub os: Arc<dyn Os>,
    /// Symbols that are there without modules.
    pub core: Box<dyn Core>,
    /// Where code tags are made known.
    pub books: Box<dyn Books>,
    /// What is done when a module is unloaded and what it allocated is in use.
    pub when_live: WhenLive,
    /// Most bytes of a module's memory, and of a file when it is decompressed.
    pub most: u64,
    /// CPUs that per-CPU variables are for.
    pub cpus: u64,
    /// If there is one, only modules with a signature that it finds right are loaded.
    pub verify: Option<Verify>,
    /// Directories that [`Loader::request_module`] looks through.
    pub search_path: Vec<PathBuf>,
    /// Requests that are served at a time.
    pub most_requests: u32,
}

impl Default for Config {
    fn default() -> Self {
        // SAFETY: asks for a number.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        Self {
            os: Arc::new(Linux),
            core: Box::new(Process),
            books: Box::new(Libkmem),
            when_live: WhenLive::KeepTags,
            most: 64 << 20,
            cpus: u64::try_from(cpus).unwrap_or(1).max(1),
            verify: None,
            search_path: Vec::new(),
            most_requests: 50,
        }
    }
}

/// A loader. Clones are the same loader.
#[derive(Clone)]
pub struct Loader(pub(crate) Arc<Inner>);

/// What a loader consists of.
pub struct Inner {
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) board: Arc<Board>,
    pub(crate) slots: Slots,
    gauge: Arc<Gauge>,
    key: RandomState,
}

/// A module that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub size: u64,
    /// Bytes of code.
    pub text: u64,
    /// How often it is held, by modules that use it, too.
    pub refcount: u32,
    /// Modules that use it.
    pub users: Vec<String>,
    /// `Loading`, `Live` or `Unloading`.
    pub state: &'static str,
    /// Its address; 0 for readers who may not know it.
    pub base: u64,
}

/// A symbol that a live module exports, which stays as long as this lives.
pub struct Symbol {
    /// Its address.
    pub address: u64,
    /// Its module.
    pub module: Held,
}

impl Loader {
    /// A loader with its board.
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

    /// The statistics now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.show_held();
        Stats::of(&self.0.board)
    }

    /// Bytes that the loader holds for modules and requests.
    #[must_use]
    pub fn gauge(&self) -> &Gauge {
        &self.0.gauge
    }

    /// All modules, by name. Addresses are for those who may know them.
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

    /// The text of `/proc/modules`. Addresses are zero for those who may not know them.
    #[must_use]
    pub fn proc_modules(&self, addresses: bool) -> String {
        self.modules(addresses).iter().fold(String::new(), |text, m| {
            let users: String = m.users.iter().map(|user| format!("{user},")).collect();
            let users = if users.is_empty() { "-" } else { &users };
            let Info { name, size, refcount, state, base, .. } = m;
            format!("{text}{name} {size} {refcount} {users} {state} {base:#018x}\n")
        })
    }

    /// Threads that wait for what others do now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.registry.lock().waiting()
    }

    /// A symbol that a live module exports.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.exported(name, |module, address, live| {
            live.then(|| Some(Symbol { address, module: Held::new(module)? }))?
        })
    }

    /// The address of a symbol that a live module exports; its module is held until [`Loader::symbol_put`].
    #[must_use]
    pub fn symbol_get(&self, name: &str) -> Option<u64> {
        self.exported(name, |module, address, live| (live && module.try_get()).then_some(address))
    }

    /// Lets go of the module that exports a symbol. False: there is none.
    pub fn symbol_put(&self, name: &str) -> bool {
        let module = self.exported(name, |module, _, _| Some(module.clone()));
        module.as_deref().map(Module::put).is_some()
    }

    /// What `find` makes of a symbol's module, its address, and whether the module is live.
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
    /// The modules that use a module, in no order.
    fn users_of<'t>(&'t self, name: &'t str) -> impl Iterator<Item = &'t Shared<Module>> {
        self.names
            .values()
            .filter_map(|slot| match slot {
                Slot::Loading(_, module) => module.as_ref(),
                Slot::Live(module) | Slot::Going(_, module) | Slot::Left(module) => Some(module),
            })
            .filter(move |module| lock(&module.body).uses.iter().any(|used| *used.name == *name))
    }

    /// Names of the modules that use a module.
    fn users(&self, name: &str) -> Vec<String> {
        let mut users: Vec<String> =
            self.users_of(name).map(|module| module.name.to_string()).collect();
        users.sort();
        users
    }

    /// The same as text, in order, without taking memory.
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

    /// Counts a request that met a module of its name.
    fn count_duplicate(&self, name: &str, bytes: u64) {
        self.count(Stat::FailedBecoming, 1);
        self.count(Stat::BecomingBytes, bytes);
        let _tables = self.registry.lock();
        self.board.change(|| self.board.count_failed(name, reason::BECOMING));
    }

    /// A place on the board for a new module.
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
            for word in [&entry.base, &entry.size, &entry.text] {
                word.store(0, Ordering::Relaxed);
            }
            entry.refs.store(0, Ordering::Relaxed);
            self.board.header().module_used.fetch_max(slot as u32 + 1, Ordering::Relaxed);
            entry.state.store(state::COMING, Ordering::Release);
        });
        Ok(module)
    }

    /// Ends what a thread began and cannot end any more.
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
