//! Tools for the models. A model uses the real code from a few threads. Loom runs it once for each
//! order of its atomic operations, and each value a load may return, that a bounded number of
//! preemptions allows.
//!
//! Loom finds the orders to try by the last access to each atomic only. So it may miss orders in
//! which a load of the first thread comes late: the first thread runs first. A thread that only
//! loads is therefore spawned.
//!
//! `LOOM_MAX_PREEMPTIONS` in the environment replaces the models' own bounds.

use std::collections::BTreeSet;
use std::eprintln;
use std::string::String;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use loom::cell::UnsafeCell;

/// Outcomes of all runs: a model shows with them that its runs reach the cases it is made for.
#[derive(Clone, Default)]
pub(crate) struct Outcomes(Arc<Mutex<(u64, BTreeSet<String>)>>);

impl Outcomes {
    /// Records an outcome of this run.
    pub(crate) fn note(&self, outcome: impl Into<String>) {
        self.0.lock().expect("not poisoned").1.insert(outcome.into());
    }
}

/// Runs a model with at most `preemptions` preemptions. Asserts that the outcomes of all runs are
/// exactly those of `expected`.
pub(crate) fn check<F>(preemptions: usize, expected: &[&str], model: F)
where
    F: Fn(&Outcomes) + Send + Sync + 'static,
{
    let began = Instant::now();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = builder.max_branches.max(20_000);
    let outcomes = Outcomes::default();
    let inner = outcomes.clone();
    builder.check(move || {
        inner.0.lock().expect("not poisoned").0 += 1;
        model(&inner);
    });
    let seen = outcomes.0.lock().expect("not poisoned");
    eprintln!("{} runs in {:.1?}: {:?}", seen.0, began.elapsed(), seen.1);
    assert!(seen.1.iter().eq(BTreeSet::from_iter(expected)), "not what was to come about");
}

/// Memory that only the owner of a thing writes to. Loom fails a model in which two threads own it
/// at a time, or an owner does not see the last owner's writes.
#[derive(Default)]
pub(crate) struct Owned(UnsafeCell<u32>);

// SAFETY: the cell checks every access.
unsafe impl Sync for Owned {}
// SAFETY: the cell checks every access, whichever thread makes it.
unsafe impl Send for Owned {}

impl Owned {
    /// Reads, while no thread writes.
    pub(crate) fn read(&self) {
        // SAFETY: the cell panics if another thread writes.
        self.0.with(|at| unsafe { core::hint::black_box(*at) });
    }

    /// Writes, on behalf of the owner.
    pub(crate) fn write(&self) {
        // SAFETY: the cell panics unless this is the only access.
        self.0.with_mut(|at| unsafe { *at += 1 });
    }
}
