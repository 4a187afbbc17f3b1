//! The task word where there is no thread-local storage: a kernel says where a task has it.
//!
//! [`crate::task`] keeps the tag and the group of a task in this word, and the mark of a shrinker.
//! The word belongs to the program, not to an instance: a scope names no instance.
//!
//! ```text
//! nothing given:   one word for the program, which is right for one task
//! after `give`:    `get` and `set` of the kernel, e.g. a field of its task, or of its CPU
//! ```
//!
//! A kernel with several tasks gives its own before a second task allocates. With one word, the
//! scope of a task would bill the allocations of all others.
//!
//! Context: any. The functions of a kernel run in each allocation, also in interrupt handlers. A
//! handler begins with a word of 0 of its own, or works with that of the task that it interrupts.
//! In the second case the group of that task pays.

use core::ptr::null_mut;
// No protocol is built on these: a checker has nothing to explore.
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Functions of a kernel that read and write the calling task's word.
///
/// # Invariants
/// `get` returns what the calling task gave to `set` last, and 0 before its first `set`.
#[derive(Clone, Copy, Debug)]
pub struct TaskWord {
    get: fn() -> usize,
    set: fn(usize),
}

impl TaskWord {
    /// The word that `get` reads and `set` writes.
    ///
    /// # Safety
    /// `get` returns what the calling task gave to `set` last, and 0 if it never did. This holds
    /// also when the task moves to another CPU at any instruction. Neither function allocates,
    /// takes a lock, or unwinds.
    pub const unsafe fn new(get: fn() -> usize, set: fn(usize)) -> Self {
        // INVARIANT: by the contract.
        Self { get, set }
    }
}

/// The words in use.
///
/// # Invariants
/// `given` is null or was a `&'static TaskWord`.
struct Words {
    given: AtomicPtr<TaskWord>,
    /// The word of a program with one task.
    one: AtomicUsize,
}

impl Words {
    const fn new() -> Self {
        Self { given: AtomicPtr::new(null_mut()), one: AtomicUsize::new(0) }
    }

    fn given(&self) -> Option<&'static TaskWord> {
        // Acquire pairs with the release in `give`: the functions are there.
        // SAFETY: null or a static reference, by the type's invariant.
        unsafe { self.given.load(Ordering::Acquire).as_ref() }
    }

    fn give(&self, words: &'static TaskWord) {
        // INVARIANT: a static reference.
        self.given.store(core::ptr::from_ref(words).cast_mut(), Ordering::Release);
    }

    fn get(&self) -> usize {
        match self.given() {
            Some(words) => (words.get)(),
            None => self.one.load(Ordering::Relaxed),
        }
    }

    fn set(&self, word: usize) {
        match self.given() {
            Some(words) => (words.set)(word),
            None => self.one.store(word, Ordering::Relaxed),
        }
    }
}

static WORDS: Words = Words::new();

/// Makes `words` the task words of the program. A kernel calls it at its start, on its first CPU,
/// outside of all scopes.
pub fn give(words: &'static TaskWord) {
    WORDS.give(words);
}

/// The calling task's word.
#[cfg_attr(all(kmem_linux, not(miri)), allow(dead_code, reason = "Linux has thread-local words"))]
pub(crate) fn get() -> usize {
    WORDS.get()
}

/// Writes the calling task's word.
#[cfg_attr(all(kmem_linux, not(miri)), allow(dead_code, reason = "Linux has thread-local words"))]
pub(crate) fn set(word: usize) {
    WORDS.set(word);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::Cell;

    std::thread_local! {
        static WORD: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn a_program_that_gives_nothing_has_one_word() {
        let words = Words::new();
        assert_eq!(words.get(), 0);
        words.set(7);
        assert_eq!(words.get(), 7);
    }

    #[test]
    fn each_task_has_the_word_that_the_kernel_keeps_for_it() {
        // SAFETY: a thread's own word; threads are the tasks.
        static GIVEN: TaskWord = unsafe { TaskWord::new(|| WORD.get(), |word| WORD.set(word)) };
        let words = Words::new();
        words.set(7);
        words.give(&GIVEN);
        assert_eq!(words.get(), 0, "the word of the task, not that of the program");
        words.set(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(words.get(), 0);
                words.set(2);
                assert_eq!(words.get(), 2);
            });
        });
        assert_eq!(words.get(), 1);
        assert_eq!(words.one.load(Ordering::Relaxed), 7);
    }
}
