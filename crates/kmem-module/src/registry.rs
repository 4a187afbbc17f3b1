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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use crate::completion::Completion;
use crate::error::{Errno, Error, Result};
use crate::module::{Module, lock};
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Arguments.
    pub args: String,
    /// Flags.
    pub flags: u32,
}

/// Something that one thread does and others may wait for.
pub struct Attempt {
    owner: ThreadId,
    asked: Asked,
    /// Digest of the contents, once it is known.
    digest: OnceLock<u64>,
    outcome: OnceLock<Result<()>>,
    done: Completion,
}

impl Attempt {
    fn new(asked: Asked) -> Arc<Self> {
        Arc::new(Self {
            owner: ThreadId::current(),
            asked,
            digest: OnceLock::new(),
            outcome: OnceLock::new(),
            done: Completion::default(),
        })
    }

    /// How it ended.
    pub fn outcome(&self) -> Option<&Result<()>> {
        self.outcome.get()
    }
}

/// State of a file.
enum File {
    Loading(Arc<Attempt>),
    Known(String),
}

/// State of a name.
pub enum Slot {
    /// Being loaded; the module, once it is linked.
    Loading(Arc<Attempt>, Option<Arc<Module>>),
    /// Loaded.
    Live(Arc<Module>),
    /// Being unloaded.
    Going(Arc<Attempt>, Arc<Module>),
    /// Its exit has run, and it is mapped for the sake of what it allocated.
    Left(Arc<Module>),
}

/// What is behind the lock.
#[derive(Default)]
pub struct Tables {
    files: HashMap<FileId, File>,
    /// States of names.
    pub names: HashMap<String, Slot>,
    /// Exported symbols, and the modules they are in.
    pub exports: HashMap<Vec<u8>, (Arc<Module>, Definition)>,
    /// Requests for modules under way.
    pub requests: HashMap<String, Arc<Attempt>>,
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
    /// The caller is to do it.
    Mine(Arc<Attempt>),
    /// It has been done, with this result; shared with whoever did it.
    Shared(Result<()>),
    /// A module of that name is there.
    Exists(String),
}

thread_local! {
    /// What this thread has begun and not ended; what is left when it ends is given up.
    static MINE: RefCell<Begun> = const { RefCell::new(Begun(Vec::new())) };
}

struct Begun(Vec<(Weak<crate::loader::Inner>, Weak<Attempt>)>);

impl Drop for Begun {
    fn drop(&mut self) {
        for (loader, attempt) in self.0.drain(..) {
            if let (Some(loader), Some(attempt)) = (loader.upgrade(), attempt.upgrade()) {
                loader.give_up(&attempt);
            }
        }
    }
}

/// Remembers that this thread has begun an attempt.
pub(crate) fn begin(loader: Weak<crate::loader::Inner>, attempt: &Arc<Attempt>) {
    // A thread that ends already has nobody to tell.
    let _ = MINE.try_with(|mine| mine.borrow_mut().0.push((loader, Arc::downgrade(attempt))));
}

fn ended(attempt: &Arc<Attempt>) {
    let _ = MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        mine.0.retain(|(_, other)| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(attempt)));
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
        tables.waiting.insert(me, attempt.owner);
        drop(tables);
        let result = attempt.done.wait();
        self.lock().waiting.remove(&me);
        result
    }

    /// A new attempt that nobody finds by a file.
    #[must_use]
    pub fn begin(asked: Asked) -> Arc<Attempt> {
        Attempt::new(asked)
    }

    /// Claims a file, or finds out what became of it.
    ///
    /// # Errors
    /// As for [`Registry::wait`].
    pub fn claim_file(&self, id: FileId, asked: &Asked) -> Result<Claim> {
        loop {
            let (other, share) = match self.look_up_file(id, asked) {
                Ok(claim) => return Ok(claim),
                Err(other) => other,
            };
            if let Some(result) = self.wait_to_share(&other, asked, share)? {
                return Ok(Claim::Shared(result));
            }
        }
    }

    /// What a file is known for; else the attempt to wait for, and when its result may be shared.
    fn look_up_file(
        &self,
        id: FileId,
        asked: &Asked,
    ) -> std::result::Result<Claim, (Arc<Attempt>, Share)> {
        let mut guard = self.lock();
        let tables = &mut *guard;
        match tables.files.get(&id) {
            Some(File::Loading(other)) => return Err((other.clone(), Share::SameFile)),
            Some(File::Known(name)) => match tables.names.get(name) {
                Some(Slot::Live(_)) => return Ok(Claim::Exists(name.clone())),
                Some(Slot::Going(other, _) | Slot::Loading(other, _)) => {
                    return Err((other.clone(), Share::Never));
                }
                Some(Slot::Left(_)) => return Ok(Claim::Shared(Err(left(name)))),
                None => {}
            },
            None => {}
        }
        let attempt = Attempt::new(asked.clone());
        tables.files.insert(id, File::Loading(attempt.clone()));
        Ok(Claim::Mine(attempt))
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
        attempt: &Arc<Attempt>,
        name: &str,
        digest: u64,
    ) -> Result<Option<Claim>> {
        let _ = attempt.digest.set(digest);
        loop {
            let mut tables = self.lock();
            let (other, share) = match tables.names.get(name) {
                None => {
                    tables.names.insert(name.to_owned(), Slot::Loading(attempt.clone(), None));
                    return Ok(None);
                }
                Some(Slot::Live(_)) => return Ok(Some(Claim::Exists(name.to_owned()))),
                Some(Slot::Left(_)) => return Err(left(name)),
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
        attempt: &Arc<Attempt>,
        file: Option<(FileId, Option<String>)>,
        outcome: Result<()>,
        change: impl FnOnce(&mut Tables),
    ) {
        let mut tables = self.lock();
        change(&mut tables);
        match file {
            Some((id, Some(name))) => drop(tables.files.insert(id, File::Known(name))),
            Some((id, None)) => drop(tables.files.remove(&id)),
            None => {}
        }
        let _ = attempt.outcome.set(outcome);
        drop(tables);
        attempt.done.complete();
        ended(attempt);
    }
}

/// A name whose module has not gone yet.
fn left(name: &str) -> Error {
    let what = format!("the last {name} has run its exit, and what it allocated is live");
    Error::new(Errno::EBUSY, what)
}

impl Tables {
    /// Forgets an attempt that was given up: its file, its request, and its name, whose module is returned.
    pub(crate) fn forget(
        &mut self,
        attempt: &Arc<Attempt>,
    ) -> Option<(String, Option<Arc<Module>>)> {
        let is = |other: &Arc<Attempt>| Arc::ptr_eq(other, attempt);
        self.files.retain(|_, file| !matches!(file, File::Loading(other) if is(other)));
        self.requests.retain(|_, other| !is(other));
        let name = self.names.iter().find_map(|(name, slot)| match slot {
            Slot::Loading(other, _) | Slot::Going(other, _) if is(other) => Some(name.clone()),
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
        self.files.retain(|_, file| !matches!(file, File::Known(known) if known == name));
    }
}
