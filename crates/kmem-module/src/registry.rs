//! Who loads what: one state per name, and an index of files to it.
//!
//! ```text
//! file:  unknown -> loading(attempt) -> known(name) .. as long as a module of that name is there
//! name:  absent  -> loading(attempt) -> live -> going(attempt) -> absent
//!                                                    |  ^
//!                                                    v  |
//!                                                    left
//! ```
//!
//! A request that meets an attempt of somebody else waits for it, and then shares its result if it has asked for the same
//! (content, arguments, flags), or looks again. Nobody waits in a circle: who waits for whom is written down, and a wait that would
//! close a circle is `EDEADLK`. An attempt whose thread ends without a result (cancelled, or jumped out of init) ends with
//! `EINTR`, and whoever waited takes over.
//!
//! One lock, never held while waiting, reading, or running a module.

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

/// What tells files apart without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device and inode.
    pub file: (u64, u64),
    /// Bytes.
    pub size: u64,
    /// When its contents changed: seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// When it changed in any way.
    pub ctime: (i64, i64),
}

/// A thread, as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ThreadId(u64);

impl ThreadId {
    fn current() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local!(static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
        Self(ID.with(|id| *id))
    }
}

/// What is asked for: whoever asks for the same may share the result.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// Arguments.
    pub args: String,
    /// Flags.
    pub flags: u32,
}

impl Asked {
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn new(args: &str, flags: u32) -> Result<Self> {
        Ok(Self { args: alloc::text(args)?, flags })
    }
}

/// Something that one thread does and others may wait for.
pub struct Attempt {
    owner: ThreadId,
    pub(crate) asked: Asked,
    /// Digest of the contents, once it is known.
    digest: OnceLock<u64>,
    outcome: OnceLock<Result<()>>,
    done: Completion,
    /// Whether it has one of the places of requests, which it gives back however it ends.
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

    /// Takes one of the places of requests; may wait.
    pub(crate) fn take_place(&self, places: &Slots) -> Result<()> {
        places.take()?;
        self.placed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn give_place(&self, places: &Slots) {
        if self.placed.swap(false, Ordering::Relaxed) {
            places.give();
        }
    }

    /// How it ended.
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
    /// Being loaded; the module, once it is linked.
    Loading(Shared<Attempt>, Option<Shared<Module>>),
    /// Loaded.
    Live(Shared<Module>),
    /// Being unloaded.
    Going(Shared<Attempt>, Shared<Module>),
    /// Its exit has run, and it is mapped for the sake of what it allocated.
    Left(Shared<Module>),
}

/// What is behind the lock.
#[derive(Default)]
pub struct Tables {
    files: HashMap<FileId, File>,
    /// States of names.
    pub names: HashMap<Name, Slot>,
    /// Exported symbols, and the modules they are in.
    pub exports: HashMap<CString, (Shared<Module>, Definition)>,
    /// Requests for modules under way.
    pub requests: HashMap<String, Shared<Attempt>>,
    waiting: HashMap<ThreadId, ThreadId>,
}

/// The registry of a loader.
#[derive(Default)]
pub struct Registry {
    tables: Mutex<Tables>,
}

/// When the result of another attempt may be shared, arguments and flags being the same.
#[derive(Clone, Copy)]
enum Share {
    /// It was for the same file.
    SameFile,
    /// If its contents had this digest.
    SameContents(u64),
    /// It did something else.
    Never,
}

/// What came of claiming something.
pub enum Claim {
    /// It has been done, with this result; shared with whoever did it.
    Shared(Result<()>),
    /// A module of that name is there.
    Exists(Name),
}

thread_local! {
    /// What this thread has begun and not ended; what is left when it ends is given up.
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

/// Remembers that this thread has begun an attempt.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn begin(loader: Weak<crate::loader::Inner>, attempt: &Shared<Attempt>) -> Result<()> {
    // A thread that ends already has nobody to tell.
    MINE.try_with(|mine| alloc::push(&mut mine.borrow_mut().0, (loader, attempt.clone())))
        .unwrap_or(Ok(()))
}

/// This thread has ended an attempt, or nobody knows of it.
pub(crate) fn ended(attempt: &Shared<Attempt>) {
    let _ = MINE.try_with(|mine| {
        mine.borrow_mut().0.retain(|(_, other)| !Shared::ptr_eq(other, attempt));
    });
}

impl Registry {
    /// The tables.
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Waits for an attempt of another thread.
    ///
    /// # Errors
    /// `EDEADLK`: that one waits for this thread; `EINTR`: a signal.
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

    /// A new attempt that nobody finds by a file.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn begin(asked: Asked) -> Result<Shared<Attempt>> {
        Attempt::new(asked)
    }

    /// Claims a file for an attempt, or finds out what became of it. None: it is the attempt's.
    ///
    /// # Errors
    /// As for [`Registry::wait`]; `ENOMEM`; `EBUSY`: its module has not gone yet.
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

    /// Whether a module of this name is live.
    #[must_use]
    pub fn is_live(&self, name: &str) -> bool {
        matches!(self.lock().names.get(name), Some(Slot::Live(_)))
    }

    /// Claims a name for an attempt. None: it is the attempt's.
    ///
    /// # Errors
    /// As for [`Registry::wait`].
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

    /// Waits for another attempt. Its result, if it is for this caller, too.
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

    /// Ends an attempt: its file is known by `name` from now on, or not known any more.
    /// The state of the name is the caller's matter, in the same breath.
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

/// A name whose module has not gone yet.
fn left(name: &str) -> Error {
    let what = format_args!("the last {name} has run its exit, and what it allocated is live");
    Error::new(Errno::EBUSY, what)
}

impl Tables {
    /// Forgets an attempt that was given up: its file, its request, and its name, whose module is returned.
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

    /// Threads that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Forgets all files that are known by a name.
    pub fn forget_files(&mut self, name: &str) {
        self.files.retain(|_, file| !matches!(file, File::Known(known) if **known == *name));
    }
}
