//! A reading as the screen shows it: texts for the head, and rows of cells.

use std::collections::HashMap;

use kmem_snapshot::Reading;
use kmem_snapshot::escape::printable;
use kmem_snapshot::report::{self, short, size, size_u};
use kmem_snapshot::sites::{Order, Origin, Site};
use kmem_snapshot::stacks::Frame;

use crate::untracked::untracked;

use super::search::Search;
use super::sums::{self, Unit};
use super::{Branches, By};

/// A column of numbers, right-aligned.
pub(super) struct Column {
    pub(super) name: &'static str,
    /// True if a narrow screen leaves it out.
    pub(super) optional: bool,
}

const SIZE: Column = Column { name: "SIZE", optional: false };
const OBJECTS: Column = Column { name: "OBJECTS", optional: true };
const PINNED: Column = Column { name: "PINNED", optional: false };
const SOLE: Column = Column { name: "SOLE", optional: true };
const SLABS: Column = Column { name: "SLABS", optional: true };

/// A row of the screen.
#[derive(Default)]
pub(super) struct Row {
    /// Text that the row keeps in the next reading, and no other row has.
    pub(super) key: String,
    /// Live bytes.
    pub(super) bytes: i64,
    /// Change of these since the reading before; 0 in the first one.
    pub(super) delta: i64,
    /// A cell for each column.
    pub(super) cells: Vec<String>,
    /// Function, group or frame, which may be indented.
    pub(super) name: String,
    /// Place in the source, or nothing.
    pub(super) place: String,
    /// True if the place says more than the name, where there is room for one.
    pub(super) known_by_place: bool,
    /// Count of callers above it in a tree.
    pub(super) depth: usize,
    /// Whole names, beside the one that is shown, that a filter looks at.
    pub(super) known_as: Vec<String>,
}

/// One reading as the screen shows it.
pub(super) struct View {
    /// Name of the process, and its sum.
    pub(super) title: String,
    /// The equation, and lines that explain it.
    pub(super) accounting: String,
    /// Facts that a user must know to read the rows.
    pub(super) notes: Vec<String>,
    pub(super) columns: Vec<Column>,
    /// Title of the names.
    pub(super) names: &'static str,
    /// The rows that the filter of the screen admits.
    pub(super) rows: Vec<Row>,
    /// Count of all rows.
    pub(super) all: usize,
}

/// The choice of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    pub(super) by: By,
    pub(super) tree: Option<Branches>,
    /// The thing that a row stands for, where there is no tree.
    pub(super) unit: Unit,
    pub(super) order: Order,
    /// Least bytes of a node of the tree.
    pub(super) least: i64,
}

impl View {
    /// The view of a reading, with the changes since the one before.
    pub(super) fn of(
        reading: &Reading,
        before: Option<&Reading>,
        choice: Choice,
        search: &Search,
    ) -> Self {
        let (columns, names) = match (choice.tree, choice.unit) {
            (Some(tree), _) => (vec![SIZE, OBJECTS], tree.title()),
            (None, Unit::Site) if choice.by == By::Pinned => {
                (vec![PINNED, SOLE, SIZE, OBJECTS], "FUNCTION")
            }
            (None, Unit::Site) => (vec![SIZE, OBJECTS], "FUNCTION"),
            (None, Unit::Process) => (vec![SIZE, OBJECTS], "PROCESS"),
            (None, Unit::Group) => (vec![SIZE, OBJECTS], "GROUP"),
            (None, Unit::Module) => (vec![SIZE, OBJECTS], "MODULE"),
            (None, Unit::Class) => (vec![SIZE, OBJECTS, SLABS], "SIZE CLASS"),
        };
        let mut rows = rows_of(reading, choice);
        if let Some(before) = before {
            let old = rows_of(before, choice).into_iter().map(|row| (row.key, row.bytes));
            let old: HashMap<String, i64> = old.collect();
            for row in &mut rows {
                row.delta = row.bytes - old.get(&row.key).copied().unwrap_or(0);
            }
        }
        let all = rows.len();
        search.choose(&mut rows);
        let (bytes, calls) = reading.totals();
        let sum = if reading.filtered {
            report::filtered(&reading.sites, (bytes, calls))
        } else {
            let mapped = reading.mapped().map(|of| format!(", {} mapped", size_u(of)));
            let (mapped, sites) = (mapped.unwrap_or_default(), reading.sites.len());
            format!("{} in {calls} objects{mapped}, {sites} call sites", size(bytes))
        };
        let notes = reading.notes.iter().map(|n| printable(&n.to_string()).into_owned());
        let mut notes: Vec<String> = notes.collect();
        let mut accounting = Vec::new();
        if let Some(of) = reading.accounting() {
            // A vector takes all that is written to it.
            let _ = report::write_accounting(&mut accounting, of);
            notes.extend(untracked(of));
        }
        Self {
            title: format!("{}: {sum}", printable(&reading.short_name())),
            accounting: String::from_utf8_lossy(&accounting).trim_end().to_owned(),
            notes,
            columns,
            names,
            rows,
            all,
        }
    }
}

fn rows_of(reading: &Reading, choice: Choice) -> Vec<Row> {
    if let Some(tree) = choice.tree {
        return tree_rows(reading, tree, choice);
    }
    let order = choice.order;
    match choice.unit {
        Unit::Site => site_rows(reading, choice),
        Unit::Process => sums::processes(reading, order),
        Unit::Group => sums::groups(reading, order),
        Unit::Module => sums::modules(reading, order),
        Unit::Class => sums::classes(reading, order),
    }
}

/// The key of a call site's row, and its name.
pub(super) fn site_key(site: &Site) -> (String, String) {
    let function = printable(&short(site.origin.function())).into_owned();
    let group = site.group.as_deref().map(|group| printable(group).into_owned());
    let name = group.map_or(function.clone(), |group| format!("{group} {function}"));
    let place = site.origin.location();
    // A call site may hold objects, and map memory, too.
    let is_mapped = site.mapped.is_some();
    let tag = site.tags.first().filter(|_| place.is_empty());
    (format!("{name}\n{place}\n{is_mapped}\n{tag:?}"), name)
}

fn site_rows(reading: &Reading, Choice { by, order, .. }: Choice) -> Vec<Row> {
    let mut sites = reading.all();
    let order = if by == By::Pinned { Order::Pinned } else { order };
    sites.sort_by(|a, b| order.compare(a, b));
    let row = |site: &Site| {
        let is_mapped = site.mapped.is_some();
        let objects = if is_mapped { "mapped".to_owned() } else { site.calls.to_string() };
        let mut cells = vec![size(site.bytes), objects];
        if by == By::Pinned {
            let (pinned, sole) = site.pinned.map_or(("-".to_owned(), "-".to_owned()), |of| {
                (size_u(of.pinned), size_u(of.sole))
            });
            cells.splice(0..0, [pinned, sole]);
        }
        let (key, name) = site_key(site);
        let place = printable(&site.origin.location()).into_owned();
        let has_path = matches!(&site.origin, Origin::Mapped(of) if of.path().is_some());
        let known_by_place = has_path || site.origin.function() == "?";
        let known_as = vec![
            site.origin.location(),
            site.origin.function().to_owned(),
            reading.module_of(&site.origin),
        ];
        let bytes = site.bytes;
        Row { key, bytes, cells, name, place, known_by_place, known_as, ..Row::default() }
    };
    sites.iter().map(row).collect()
}

fn tree_rows(
    reading: &Reading,
    branches: Branches,
    Choice { order, least, .. }: Choice,
) -> Vec<Row> {
    let sites = reading.all();
    let modules = branches.modules(reading, &sites);
    let tree = branches.tree(&sites, &modules);
    let mut path: Vec<String> = Vec::new();
    let lines = tree.lines(order, usize::MAX, least);
    let row = |line: &kmem_snapshot::stacks::Line<'_, '_>| {
        let node = line.node;
        let function = printable(&short(node.frame.function())).into_owned();
        let place = printable(&node.frame.location()).into_owned();
        path.truncate(line.depth);
        path.push(format!("{function} {place}"));
        let name = format!("{:indent$}{function}", "", indent = line.depth);
        let cells = vec![size(node.bytes), node.calls.to_string()];
        let known_by_place = function == "?";
        let module = match node.frame {
            Frame::Place(place) => place.module.clone(),
            Frame::Other(origin) => reading.module_of(origin),
            Frame::Group(_) | Frame::Part(_) => String::new(),
        };
        let known_as = vec![node.frame.location(), node.frame.function().to_owned(), module];
        let (key, bytes, depth) = (path.join("\n"), node.bytes, line.depth);
        Row { key, bytes, delta: 0, cells, name, place, known_by_place, depth, known_as }
    };
    lines.iter().map(row).collect()
}

/// Shortens a text to `width` characters. The end stays, because it names the file and line, and a
/// little of the beginning does.
pub(super) fn shorten(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    if width < 2 {
        return text.chars().take(width).collect();
    }
    let head = (width - 1) / 4;
    let tail = width - 1 - head;
    let chars = |range: std::ops::Range<usize>| text.chars().skip(range.start).take(range.len());
    chars(0..head).chain(['…']).chain(chars(count - tail..count)).collect()
}

/// A change of bytes with its sign, or nothing.
pub(super) fn change(bytes: i64) -> String {
    match bytes {
        0 => String::new(),
        1.. => format!("+{}", size(bytes)),
        _ => size(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::{change, shorten};

    #[test]
    fn a_path_keeps_its_end_and_a_little_of_its_beginning() {
        assert_eq!(shorten("src/main.c:12", 13), "src/main.c:12");
        assert_eq!(shorten("/usr/src/debug/a/very/long/main.c:12", 17), "/usr…ng/main.c:12");
        assert_eq!(shorten("/a/b/c/d.c:1", 9).chars().count(), 9);
        assert_eq!(shorten("abc", 1), "a");
        assert_eq!(shorten("日本語の長い名前", 5).chars().count(), 5);
    }

    #[test]
    fn a_change_has_a_sign() {
        assert_eq!(
            (change(0), change(1024), change(-1)),
            (String::new(), "+1.0 KiB".into(), "-1 B".into())
        );
    }
}
