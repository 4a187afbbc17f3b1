//! Rows of the screen that are sums: of groups, of modules, of size classes.

use std::cmp::Reverse;

use kmem_snapshot::escape::printable;
use kmem_snapshot::report::size;
use kmem_snapshot::sites::Order;
use kmem_snapshot::{ProcessTotal, Reading};

use super::view::Row;

/// The thing that a row stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Unit {
    /// A call site.
    #[default]
    Site,
    /// One of several processes.
    Process,
    /// A group.
    Group,
    /// A module.
    Module,
    /// A size class.
    Class,
}

impl Unit {
    /// The next one of which the reading has rows. Call sites and modules always have some.
    pub(super) fn next(self, reading: &Reading) -> Self {
        match self {
            Self::Site if reading.is_of_several() => Self::Process,
            Self::Site | Self::Process if !reading.by_group().is_empty() => Self::Group,
            Self::Site | Self::Process | Self::Group => Self::Module,
            Self::Module if !reading.by_class().is_empty() => Self::Class,
            Self::Module | Self::Class => Self::Site,
        }
    }
}

/// Rows of processes, each with its executable and its pid.
pub(super) fn processes(reading: &Reading, order: Order) -> Vec<Row> {
    let mut totals = reading.by_process();
    match order {
        Order::Calls => totals.sort_by_key(|of| Reverse((of.calls, of.bytes))),
        Order::Size | Order::Pinned => totals.sort_by_key(|of| Reverse((of.bytes, of.calls))),
        Order::Tag => totals.sort_by(|a, b| a.exe.cmp(&b.exe)),
    }
    let named = |of: &ProcessTotal| format!("{} (pid {})", of.exe, of.pid);
    totals.iter().map(|of| row(&named(of), of.bytes, of.calls, None)).collect()
}

/// Rows of groups, each with its path.
pub(super) fn groups(reading: &Reading, order: Order) -> Vec<Row> {
    let mut totals = reading.by_group();
    super::sort_groups(&mut totals, order);
    totals.into_iter().map(|of| row(&of.group, of.bytes, of.calls, None)).collect()
}

/// Rows of modules.
pub(super) fn modules(reading: &Reading, order: Order) -> Vec<Row> {
    let mut totals = reading.by_module();
    match order {
        Order::Calls => totals.sort_by_key(|of| Reverse((of.calls.cast_signed(), of.bytes))),
        Order::Size | Order::Pinned => totals.sort_by_key(|of| Reverse((of.bytes, of.calls))),
        Order::Tag => {}
    }
    totals.into_iter().map(|of| row(&of.module, of.bytes, of.calls, None)).collect()
}

/// Rows of size classes, with the count of their slabs. By name they come in order of size.
pub(super) fn classes(reading: &Reading, order: Order) -> Vec<Row> {
    let held = |cache: &kmem_snapshot::books::Cache| {
        i64::try_from(cache.active.saturating_mul(u64::from(cache.size))).unwrap_or(i64::MAX)
    };
    let mut caches = reading.by_class();
    match order {
        Order::Calls => caches.sort_by_key(|of| Reverse((of.active, held(of)))),
        Order::Size | Order::Pinned => caches.sort_by_key(|of| Reverse((held(of), of.active))),
        Order::Tag => {}
    }
    caches.iter().map(|of| row(&of.name(), held(of), of.active, Some(of.slabs))).collect()
}

fn row(name: &str, bytes: i64, calls: u64, slabs: Option<u64>) -> Row {
    let mut cells = vec![size(bytes), calls.to_string()];
    cells.extend(slabs.map(|count| count.to_string()));
    let name = printable(name).into_owned();
    Row { key: name.clone(), bytes, cells, name, ..Row::default() }
}
