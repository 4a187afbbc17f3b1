//! Unloading: waits until a module is not held, runs its exit, and takes it down.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Inner, Loader, WhenLive, delete};
use crate::alloc::Shared;
use crate::board::state;
use crate::error::{Errno, Error, Result};
use crate::module::{Module, call, lock};
use crate::registry::{self, Asked, Attempt, Registry, Slot, Tables};
use crate::tags::Live;

impl Loader {
    /// Unloads a module. Waits while it is held, unless [`delete::NONBLOCK`] is set. [`WhenLive`]
    /// decides about allocations that are live after its exit.
    ///
    /// # Errors
    /// `ENOENT`: there is no such module; `EAGAIN`: other modules use it, or it is held and
    /// [`delete::NONBLOCK`] is set; `EBUSY`: it is being loaded or unloaded, has an init and no
    /// exit, or has live allocations with [`WhenLive::Refuse`]; `EINTR`.
    pub fn delete_module(&self, name: &str, flags: u32) -> Result<()> {
        let module = self.0.begin_unload(name)?;
        let result = self.0.unload(&module, flags);
        self.0.show_held();
        result
    }
}

impl Inner {
    /// Finds a module to unload, which no other module uses.
    fn begin_unload(&self, name: &str) -> Result<Shared<Module>> {
        let tables = self.registry.lock();
        let module = match tables.names.get(name) {
            None => return Err(Error::new(Errno::ENOENT, format_args!("no module called {name}"))),
            Some(Slot::Live(module) | Slot::Left(module)) => module.clone(),
            Some(Slot::Loading(..)) => return Err(busy(name, "is being loaded")),
            Some(Slot::Going(..)) => return Err(busy(name, "is being unloaded")),
        };
        if tables.users_of(name).next().is_some() {
            let what = format_args!("{name} is used by {}", tables.users_text(name, ", "));
            return Err(Error::new(Errno::EAGAIN, what));
        }
        Ok(module)
    }

    fn unload(self: &Arc<Self>, module: &Shared<Module>, flags: u32) -> Result<()> {
        let name = module.name;
        // The name has a slot as long as the module exists.
        let set = |tables: &mut Tables, slot: Slot| {
            if let Some(place) = tables.names.get_mut(&name) {
                *place = slot;
            }
        };
        {
            let body = lock(&module.body);
            if body.init.is_some() && body.exit.is_none() && flags & delete::FORCE == 0 {
                return Err(busy(&name, "has an init and no exit"));
            }
        }
        let (attempt, gone_before) = self.begin_going(module, flags)?;
        if let Err(error) = module.wait_for_last_put() {
            // A signal arrived: the module stays live, and can be held again.
            module.reopen();
            self.registry.end(&attempt, None, Err(error.clone()), |tables| {
                set(tables, Slot::Live(module.clone()));
                self.board.change(|| module.entry().state.store(state::LIVE, Ordering::Relaxed));
            });
            return Err(error);
        }
        if !gone_before {
            let (exit, destructors) = {
                let mut body = lock(&module.body);
                (body.exit, std::mem::take(&mut body.fini_array))
            };
            // SAFETY: functions in sealed code of the module, which stays mapped until `take_down`.
            unsafe {
                exit.map(|exit| call(exit));
                for destructor in destructors.into_iter().rev() {
                    call(destructor);
                }
            }
        }
        if flags & delete::FORCE == 0
            && let Err(error) = self.check_live(module)
        {
            self.registry.end(&attempt, None, Err(error.clone()), |tables| {
                set(tables, Slot::Left(module.clone()));
            });
            return Err(error);
        }
        self.take_down(module);
        self.registry.end(&attempt, None, Ok(()), |tables| {
            tables.names.remove(&name);
        });
        Ok(())
    }

    /// Checks that a module whose exit has run may be taken down.
    ///
    /// # Errors
    /// `EBUSY`: its allocations are live, with [`WhenLive::Refuse`].
    fn check_live(&self, module: &Module) -> Result<()> {
        if self.config.when_live == WhenLive::KeepTags {
            return Ok(());
        }
        let body = lock(&module.body);
        let live = body.tags.as_ref().and_then(|tags| Live::of(&*self.config.books, tags));
        live.map_or(Ok(()), |live| {
            Err(busy(&module.name, format_args!("has run its exit; {live}")))
        })
    }

    /// Marks a module as going, so that it cannot be held any more. Returns whether its exit has
    /// run in an earlier call.
    fn begin_going(
        self: &Arc<Self>,
        module: &Shared<Module>,
        flags: u32,
    ) -> Result<(Shared<Attempt>, bool)> {
        let name = &module.name;
        let attempt = Registry::begin(Asked::new("", u32::MAX)?)?;
        let mut tables = self.registry.lock();
        let left = match tables.names.get(name) {
            Some(Slot::Live(live)) if Shared::ptr_eq(live, module) => false,
            Some(Slot::Left(left)) if Shared::ptr_eq(left, module) => true,
            _ => return Err(busy(name, "is being unloaded")),
        };
        registry::begin(Arc::downgrade(self), &attempt)?;
        if !module.close() && flags & delete::NONBLOCK != 0 {
            module.reopen();
            registry::ended(&attempt);
            let what = format_args!("{name} is held {} times", module.refcount());
            return Err(Error::new(Errno::EAGAIN, what));
        }
        if let Some(slot) = tables.names.get_mut(name) {
            *slot = Slot::Going(attempt.clone(), module.clone());
        }
        self.board.change(|| module.entry().state.store(state::GOING, Ordering::Relaxed));
        Ok((attempt, left))
    }
}

fn busy(name: &str, why: impl fmt::Display) -> Error {
    Error::new(Errno::EBUSY, format_args!("{name} {why}"))
}
