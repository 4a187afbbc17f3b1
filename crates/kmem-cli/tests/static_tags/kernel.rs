//! `kmem.h` in a C program.

use kmem_testing::{Run, SIGABRT};

use crate::harness::{Program, compile, include, library};

fn run(case: &str, conf: &str) -> String {
    run_program(&["kernel.c"], case, conf)
}

fn run_program(sources: &'static [&'static str], case: &str, conf: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let library = library();
    compile("cc", &["-O2", library.to_str().unwrap()], sources, &program);
    Program::start(&program, &[case], conf, sources).agrees_with_the_books(true)
}

#[test]
fn kmalloc_and_its_relatives_are_booked_at_their_lines() {
    assert_eq!(run("kmalloc", ""), "");
}

#[test]
fn the_tag_follows_krealloc_in_place_and_moved() {
    assert_eq!(run("krealloc", ""), "");
}

#[test]
fn krealloc_node_align_keeps_or_moves_what_lies_where_it_must() {
    assert_eq!(run("krealloc_node_align", ""), "");
}

#[test]
fn bulk_allocation_is_all_or_none() {
    assert_eq!(run("bulk", ""), "");
}

#[test]
fn caches_construct_zero_and_stay_while_objects_live() {
    assert_eq!(run("cache", ""), "kmem: the cache inodes stays: 21 of its objects are in use\n");
}

#[test]
fn pages_come_in_every_order_zeroed_and_exact() {
    assert_eq!(run("pages", ""), "");
}

#[test]
fn a_split_block_is_sixteen_references_and_freed_as_a_whole_or_in_pieces() {
    assert_eq!(run("split", ""), "");
}

fn run_more(case: &str) -> String {
    run_program(&["kernel_more.c"], case, "")
}

#[test]
fn copies_and_arrays_are_booked_at_their_lines() {
    assert_eq!(run_more("copies"), "");
}

#[test]
fn kvmalloc_and_its_relatives_are_objects_or_areas_by_size() {
    assert_eq!(run_more("either"), "");
}

#[test]
fn areas_come_zeroed_in_arrays_and_of_nodes() {
    assert_eq!(run_more("areas"), "");
}

#[test]
fn pages_come_as_numbers_of_nodes_and_in_bulk() {
    assert_eq!(run_more("numbers"), "");
}

#[test]
fn a_constructor_runs_once_for_each_object_and_zeroes_are_refused() {
    let said = "kmem: zeroed objects of the cache things are refused: it has a constructor\n";
    assert_eq!(run_more("constructor"), said);
}

#[test]
fn flags_align_objects_and_what_is_not_supported_is_refused_by_name() {
    let said = [
        "kmem: no cache rcu: SLAB_TYPESAFE_BY_RCU is not supported",
        "kmem: no cache dma: SLAB_CACHE_DMA is not supported",
        "kmem: no cache apart: SLAB_NO_MERGE is not supported",
        "kmem: no cache odd: flags 0x80000000 are not known",
    ];
    assert_eq!(run_more("flags").lines().collect::<Vec<_>>(), said);
}

#[test]
fn a_cache_that_must_be_made_and_cannot_ends_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let library = library();
    compile("cc", &["-O2", library.to_str().unwrap()], &["kernel_more.c"], &program);
    let outcome = Run::new(program).arg("panic").run();
    outcome.assert_signal(SIGABRT);
    let said = [
        "kmem: no cache rcu: SLAB_TYPESAFE_BY_RCU is not supported",
        "kmem: the cache rcu with SLAB_PANIC cannot be made",
    ];
    assert_eq!(outcome.messages(), said);
}

#[test]
fn elements_of_callbacks_are_billed_to_the_user_and_in_the_reserve_to_the_pool() {
    assert_eq!(run_more("callbacks"), "");
}

#[test]
fn pools_live_in_memory_of_the_program() {
    assert_eq!(run_more("pools"), "");
}

#[test]
fn per_cpu_objects_are_booked_once_and_their_copies_add_up() {
    for conf in ["", "rseq:off"] {
        let said = run_program(&["percpu.c"], "", conf);
        assert!(said.starts_with("Percpu Memory Statistics\nAllocation Info:\n"), "{said}");
        assert!(said.contains("\n  nr_cur_alloc        :           60\n"), "{said}");
        assert!(said.contains("\n  cur_alloc_size      :         6720\n"), "{said}");
    }
}

#[test]
fn areas_are_booked_in_whole_pages_and_listed_as_the_kernel_does() {
    let said = run_program(&["vmalloc.c"], "", "");
    let rows: Vec<_> = said.lines().collect();
    // `0xSTART-0xEND BYTES CALLER pages=N vmalloc N0=N`, with the guard among the bytes.
    let sizes =
        |line: &&str| line.split_whitespace().nth(1).and_then(|bytes| bytes.parse::<u64>().ok());
    let mut live: Vec<_> =
        rows.iter().filter(|line| line.contains(" pages=")).filter_map(sizes).collect();
    live.sort_unstable();
    assert_eq!(live, [2, 4, 6, 81, 101, 769].map(|pages| pages * 4096), "{said}");
    assert!(rows.iter().all(|line| line.starts_with("0x0000")), "{said}");
    assert_eq!(rows.iter().filter(|line| line.ends_with(" 12288 vmap")).count(), 1, "{said}");
    assert!(
        said.contains(" main@") && said.contains("vmalloc.c:12 pages=3 vmalloc N0=3"),
        "{said}"
    );
}

#[test]
fn a_pools_reserve_is_billed_to_its_maker_and_elements_to_their_user() {
    assert_eq!(run_program(&["mempool.c"], "", ""), "");
}

#[test]
fn a_hash_table_is_billed_to_its_maker_elements_included() {
    assert_eq!(run_program(&["rhashtable.c"], "", ""), "");
}

#[test]
fn the_user_of_a_wrapper_is_billed_and_scopes_nest() {
    assert_eq!(run("wrapper", ""), "");
}

#[test]
fn what_nobody_accounts_has_no_tag_and_each_place_is_warned_of_once() {
    assert_eq!(run("noprof", ""), "");
    let said = run("noprof", "debug");
    let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("kmem: debug: an allocation of 112 bytes that nobody accounted"), 1, "{said}");
    assert_eq!(
        count("kmem: debug: an allocation of 4096 bytes that nobody accounted"),
        1,
        "{said}"
    );
    assert_eq!(count("a free without a reference: "), 2, "one for each call that frees: {said}");
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn debug_finds_nothing_wrong_with_what_is_accounted() {
    for case in ["kmalloc", "krealloc", "bulk", "pages", "split", "wrapper"] {
        assert_eq!(run(case, "debug"), "", "{case}");
    }
}

/// Names that `kmem.h` defines for programs: macros with arguments, and functions.
fn names_of_the_header() -> Vec<String> {
    let text = std::fs::read_to_string(include().join("kmem.h")).unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let until_bracket = |text: &str| text.split_once('(').map(|(name, _)| name.to_owned());
    let macros = text.lines().filter_map(|line| until_bracket(line.strip_prefix("#define ")?));
    // A declaration ends with the symbol's name: `KMEM_AS_(kmem_kfree)`.
    let symbols = text.split("KMEM_AS_(kmem_").skip(1).filter_map(|rest| rest.split_once(')'));
    let functions = symbols.map(|(name, _)| name.to_owned());
    let own = |name: &String| {
        let inner = name.starts_with("KMEM_") && name != "KMEM_CACHE" || name.ends_with("_tag");
        name.chars().all(is_name) && !inner && !name.ends_with("_noprof")
    };
    macros.chain(functions).filter(own).collect()
}

#[test]
fn the_page_on_the_kernels_interface_has_every_name_of_the_header() {
    let root = include().join("..");
    let page = std::fs::read_to_string(root.join("docs/kernel-interface.md")).unwrap();
    let (_, table) = page.split_once("## Names of the kernel").expect("the table");
    let (table, _) = table.split_once("\n## ").expect("another part");
    let names = names_of_the_header();
    assert!(names.len() > 110, "{names:?}");
    let missing: Vec<_> =
        names.iter().filter(|name| !table.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
