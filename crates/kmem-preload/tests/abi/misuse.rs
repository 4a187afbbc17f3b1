//! Wrong frees, reallocations and size questions: one line on stderr, then SIGABRT, never a crash
//! in the allocator's own code and never silence.

use crate::harness::{
    CHECKED_CONFIGURATIONS, Environment, Run, SIGABRT, SIGSEGV, in_configurations, is_not_kmem,
    program,
};

/// `double_free.c`, where the message must name one of `words` and contain `parts`.
#[track_caller]
fn double_free(arguments: &[&str], words: &[&str], parts: &[&str]) {
    refused("double_free.c", arguments, words, parts);
}

#[track_caller]
fn refused(source: &str, arguments: &[&str], words: &[&str], parts: &[&str]) {
    if is_not_kmem() {
        return;
    }
    let path = program(source);
    in_configurations(
        CHECKED_CONFIGURATIONS,
        || Run::new(&path).args(arguments),
        |outcome| {
            outcome.assert_refused(words, parts);
        },
    );
}

const DOUBLE: &[&str] = &["double free"];
const INVALID: &[&str] = &["invalid free"];
const INVALID_REALLOC: &[&str] = &["invalid realloc"];
/// For addresses of which only the past knows whether they ever were a block.
const EITHER: &[&str] = &["double free", "invalid free"];

#[test]
fn double_free_at_once() {
    double_free(&["immediate", "64"], DOUBLE, &["64-byte"]);
}

#[test]
fn double_free_of_every_kind_of_small_size() {
    for size in ["1", "8", "16", "100", "1000", "3000"] {
        double_free(&["immediate", size], DOUBLE, &["-byte"]);
    }
}

#[test]
fn double_free_of_medium_and_large_blocks() {
    for size in ["20000", "100000", "1048576", "5000000", "100000000"] {
        double_free(&["immediate", size], EITHER, &[]);
    }
}

#[test]
fn double_free_of_a_block_of_no_bytes() {
    double_free(&["immediate", "0"], DOUBLE, &[]);
}

#[test]
fn double_free_after_frees_of_the_same_size() {
    double_free(&["after_other_frees", "64"], DOUBLE, &["64-byte"]);
    double_free(&["after_other_frees", "2000"], DOUBLE, &[]);
}

#[test]
fn double_free_after_frees_of_other_sizes() {
    double_free(&["after_frees_of_other_sizes", "64"], DOUBLE, &["64-byte"]);
}

#[test]
fn double_free_from_another_thread() {
    double_free(&["from_another_thread", "64"], DOUBLE, &["64-byte"]);
    double_free(&["first_by_another_thread", "64"], DOUBLE, &["64-byte"]);
}

#[test]
fn a_race_of_two_frees_is_found_at_once_in_debug() {
    if is_not_kmem() {
        return;
    }
    let path = program("racing_free.c");
    const DEBUG: &[(&str, &str)] = &[("KMEM_CONF", "debug")];
    const WITH_LOCKS: &[(&str, &str)] = &[("KMEM_CONF", "debug,rseq:off")];
    for conf in [DEBUG, WITH_LOCKS] {
        let outcome = Run::new(&path).configured(conf).run();
        outcome.assert_signal(SIGABRT);
        let found = |line: &&str| line.contains("double free") && line.contains("64-byte");
        assert!(outcome.messages().iter().any(found), "{:?}", outcome.messages());
    }
}

#[test]
fn double_free_after_the_thread_has_ended() {
    double_free(&["after_thread_exit", "64"], DOUBLE, &["64-byte"]);
}

#[test]
fn double_free_by_two_threads_at_once_has_one_winner() {
    for _ in 0..10 {
        double_free(&["by_two_threads_at_once", "64"], DOUBLE, &["64-byte"]);
    }
}

#[test]
fn double_free_after_malloc_trim() {
    double_free(&["after_trim", "64"], EITHER, &[]);
    double_free(&["after_trim", "300000"], EITHER, &[]);
}

#[test]
fn double_free_of_an_aligned_block() {
    double_free(&["of_aligned", "64"], EITHER, &[]);
    double_free(&["of_aligned", "20000"], EITHER, &[]);
}

#[test]
fn double_free_after_realloc() {
    double_free(&["after_realloc_moved", "64"], DOUBLE, &["64-byte"]);
    double_free(&["after_realloc_to_nothing", "64"], DOUBLE, &["64-byte"]);
}

#[test]
fn double_free_in_a_forked_child() {
    double_free(&["in_forked_child", "64"], DOUBLE, &["64-byte"]);
}

#[test]
fn free_inside_a_small_block() {
    for offset in ["8", "16", "24", "32", "48"] {
        refused("invalid_free.c", &["free", "interior_of_small", offset], INVALID, &["64-byte"]);
    }
}

#[test]
fn free_of_an_unaligned_pointer() {
    for offset in 1..16 {
        refused(
            "invalid_free.c",
            &["free", "interior_of_small", &offset.to_string()],
            INVALID,
            &[],
        );
    }
    refused("invalid_free.c", &["free", "before_small", "1"], INVALID, &[]);
    refused("invalid_free.c", &["free", "interior_of_large", "1"], INVALID, &[]);
}

#[test]
fn free_of_the_next_slot() {
    // The slot is free, or no slot at all; it is not an object of the program.
    refused("invalid_free.c", &["free", "interior_of_small", "64"], EITHER, &[]);
}

#[test]
fn free_inside_a_medium_block() {
    for offset in ["16", "4096", "8192"] {
        refused("invalid_free.c", &["free", "interior_of_medium", offset], INVALID, &[]);
    }
}

#[test]
fn free_inside_a_large_block() {
    for offset in ["16", "4096", "65536", "524288", "1044480"] {
        refused("invalid_free.c", &["free", "interior_of_large", offset], INVALID, &[]);
    }
    for offset in ["16", "4096", "2097152", "33554432"] {
        refused("invalid_free.c", &["free", "interior_of_huge", offset], INVALID, &[]);
    }
    refused("invalid_free.c", &["free", "interior_of_aligned", "4096"], INVALID, &[]);
}

#[test]
fn free_of_stack_data_and_thread_local_memory() {
    for place in ["stack", "data", "bss", "thread_local", "environment"] {
        refused("invalid_free.c", &["free", place], INVALID, &[]);
        refused("invalid_free.c", &["free", place, "64"], INVALID, &[]);
    }
}

#[test]
fn free_of_mapped_memory() {
    for offset in ["0", "16", "4096", "65536", "4194304"] {
        refused("invalid_free.c", &["free", "mapped", offset], INVALID, &[]);
        refused("invalid_free.c", &["free", "unmapped", offset], INVALID, &[]);
    }
    refused("invalid_free.c", &["free", "break", "64"], INVALID, &[]);
}

#[test]
fn free_of_code() {
    refused("invalid_free.c", &["free", "code"], INVALID, &[]);
    refused("invalid_free.c", &["free", "libc_code"], INVALID, &[]);
}

#[test]
fn free_of_numbers_that_are_no_pointers() {
    let numbers = [
        "0x1",
        "0x10",
        "0xfff",
        "0x1000",
        "0x10000",
        "0x7fffffffffff",
        "0x7ffffffff000",
        "0x800000000000",
        "0x4141414141414141",
        "0x8000000000000000",
        "0xdeadbeefdeadbeef",
        "0xffff800000000000",
        "0xffffffffffff0000",
        "0xffffffffffffffff",
    ];
    for number in numbers {
        refused("invalid_free.c", &["free", "number", number], INVALID, &[]);
    }
}

#[test]
fn free_of_addresses_near_and_far_that_never_were_blocks() {
    for offset in ["0x10000", "0x100000", "0x1000000", "0x40000000", "0x1000000000"] {
        refused("invalid_free.c", &["free", "far_behind_small", offset], EITHER, &[]);
    }
}

#[test]
fn realloc_of_a_freed_block() {
    for size in ["64", "2000"] {
        refused("invalid_free.c", &["realloc", "freed", size], INVALID_REALLOC, &[]);
    }
    refused("invalid_free.c", &["realloc", "freed", "1000000"], INVALID_REALLOC, &[]);
}

#[test]
fn realloc_of_what_never_was_a_block() {
    for place in ["stack", "data", "mapped", "code", "thread_local"] {
        refused("invalid_free.c", &["realloc", place], INVALID_REALLOC, &[]);
    }
    refused("invalid_free.c", &["realloc", "interior_of_small", "16"], INVALID_REALLOC, &[]);
    refused("invalid_free.c", &["realloc", "interior_of_large", "4096"], INVALID_REALLOC, &[]);
    refused("invalid_free.c", &["realloc", "number", "0x10"], INVALID_REALLOC, &[]);
    refused("invalid_free.c", &["realloc", "number", "0x4141414141414140"], INVALID_REALLOC, &[]);
}

#[test]
fn usable_size_of_what_is_no_live_block() {
    for arguments in
        [["freed", "64"], ["interior_of_small", "16"], ["stack", "0"], ["number", "0x10"]]
    {
        refused(
            "invalid_free.c",
            &["usable_size", arguments[0], arguments[1]],
            &["malloc_usable_size"],
            &[],
        );
    }
}

#[test]
fn block_of_the_c_library_is_passed_on_or_refused() {
    if is_not_kmem() {
        return;
    }
    let path = program("foreign_free.c");
    in_configurations(
        CHECKED_CONFIGURATIONS,
        || Run::new(&path),
        |outcome| {
            if outcome.ended_by(SIGABRT) {
                outcome.assert_refused(INVALID, &[]);
            } else {
                outcome.assert_quiet_success();
            }
        },
    );
}

#[test]
fn message_is_one_short_line() {
    if is_not_kmem() {
        return;
    }
    let outcome = Run::new(program("double_free.c")).args(&["immediate", "64"]).run();
    outcome.assert_refused(DOUBLE, &["64-byte"]);
    assert!(outcome.stderr.len() < 1000 && outcome.stderr.is_ascii(), "{}", outcome.story());
    assert!(outcome.stderr.ends_with('\n'), "{}", outcome.story());
}

#[test]
fn refusal_aborts_with_stderr_closed() {
    if is_not_kmem() {
        return;
    }
    Run::after_shell("exec 2>&-", program("double_free.c"))
        .args(&["immediate", "64"])
        .run()
        .assert_signal(SIGABRT);
}

#[test]
fn heap_memory_cannot_be_executed() {
    Run::new(program("heap_is_not_code.c")).run().assert_signal(SIGSEGV);
}

/// Forms of `delete`, and requests with a size that belongs to another class.
const DELETES: &[(&str, &str, &str)] = &[
    ("delete", "100", "24"),
    ("delete", "24", "100"),
    ("delete", "5000", "100"),
    ("delete", "100", "100000"),
    ("delete", "100000", "100"),
    ("delete", "3000000", "2000000"),
    ("delete", "100", "18446744073709551615"),
    ("delete[]", "100", "200"),
    ("delete[]", "100000", "200000"),
    ("aligned delete", "100", "1000"),
    ("aligned delete", "100000", "100"),
    ("aligned delete[]", "1000", "100"),
    ("aligned delete[]", "100", "100000"),
];

#[test]
fn a_sized_delete_that_tells_another_size() {
    for (form, size, told) in DELETES {
        let part = format!(" bytes, not of {told}");
        let parts = ["is an allocation of ", &part];
        refused("told_sizes.cc", &[form, size, told], &["invalid sized delete"], &parts);
    }
}

#[test]
fn a_free_of_more_bytes_than_there_are_or_of_much_less() {
    for form in ["free_sized", "free_aligned_sized"] {
        for (size, told) in [("1024", "256"), ("100", "100000"), ("100000", "100"), ("50", "5000")]
        {
            let part = format!(" bytes, not of {told}");
            refused("told_sizes.cc", &[form, size, told], &["invalid free_sized"], &[&part]);
        }
    }
}

#[track_caller]
fn accepted(configured: Environment, arguments: &[&str]) {
    if is_not_kmem() {
        return;
    }
    let run = Run::new(program("told_sizes.cc")).args(arguments).configured(configured);
    run.run().assert_quiet_success();
}

#[test]
fn the_size_of_the_request_is_accepted_whatever_the_class_rounds_it_to() {
    for size in ["0", "1", "16", "17", "100", "1024", "1025", "5000", "32768", "32769", "3000000"] {
        for form in ["delete", "delete[]", "aligned delete", "aligned delete[]"] {
            accepted(&[], &[form, size, size]);
        }
        for form in ["free_sized", "free_aligned_sized"] {
            accepted(&[], &[form, size, size]);
            accepted(&[("KMEM_CONF", "redzone:1")], &[form, size, size]);
        }
    }
}

#[test]
fn memory_that_realloc_made_smaller_or_larger_in_place_has_its_new_size() {
    for (from, to) in [("100", "60"), ("5000", "2600"), ("100000", "60000"), ("100000", "400000")] {
        accepted(&[], &["free_sized after realloc", from, to]);
        accepted(&[("KMEM_CONF", "redzone:1")], &["free_sized after realloc", from, to]);
    }
}

#[test]
fn other_sizes_are_accepted_where_sizes_are_not_checked() {
    for (form, size, told) in DELETES {
        accepted(&[("KMEM_CONF", "check_sizes:0")], &[form, size, told]);
    }
}

#[test]
fn a_block_that_was_freed_is_a_double_free_whatever_size_is_told() {
    for form in ["delete twice", "free_sized twice"] {
        refused("told_sizes.cc", &[form, "100", "24"], DOUBLE, &["-byte object"]);
    }
}
