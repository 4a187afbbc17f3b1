//! Runs of a model under the schedulers of shuttle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Changes of priority in a run of the PCT scheduler, plus one.
const DEPTH: usize = 5;
/// Most points of a run: some hundred times what the models have.
const MOST_POINTS: usize = 2_000_000;

/// Number of times that each outcome occurred. It shows that a model reaches its cases.
#[derive(Clone, Default)]
pub(crate) struct Outcomes(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Outcomes {
    /// Counts an outcome.
    pub(crate) fn note(&self, outcome: &'static str) {
        *self.0.lock().expect("not poisoned").entry(outcome).or_default() += 1;
    }
}

/// Runs a model `runs` times under each of the schedulers. Each outcome of `expected` must occur in
/// at least one run.
pub(crate) fn explore<F>(runs: usize, expected: &[&str], model: F)
where
    F: Fn(&Outcomes) + Send + Sync + 'static,
{
    let outcomes = Outcomes::default();
    let model = Arc::new(model);
    let run = |name: &str, scheduler: Box<dyn Scheduler + Send>| {
        let began = Instant::now();
        let (model, outcomes) = (model.clone(), outcomes.clone());
        let mut config = Config::new();
        config.stack_size = 8 << 20;
        config.max_steps = MaxSteps::FailAfter(MOST_POINTS);
        let runs = Runner::new(scheduler, config).run(move || model(&outcomes));
        eprintln!("{name}: {runs} runs in {:.1?}", began.elapsed());
    };
    if let Some(file) = std::env::var_os("KMEM_SHUTTLE_REPLAY") {
        let replay = ReplayScheduler::new_from_file(file).expect("a schedule");
        return run("replay", Box::new(replay));
    }
    let times = std::env::var("KMEM_SHUTTLE_RUNS").ok().and_then(|text| text.parse().ok());
    let runs = runs * times.unwrap_or(1);
    run("random", Box::new(RandomScheduler::new_from_seed(1, runs)));
    run("PCT", Box::new(PctScheduler::new_from_seed(1, DEPTH, runs)));
    let seen = outcomes.0.lock().expect("not poisoned");
    eprintln!("{seen:?}");
    for outcome in expected {
        assert!(seen.contains_key(outcome), "never came to: {outcome}");
    }
}
