//! Models under shuttle: several threads, as many CPUs, whole zones and instances, in random
//! schedules. Each model runs under two schedulers. In one, threads take turns at random. In the
//! other (PCT), threads preempt each other seldom, but anywhere.
//!
//! - `KMEM_SHUTTLE_RUNS=100` runs each model a hundred times as often.
//! - `SHUTTLE_RANDOM_SEED` replaces the seeds.
//! - A model that fails prints its schedule. `KMEM_SHUTTLE_REPLAY=file` runs the schedule in that
//!   file, for the one model that is named.
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
mod merging;
mod stamps;
mod watch;
mod zone;
