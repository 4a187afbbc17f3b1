//! A simulator: another platform's memory, with simulated CPUs, time, and faults at chosen calls.
//!
//! Every call that can fail has a number, counted from one. A test runs an operation with the
//! first call failing, then the second, and so on until a run meets no fault.
//!
//! Context: any.

use core::ptr::NonNull;

use super::{
    Access, Budget, Clock, ConfSource, Console, Cpus, HugePages, Memory, Platform, Process,
};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::PAGE_SIZE;

/// A simulator over another platform; see the module's description.
pub struct Sim<P> {
    inner: P,
    budget: Budget,
    nodes: u32,
    /// True if threads use the restartable sequences of the inner platform.
    rseq: bool,
    /// Number of questions for the node.
    looked: AtomicU64,
    /// True if memory can be shown before it is committed.
    shows: bool,
    cpu: AtomicU32,
    /// State of the random sequence of CPUs; 0: the CPU is `cpu`.
    wander: AtomicU64,
    clock: AtomicU64,
    tender_calls: AtomicU64,
    /// 1 while there is a tracer.
    is_traced: AtomicU32,
    /// Sum of the weights of samples that the tracer was told of, and number of their frees.
    traced: AtomicU64,
    traced_frees: AtomicU64,
    calls: AtomicU64,
    fail_from: AtomicU64,
    fail_until: AtomicU64,
}

impl<P: Platform> Sim<P> {
    /// A simulator over `inner`, with the given budget and no faults.
    pub const fn new(inner: P, budget: Budget) -> Self {
        Self {
            inner,
            budget,
            nodes: 1,
            rseq: false,
            looked: AtomicU64::new(0),
            shows: true,
            cpu: AtomicU32::new(0),
            wander: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            tender_calls: AtomicU64::new(0),
            is_traced: AtomicU32::new(0),
            traced: AtomicU64::new(0),
            traced_frees: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            fail_from: AtomicU64::new(u64::MAX),
            fail_until: AtomicU64::new(u64::MAX),
        }
    }

    /// Gives the simulator a count of nodes: CPU `n` belongs to node `n % nodes`.
    pub const fn with_nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    /// Has threads use restartable sequences, if the inner platform has them. Then the CPU slots
    /// are those of the real CPUs, and [`Self::run_on`] chooses the node alone.
    pub const fn with_rseq(mut self) -> Self {
        self.rseq = true;
        self
    }

    /// Takes the ability to show memory before it is committed from the platform.
    pub const fn without_show(mut self) -> Self {
        self.shows = false;
        self
    }

    /// Number of times that the node of a CPU was asked for.
    pub fn looks_for_node(&self) -> u64 {
        self.looked.load(Ordering::Relaxed)
    }

    /// Makes all later operations run on the given CPU slot.
    pub fn run_on(&self, cpu: u32) {
        self.cpu.store(cpu % self.budget.cpus, Ordering::Relaxed);
    }

    /// Moves the caller to another CPU whenever it asks for its CPU, in an order that `seed`
    /// decides. So operations are moved while they run. 0 ends this.
    pub fn wander(&self, seed: u64) {
        self.wander.store(seed, Ordering::Relaxed);
    }

    /// Number of calls of [`Process::call_tender`].
    pub fn tender_calls(&self) -> u64 {
        self.tender_calls.load(Ordering::Relaxed)
    }

    /// Brings or takes a tracer.
    pub fn trace(&self, on: bool) {
        self.is_traced.store(u32::from(on), Ordering::Relaxed);
    }

    /// The sum of the weights of all samples that the tracer was told of, and the number of frees.
    pub fn told_tracer(&self) -> (u64, u64) {
        (self.traced.load(Ordering::Relaxed), self.traced_frees.load(Ordering::Relaxed))
    }

    /// Moves the clock forward.
    pub fn advance_ms(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::Relaxed);
    }

    /// Fails the calls numbered `from..until`, counted from the next call as 1.
    pub fn fail(&self, from: u64, until: u64) {
        self.calls.store(0, Ordering::Relaxed);
        self.fail_until.store(until, Ordering::Relaxed);
        self.fail_from.store(from, Ordering::Relaxed);
    }

    /// Number of calls since the last [`Self::fail`] that can fail.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn faulty(&self) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        call >= self.fail_from.load(Ordering::Relaxed)
            && call < self.fail_until.load(Ordering::Relaxed)
    }
}

// SAFETY: the inner platform keeps the contract; a call that fails here changes nothing.
unsafe impl<P: Platform> Memory for Sim<P> {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if self.faulty() { None } else { self.inner.reserve(bytes, align) }
    }

    unsafe fn release(&self, at: NonNull<u8>, bytes: usize) {
        if !self.faulty() {
            // SAFETY: the same contract.
            unsafe { self.inner.release(at, bytes) }
        }
    }

    unsafe fn commit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the same contract.
        !self.faulty() && unsafe { self.inner.commit(at, bytes) }
    }

    fn reserve_shown(&self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        if self.faulty() {
            return None;
        }
        if self.shows && !self.faulty() {
            self.inner.reserve_shown(bytes)
        } else {
            self.inner.reserve(bytes, PAGE_SIZE).map(|at| (at, false))
        }
    }

    fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if self.faulty() { None } else { self.inner.allocate(bytes, align) }
    }

    unsafe fn decommit(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the same contract.
        !self.faulty() && unsafe { self.inner.decommit(at, bytes) }
    }

    fn releases_parts(&self) -> bool {
        self.inner.releases_parts()
    }

    fn budget(&self) -> Budget {
        self.budget
    }

    fn allows(&self, committed: usize) -> bool {
        self.inner.allows(committed)
    }

    fn grants(&self, bytes: usize) -> bool {
        self.inner.grants(bytes)
    }

    fn can_protect(&self) -> bool {
        self.inner.can_protect()
    }

    unsafe fn protect(&self, at: NonNull<u8>, bytes: usize, access: Access) -> bool {
        // SAFETY: the same contract.
        !self.faulty() && unsafe { self.inner.protect(at, bytes, access) }
    }

    fn max_mappings(&self) -> usize {
        self.inner.max_mappings()
    }

    fn huge_pages(&self) -> HugePages {
        self.inner.huge_pages()
    }

    unsafe fn advise_huge(&self, at: NonNull<u8>, bytes: usize, huge: bool) {
        if !self.faulty() {
            // SAFETY: the same contract.
            unsafe { self.inner.advise_huge(at, bytes, huge) }
        }
    }

    unsafe fn remap(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the same contract.
        !self.faulty() && unsafe { self.inner.remap(from, to, bytes) }
    }

    unsafe fn share(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the same contract.
        !self.faulty() && unsafe { self.inner.share(at, bytes) }
    }

    unsafe fn alias(&self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the same contract.
        !self.faulty() && unsafe { self.inner.alias(from, to, bytes) }
    }

    unsafe fn unalias(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the same contract.
        !self.faulty() && unsafe { self.inner.unalias(at, bytes) }
    }

    unsafe fn show(&self, at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the same contract.
        self.shows && !self.faulty() && unsafe { self.inner.show(at, bytes) }
    }

    fn map_root(&self, bytes: usize) -> Option<NonNull<u8>> {
        if self.faulty() { None } else { self.inner.map_root(bytes) }
    }
}

impl<P: Platform> Cpus for Sim<P> {
    fn slot_hint(&self) -> u32 {
        let mut state = self.wander.load(Ordering::Relaxed);
        if state != 0 {
            // xorshift (Marsaglia, 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            self.wander.store(state, Ordering::Relaxed);
            return (state >> 33) as u32 % self.budget.cpus;
        }
        self.cpu.load(Ordering::Relaxed)
    }

    fn thread(&self) -> u32 {
        self.inner.thread()
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn node(&self) -> u32 {
        self.looked.fetch_add(1, Ordering::Relaxed);
        self.slot_hint() % self.nodes
    }

    fn distances(&self, from: u32, to: &mut [u8]) {
        // The nodes lie on a line, node 0 at one end of it.
        for (node, to) in (0..).zip(to) {
            *to = (10 + 2 * from.abs_diff(node)).min(255) as u8;
        }
    }

    fn rseq_offset(&self) -> Option<isize> {
        self.inner.rseq_offset().filter(|_| self.rseq)
    }

    fn fence_cpus(&self) -> bool {
        self.rseq && self.inner.fence_cpus()
    }

    fn barrier(&self) -> bool {
        // Not faulty: whether a system has barriers does not depend on its memory.
        self.inner.barrier()
    }
}

impl<P: Platform> Clock for Sim<P> {
    fn now_ms(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn ticks(&self) -> u64 {
        self.clock.load(Ordering::Relaxed) * 1_000_000
    }
}

impl<P: Platform> Console for Sim<P> {
    fn print(&self, text: &[u8]) {
        self.inner.print(text);
    }

    fn fatal(&self) -> ! {
        self.inner.fatal()
    }
}

impl<P: Platform> Process for Sim<P> {
    fn configuration(&self, source: ConfSource, buf: &mut [u8]) -> Option<usize> {
        self.inner.configuration(source, buf)
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        self.inner.wait(word, seen);
    }

    fn wake(&self, word: &AtomicU32) {
        self.inner.wake(word);
    }

    fn is_traced(&self) -> bool {
        self.is_traced.load(Ordering::Relaxed) != 0
    }

    fn trace_alloc(&self, _at: usize, _bytes: u64, weight: u64, _calls: &[usize]) {
        self.traced.fetch_add(weight, Ordering::Relaxed);
    }

    fn trace_free(&self, _at: usize) {
        self.traced_frees.fetch_add(1, Ordering::Relaxed);
    }

    fn call_tender(&self) {
        self.tender_calls.fetch_add(1, Ordering::Relaxed);
    }
}
