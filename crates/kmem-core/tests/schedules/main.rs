//! Models under shuttle: several threads, as many CPUs, whole zones and instances, in random schedules. Each runs with threads
//! that take turns at random and with such that preempt each other seldom, but anywhere (PCT).
//!
//! `KMEM_SHUTTLE_RUNS=100` runs each model a hundred times as often; `SHUTTLE_RANDOM_SEED` takes the place of the seeds. A model that
//! fails prints its schedule; `KMEM_SHUTTLE_REPLAY=file` runs what is in the file, for the one model that is asked for.
#![cfg(shuttle)]

#[path = "../zone/bare.rs"]
mod bare;
#[path = "../instance/console.rs"]
mod console;
#[path = "../instance/leaked.rs"]
mod leaked;

mod barn;
mod explore;
mod instance;
mod machine;
mod stamps;
mod watch;
mod zone;
