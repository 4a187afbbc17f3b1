//! A module that has its memory: its functions, who uses it, what it uses.
//!
//! Nobody can take hold of a module that is going, and one that is held does not go: the count of uses and the mark
//! that it is closed are one word, on the [board](crate::board).

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::alloc::Shared;
use crate::board::{Board, ModuleEntry};
use crate::completion::{wait_while, wake_all};
use crate::error::Result;
use crate::image::Image;
use crate::loader::Inner;
use crate::name::Name;
use crate::params::Strings;
use crate::symbols::Export;

/// Set in the word of uses when nobody may take hold any more.
pub const CLOSED: u32 = 1 << 31;

/// A module. `struct module` of `kmem_module.h` is one, opaque.
pub struct Module {
    /// Its name.
    pub name: Name,
    /// The loader it belongs to.
    pub(crate) loader: Weak<Inner>,
    /// Its place on the board.
    board: Arc<Board>,
    slot: usize,
    /// What it consists of, once it is linked.
    pub(crate) body: Mutex<Body>,
}

/// What a linked module consists of.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) image: Option<Image>,
    pub(crate) init: Option<u64>,
    pub(crate) exit: Option<u64>,
    pub(crate) init_array: Vec<u64>,
    pub(crate) fini_array: Vec<u64>,
    pub(crate) exports: Vec<Export>,
    pub(crate) tags: Option<Range<u64>>,
    pub(crate) strings: Strings,
    /// Modules whose symbols it uses; each is held once.
    pub(crate) uses: Vec<Shared<Module>>,
}

/// The guard of a lock, whatever happened to its last owner: nothing is left half done under one here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Module {
    pub(crate) fn new(name: Name, loader: Weak<Inner>, board: Arc<Board>, slot: usize) -> Self {
        Self { name, loader, board, slot, body: Mutex::default() }
    }

    /// Its entry on the board.
    pub(crate) fn entry(&self) -> &ModuleEntry {
        &self.board.modules()[self.slot]
    }

    fn refs(&self) -> &AtomicU32 {
        &self.entry().refs
    }

    /// How often it is held.
    #[must_use]
    pub fn refcount(&self) -> u32 {
        self.refs().load(Ordering::Relaxed) & !CLOSED
    }

    /// Takes hold of it. False: it is going.
    pub fn try_get(&self) -> bool {
        let more = |refs: u32| (refs & CLOSED == 0 && refs + 1 < CLOSED).then_some(refs + 1);
        self.refs().fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Lets go of it. More often than it was held does nothing.
    pub fn put(&self) {
        let less = |refs: u32| (refs & !CLOSED != 0).then_some(refs - 1);
        let before = self.refs().fetch_update(Ordering::Release, Ordering::Relaxed, less);
        if before == Ok(CLOSED | 1) {
            wake_all(self.refs());
        }
    }

    /// Keeps others from taking hold. True: nobody holds it.
    pub(crate) fn close(&self) -> bool {
        self.refs().fetch_or(CLOSED, Ordering::Acquire) & !CLOSED == 0
    }

    /// Takes back [`Module::close`].
    pub(crate) fn reopen(&self) {
        self.refs().fetch_and(!CLOSED, Ordering::Release);
    }

    /// Waits until nobody holds a module that is closed.
    pub(crate) fn wait_for_last_put(&self) -> Result<()> {
        loop {
            let refs = self.refs().load(Ordering::Acquire);
            if refs & !CLOSED == 0 {
                return Ok(());
            }
            wait_while(self.refs(), refs)?;
        }
    }
}

/// Calls a function of a module that takes nothing and returns a number.
///
/// # Safety
/// The address of such a function in memory that is mapped and executable, and stays so.
pub(crate) unsafe fn call(function: u64) -> c_int {
    // SAFETY: the caller's promise.
    let function =
        unsafe { std::mem::transmute::<usize, extern "C-unwind" fn() -> c_int>(function as usize) };
    function()
}

/// A module that is held: it is not unloaded while this lives.
pub struct Held(Shared<Module>);

impl Held {
    /// Holds a module; none: it is going.
    #[must_use]
    pub fn new(module: &Shared<Module>) -> Option<Self> {
        module.try_get().then(|| Self(module.clone()))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.put();
    }
}
