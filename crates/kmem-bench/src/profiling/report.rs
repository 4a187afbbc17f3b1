//! The rows of the profiling table, and the table as text.

use super::Figure;
use super::config::Config;
use super::memory::Memory;
use crate::machine::Machine;
use crate::statistics::rounded;
use crate::table::Grid;
use serde::Serialize;

/// One configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    /// Its name.
    pub(super) config: &'static str,
    /// Nanoseconds per kmalloc and kfree.
    pub(super) kmalloc_ns: Option<f64>,
    /// Nanoseconds per page allocated and freed.
    pub(super) page_ns: Option<f64>,
    /// Overhead of kmalloc against `never`, in percent.
    pub(super) kmalloc_percent: Option<f64>,
    /// Overhead of pages against `never`, in percent.
    pub(super) page_percent: Option<f64>,
    /// Overhead of kmalloc in the kernel's table, in percent.
    pub(super) kernel_kmalloc_percent: f64,
    /// Overhead of pages in the kernel's table, in percent.
    pub(super) kernel_page_percent: f64,
}

/// A row for every configuration, measured or not.
pub(super) fn rows(figures: &[Figure]) -> Vec<Row> {
    let of = |config| figures.iter().find(|figure| figure.0 == config);
    let never = of(Config::Never);
    Config::ALL
        .into_iter()
        .map(|config| {
            let figure = of(config);
            let percent = |part: fn(&Figure) -> f64| {
                Some(rounded((part(figure?) / part(never?) - 1.0) * 100.0, 2))
            };
            let (kernel_kmalloc_percent, kernel_page_percent) = config.kernel_percent();
            Row {
                config: config.name(),
                kmalloc_ns: figure.map(|figure| figure.1),
                page_ns: figure.map(|figure| figure.2),
                kmalloc_percent: percent(|figure| figure.1),
                page_percent: percent(|figure| figure.2),
                kernel_kmalloc_percent,
                kernel_page_percent,
            }
        })
        .collect()
}

/// The most overhead of `on` against `never`, and whether it is met.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Goal {
    /// Most overhead of kmalloc, in percent.
    pub(super) kmalloc_percent: f64,
    /// Most overhead of pages, in percent.
    pub(super) page_percent: f64,
    /// True if kmalloc meets it.
    pub(super) kmalloc_met: bool,
    /// True if pages meet it.
    pub(super) page_met: bool,
}

impl Goal {
    const KMALLOC: f64 = 6.4;
    const PAGE: f64 = 10.0;

    /// Compares with the row `on`. A figure that was not measured does not meet its goal.
    pub(super) fn of(rows: &[Row]) -> Self {
        let on = rows.iter().find(|row| row.config == Config::On.name());
        let within = |percent: Option<f64>, most| percent.is_some_and(|percent| percent <= most);
        Self {
            kmalloc_percent: Self::KMALLOC,
            page_percent: Self::PAGE,
            kmalloc_met: within(on.and_then(|row| row.kmalloc_percent), Self::KMALLOC),
            page_met: within(on.and_then(|row| row.page_percent), Self::PAGE),
        }
    }
}

/// The table as text.
pub(super) fn text(machine: &Machine, rows: &[Row], goal: &Goal, memory: &Memory) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let percent = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:+.2} %"));
    let mut grid = Grid::default();
    grid.push(["config", "kmalloc ns", "overhead", "kernel", "page ns", "overhead", "kernel"]);
    for row in rows {
        grid.push([
            row.config.to_owned(),
            number(row.kmalloc_ns),
            percent(row.kmalloc_percent),
            percent(Some(row.kernel_kmalloc_percent)),
            number(row.page_ns),
            percent(row.page_percent),
            percent(Some(row.kernel_page_percent)),
        ]);
    }
    let mut text = format!("{machine}\n\n{}\n", grid.render());
    let met = |met: bool| if met { "met" } else { "not met" };
    text.push_str(&format!(
        "goal, on against never: kmalloc at most {:+} %: {}; page at most {:+} %: {}\n\n",
        goal.kmalloc_percent,
        met(goal.kmalloc_met),
        goal.page_percent,
        met(goal.page_met)
    ));
    text.push_str(&memory.text());
    text
}

#[cfg(test)]
mod tests {
    use super::{Goal, rows};
    use crate::profiling::config::Config;

    #[test]
    fn what_was_not_measured_is_null() {
        let rows = rows(&[(Config::Never, 4.0, 100.0), (Config::On, 5.0, 101.0)]);
        let value = serde_json::to_value(&rows).unwrap();
        assert_eq!(value.as_array().unwrap().len(), 7);
        assert_eq!(value[2]["config"], "on");
        assert_eq!(value[2]["kmalloc_percent"], 25.0);
        for row in &value.as_array().unwrap()[4..] {
            assert!(row["kmalloc_ns"].is_null() && row["page_ns"].is_null(), "{row}");
        }
    }

    #[test]
    fn the_goal_is_met_or_not_for_each_loop() {
        let of = |kmalloc, page| {
            let goal =
                Goal::of(&rows(&[(Config::Never, 100.0, 100.0), (Config::On, kmalloc, page)]));
            (goal.kmalloc_met, goal.page_met)
        };
        assert_eq!(of(106.4, 110.0), (true, true));
        assert_eq!(of(106.5, 90.0), (false, true));
        assert_eq!(of(90.0, 110.1), (true, false));
        assert!(!Goal::of(&rows(&[])).kmalloc_met);
    }
}
