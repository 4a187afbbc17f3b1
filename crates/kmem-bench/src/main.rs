//! Tables of kmem against its rivals.
//!
//! ```text
//! main -> malloc   -> rivals -> dynamic (dlopen, dladdr), child (a rival in a process of its own)
//!                  -> workload -> heap (two function pointers), prng, affinity
//!      -> programs -> tracer -> link_map (which object provides malloc)
//!      -> profiling -> rivals (instances of kmem) -> kernel (kmalloc, kfree, pages)
//!      -> pages -> contender (kmem, the classic buddy zone) -> pattern, section, fragmentation
//!      -> peak, phases, huge_pages -> rivals, each in a process of its own
//!      -> hardening -> workload (instances of kmem, by option)
//!      -> misuse -> preload, dynamic (programs of the catalogue under preloaded allocators)
//!      -> accounting, utilization -> rivals (an instance of kmem)
//!      -> nodes, percpu, vmalloc, rhashtable -> cells (variants of workloads, by threads)
//!      -> callers -> a child for each depth -> conversation
//!      -> census, profiling -> mutator (a heap in a child) -> conversation
//!      -> modules (the kernel's earlier loaders, and kmem's)
//!      all -> statistics, table, machine, preload
//! ```
//!
//! Exit codes: 0: a table was printed; 1: a measurement failed; 2: kmem, or an allocator or program
//! that an option names, is missing.

mod accounting;
mod affinity;
mod callers;
mod cells;
mod census;
mod child;
mod conversation;
mod dynamic;
mod hardening;
mod heap;
mod huge_pages;
mod kernel;
mod machine;
mod malloc;
mod misuse;
mod modules;
mod mutator;
mod nodes;
mod pages;
mod peak;
mod percpu;
mod phases;
mod preload;
mod prng;
mod profiling;
mod programs;
mod rhashtable;
mod rivals;
mod statistics;
mod table;
mod utilization;
mod vmalloc;
mod workload;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Tables of kmem against its rivals, each measured in the same run.
#[derive(Parser)]
#[command(name = "kmem-bench", version)]
struct Arguments {
    #[command(subcommand)]
    table: Table,
}

#[derive(Subcommand)]
enum Table {
    /// Nanoseconds per operation of every allocator on every workload.
    Malloc(malloc::Options),
    /// Wall time and peak memory of real programs under preloaded allocators.
    Programs(programs::Options),
    /// Cost of the books, in the configurations of the kernel's own table.
    Profiling(profiling::Options),
    /// Cost of telling call sites apart by their callers, by depth.
    Callers(table::Options),
    /// Nanoseconds per page or huge page, against the classic buddy allocator.
    Pages(pages::Options),
    /// Memory that a program keeps after a peak.
    Peak(peak::Options),
    /// Time and memory of a program that needs memory again and again.
    Phases(phases::Options),
    /// Huge pages under a heap that is larger than the TLB reaches.
    HugePages(huge_pages::Options),
    /// Cost of the checks of objects, by option.
    Hardening(table::Options),
    /// Endings of each kind of memory misuse, by allocator.
    Misuse(misuse::Options),
    /// Cost of charging objects to groups, as the kernel measured it.
    Accounting(accounting::Options),
    /// Share of objects in the slab memory of many groups.
    Utilization(utilization::Options),
    /// Cost of reading the books of a large heap, for the reader and for the program.
    Census(census::Options),
    /// Cost of duplicates when many threads load the same modules concurrently.
    Modules(table::Options),
    /// Machines with several NUMA nodes, simulated, beside one with one.
    Nodes(cells::Options),
    /// Per-CPU memory beside thread-locals and sharded atomics.
    Percpu(cells::Options),
    /// Areas of whole pages beside mmap and munmap.
    Vmalloc(cells::Options),
    /// Hash tables that threads share.
    Rhashtable(cells::Options),
    /// One allocator in a process of its own; reads workload names on stdin.
    #[command(hide = true)]
    Child(child::Options),
    /// A program that allocates at the end of chains of calls.
    #[command(hide = true)]
    CallersProgram,
    /// A program with a peak.
    #[command(hide = true)]
    PeakProgram(peak::Program),
    /// A program that works in phases.
    #[command(hide = true)]
    PhasesProgram(phases::Program),
    /// A program that walks through its objects in random order.
    #[command(hide = true)]
    HugePagesProgram(huge_pages::Program),
    /// A heap that a census is taken of.
    #[command(hide = true)]
    Mutator(mutator::Heap),
}

/// The reason why no table could be printed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A part that the table needs is missing: exit code 2.
    Absent(String),
    /// A measurement failed: exit code 1.
    Failed(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().table {
        Table::Malloc(options) => malloc::run(&options),
        Table::Programs(options) => programs::run(&options),
        Table::Profiling(options) => profiling::run(&options),
        Table::Callers(options) => callers::run(&options),
        Table::CallersProgram => callers::serve(),
        Table::Pages(options) => pages::run(&options),
        Table::Peak(options) => peak::run(&options),
        Table::PeakProgram(program) => peak::serve(&program),
        Table::Phases(options) => phases::run(&options),
        Table::PhasesProgram(program) => phases::serve(&program),
        Table::HugePages(options) => huge_pages::run(&options),
        Table::HugePagesProgram(program) => huge_pages::serve(&program),
        Table::Census(options) => census::run(&options),
        Table::Modules(options) => modules::run(&options),
        Table::Hardening(options) => hardening::run(&options),
        Table::Misuse(options) => misuse::run(&options),
        Table::Accounting(options) => accounting::run(&options),
        Table::Utilization(options) => utilization::run(&options),
        Table::Nodes(options) => nodes::run(&options),
        Table::Percpu(options) => percpu::run(&options),
        Table::Vmalloc(options) => vmalloc::run(&options),
        Table::Rhashtable(options) => rhashtable::run(&options),
        Table::Mutator(heap) => mutator::serve(&heap),
        Table::Child(options) => child::serve(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Absent(message)) => {
            eprintln!("kmem-bench: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Failed(message)) => {
            eprintln!("kmem-bench: {message}");
            ExitCode::from(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::CommandFactory as _;

    #[test]
    fn the_options_of_all_tables_fit_together() {
        Arguments::command().debug_assert();
    }
}
