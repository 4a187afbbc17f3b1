//! Frames of CPython: the instruction that a thread's interpreter runs, and its file, function and
//! line.
//!
//! ```text
//! word of the thread --> thread state --> [C frame -->] frame --> instruction, the key
//!                                                       frame --> code --> names, table of lines
//! ```
//!
//! Up to 3.11 the word is a global one of the runtime: it leads to the state of the thread that
//! holds the interpreter. From 3.12 on each thread has one, and it is null while the thread does
//! not hold the interpreter. A thread lets it go while it waits or computes, and stays in its line
//! until then. So the state that it had last is taken, if it has this thread's number.
//!
//! | question                           | answered by                               |
//! |------------------------------------|-------------------------------------------|
//! | where the interpreter is           | [`interpreter`], by symbols of its object |
//! | where its structures have fields   | [`layout`], by its version                |
//! | the line of an instruction         | [`lines`], by the code's table            |
//! | file and function                  | [`names`]                                 |
//!
//! Nothing of the interpreter is called or trusted. A word is loaded only from a page that the
//! kernel could read ([`Pages`]).
//!
//! Context: any, signal handlers included. Lock-free.

mod getter;
mod interpreter;
mod layout;
mod lines;
mod names;
mod pages;

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

use crate::os::functions::Functions;
use crate::os::{CodeObject, Platform, is_address};
use crate::prng::mix;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use interpreter::{Found, Place};
use layout::Layout;
pub use names::{Block, Name};
use pages::Pages;

#[cfg(all(kmem_linux, not(miri)))]
mod word {
    use crate::os::linux::start;

    crate::os::linux::thread_word::define!("kmem_frames");

    /// The thread's number for CPython.
    pub(super) fn thread() -> usize {
        start::thread_number()
    }

    pub(super) fn pointer() -> usize {
        start::thread_pointer()
    }
}

/// The thread state that the thread's word last led to, whose words could be read.
#[cfg(all(kmem_linux, not(miri)))]
mod known {
    crate::os::linux::thread_word::define!("kmem_thread_state");
}

#[cfg(not(all(kmem_linux, not(miri))))]
mod known {
    pub(super) fn get() -> usize {
        0
    }
    pub(super) fn set(_: usize) {}
}

/// Elsewhere no interpreter is found, so no thread has a word.
#[cfg(not(all(kmem_linux, not(miri))))]
mod word {
    pub(super) fn get() -> usize {
        0
    }
    pub(super) fn set(_: usize) {}
    pub(super) fn thread() -> usize {
        0
    }
    pub(super) fn pointer() -> usize {
        0
    }
}

/// States of a source: no interpreter is looked for; one is; a thread has found one; it is known;
/// or nothing is known of it.
const OFF: u32 = 0;
const WANTED: u32 = 1;
const TAKEN: u32 = 2;
const KNOWN: u32 = 3;
const STRANGE: u32 = 4;

/// The interpreter of a program. Zeroed, none is looked for.
///
/// # Invariants
/// In state `KNOWN` nothing but `pages` changes, and `found` is written. A thread whose word is not
/// 0 has seen that state.
pub struct Frames {
    state: AtomicU32,
    /// First address of the interpreter's object, and its length.
    start: AtomicUsize,
    len: AtomicUsize,
    found: UnsafeCell<MaybeUninit<Found>>,
    pages: Pages,
}

// SAFETY: `found` is written by the one thread that took the state `TAKEN`, and read in `KNOWN`.
unsafe impl Sync for Frames {}

/// An instruction that runs now.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Its key.
    pub key: usize,
    /// Address of its code object.
    code: usize,
    /// First address of the object that the key lies in: the code, or before 3.11 its bytes.
    pub block: usize,
    /// Bytes from the beginning of the code's instructions.
    offset: usize,
    /// False if other code objects have the same key.
    is_unique: bool,
}

impl Frames {
    /// A source without an interpreter.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(OFF),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            found: UnsafeCell::new(MaybeUninit::zeroed()),
            pages: Pages::new(),
        }
    }

    /// Looks for an interpreter from now on.
    pub fn want(&self) {
        self.state.store(WANTED, Ordering::Relaxed);
    }

    /// Returns whether an interpreter is known.
    #[inline(always)]
    pub fn are_known(&self) -> bool {
        self.state.load(Ordering::Acquire) == KNOWN
    }

    /// Returns whether the interpreter's own code is at an address.
    #[inline(always)]
    pub fn has_code(&self, at: usize) -> bool {
        at.wrapping_sub(self.start.load(Ordering::Relaxed)) < self.len.load(Ordering::Relaxed)
    }

    /// Looks whether an object is an interpreter, if one is looked for. Returns whether it is one
    /// that is known.
    #[cold]
    #[inline(never)]
    pub fn look_at(
        &self,
        platform: &impl Platform,
        object: &CodeObject<'_>,
        functions: &Functions<'_>,
    ) -> bool {
        if self.state.load(Ordering::Relaxed) != WANTED {
            return false;
        }
        let Some(found) = interpreter::find(platform, functions) else { return false };
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.state.compare_exchange(WANTED, TAKEN, done, failed).is_err() {
            return false;
        }
        match found {
            Ok(found) => {
                // SAFETY: this thread alone took the state.
                unsafe { (*self.found.get()).write(found) };
                self.start.store(object.start, Ordering::Relaxed);
                self.len.store(object.end.saturating_sub(object.start), Ordering::Relaxed);
                // INVARIANT: nothing is written from here on.
                self.state.store(KNOWN, Ordering::Release);
                true
            }
            Err(reason) => {
                self.state.store(STRANGE, Ordering::Relaxed);
                platform.print(reason);
                false
            }
        }
    }

    /// The places in the interpreter. Only where it is known.
    #[inline(always)]
    fn found(&self) -> &Found {
        // SAFETY: callers have seen the state `KNOWN`, so it was written and stays (invariant).
        unsafe { (*self.found.get()).assume_init_ref() }
    }

    /// Returns whether the calling thread runs the interpreter.
    pub fn is_followed(&self) -> bool {
        word::get() != 0
    }

    /// Follows the calling thread, if it holds the interpreter now. Returns whether it does.
    #[cold]
    #[inline(never)]
    pub fn follow(&self, platform: &impl Platform) -> bool {
        if !self.are_known() || word::get() != 0 {
            return false;
        }
        let place = match self.found().place {
            Place::Global(at) => Some(at),
            Place::Thread(word) => interpreter::word_of_thread(platform, word),
        };
        let Some(place) = place else { return false };
        if self.state_of_thread(platform, place).is_none() {
            return false;
        }
        word::set(place);
        true
    }

    /// The state of the calling thread, if it holds the interpreter. Its words can be read.
    fn state_of_thread(&self, platform: &impl Platform, place: usize) -> Option<usize> {
        let found = self.found();
        let state = self.pages.word(platform, place)?;
        if state == 0 {
            return None;
        }
        if matches!(found.place, Place::Global(_)) && !self.is_of_thread(platform, state) {
            return None;
        }
        if known::get() != state {
            self.pages.word(platform, state.wrapping_add(found.layout.thread_id()))?;
            self.pages.word(platform, state.wrapping_add(found.layout.frame()))?;
            known::set(state);
        }
        Some(state)
    }

    /// The state that the calling thread had when it let the interpreter go. Nothing but this
    /// thread changes its frame. A state that is freed has none, or another number.
    fn state_let_go(&self, platform: &impl Platform) -> Option<usize> {
        let state = known::get();
        (state != 0 && self.is_of_thread(platform, state)).then_some(state)
    }

    /// Returns whether a state has the number of the calling thread.
    fn is_of_thread(&self, platform: &impl Platform, state: usize) -> bool {
        let number = state.wrapping_add(self.found().layout.thread_id());
        self.pages.word(platform, number) == Some(word::thread())
    }

    /// The frame that the calling thread runs now.
    fn frame(&self, platform: &impl Platform) -> Option<usize> {
        let place = word::get();
        if place == 0 || !self.are_known() {
            return None;
        }
        let layout = &self.found().layout;
        let state =
            self.state_of_thread(platform, place).or_else(|| self.state_let_go(platform))?;
        let mut frame = self.pages.word(platform, state.wrapping_add(layout.frame()))?;
        if let Some(current) = layout.c_frame() {
            frame = self.pages.word(platform, frame.wrapping_add(current))?;
        }
        (frame != 0).then_some(frame)
    }

    /// A number for the instruction that the calling thread's interpreter runs, even and an
    /// address. `None`: the thread runs none. About 30 instructions where all is known.
    #[inline(always)]
    pub fn key(&self, platform: &impl Platform) -> Option<usize> {
        let place = word::get();
        if place == 0 {
            return None;
        }
        match self.known_key(place) {
            Some(key) => Some(key),
            None => self.key_asked(platform),
        }
    }

    /// [`Self::key`] of a thread with a word. `None`: it leads to another thread state than before,
    /// or to a page that is not known.
    #[inline(always)]
    fn known_key(&self, place: usize) -> Option<usize> {
        let found = self.found();
        let (layout, state) = (&found.layout, known::get());
        if state == 0 || !self.are_known() {
            return None;
        }
        // SAFETY: the word that `follow` has read for this thread. It is thread-local storage, or
        // in the interpreter's data, and the interpreter is not unloaded.
        if unsafe { (place as *const usize).read_volatile() } != state {
            return None;
        }
        // SAFETY: `state_of_thread` has read these words, and the interpreter keeps the state of
        // the thread that holds it.
        let field = |offset| unsafe { ((state + offset) as *const usize).read_volatile() };
        if matches!(found.place, Place::Global(_)) && field(layout.thread_id()) != word::thread() {
            return None;
        }
        let mut frame = field(layout.frame());
        if let Some(current) = layout.c_frame() {
            frame = self.pages.known_word(frame.wrapping_add(current))?;
        }
        let key = self.pages.known_word(frame.wrapping_add(layout.instruction()?))?;
        is_address(key).then_some(key)
    }

    #[cold]
    #[inline(never)]
    fn key_asked(&self, platform: &impl Platform) -> Option<usize> {
        let frame = self.frame(platform)?;
        let layout = &self.found().layout;
        let key = match layout.instruction() {
            Some(at) => self.pages.word(platform, frame.wrapping_add(at))?,
            None => self.old_key(platform, layout, frame).filter(|now| now.is_unique)?.key,
        };
        is_address(key).then_some(key)
    }

    /// The key of a frame before 3.11: the address of the instruction in the bytes of its code.
    /// `None`, too, where several codes share these bytes.
    #[inline]
    fn old_key(&self, platform: &impl Platform, layout: &Layout, frame: usize) -> Option<Now> {
        let code = self.pages.word(platform, frame.wrapping_add(layout.code()))?;
        let bytes = self.pages.word(platform, code.wrapping_add(layout.bytecode()))?;
        let last = frame.wrapping_add(layout.last());
        let word = self.pages.word(platform, last & !7)?;
        let last = (word >> (8 * (last & 4))) as u32 as i32;
        let offset = usize::try_from(last.max(0)).ok()? * layout.unit();
        let is_shared = self.pages.word(platform, bytes)? != 1;
        let key = bytes.wrapping_add(layout::BYTES + offset);
        Some(Now { key, code, block: bytes, offset, is_unique: !is_shared })
    }

    /// The instruction that the calling thread's interpreter runs.
    pub fn now(&self, platform: &impl Platform) -> Option<Now> {
        let frame = self.frame(platform)?;
        let layout = &self.found().layout;
        let now = match layout.instruction() {
            None => self.old_key(platform, layout, frame)?,
            Some(at) => {
                let key = self.pages.word(platform, frame.wrapping_add(at))?;
                // From 3.14 on the lowest bits of a reference are marks.
                let code = self.pages.word(platform, frame.wrapping_add(layout.code()))? & !7;
                let first = code.wrapping_add(layout.bytecode());
                Now { key, code, block: code, offset: key.saturating_sub(first), is_unique: true }
            }
        };
        is_address(now.key).then_some(now)
    }

    /// Copies file, function and line of an instruction, and tells the memory that its key lies in.
    /// `None`: there is no code object.
    #[cold]
    #[inline(never)]
    pub fn name(&self, platform: &impl Platform, now: Now, name: &mut Name) -> Option<Block> {
        names::name(platform, &self.pages, self.found(), now, name)
    }

    /// A number for all that names an instruction: its code object, file, function and table of
    /// lines, by address, length, hash and last letters. Another code object in the same place has
    /// another one. `None`: there is no code object.
    pub fn print(&self, platform: &impl Platform, now: Now) -> Option<u64> {
        let found = self.found();
        let layout = &found.layout;
        let word = |at: usize| self.pages.word(platform, at);
        let field = |offset: u16| word(now.code.wrapping_add(usize::from(offset)));
        if field(8)? != found.code_type {
            return None;
        }
        let (file, function) = (field(layout.file)?, field(layout.function)?);
        // Half a word, which need not be aligned as one.
        let first = field(layout.first_line & !7)?;
        let len = word(file.wrapping_add(layout::LENGTH))?;
        let end = file.wrapping_add(usize::from(layout.ascii)).wrapping_add(len) & !7;
        let of_texts = |text: usize| {
            Some([text, word(text + layout::LENGTH)?, word(text + layout::LENGTH + 8)?])
        };
        let words = [
            [now.code, field(layout::LENGTH as u16)?, field(layout.table)?],
            [first, word(end.wrapping_sub(8))?, word(end)?],
            of_texts(file)?,
            of_texts(function)?,
        ];
        Some(words.iter().flatten().fold(now.key as u64, |sum, &word| mix(sum, word as u64)))
    }

    /// Fewest bytes of an object that keys lie in. Only where an interpreter is known.
    #[inline(always)]
    pub fn least_block(&self) -> usize {
        let layout = &self.found().layout;
        // Before 3.11 the bytes of the code have an object of their own.
        if layout.instruction().is_some() { layout.bytecode() } else { layout::BYTES }
    }

    /// Leaves the interpreter, if its object was unloaded.
    pub fn leave_if_gone(&self, platform: &impl Platform) {
        let start = self.start.load(Ordering::Relaxed);
        let is_there = || platform.with_object(start, |object| object.start == start);
        if self.are_known() && is_there() != Some(true) {
            self.state.store(STRANGE, Ordering::Relaxed);
            self.len.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets which pages can be read, after some were unmapped.
    pub fn forget_pages(&self) {
        if self.are_known() {
            self.pages.forget();
        }
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self::new()
    }
}
