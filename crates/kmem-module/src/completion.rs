//! Waiting that signals interrupt, with a futex.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Errno, Error, Result};

fn futex(word: &AtomicU32, operation: i32, value: u32) -> i32 {
    // SAFETY: the word is alive for the call; no timeout, no second word.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
    if result < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
}

/// Waits until the word is not `value` any more, or [`wake_all`] is called. May return early.
///
/// # Errors
/// `EINTR`: a signal handler ran that does not restart system calls.
pub fn wait_while(word: &AtomicU32, value: u32) -> Result<()> {
    if futex(word, libc::FUTEX_WAIT, value) == libc::EINTR {
        return Err(Error::new(Errno::EINTR, "a signal came while waiting"));
    }
    Ok(())
}

/// Wakes all threads that wait for a word.
pub fn wake_all(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, i32::MAX.cast_unsigned());
}

/// An event that happens once.
#[derive(Debug, Default)]
pub struct Completion(AtomicU32);

impl Completion {
    /// Waits for the event.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn wait(&self) -> Result<()> {
        while !self.is_done() {
            wait_while(&self.0, 0)?;
        }
        Ok(())
    }

    /// Returns whether the event has happened.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Marks the event as happened, and wakes all threads that wait for it.
    pub fn complete(&self) {
        self.0.store(1, Ordering::Release);
        wake_all(&self.0);
    }
}

/// A limited number of slots; threads wait for a free one.
#[derive(Debug)]
pub struct Slots(AtomicU32);

impl Slots {
    /// Makes `count` free slots.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self(AtomicU32::new(count))
    }

    /// Takes a slot. Waits until one is free.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn take(&self) -> Result<()> {
        let one_less = |free: u32| free.checked_sub(1);
        while self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less).is_err() {
            wait_while(&self.0, 0)?;
        }
        Ok(())
    }

    /// Gives a slot back.
    pub fn give(&self) {
        self.0.fetch_add(1, Ordering::Release);
        wake_all(&self.0);
    }
}
