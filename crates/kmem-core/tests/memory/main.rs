//! An instance: its objects, pages, areas, tables and checks. What needs a process of its own, as
//! for another configuration, is a test file of its own.
#![cfg(all(target_os = "linux", not(any(loom, miri, shuttle))))]

#[path = "../instance/mod.rs"]
mod instance;

mod ages;
mod caches;
mod debug;
mod faults;
mod fences;
mod giving_back;
mod mempool;
mod no_bytes;
mod nodes;
mod object_checks;
mod page_checks;
mod page_lengths;
mod page_owner;
mod reclaim;
mod refusals;
mod regions;
mod rhashtable;
mod shortage;
mod stepped_tables;
mod unloaded_tags;
mod vmalloc;
mod zeroed;
