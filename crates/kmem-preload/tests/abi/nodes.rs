//! Machines with several nodes, simulated by files over those of the kernel.

use kmem_testing::{not_run, this_test, topology};

use crate::harness::{Run, library, program_with_libraries};

/// Runs `nodes.c` on a machine with this number of nodes.
#[track_caller]
fn on_nodes(nodes: u32, configuration: &str, expected: &str) {
    let Some(library) = library() else {
        return not_run(&this_test(), "KMEM_TEST_LIBRARY names no library to link with");
    };
    if topology::cannot_be_simulated() {
        return;
    }
    let program = program_with_libraries("nodes.c", "nodes", &[&library]);
    let command = topology::with_nodes(nodes);
    let run = Run::new(&command[0]).args(&command[1..]).arg(program).arg(expected);
    run.without_preload().env("KMEM_CONF", configuration).run().assert_quiet_success();
}

#[test]
fn memory_is_of_the_node_of_the_cpu_or_of_the_node_that_is_named() {
    on_nodes(2, "", "2");
    on_nodes(8, "", "8");
    on_nodes(2, "mem_profiling:never", "2");
    on_nodes(2, "rseq:off", "2");
}

#[test]
fn with_one_node_or_with_nodes_switched_off_all_memory_is_of_node_0() {
    on_nodes(1, "", "1");
    on_nodes(2, "numa:off", "1");
}
