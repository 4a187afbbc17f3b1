//! Tables of the documentation that are made from the code, or compared with it.
//!
//! A table stands between two marks of a page, `<!-- NAME -->` and `<!-- /NAME -->`. [`check`]
//! compares it with the text that the code gives, and rewrites it with `KMEM_BLESS=1`. [`names`]
//! reads the names from a table that people write, for a comparison with the names in the code.
//! [`programs`] finds the programs that pages show.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, PoisonError};

use crate::tree;

/// Lock that a test holds while it reads and rewrites a page, because tests of one program run
/// concurrently.
static PAGES: Mutex<()> = Mutex::new(());

/// Compares the text between two marks of a page with `text`. With `KMEM_BLESS=1` in the
/// environment, rewrites the page instead. `page` is a path from the root of the workspace.
///
/// # Panics
///
/// If the page has another text there, or lacks the marks.
pub fn check(page: &str, mark: &str, text: &str) {
    let _guard = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = read(page);
    let (before, now, after) = split(page, &whole, mark);
    if now == text {
        return;
    }
    let bless = std::env::var_os("KMEM_BLESS").is_some();
    assert!(bless, "{page} says\n{now}\nthe code says\n{text}\nRun this with KMEM_BLESS=1.");
    fs::write(tree::root().join(page), format!("{before}{text}{after}")).expect("a writable page");
}

/// Names in backquotes in one column, counted from 0, of the tables between two marks of a page.
///
/// # Panics
///
/// If the page lacks the marks, or a name stands there twice.
#[must_use]
pub fn names(page: &str, mark: &str, column: usize) -> BTreeSet<String> {
    let _guard = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = read(page);
    let (_, table, _) = split(page, &whole, mark);
    names_of(table, column)
}

/// The text as a table cell of one sentence: its first letter in upper case, and a full stop.
#[must_use]
pub fn sentence(text: &str) -> String {
    let text = cell(text);
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    let stop = if text.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}

/// The text as a table cell: without bars, which end a cell, and without line breaks, which end a
/// row.
#[must_use]
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// A program that a page shows: a fenced block with a `main`.
#[derive(Debug)]
pub struct Shown {
    /// The page, and the line at which the block begins.
    pub place: String,
    /// Language of the fence.
    pub language: String,
    /// Text of the block.
    pub text: String,
}

/// The programs in one of these languages in the README and in all pages of `docs`.
///
/// # Panics
///
/// If a page cannot be read.
#[must_use]
pub fn programs(languages: &[&str]) -> Vec<Shown> {
    let mut found = Vec::new();
    let is_page =
        |path: &String| path == "README.md" || (path.starts_with("docs/") && path.ends_with(".md"));
    for page in tree::files().into_iter().filter(is_page) {
        programs_of(&page, &read(&page), &mut found);
    }
    found.retain(|shown| languages.contains(&&*shown.language));
    found
}

fn programs_of(page: &str, text: &str, found: &mut Vec<Shown>) {
    let mut block = None::<Shown>;
    for (number, line) in text.lines().enumerate() {
        block = match (block, line.strip_prefix("```")) {
            (None, None) => None,
            (None, Some(language)) => Some(Shown {
                place: format!("{}-{}", page.replace('/', "-"), number + 1),
                language: language.to_owned(),
                text: String::new(),
            }),
            (Some(shown), Some(_)) => {
                found.extend(Some(shown).filter(|shown| shown.text.contains("main(")));
                None
            }
            (Some(mut shown), None) => {
                shown.text.extend([line, "\n"]);
                Some(shown)
            }
        };
    }
}

fn read(page: &str) -> String {
    tree::read(page).unwrap_or_else(|| panic!("{page} cannot be read"))
}

/// Splits a page behind its opening mark and before its closing mark.
fn split<'a>(page: &str, whole: &'a str, mark: &str) -> (&'a str, &'a str, &'a str) {
    let (open, close) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let missing = |what: &str| -> ! { panic!("{page} has no {what:?}") };
    let Some(from) = whole.find(&open).map(|at| at + open.len()) else { missing(&open) };
    let Some(len) = whole[from..].find(&close) else { missing(&close) };
    (&whole[..from], &whole[from..from + len], &whole[from + len..])
}

fn names_of(table: &str, column: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let rows = table.lines().filter(|line| line.starts_with('|') && !line.starts_with("|-"));
    for row in rows {
        let cell = row.split('|').nth(column + 1).unwrap_or_default();
        for name in cell.split('`').skip(1).step_by(2) {
            assert!(names.insert(name.to_owned()), "{name} stands twice");
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n<!-- a -->\n| n | m |\n|---|---|\n| `x`, `y` | `q` |\n\
                        <!-- /a -->\nend `z`\n";

    #[test]
    fn a_page_is_split_at_its_marks() {
        let (before, text, after) = split("page", PAGE, "a");
        assert!(before.ends_with("<!-- a -->\n") && after.starts_with("<!-- /a -->"));
        assert_eq!(format!("{before}{text}{after}"), PAGE);
    }

    #[test]
    fn names_stand_in_backquotes_in_one_column() {
        let (_, table, _) = split("page", PAGE, "a");
        assert_eq!(names_of(table, 0), BTreeSet::from(["x".to_owned(), "y".to_owned()]));
        assert_eq!(names_of(table, 1), BTreeSet::from(["q".to_owned()]));
    }

    #[test]
    #[should_panic(expected = "stands twice")]
    fn a_name_that_stands_twice_is_an_error() {
        names_of("| `x` |\n| `x` |\n", 0);
    }

    #[test]
    #[should_panic(expected = "has no")]
    fn a_mark_that_is_missing_is_an_error() {
        split("page", PAGE, "b");
    }

    #[test]
    fn a_cell_has_no_bars_and_no_breaks() {
        assert_eq!(cell("a|b\nc"), "a\\|b c");
        assert_eq!(sentence("ends here"), "Ends here.");
        assert_eq!(sentence("Ends. Here."), "Ends. Here.");
    }
}
