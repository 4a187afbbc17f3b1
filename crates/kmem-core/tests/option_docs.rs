//! The page of options against the table that they are parsed by.

use std::fs;
use std::path::Path;

use kmem_core::conf::OPTIONS;

/// The table between two marks of a page, rewritten with `KMEM_BLESS=1`.
fn check(page: &str, mark: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(&path).expect("the page");
    let (open, close) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let (before, rest) = text.split_once(&open).expect("the table begins");
    let (now, after) = rest.split_once(&close).expect("the table ends");
    if now == table {
        return;
    }
    let bless = std::env::var_os("KMEM_BLESS").is_some();
    assert!(bless, "{page} says\n{now}\nthe code says\n{table}\nRun this with KMEM_BLESS=1.");
    fs::write(&path, format!("{before}{open}{table}{close}{after}")).expect("a writable page");
}

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
