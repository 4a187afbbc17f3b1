//! `request_module`: finds a module by name or alias, and loads it with what it depends on.
//!
//! So many requests are served at a time; the others wait. Equal requests are one. A request that is made while the same
//! thread serves another takes no place of its own, or requests from inits could wait for each other's places for ever;
//! how deep they go is bounded, and a circle is an error.

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

/// How deep requests may be nested.
const MAX_DEPTH: u32 = 16;

thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });

/// One request more on this thread.
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
    /// Loads a module by name or alias, with what it depends on, from the search path. It is no error if it is there.
    ///
    /// # Errors
    /// `ENOENT`: there is none, or no search path; `EDEADLK`: it is being requested or loaded by the caller; those of
    /// [`Loader::finit_module`].
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

    /// Loads a file by its path, compressed or not.
    ///
    /// # Errors
    /// As [`Loader::finit_module`]; names the file.
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
    /// What to load for a name: of the first directory that knows it.
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
