//! Links between the pages of the repository lead to files and headings that exist. The tests that
//! pages name exist, too, and the book has every page of `docs`.

use std::collections::{BTreeMap, BTreeSet};

use kmem_testing::tree;

const SUMMARY: &str = "docs/SUMMARY.md";

/// Lines of a page outside of fences, with their numbers.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    page.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((at + 1, line))
    })
}

/// The anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Anchors of all headings of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let heading = |(_, line): (usize, &str)| {
        let text = line.trim_start_matches('#');
        let marks = line.len() - text.len();
        (marks > 0 && text.starts_with(' ')).then(|| anchor(text))
    };
    prose(page).filter_map(heading).collect()
}

/// Targets of the links of a page that stay in the repository, with their lines.
fn links(page: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, text) in prose(page) {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.filter(|target| !target.contains("://")).map(|target| (line, target)));
    }
    found
}

/// The path that a target leads to, from the root of the repository.
fn resolve(page: &str, target: &str) -> String {
    if target.is_empty() {
        return page.to_owned();
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Links of a page that lead nowhere, as `path:line: target`.
fn broken(path: &str, page: &str, pages: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let leads = |target: &str| {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = resolve(path, file);
        match pages.get(&file) {
            Some(anchors) => heading.is_empty() || anchors.contains(heading),
            None => heading.is_empty() && tree::root().join(&file).exists(),
        }
    };
    let found = links(page).into_iter().filter(|(_, target)| !leads(target));
    found.map(|(line, target)| format!("{path}:{line}: {target}")).collect()
}

/// Texts of all pages by their paths.
fn pages() -> BTreeMap<String, String> {
    let paths = tree::files().into_iter().filter(|path| path.ends_with(".md"));
    paths.filter_map(|path| Some((path.clone(), tree::read(&path)?))).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = pages();
    let known = pages.iter().map(|(path, page)| (path.clone(), anchors(page))).collect();
    let found: Vec<String> =
        pages.iter().flat_map(|(path, page)| broken(path, page, &known)).collect();
    assert!(found.is_empty(), "{} links lead nowhere:\n{}", found.len(), found.join("\n"));
}

/// Paths of tests that the prose of a page quotes.
fn quoted_tests(page: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, text) in prose(page) {
        let quoted = text.split('`').skip(1).step_by(2);
        let is_test = |quoted: &&str| quoted.starts_with("tests/") && quoted.ends_with(".rs");
        found.extend(quoted.filter(is_test).map(|path| (line, path)));
    }
    found
}

#[test]
fn every_test_that_a_page_names_by_its_path_exists() {
    let files = tree::files();
    let exists = |test: &str| files.iter().any(|path| path.ends_with(&format!("/{test}")));
    let mut found = Vec::new();
    for (path, page) in &pages() {
        let lost = quoted_tests(page).into_iter().filter(|(_, test)| !exists(test));
        found.extend(lost.map(|(line, test)| format!("{path}:{line}: {test}")));
    }
    assert!(found.is_empty(), "{} tests do not exist:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_book_has_every_page_of_the_documentation_once() {
    let pages = pages();
    let mut listed: Vec<String> =
        links(&pages[SUMMARY]).into_iter().map(|(_, target)| resolve(SUMMARY, target)).collect();
    listed.sort();
    let wanted: Vec<String> =
        pages.into_keys().filter(|path| path.starts_with("docs/") && path != SUMMARY).collect();
    assert_eq!(listed, wanted);
}

/// Tests of the reader of links.
mod reader {
    use super::*;

    #[test]
    fn a_test_is_a_path_in_quotes_outside_of_fences() {
        let page =
            "`tests/a.rs` and tests/b.rs, `src/c.rs`\n```\n`tests/d.rs`\n```\n`tests/e/f.rs`";
        assert_eq!(quoted_tests(page), [(1, "tests/a.rs"), (5, "tests/e/f.rs")]);
    }

    #[test]
    fn a_link_to_no_file_or_no_heading_is_found() {
        let page = "# One `two`: three\n[a](#one-two-three) [b](b.md)\n[c](#no) ![d](../x.png)\n\
                    ```\n[e](e.md)\n```\n[f](https://x.org/) [g](../src)\n";
        let known = BTreeMap::from([
            ("docs/a.md".to_owned(), anchors(page)),
            ("src".to_owned(), BTreeSet::new()),
        ]);
        let found = broken("docs/a.md", page, &known);
        assert_eq!(found, ["docs/a.md:2: b.md", "docs/a.md:3: #no", "docs/a.md:3: ../x.png"]);
    }
}
