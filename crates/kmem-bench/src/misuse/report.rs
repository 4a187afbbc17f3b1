//! The table as text and as JSON: rows, counts, and the rows in which kmem is worse than another.

use super::allocators::{Allocator, GLIBC, KMEM};
use super::{Row, title};
use crate::machine::Machine;
use crate::table::Grid;
use kmem_testing::misuse::{Ending, MODES};
use serde::Serialize;
use std::collections::BTreeMap;

/// The document for programs.
#[derive(Serialize)]
struct Document<'a> {
    table: &'static str,
    machine: &'a Machine,
    rows: Vec<JsonRow<'a>>,
    counts: BTreeMap<&'a str, BTreeMap<&'static str, usize>>,
    default_is_worse_than_glibc: Vec<Worse<'a>>,
    strictest_is_worse: Vec<Worse<'a>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    group: &'a str,
    case: &'a str,
    endings: BTreeMap<&'a str, &'static str>,
}

/// A case in which a mode of kmem has a worse ending than others.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Worse<'a> {
    group: &'a str,
    case: &'a str,
    kmem: &'static str,
    others: BTreeMap<&'a str, &'static str>,
}

impl Worse<'_> {
    fn line(&self) -> String {
        let others: Vec<String> =
            self.others.iter().map(|(name, ending)| format!("{name} {ending}")).collect();
        format!("  {}: {}: {}; {}\n", self.group, self.case, self.kmem, others.join(", "))
    }
}

/// The name of the column of a mode, by its number.
fn mode(number: usize) -> String {
    format!("{KMEM} {}", MODES[number].name)
}

/// The cases in which the column `kmem` has a worse ending than one of the `others`.
fn worse<'a>(
    allocators: &'a [Allocator],
    rows: &'a [Row],
    kmem: &str,
    others: impl Fn(&str) -> bool,
) -> Vec<Worse<'a>> {
    let Some(column) = allocators.iter().position(|allocator| allocator.name == kmem) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for Row { case, endings } in rows {
        let mine = endings[column];
        let better: BTreeMap<&str, &str> = allocators
            .iter()
            .zip(endings)
            .filter(|(other, ending)| others(&other.name) && mine.is_worse_than(**ending))
            .map(|(other, ending)| (&*other.name, ending.word()))
            .collect();
        if !better.is_empty() {
            let (group, name) = (&*case.group, &*case.name);
            found.push(Worse { group, case: name, kmem: mine.word(), others: better });
        }
    }
    found
}

fn default_is_worse<'a>(allocators: &'a [Allocator], rows: &'a [Row]) -> Vec<Worse<'a>> {
    worse(allocators, rows, &mode(0), |name| name == GLIBC)
}

fn strictest_is_worse<'a>(allocators: &'a [Allocator], rows: &'a [Row]) -> Vec<Worse<'a>> {
    worse(allocators, rows, &mode(1), |name| !name.starts_with(KMEM))
}

fn count(rows: &[Row], column: usize, ending: Ending) -> usize {
    rows.iter().filter(|row| row.endings[column] == ending).count()
}

/// The JSON document.
pub(super) fn document<'a>(
    machine: &'a Machine,
    allocators: &'a [Allocator],
    rows: &'a [Row],
) -> impl Serialize + 'a {
    let names = || allocators.iter().map(|allocator| &*allocator.name);
    let counts = |column: usize| {
        Ending::ALL.into_iter().map(|ending| (ending.word(), count(rows, column, ending))).collect()
    };
    Document {
        table: "misuse",
        machine,
        rows: rows
            .iter()
            .map(|Row { case, endings }| JsonRow {
                group: &case.group,
                case: &case.name,
                endings: names().zip(endings.iter().map(|ending| ending.word())).collect(),
            })
            .collect(),
        counts: names().enumerate().map(|(column, name)| (name, counts(column))).collect(),
        default_is_worse_than_glibc: default_is_worse(allocators, rows),
        strictest_is_worse: strictest_is_worse(allocators, rows),
    }
}

/// The table as text.
pub(super) fn text(machine: &Machine, allocators: &[Allocator], rows: &[Row]) -> String {
    let mut grid = Grid::default();
    let names = allocators.iter().map(|allocator| allocator.name.clone());
    grid.push(["misuse".to_owned()].into_iter().chain(names));
    for row in rows {
        let words = row.endings.iter().map(|ending| ending.word().to_owned());
        grid.push([title(&row.case)].into_iter().chain(words));
    }
    let mut sums = Grid::default();
    let names = allocators.iter().map(|allocator| allocator.name.clone());
    sums.push([format!("of {}", rows.len())].into_iter().chain(names));
    for ending in Ending::ALL {
        let counts = (0..allocators.len()).map(|column| count(rows, column, ending).to_string());
        sums.push([ending.word().to_owned()].into_iter().chain(counts));
    }
    let mut text = format!("{machine}\n\n{}\n{}", grid.render(), sums.render());
    let list = |heading: String, cases: Vec<Worse<'_>>| {
        let lines: String = cases.iter().map(Worse::line).collect();
        format!("\n{heading}: {} cases\n{lines}", cases.len())
    };
    let heading = format!("{} is worse than {GLIBC}", mode(0));
    text.push_str(&list(heading, default_is_worse(allocators, rows)));
    let heading = format!("{} is worse than another allocator", mode(1));
    text.push_str(&list(heading, strictest_is_worse(allocators, rows)));
    for (name, reason) in &machine.missing {
        text.push_str(&format!("\n{name}: {reason}"));
    }
    if !machine.missing.is_empty() {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{default_is_worse, strictest_is_worse, text};
    use crate::machine::Machine;
    use crate::misuse::Row;
    use crate::misuse::allocators::Allocator;
    use kmem_testing::misuse::Ending::{self, Crash, Found, Harmless, Missed, Refused};
    use kmem_testing::misuse::cases;

    fn allocators() -> Vec<Allocator> {
        let names = ["glibc", "scudo", "kmem default", "kmem hardened"];
        let allocator = |name: &str| Allocator {
            name: name.to_owned(),
            preload: None,
            library: name.into(),
            environment: &[],
        };
        names.map(allocator).into()
    }

    fn rows() -> Vec<Row> {
        let endings: [[Ending; 4]; 4] = [
            [Crash, Missed, Missed, Found],
            [Found, Found, Found, Missed],
            [Harmless, Refused, Missed, Missed],
            [Missed, Missed, Missed, Harmless],
        ];
        let rows = cases().into_iter().zip(endings);
        rows.map(|(case, endings)| Row { case, endings: endings.into() }).collect()
    }

    #[test]
    fn cases_in_which_kmem_is_worse_are_named() {
        let (allocators, rows) = (allocators(), rows());
        let default = default_is_worse(&allocators, &rows);
        let names: Vec<_> = default.iter().map(|worse| worse.case).collect();
        assert_eq!(names, [&rows[0].case.name, &rows[2].case.name]);
        let strictest = strictest_is_worse(&allocators, &rows);
        let names: Vec<_> = strictest.iter().map(|worse| worse.case).collect();
        assert_eq!(names, [&rows[1].case.name, &rows[2].case.name]);
        assert_eq!(strictest[1].others.len(), 2, "{strictest:?}");
    }

    #[test]
    fn the_text_has_rows_counts_and_what_is_missing() {
        let mut machine = Machine::default();
        machine.missing.insert("hardened_malloc".to_owned(), "not installed".to_owned());
        let text = text(&machine, &allocators(), &rows());
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        let last = line("missed").split_whitespace().collect::<Vec<_>>();
        assert_eq!(last, ["missed", "1", "2", "3", "2"]);
        assert!(line("kmem default is worse").ends_with("2 cases"), "{text}");
        assert!(line("hardened_malloc").ends_with("not installed"), "{text}");
    }
}
