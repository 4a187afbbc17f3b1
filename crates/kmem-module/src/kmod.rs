//! `request_module`: finds a module by name or alias, and loads it with its dependencies.
//!
//! A limited number of requests is served at once; further ones wait for a slot. Requests for one
//! name share a result. A request from a module's init takes no slot: such requests could wait for
//! each other's slots without end. The depth of these nested requests is bounded, and a circle is
//! an error.

use std::cell::Cell;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;

use crate::alloc::{self, Shared};
use crate::decompress::Format;
use crate::depmod::{Catalogue, Step};
use crate::describe;
use crate::error::{Errno, Error, Result};
use crate::loader::{Inner, Loader, flags};
use crate::registry::{self, Asked, Attempt, Registry, Slot};

/// Most nested requests of a thread.
const MAX_DEPTH: u32 = 16;

thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });

/// A request that the calling thread serves, counted in [`DEPTH`].
struct Nested;

impl Nested {
    fn enter() -> Result<(Self, u32)> {
        let depth = DEPTH.get();
        if depth == MAX_DEPTH {
            let what = format_args!("requests for modules are nested more than {MAX_DEPTH} deep");
            return Err(Error::new(Errno::EDEADLK, what));
        }
        DEPTH.set(depth + 1);
        Ok((Self, depth))
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl Loader {
    /// Loads a module by name or alias from the search path, with the modules that it depends on.
    /// Succeeds if it is loaded already.
    ///
    /// # Errors
    /// `ENOENT`: there is no such module, or no search path; `EDEADLK`: the caller requests or
    /// loads it already; and those of [`Loader::finit_module`].
    pub fn request_module(&self, name: &str) -> Result<()> {
        let key = name.replace('-', "_");
        loop {
            let mut tables = self.0.registry.lock();
            if matches!(tables.names.get(&*key), Some(Slot::Live(_))) {
                return Ok(());
            }
            let other = match tables.requests.get(&key) {
                Some(other) => other.clone(),
                None => {
                    let attempt = Registry::begin(Asked::new("", 0)?)?;
                    registry::begin(Arc::downgrade(&self.0), &attempt)?;
                    alloc::insert(&mut tables.requests, key.clone(), attempt.clone())
                        .inspect_err(|_| registry::ended(&attempt))?;
                    drop(tables);
                    let result = self.serve(&key, &attempt);
                    attempt.give_place(&self.0.slots);
                    self.0.registry.end(&attempt, None, result.clone(), |tables| {
                        tables.requests.remove(&key);
                    });
                    return result;
                }
            };
            drop(tables);
            self.0.registry.wait(&other)?;
            match other.outcome() {
                Some(Err(error)) if error.is_transient() => {}
                Some(result) => return result.clone(),
                None => {}
            }
        }
    }

    fn serve(&self, name: &str, attempt: &Shared<Attempt>) -> Result<()> {
        let (_nested, depth) = Nested::enter()?;
        if depth == 0 {
            attempt.take_place(&self.0.slots)?;
        }
        for step in self.0.plan(name)? {
            let loaded = self.load_file(&step.path, "");
            if step.required {
                match loaded {
                    Err(error) if error.errno != Errno::EEXIST => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Loads the module in the file at a path, which may be compressed.
    ///
    /// # Errors
    /// As for [`Loader::finit_module`]; the text names the file.
    pub fn load_file(&self, path: &Path, args: &str) -> Result<()> {
        let named = |error: Error| {
            Error::new(error.errno, format_args!("{}: {}", path.display(), error.what))
        };
        let file = describe::open(path)?;
        let mut start = [0; 6];
        let got = std::os::unix::fs::FileExt::read_at(&file, &mut start, 0)
            .map_err(|e| named(Error::io("read", &e)))?;
        let flags = if Format::of(&start[..got]).is_some() { flags::COMPRESSED_FILE } else { 0 };
        self.finit_module(file.as_raw_fd(), args, flags).map_err(named)
    }
}

impl Inner {
    /// The files to load for a name, from the first directory of the search path that knows it.
    ///
    /// # Errors
    /// `ENOENT`: no directory knows it, or there is no search path.
    fn plan(&self, name: &str) -> Result<Vec<Step>> {
        let path = &self.config.search_path;
        if path.is_empty() {
            return Err(Error::new(Errno::ENOENT, "there is no search path for modules"));
        }
        for dir in path {
            match Catalogue::read(dir) {
                Ok(catalogue) => {
                    if let Some(steps) = catalogue.plan(name)? {
                        return Ok(steps);
                    }
                }
                Err(error) if error.errno == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        let dirs: Vec<String> = path.iter().map(|dir| dir.display().to_string()).collect();
        Err(Error::new(
            Errno::ENOENT,
            format_args!("no module or alias {name} in {}", dirs.join(", ")),
        ))
    }
}
