//! The way from a linked module to a live one: imports, publication, init. And the way back.

use std::ffi::CStr;
use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Inner, provided};
use crate::alloc::{self, Lossy, Shared};
use crate::board::{self, state};
use crate::error::{Errno, Error, Result, warn};
use crate::layout::PerCpu;
use crate::link::Resolve;
use crate::module::{Module, call, lock};
use crate::percpu::Copies;
use crate::registry::{Attempt, Slot, Tables};
use crate::stats::Stat;
use crate::symbols::{Definition, Export, Versions};
use crate::tags::OwnTags;

/// Resolves the imports of a module.
pub(super) struct Imports<'a> {
    pub(super) loader: &'a Arc<Inner>,
    /// True if it may use symbols that are only for modules under the GPL.
    pub(super) gpl: bool,
    /// The versions that it was built for, if they are checked.
    pub(super) versions: Option<&'a Versions<'a>>,
    /// The modules that it uses, each held once.
    pub(super) uses: Vec<Shared<Module>>,
    /// The tags of memory that the loader allocates for it.
    pub(super) tags: &'static OwnTags,
    /// Its per-CPU variables.
    pub(super) percpu: Option<Copies>,
}

impl Resolve for Imports<'_> {
    fn resolve(&mut self, name: &CStr) -> Result<Option<u64>> {
        if let Some(value) = provided::find(name.to_bytes()) {
            return Ok(Some(value));
        }
        let found = match self.of_modules(name)? {
            Some(found) => Some(found),
            None if name.is_empty() => None,
            None => self.loader.config.core.find(name),
        };
        let Some(found) = found else { return Ok(None) };
        if found.gpl && !self.gpl {
            return Err(Error::noexec(format_args!(
                "symbol {} is only for modules with a licence compatible with the GPL",
                Lossy(name.to_bytes())
            )));
        }
        if let Some(versions) = self.versions {
            versions.check(name.to_bytes(), &found)?;
        }
        Ok(Some(found.value))
    }

    fn percpu(&mut self, variables: PerCpu) -> Result<u64> {
        let copies = Copies::new(self.loader.config.books.clone(), variables, self.tags)?;
        Ok(self.percpu.insert(copies).address())
    }
}

impl Imports<'_> {
    /// Looks for a symbol among the exports of modules. Waits for a module that is being loaded or
    /// unloaded.
    fn of_modules(&mut self, name: &CStr) -> Result<Option<Definition>> {
        loop {
            let tables = self.loader.registry.lock();
            let Some((module, found)) = tables.exports.get(name) else { return Ok(None) };
            let attempt = match tables.names.get(&module.name) {
                Some(Slot::Live(live)) if Shared::ptr_eq(live, module) => {
                    if self.uses.iter().any(|used| Shared::ptr_eq(used, module)) {
                        return Ok(Some(*found));
                    }
                    alloc::room(&mut self.uses)?;
                    if module.try_get() {
                        self.uses.push(module.clone());
                        return Ok(Some(*found));
                    }
                    return Ok(None);
                }
                Some(Slot::Loading(attempt, _) | Slot::Going(attempt, _)) => attempt.clone(),
                _ => return Ok(None),
            };
            drop(tables);
            self.loader.registry.wait(&attempt)?;
        }
    }
}

impl Inner {
    /// Publishes a linked module, seals it, and runs its init.
    pub(super) fn come_alive(
        self: &Arc<Self>,
        attempt: &Shared<Attempt>,
        module: &Shared<Module>,
    ) -> Result<()> {
        self.publish(attempt, module)?;
        let (init, constructors, size, text) = {
            let mut body = lock(&module.body);
            let image = body.image.as_mut().ok_or_else(|| Error::noexec("no image"))?;
            if self.config.perf_map {
                crate::perf_map::append(&module.name, image);
            }
            image.seal()?;
            #[cfg(feature = "jit")]
            let symbols = (image.base() + image.layout.symbols, image.layout.symbols_size);
            let (size, text) = (image.layout.kept(), image.layout.text);
            if let Some(tags) = &body.tags {
                // SAFETY: checked tags, in memory that stays mapped until `take_down` has
                // unregistered them.
                unsafe { self.config.books.register(tags, &module.name) };
            }
            // Before init, in which a breakpoint may be.
            #[cfg(feature = "jit")]
            {
                body.jit = Some(crate::jit::Registered::new(symbols.0 as usize, symbols.1)?);
            }
            (body.init, std::mem::take(&mut body.init_array), size, text)
        };
        for constructor in constructors {
            // SAFETY: a function in sealed code of the module, which stays mapped during the load.
            unsafe { call(constructor) };
        }
        // SAFETY: a function in sealed code of the module, which stays mapped during the load.
        let result = init.map_or(0, |init| unsafe { call(init) });
        if result < 0 {
            let name = &module.name;
            return Err(Error::new(
                Errno(-result),
                format_args!("init of {name} returned {result}"),
            ));
        }
        if result > 0 {
            warn(format_args!(
                "init of module {} returned {result}; success is 0, failure a negative errno",
                module.name
            ));
        }
        let mut body = lock(&module.body);
        if let Some(image) = body.image.as_mut() {
            // SAFETY: init has returned, and no code uses its parts afterwards.
            if !unsafe { image.finish_init() } {
                let name = &module.name;
                warn(format_args!("module {name}: what init initialised stays writable"));
            }
        }
        drop(body);
        self.count(Stat::Loaded, 1);
        self.count(Stat::TotalSize, size);
        self.count(Stat::TotalText, text);
        let _tables = self.registry.lock();
        self.board.change(|| {
            module.entry().size.store(size, Ordering::Relaxed);
            module.entry().state.store(state::LIVE, Ordering::Relaxed);
        });
        Ok(())
    }

    /// Publishes the module's exports and users.
    fn publish(&self, attempt: &Shared<Attempt>, module: &Shared<Module>) -> Result<()> {
        let taken = |name: &CStr, owner: fmt::Arguments<'_>| {
            let what = format_args!("{} exports {name:?}, which {owner} has", module.name);
            Error::new(Errno::EEXIST, what)
        };
        // The dynamic linker takes its own lock, so it is not called under the registry's. No other
        // thread reads the exports of a module that is being loaded.
        let exports = std::mem::take(&mut lock(&module.body).exports);
        for Export { name, .. } in &exports {
            if self.config.core.find(name).is_some() || provided::find(name.as_bytes()).is_some() {
                return Err(taken(name, format_args!("the process")));
            }
        }
        let mut guard = self.registry.lock();
        let tables = &mut *guard;
        for Export { name, is } in exports {
            if let Some((other, _)) = tables.exports.get(&name) {
                return Err(taken(&name, format_args!("module {}", other.name)));
            }
            alloc::insert(&mut tables.exports, name, (module.clone(), is))?;
        }
        let slot = tables.names.get_mut(&module.name);
        if let Some(slot) = slot
            && matches!(slot, Slot::Loading(other, _) if Shared::ptr_eq(other, attempt))
        {
            *slot = Slot::Loading(attempt.clone(), Some(module.clone()));
        }
        let entry = module.entry();
        let body = lock(&module.body);
        let image = body.image.as_ref();
        self.board.change(|| {
            entry.base.store(image.map_or(0, |image| image.base()), Ordering::Relaxed);
            let symbols = image.map_or(0, |image| image.base() + image.layout.symbols);
            entry.symbols.store(symbols, Ordering::Relaxed);
            entry.size.store(image.map_or(0, |image| image.len()), Ordering::Relaxed);
            entry.text.store(image.map_or(0, |image| image.layout.text), Ordering::Relaxed);
        });
        drop(body);
        let used = |number: usize| lock(&module.body).uses.get(number).cloned();
        let mut number = 0;
        while let Some(used) = used(number) {
            self.show_users(tables, &used.name);
            number += 1;
        }
        Ok(())
    }

    /// Writes the users of a module to the board.
    fn show_users(&self, tables: &Tables, name: &str) {
        let Some(Slot::Live(module)) = tables.names.get(name) else { return };
        let mut text = [0; board::USERS * 8];
        let mut rest = &mut text[..];
        // Names that do not fit are cut off.
        let _ = write!(rest, "{}", tables.users_text(name, ","));
        let len = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        self.board.change(|| board::store_text(&module.entry().users, &text[..len]));
    }

    /// Removes a module's exports, tags, uses, memory and entry on the board.
    pub(crate) fn take_down(self: &Arc<Self>, module: &Shared<Module>) {
        module.close();
        let mut guard = self.registry.lock();
        let tables = &mut *guard;
        tables.exports.retain(|_, (owner, _)| !Shared::ptr_eq(owner, module));
        tables.forget_files(&module.name);
        let body = std::mem::take(&mut *lock(&module.body));
        for used in &body.uses {
            used.put();
            self.show_users(tables, &used.name);
        }
        drop(guard);
        if let Some(tags) = &body.tags {
            // SAFETY: the range is that of `register`, or was never registered, which `unregister`
            // ignores. No thread runs code of the module any more.
            unsafe { self.config.books.unregister(tags, &module.name) };
        }
        drop(body);
        let _tables = self.registry.lock();
        self.board.change(|| {
            module.entry().state.store(state::FREE, Ordering::Relaxed);
        });
    }
}
