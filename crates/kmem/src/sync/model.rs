//! What the models share. A model is a small piece of concurrent use of the real code, which
//! loom runs once for every order of its atomic operations, and for every value that a load may
//! return, that a bounded number of preemptions can bring about.
//!
//! Which orders there are to try, loom finds out by the last access to each atomic alone. A load
//! can so stay early for good when its thread has nothing else in common with another that loads
//! before it writes; whoever only looks is therefore spawned, for the first thread runs first.
//!
//! `LOOM_MAX_PREEMPTIONS` in the environment takes the place of the models' own bounds.

use std::collections::BTreeSet;
use std::eprintln;
use std::string::String;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use loom::cell::UnsafeCell;

/// What happened in a run, so that a model shows that it comes to the cases it is made for.
#[derive(Clone, Default)]
pub(crate) struct Outcomes(Arc<Mutex<(u64, BTreeSet<String>)>>);

impl Outcomes {
    /// This came about.
    pub(crate) fn note(&self, outcome: impl Into<String>) {
        self.0.lock().expect("not poisoned").1.insert(outcome.into());
    }
}

/// Runs a model with at most so many preemptions. All of `expected`, and nothing else, must
/// come about in one run or another.
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

/// Memory that whoever owns a thing writes to: two owners at a time are caught, and an owner
/// to whom the writes of the one before are not visible.
#[derive(Default)]
pub(crate) struct Owned(UnsafeCell<u32>);

// SAFETY: the cell checks every access.
unsafe impl Sync for Owned {}
// SAFETY: as above.
unsafe impl Send for Owned {}

impl Owned {
    /// Reads, while nobody writes.
    pub(crate) fn read(&self) {
        // SAFETY: the cell panics if somebody writes.
        self.0.with(|at| unsafe { core::hint::black_box(*at) });
    }

    /// Writes, as only the owner may.
    pub(crate) fn write(&self) {
        // SAFETY: the cell panics unless this is the only access.
        self.0.with_mut(|at| unsafe { *at += 1 });
    }
}
