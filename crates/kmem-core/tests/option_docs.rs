//! Pages of the documentation against the code: options, and the names of statistics.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;

use kmem_core::conf::OPTIONS;
use kmem_layout::group::group_event;
use kmem_testing::page::{check, names};

#[test]
fn the_page_of_options_says_what_the_code_says() {
    let mut table = String::from("| option | values | default | effect |\n|---|---|---|---|\n");
    for option in OPTIONS {
        let default = if option.default.is_empty() { "none" } else { option.default };
        let (name, values, meaning) = (option.name, option.values, option.meaning);
        table.push_str(&format!("| `{name}` | {values} | {default} | {meaning} |\n"));
    }
    check("docs/configuration.md", "options", &table);
}

const STATISTICS: &str = "docs/statistics.md";

/// Names of the fields of a structure of numbers.
fn fields(of: &impl Debug) -> BTreeSet<String> {
    let text = format!("{of:?}");
    text.split_whitespace().filter_map(|word| word.strip_suffix(':')).map(str::to_owned).collect()
}

#[test]
fn the_page_of_statistics_has_the_fields_of_every_structure() {
    let stats = kmem_core::Stats::default();
    assert_eq!(names(STATISTICS, "stats", 0), fields(&stats));
    let vmalloc = kmem_core::VmallocStats::default();
    assert_eq!(names(STATISTICS, "vmalloc", 0), fields(&vmalloc));
    let percpu = kmem_core::PerCpuStats::default();
    assert_eq!(names(STATISTICS, "percpu", 1), fields(&percpu));
}

#[test]
fn the_page_of_statistics_has_the_fields_of_groups() {
    let page = names(STATISTICS, "groups", 0);
    let mut rust = fields(&kmem_core::GroupStat::default());
    assert!(rust.remove("events"));
    rust.extend(group_event::NAMES.map(|name| format!("{name}_events")));
    assert_eq!(page, rust);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/kmem/group.h");
    let header = std::fs::read_to_string(path).expect("the header");
    let (_, rest) = header.split_once("struct kmem_group_stat {").expect("the structure");
    let (body, _) = rest.split_once("};").expect("its end");
    let without_comments = body.split("*/").map(|part| part.split("/*").next().unwrap_or(""));
    let text: String = without_comments.collect();
    let fields = text.split(';').filter_map(|line| line.trim().strip_prefix("uint64_t "));
    let fields = fields.flat_map(|names| names.split(',')).map(|name| name.trim().to_owned());
    let mut c: BTreeSet<String> = fields.collect();
    assert!(c.remove("size"));
    assert_eq!(page, c);
}
