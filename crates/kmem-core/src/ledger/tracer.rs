//! A tracer outside the process, which is told of samples of the allocations and of their frees.
//!
//! While there is one, calls are watched, so the fast paths are closed, and others serve that look
//! for samples. Without one they are open, and cost no more than they would without probes. A
//! tracer is seen by the next call that takes a slow path, as one that refills an array does.

use super::Ledger;
use crate::alloc_tag::Watch;
use crate::os::Platform;
use crate::request::Caller;

impl<P: Platform> Ledger<P> {
    /// Begins or ends samples if a tracer came or went.
    #[inline]
    pub(super) fn look_for_tracer(&self) {
        if self.platform().is_traced() != self.books.watch().samples() {
            self.switch_samples();
        }
    }

    #[cold]
    #[inline(never)]
    fn switch_samples(&self) {
        // A thread that comes second looks again with its next call.
        if !self.books.are_kept() || !self.samples.lock() {
            return;
        }
        let (platform, heap, sites) = (self.platform(), &self.heap, &self.books.sites);
        if !platform.is_traced() {
            self.end_samples();
        } else if self.samples.begin(platform) {
            // Frees are looked at before the first sample may be freed.
            heap.fast.close(&heap.fast_aside);
            self.books.add_watch(Watch::SAMPLE);
            sites.put_aside_while(true);
            sites.forget();
        }
        self.samples.unlock();
    }

    fn end_samples(&self) {
        self.books.sites.put_aside_while(false);
        self.books.end_watch(Watch::SAMPLE);
        self.heap.fast.reopen(&self.heap.fast_aside);
        self.books.sites.forget();
    }

    /// In a forked child: ends samples if a thread of the parent was about to begin or end them.
    pub(super) fn repair_samples(&self) {
        if !self.samples.lock() {
            self.end_samples();
        }
        self.samples.unlock();
    }

    /// Tells the tracer of an allocation of `bytes` at `at`, if it is a sample.
    #[inline]
    pub fn sample_alloc(&self, at: usize, bytes: u64, caller: Caller) {
        let slots = &self.heap.slots;
        let weight = self.samples.weigh(slots.current(slots.hint(self.platform())), bytes);
        if weight > 0 {
            self.tell_sample((at, bytes), weight, caller);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_sample(&self, (at, bytes): (usize, u64), weight: u64, caller: Caller) {
        if self.samples.keep(at) {
            let (platform, sites) = (self.platform(), &self.books.sites);
            sites.with_calls(platform, caller.site(), |calls| {
                platform.trace_alloc(at, bytes, weight, calls);
            });
        }
    }

    /// Tells the tracer of the free of what is at `at`, if it is a sample.
    #[inline]
    pub fn sample_free(&self, at: usize) {
        if self.samples.take(at) {
            self.platform().trace_free(at);
        }
    }
}
