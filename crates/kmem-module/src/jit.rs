//! Modules for debuggers: the interface of gdb for code made at run time (GDB manual, "JIT
//! Compilation Interface"), which lldb knows, too.
//!
//! A debugger sets a breakpoint on [`__jit_debug_register_code`] and reads
//! [`__jit_debug_descriptor`]: a list of ELF files in memory. The file of a module has its symbols,
//! see [`crate::kallsyms`]. It is in the list from before init to the end of the module.
//!
//! Lock order: the lock of the list is the innermost.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::alloc::Shared;
use crate::error::Result;
use crate::module::lock;

/// `jit_actions_t`.
const REGISTER: u32 = 1;
const UNREGISTER: u32 = 2;

/// `struct jit_code_entry`.
#[repr(C)]
pub struct Entry {
    next: AtomicPtr<Self>,
    previous: AtomicPtr<Self>,
    file: usize,
    bytes: u64,
}

/// `struct jit_descriptor`.
///
/// # Invariants
/// `first` begins a list of live entries, or is null. They change under [`LIST`] only.
#[repr(C)]
pub struct Descriptor {
    version: u32,
    action: AtomicU32,
    relevant: AtomicPtr<Entry>,
    first: AtomicPtr<Entry>,
}

/// The list of files. The debugger knows its name.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
#[used]
pub static __jit_debug_descriptor: Descriptor = Descriptor {
    version: 1,
    action: AtomicU32::new(0),
    relevant: AtomicPtr::new(ptr::null_mut()),
    first: AtomicPtr::new(ptr::null_mut()),
};

/// Held while the list changes.
static LIST: Mutex<()> = Mutex::new(());

/// The function where the debugger waits for changes. It does nothing.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn __jit_debug_register_code() {
    // The compiler must not find out that the function does nothing, and leave out its calls.
    std::hint::black_box(());
}

/// A file that debuggers see, as long as this value lives.
pub(crate) struct Registered(Shared<Entry>);

impl Registered {
    /// Shows debuggers an ELF file of `bytes` bytes in memory, which outlives the result.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn new(file: usize, bytes: u64) -> Result<Self> {
        let none = || AtomicPtr::new(ptr::null_mut());
        let this = Self(Shared::new(Entry { next: none(), previous: none(), file, bytes })?);
        let _list = lock(&LIST);
        let all = &__jit_debug_descriptor;
        let (entry, next) = (this.entry(), all.first.load(Ordering::Relaxed));
        this.0.next.store(next, Ordering::Relaxed);
        // SAFETY: by the invariant null or a live entry, as this thread has the lock.
        if let Some(next) = unsafe { next.as_ref() } {
            next.previous.store(entry, Ordering::Relaxed);
        }
        // INVARIANT: the entry lives as long as `this`, whose drop removes it.
        all.first.store(entry, Ordering::Release);
        tell(REGISTER, entry);
        Ok(this)
    }

    fn entry(&self) -> *mut Entry {
        Shared::as_ptr(&self.0).cast_mut()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _list = lock(&LIST);
        let next = self.0.next.load(Ordering::Relaxed);
        let previous = self.0.previous.load(Ordering::Relaxed);
        // SAFETY: by the invariant null or a live entry, as this thread has the lock.
        match unsafe { previous.as_ref() } {
            Some(previous) => previous.next.store(next, Ordering::Release),
            None => __jit_debug_descriptor.first.store(next, Ordering::Release),
        }
        // SAFETY: by the invariant null or a live entry, as this thread has the lock.
        if let Some(next) = unsafe { next.as_ref() } {
            next.previous.store(previous, Ordering::Relaxed);
        }
        tell(UNREGISTER, self.entry());
    }
}

/// Tells a debugger of a change. The caller has the lock.
fn tell(action: u32, entry: *mut Entry) {
    let all = &__jit_debug_descriptor;
    all.relevant.store(entry, Ordering::Relaxed);
    all.action.store(action, Ordering::Release);
    __jit_debug_register_code();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of all files, first to last, and checks of the way back.
    fn files() -> Vec<usize> {
        let mut found = Vec::new();
        let (mut at, mut before) =
            (__jit_debug_descriptor.first.load(Ordering::Relaxed), ptr::null_mut());
        // SAFETY: the tests' entries are live.
        while let Some(entry) = unsafe { at.as_ref() } {
            assert_eq!(entry.previous.load(Ordering::Relaxed), before);
            found.push(entry.file);
            (before, at) = (at, entry.next.load(Ordering::Relaxed));
        }
        found
    }

    #[test]
    fn the_list_has_the_files_that_live() {
        let [a, b, c] = [1, 2, 3].map(|file| Registered::new(file, 10).unwrap());
        assert_eq!(files(), [3, 2, 1]);
        assert_eq!(__jit_debug_descriptor.relevant.load(Ordering::Relaxed), c.entry());
        drop(b);
        assert_eq!(files(), [3, 1]);
        assert_eq!(__jit_debug_descriptor.action.load(Ordering::Relaxed), UNREGISTER);
        drop(c);
        assert_eq!(files(), [1]);
        drop(a);
        assert_eq!(files(), [0; 0]);
    }
}
