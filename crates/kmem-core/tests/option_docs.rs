//! The page of options against the table that they are parsed by.

use kmem_core::conf::OPTIONS;
use kmem_testing::page::check;

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
