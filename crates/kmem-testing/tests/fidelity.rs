//! The page that compares kmem with Linux, `docs/fidelity.md`: the files and the tests that its
//! tables name exist.

use std::collections::BTreeSet;

use kmem_testing::tree;

const PAGE: &str = "docs/fidelity.md";

/// Number of tables of the page, one for each subject.
const SUBJECTS: usize = 5;

/// A row of a table.
struct Row<'a> {
    line: usize,
    /// Names of the kernel, places in kmem, tests, differences.
    cells: [&'a str; 4],
}

/// Rows of all tables of a page, and findings about tables and rows of another shape.
fn rows(page: &str) -> (Vec<Row<'_>>, Vec<String>) {
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    let mut tables = 0;
    for (line, text) in page.lines().enumerate().map(|(at, text)| (at + 1, text)) {
        let Some(inner) = text.strip_prefix("| ") else { continue };
        let cells: Vec<&str> = inner.trim_end_matches(" |").split(" | ").collect();
        match <[&str; 4]>::try_from(cells) {
            Ok(["in the kernel", "in kmem", "test", "what differs"]) => tables += 1,
            Ok(cells) => rows.push(Row { line, cells }),
            Err(cells) => found.push(format!("{line}: {} cells", cells.len())),
        }
    }
    if tables != SUBJECTS {
        found.push(format!("1: {tables} tables, not {SUBJECTS}"));
    }
    (rows, found)
}

/// Text in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns whether a source has a test of that name: a function below the attribute.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let head = format!("fn {name}(");
    lines.iter().enumerate().any(|(at, line)| {
        let above = lines[..at].iter().rev();
        let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        line.starts_with(&head) && above.any(|line| *line == "#[test]")
    })
}

/// Tests by file in a cell: a path, a colon, and names. Semicolons separate files.
fn tests(cell: &str) -> Vec<(&str, Vec<&str>)> {
    let one = |part| -> Option<(&str, Vec<&str>)> {
        let mut quoted = quoted(part);
        Some((quoted.next()?, quoted.collect()))
    };
    cell.split("; ").filter_map(one).collect()
}

/// Findings in a page, as `line: rule`. `source` gives the text of a file.
fn lint(page: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let (rows, mut found) = rows(page);
    for Row { line, cells: [kernel, places, shown, differs] } in rows {
        let mut wrong = |what: String| found.push(format!("{line}: {what}"));
        if kernel.is_empty() || differs.is_empty() {
            wrong("an empty cell".to_owned());
        }
        if places == "none" || shown == "none" {
            if places != shown || differs == "nothing" {
                wrong("what is not built has no test, and a reason".to_owned());
            }
            continue;
        }
        for path in quoted(places).filter(|path| source(path).is_none()) {
            wrong(format!("{path} does not exist"));
        }
        if quoted(places).next().is_none() || tests(shown).is_empty() {
            wrong("no file or no test".to_owned());
        }
        for (path, names) in tests(shown) {
            let Some(text) = source(path) else {
                wrong(format!("{path} does not exist"));
                continue;
            };
            if names.is_empty() {
                wrong(format!("no test of {path}"));
            }
            for name in names.into_iter().filter(|name| !has_test(&text, name)) {
                wrong(format!("{path} has no test {name}"));
            }
        }
    }
    found
}

#[test]
fn files_and_tests_that_the_page_names_exist() {
    let page = tree::read(PAGE).expect("the page");
    let files: BTreeSet<String> = tree::files().into_iter().collect();
    // Paths are from `crates/`, or from the root.
    let source = |path: &str| {
        let path = [format!("crates/{path}"), path.to_owned()]
            .into_iter()
            .find(|path| files.contains(path))?;
        tree::read(&path)
    };
    let found = lint(&page, source);
    assert!(found.is_empty(), "{PAGE}, {} findings:\n{}", found.len(), found.join("\n"));
}

/// Tests of the lint on a planted page.
mod planted {
    use super::*;

    const HEAD: &str = "| in the kernel | in kmem | test | what differs |\n|---|---|---|---|\n";
    const SOURCE: &str = "#[test]\n// Why.\nfn shown() {}\n\nfn helper() {}\n";

    /// Findings in a page of five tables, the last with these rows, without their lines.
    fn findings(rows: &str) -> Vec<String> {
        let page = format!("{}{rows}\n", HEAD.repeat(SUBJECTS));
        let source = |path: &str| (path == "a/b.rs").then(|| SOURCE.to_owned());
        let found = lint(&page, source);
        found.iter().map(|found| found.split_once(": ").expect("a line").1.to_owned()).collect()
    }

    #[test]
    fn a_row_with_a_file_and_a_test_passes() {
        assert_eq!(findings("| `f` | `a/b.rs` | `a/b.rs`: `shown` | nothing |"), [""; 0]);
        assert_eq!(findings("| `f` | none | none | it has no use here |"), [""; 0]);
    }

    #[test]
    fn absent_files_and_tests_are_found() {
        let of = |places, shown| findings(&format!("| `f` | {places} | {shown} | nothing |"));
        assert_eq!(of("`a/c.rs`", "`a/b.rs`: `shown`"), ["a/c.rs does not exist"]);
        assert_eq!(of("`a/b.rs`", "`a/c.rs`: `shown`"), ["a/c.rs does not exist"]);
        assert_eq!(of("`a/b.rs`", "`a/b.rs`: `helper`"), ["a/b.rs has no test helper"]);
        assert_eq!(of("`a/b.rs`", "`a/b.rs`: `sho`"), ["a/b.rs has no test sho"]);
        assert_eq!(of("`a/b.rs`", "`a/b.rs`"), ["no test of a/b.rs"]);
        assert_eq!(of("here", "`a/b.rs`: `shown`"), ["no file or no test"]);
        let two = "`a/b.rs`: `shown`; `a/d.rs`: `shown`";
        assert_eq!(of("`a/b.rs`", two), ["a/d.rs does not exist"]);
    }

    #[test]
    fn a_thing_that_is_not_built_needs_a_reason_and_no_test() {
        let rule = "what is not built has no test, and a reason";
        assert_eq!(findings("| `f` | none | none | nothing |"), [rule]);
        assert_eq!(findings("| `f` | none | `a/b.rs`: `shown` | it is so |"), [rule]);
        assert_eq!(findings("| `f` | `a/b.rs` | none | it is so |"), [rule]);
    }

    #[test]
    fn tables_and_rows_of_another_shape_are_found() {
        assert_eq!(findings("| `f` | none | it is so |"), ["3 cells"]);
        let (_, found) = rows(HEAD);
        assert_eq!(found, ["1: 1 tables, not 5"]);
    }
}
