//! A module in memory: its functions, and the modules that it uses.
//!
//! A module that is being unloaded cannot be held, and a module that is held is not unloaded.
//! Therefore the count of holds and the mark [`CLOSED`] are in one word, on the
//! [board](crate::board).

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::alloc::Shared;
use crate::board::{Board, CLOSED, ModuleEntry};
use crate::completion::{wait_while, wake_all};
use crate::error::Result;
use crate::image::Image;
use crate::loader::Inner;
use crate::name::Name;
use crate::params::{Param, Strings};
use crate::percpu::Copies;
use crate::symbols::Export;

/// A module: `struct module` of `kmem_module.h`, which is opaque there.
pub struct Module {
    /// Its name.
    pub name: Name,
    /// Its loader.
    pub(crate) loader: Weak<Inner>,
    board: Arc<Board>,
    /// Number of its entry on the board.
    slot: usize,
    /// Its parts, once it is linked.
    pub(crate) body: Mutex<Body>,
}

/// The parts of a linked module.
#[derive(Default)]
pub(crate) struct Body {
    /// Comes before the image, which has the symbols that debuggers read until this is dropped.
    #[cfg(feature = "jit")]
    pub(crate) jit: Option<crate::jit::Registered>,
    pub(crate) image: Option<Image>,
    pub(crate) init: Option<u64>,
    pub(crate) exit: Option<u64>,
    pub(crate) init_array: Vec<u64>,
    pub(crate) fini_array: Vec<u64>,
    pub(crate) exports: Vec<Export>,
    pub(crate) tags: Option<Range<u64>>,
    pub(crate) percpu: Option<Copies>,
    pub(crate) params: Vec<Param>,
    pub(crate) strings: Strings,
    /// Modules whose symbols it uses, each held once.
    pub(crate) uses: Vec<Shared<Module>>,
}

/// Locks a mutex, even after a panic of its last owner: here a panic leaves no data half changed.
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

    /// Number of times that it is held.
    #[must_use]
    pub fn refcount(&self) -> u32 {
        self.refs().load(Ordering::Relaxed) & !CLOSED
    }

    /// Holds it, until [`Module::put`]. False: it is being unloaded.
    pub fn try_get(&self) -> bool {
        let more = |refs: u32| (refs & CLOSED == 0 && refs + 1 < CLOSED).then_some(refs + 1);
        self.refs().fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Releases it once. Does nothing if it is not held.
    pub fn put(&self) {
        let less = |refs: u32| (refs & !CLOSED != 0).then_some(refs - 1);
        let before = self.refs().fetch_update(Ordering::Release, Ordering::Relaxed, less);
        if before == Ok(CLOSED | 1) {
            wake_all(self.refs());
        }
    }

    /// Makes [`Module::try_get`] fail from now on. True: it is not held.
    pub(crate) fn close(&self) -> bool {
        self.refs().fetch_or(CLOSED, Ordering::Acquire) & !CLOSED == 0
    }

    /// Undoes [`Module::close`].
    pub(crate) fn reopen(&self) {
        self.refs().fetch_and(!CLOSED, Ordering::Release);
    }

    /// Waits until a closed module is not held any more.
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

/// Calls a function `int f(void)` of a module.
///
/// # Safety
/// `function` is the address of such a function, in memory that stays mapped and executable.
pub(crate) unsafe fn call(function: u64) -> c_int {
    // SAFETY: the same contract.
    let function =
        unsafe { std::mem::transmute::<usize, extern "C-unwind" fn() -> c_int>(function as usize) };
    function()
}

/// A hold on a module, which is not unloaded while this value lives.
pub struct Held(Shared<Module>);

impl Held {
    /// Holds a module. `None`: it is being unloaded.
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
