//! A spin lock that owns no data: the data that it protects consists of atomics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The zone's lock, which can sum up the time for which it is held.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Lock {
    held: AtomicBool,
    timed: bool,
    ns: AtomicU64,
    times: AtomicU64,
}

/// The lock, held.
pub(crate) struct Held<'a> {
    lock: &'a Lock,
    since: Option<Instant>,
}

impl Lock {
    pub(crate) fn time_sections(&mut self) {
        self.timed = true;
    }

    pub(crate) fn sections(&self) -> (u64, u64) {
        (self.ns.load(Ordering::Relaxed), self.times.load(Ordering::Relaxed))
    }

    pub(crate) fn lock(&self) -> Held<'_> {
        while self.held.swap(true, Ordering::Acquire) {
            while self.held.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
        Held { lock: self, since: self.timed.then(Instant::now) }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let ns = since.elapsed().as_nanos() as u64;
            self.lock.ns.fetch_add(ns, Ordering::Relaxed);
            self.lock.times.fetch_add(1, Ordering::Relaxed);
        }
        self.lock.held.store(false, Ordering::Release);
    }
}
