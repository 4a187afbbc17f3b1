//! Loads and unloads under way: one state per module name, and an index from files to names.
//!
//! ```text
//! file:  unknown -> loading(attempt) -> known(name) .. as long as a module of that name exists
//! name:  absent  -> loading(attempt) -> live -> going(attempt) -> absent
//!                                                    |  ^
//!                                                    v  |
//!                                                    left
//! ```
//!
//! A request that meets an attempt of another thread waits for it. It shares the result if
//! contents, arguments and flags are the same, and looks again otherwise. The registry records
//! which thread waits for which: a wait that would close a circle fails with `EDEADLK`. An attempt
//! whose thread ends without a result (cancelled, or jumped out of init) ends with `EINTR`, and the
//! waiting requests look again.
//!
//! There is one lock. No thread holds it while it waits, reads a file, or runs a module's code.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, Weak};

use crate::alloc::{self, Shared};
use crate::completion::{Completion, Slots};
use crate::error::{Errno, Error, Result};
use crate::module::{Module, lock};
use crate::name::Name;
use crate::symbols::Definition;

/// The identity of a file's contents, known without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device and inode.
    pub file: (u64, u64),
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of its contents: seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// Time of the last change of any kind: seconds and nanoseconds.
    pub ctime: (i64, i64),
}

/// A number of a thread, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ThreadId(u64);

impl ThreadId {
    fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
        Self(ID.with(|id| *id))
    }
}

/// The parameters of a request. Requests with equal parameters may share a result.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// The module's arguments.
    pub args: String,
    /// Flags of [`crate::loader::flags`].
    pub flags: u32,
}

impl Asked {
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn new(args: &str, flags: u32) -> Result<Self> {
        Ok(Self { args: alloc::text(args)?, flags })
    }
}

/// A load, unload or request by name, which one thread does and other threads may wait for.
pub struct Attempt {
    owner: ThreadId,
    pub(crate) asked: Asked,
    /// Digest of the contents, once it is known.
    digest: OnceLock<u64>,
    outcome: OnceLock<Result<()>>,
    done: Completion,
    /// True if it holds a slot of [`Slots`], which it gives back at its end.
    placed: AtomicBool,
}

impl Attempt {
    fn new(asked: Asked) -> Result<Shared<Self>> {
        Shared::new(Self {
            owner: ThreadId::current(),
            asked,
            digest: OnceLock::new(),
            outcome: OnceLock::new(),
            done: Completion::default(),
            placed: AtomicBool::new(false),
        })
    }

    /// Takes a slot for a request by name. Waits until one is free.
    pub(crate) fn take_place(&self, places: &Slots) -> Result<()> {
        places.take()?;
        self.placed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives its slot back, if it holds one.
    pub(crate) fn give_place(&self, places: &Slots) {
        if self.placed.swap(false, Ordering::Relaxed) {
            places.give();
        }
    }

    /// Its result, once it has ended.
    pub fn outcome(&self) -> Option<&Result<()>> {
        self.outcome.get()
    }
}

/// State of a file.
enum File {
    Loading(Shared<Attempt>),
    Known(Name),
}

/// State of a name.
pub enum Slot {
    /// The module is being loaded. It exists once it is linked.
    Loading(Shared<Attempt>, Option<Shared<Module>>),
    /// The module is loaded.
    Live(Shared<Module>),
    /// The module is being unloaded.
    Going(Shared<Attempt>, Shared<Module>),
    /// Exit has run, and the module stays mapped because allocations of it are live.
    Left(Shared<Module>),
}

/// The tables behind the lock.
#[derive(Default)]
pub struct Tables {
    files: HashMap<FileId, File>,
    /// States of names.
    pub names: HashMap<Name, Slot>,
    /// Exported symbols, each with its module.
    pub exports: HashMap<CString, (Shared<Module>, Definition)>,
    /// Requests by name that are under way.
    pub requests: HashMap<String, Shared<Attempt>>,
    waiting: HashMap<ThreadId, ThreadId>,
}

/// The registry of a loader.
#[derive(Default)]
pub struct Registry {
    tables: Mutex<Tables>,
}

/// Condition for sharing the result of another attempt with equal arguments and flags.
#[derive(Clone, Copy)]
enum Share {
    /// Always: it loads the same file.
    SameFile,
    /// Only if its contents have this digest.
    SameContents(u64),
    /// Never: it does something else.
    Never,
}

/// Why a file or name could not be claimed.
pub enum Claim {
    /// Another attempt did the same, with this result.
    Shared(Result<()>),
    /// A module of that name is loaded.
    Exists(Name),
}

thread_local! {
    /// Attempts that this thread began and has not ended. They are given up when the thread ends.
    static MINE: RefCell<Begun> = const { RefCell::new(Begun(Vec::new())) };
}

struct Begun(Vec<(Weak<crate::loader::Inner>, Shared<Attempt>)>);

impl Drop for Begun {
    fn drop(&mut self) {
        for (loader, attempt) in self.0.drain(..) {
            if let Some(loader) = loader.upgrade() {
                loader.give_up(&attempt);
            }
        }
    }
}

/// Records an attempt of the calling thread, so that it is given up if the thread ends first.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn begin(loader: Weak<crate::loader::Inner>, attempt: &Shared<Attempt>) -> Result<()> {
    // In a thread whose thread-local values are destroyed there is no record.
    MINE.try_with(|mine| alloc::push(&mut mine.borrow_mut().0, (loader, attempt.clone())))
        .unwrap_or(Ok(()))
}

/// Removes the calling thread's record of an attempt.
pub(crate) fn ended(attempt: &Shared<Attempt>) {
    let _ = MINE.try_with(|mine| {
        mine.borrow_mut().0.retain(|(_, other)| !Shared::ptr_eq(other, attempt));
    });
}

impl Registry {
    /// Locks the tables.
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Waits for an attempt of another thread.
    ///
    /// # Errors
    /// `EDEADLK`: that thread waits for the caller; `EINTR`: a signal arrived; `ENOMEM`.
    pub fn wait(&self, attempt: &Attempt) -> Result<()> {
        if attempt.done.is_done() {
            return Ok(());
        }
        let me = ThreadId::current();
        let mut tables = self.lock();
        let mut next = Some(attempt.owner);
        while let Some(thread) = next {
            if thread == me {
                let what = "waiting for this would never end: it waits for the caller";
                return Err(Error::new(Errno::EDEADLK, what));
            }
            next = tables.waiting.get(&thread).copied();
        }
        alloc::insert(&mut tables.waiting, me, attempt.owner)?;
        drop(tables);
        let result = attempt.done.wait();
        self.lock().waiting.remove(&me);
        result
    }

    /// Makes an attempt, which is in no table yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn begin(asked: Asked) -> Result<Shared<Attempt>> {
        Attempt::new(asked)
    }

    /// Claims a file for an attempt. Waits while another attempt has it. `None`: it is claimed.
    ///
    /// # Errors
    /// As for [`Registry::wait`]; `EBUSY`: its module has run exit and stays mapped.
    pub fn claim_file(&self, attempt: &Shared<Attempt>, id: FileId) -> Result<Option<Claim>> {
        loop {
            let mut guard = self.lock();
            let tables = &mut *guard;
            let (other, share) = match tables.files.get(&id) {
                Some(File::Loading(other)) => (other.clone(), Share::SameFile),
                Some(File::Known(name)) => match tables.names.get(name) {
                    Some(Slot::Live(_)) => return Ok(Some(Claim::Exists(*name))),
                    Some(Slot::Left(_)) => return Err(left(name)),
                    Some(Slot::Going(other, _) | Slot::Loading(other, _)) => {
                        (other.clone(), Share::Never)
                    }
                    None => {
                        alloc::insert(&mut tables.files, id, File::Loading(attempt.clone()))?;
                        return Ok(None);
                    }
                },
                None => {
                    alloc::insert(&mut tables.files, id, File::Loading(attempt.clone()))?;
                    return Ok(None);
                }
            };
            drop(guard);
            if let Some(result) = self.wait_to_share(&other, &attempt.asked, share)? {
                return Ok(Some(Claim::Shared(result)));
            }
        }
    }

    /// Returns whether a module of this name is live.
    #[must_use]
    pub fn is_live(&self, name: &str) -> bool {
        matches!(self.lock().names.get(name), Some(Slot::Live(_)))
    }

    /// Claims a name for an attempt, whose contents have this digest. Waits while another attempt
    /// has it. `None`: it is claimed.
    ///
    /// # Errors
    /// As for [`Registry::claim_file`].
    pub fn claim_name(
        &self,
        attempt: &Shared<Attempt>,
        name: Name,
        digest: u64,
    ) -> Result<Option<Claim>> {
        let _ = attempt.digest.set(digest);
        loop {
            let mut tables = self.lock();
            let (other, share) = match tables.names.get(&name) {
                None => {
                    alloc::insert(&mut tables.names, name, Slot::Loading(attempt.clone(), None))?;
                    return Ok(None);
                }
                Some(Slot::Live(_)) => return Ok(Some(Claim::Exists(name))),
                Some(Slot::Left(_)) => return Err(left(&name)),
                Some(Slot::Going(other, _)) => (other.clone(), Share::Never),
                Some(Slot::Loading(other, _)) => (other.clone(), Share::SameContents(digest)),
            };
            drop(tables);
            if let Some(result) = self.wait_to_share(&other, &attempt.asked, share)? {
                return Ok(Some(Claim::Shared(result)));
            }
        }
    }

    /// Waits for another attempt. Returns its result if the caller may share it.
    fn wait_to_share(
        &self,
        other: &Attempt,
        asked: &Asked,
        share: Share,
    ) -> Result<Option<Result<()>>> {
        self.wait(other)?;
        let same = other.asked == *asked
            && match share {
                Share::SameFile => true,
                Share::SameContents(own) => other.digest.get() == Some(&own),
                Share::Never => false,
            };
        Ok(match other.outcome() {
            Some(Err(error)) if same && !error.is_transient() => Some(Err(error.clone())),
            Some(Ok(())) if same => Some(Ok(())),
            _ => None,
        })
    }

    /// Ends an attempt with a result, and wakes the threads that wait for it. Its file stands for
    /// the given name from now on, or is forgotten. `change` sets the name's state under the same
    /// lock.
    pub fn end(
        &self,
        attempt: &Shared<Attempt>,
        file: Option<(FileId, Option<Name>)>,
        outcome: Result<()>,
        change: impl FnOnce(&mut Tables),
    ) {
        let mut tables = self.lock();
        change(&mut tables);
        let mine =
            |file: &File| matches!(file, File::Loading(other) if Shared::ptr_eq(other, attempt));
        if let Some((id, known)) = file
            && tables.files.get(&id).is_some_and(mine)
        {
            match (known, tables.files.get_mut(&id)) {
                (Some(name), Some(file)) => *file = File::Known(name),
                _ => drop(tables.files.remove(&id)),
            }
        }
        let _ = attempt.outcome.set(outcome);
        drop(tables);
        attempt.done.complete();
        ended(attempt);
    }
}

/// The error for a name in state [`Slot::Left`].
fn left(name: &str) -> Error {
    let what = format_args!("the last {name} has run its exit, and what it allocated is live");
    Error::new(Errno::EBUSY, what)
}

impl Tables {
    /// Removes the file, request and name of an attempt that was given up. Returns name and module.
    pub(crate) fn forget(
        &mut self,
        attempt: &Shared<Attempt>,
    ) -> Option<(Name, Option<Shared<Module>>)> {
        let is = |other: &Shared<Attempt>| Shared::ptr_eq(other, attempt);
        self.files.retain(|_, file| !matches!(file, File::Loading(other) if is(other)));
        self.requests.retain(|_, other| !is(other));
        let name = self.names.iter().find_map(|(name, slot)| match slot {
            Slot::Loading(other, _) | Slot::Going(other, _) if is(other) => Some(*name),
            _ => None,
        })?;
        match self.names.remove(&name)? {
            Slot::Loading(_, module) => Some((name, module)),
            Slot::Going(_, module) => Some((name, Some(module))),
            Slot::Live(_) | Slot::Left(_) => None,
        }
    }

    /// Number of threads that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Forgets all files that stand for a name.
    pub fn forget_files(&mut self, name: &str) {
        self.files.retain(|_, file| !matches!(file, File::Known(known) if **known == *name));
    }
}
