//! Promises of the C standard, POSIX and glibc's documents for each entry point.

use crate::harness::{CONFIGURATIONS, Run, in_configurations, must_work, program};

#[test]
fn zero_sizes_give_unique_blocks() {
    must_work("zero_sizes.c", &[]);
}

#[test]
fn impossible_sizes_fail_at_once_with_enomem() {
    must_work("too_large.c", &[]);
}

#[test]
fn errno_changes_only_where_it_may() {
    must_work("errno_rules.c", &[]);
}

#[test]
fn memory_that_the_program_maps_keeps_the_rules_of_the_manual() {
    must_work("mapping_rules.c", &[]);
}

#[test]
fn realloc_keeps_contents() {
    must_work("realloc_contents.c", &[]);
}

#[test]
fn calloc_zeroes_reused_memory() {
    must_work("calloc_zeroes.c", &[]);
}

#[test]
fn alignments_up_to_a_gibibyte() {
    must_work("alignment.c", &[]);
}

#[test]
fn usable_size_belongs_to_the_caller() {
    must_work("usable_size.c", &[]);
}

#[test]
fn sized_frees_free() {
    must_work("sized_free.c", &[]);
}

#[test]
fn introspection_answers_as_documented() {
    let path = program("introspection.c");
    // malloc_stats writes to stderr, so the library may speak here.
    in_configurations(
        CONFIGURATIONS,
        || Run::new(&path),
        |outcome| {
            outcome.assert_success();
            let names = outcome.stderr.lines().filter_map(|line| {
                let (name, number) = line.split_once(" = ")?;
                number.trim().parse::<u64>().ok().map(|_| name.trim())
            });
            let arena = ["system bytes", "in use bytes"];
            let glibc = [&arena[..], &arena[..], &["max mmap regions", "max mmap bytes"]].concat();
            assert!(names.eq(glibc), "{}", outcome.story());
            assert_eq!(outcome.messages().len(), 1, "{}", outcome.story());
        },
    );
}
