//! Stacks that are kept for the next coroutine.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Stack;

/// Stacks of one length. Those that are given back are kept, with what was written to them.
#[derive(Debug)]
pub struct Stacks {
    bytes: usize,
    most: usize,
    free: Mutex<Vec<Stack>>,
}

impl Stacks {
    /// Makes a store of stacks of `bytes` bytes, which keeps at most `most` free ones.
    pub const fn new(bytes: usize, most: usize) -> Self {
        Self { bytes, most, free: Mutex::new(Vec::new()) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Stack>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the stack that was given back last, or a new one. `None`: see [`Stack::new`].
    pub fn take(&self) -> Option<Taken<'_>> {
        let kept = self.free().pop();
        let stack = kept.or_else(|| Stack::new(self.bytes))?;
        Some(Taken { stack: Some(stack), stacks: self })
    }

    /// Returns how many free stacks are kept.
    pub fn kept(&self) -> usize {
        self.free().len()
    }
}

/// A stack that goes back to its [`Stacks`] when this is dropped.
#[derive(Debug)]
pub struct Taken<'a> {
    /// `None` while it is dropped.
    stack: Option<Stack>,
    stacks: &'a Stacks,
}

impl Deref for Taken<'_> {
    type Target = Stack;

    fn deref(&self) -> &Stack {
        self.stack.as_ref().expect("the stack goes when this is dropped")
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut free = self.stacks.free();
        if free.len() < self.stacks.most {
            free.extend(self.stack.take());
        }
    }
}

// SAFETY: that of the stack, which lives as long as this.
#[cfg(feature = "corosensei")]
unsafe impl corosensei::stack::Stack for Taken<'_> {
    fn base(&self) -> corosensei::stack::StackPointer {
        corosensei::stack::Stack::base(&**self)
    }

    fn limit(&self) -> corosensei::stack::StackPointer {
        corosensei::stack::Stack::limit(&**self)
    }
}
