//! Pages of the documentation against the code of the command.

use std::collections::BTreeSet;

use clap::{Arg, Command, CommandFactory as _};
use kmem_snapshot::books::{Buddy, Buddyinfo, Table};
use kmem_snapshot::export::Metric;
use kmem_snapshot::modules::{Stat, Stats};
use kmem_snapshot::output::Format;
use kmem_snapshot::{Snapshot, output, report};
use kmem_testing::page::{cell, check, names, sentence};
use serde_json::Value;

use crate::{Cli, buddyinfo, modstats};

const STATISTICS: &str = "docs/statistics.md";

/// The commands that do something, with their full names, in the order of `kmem help`.
fn leaves<'a>(command: &'a Command, path: &str, out: &mut Vec<(String, &'a Command)>) {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let path = format!("{path} {}", sub.get_name());
        if sub.has_subcommands() {
            leaves(sub, &path, out);
        } else {
            out.push((path, sub));
        }
    }
}

/// Options as they are written: `-p`, `--pid PID`, or `FILE..` for an argument without a name.
fn spelling(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.first().map_or_else(String::new, ToString::to_string);
    let many = arg.get_num_args().is_some_and(|range| range.max_values() > 1)
        || arg.is_positional() && matches!(arg.get_action(), clap::ArgAction::Append);
    let value = cell(&if many { value + ".." } else { value });
    if arg.is_positional() {
        return format!("`{value}`");
    }
    let takes = arg.get_action().takes_values();
    let value = match arg.is_require_equals_set() {
        true => format!("[={value}]"),
        false if takes => format!(" {value}"),
        false => String::new(),
    };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    match (short, long) {
        (Some(short), Some(long)) => format!("`{short}`, `{long}{value}`"),
        (Some(one), None) | (None, Some(one)) => format!("`{one}{value}`"),
        (None, None) => unreachable!("an option without a name"),
    }
}

/// Help of an argument, its values and its default.
fn effect(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut text = sentence(&help);
    let takes = arg.get_action().takes_values();
    let values = if takes { arg.get_possible_values() } else { Vec::new() };
    for (at, value) in values.iter().filter(|value| !value.is_hide_set()).enumerate() {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        let begin = if at == 0 { " Values: " } else { "; " };
        text += &format!("{begin}`{}`", value.get_name());
        if !help.is_empty() {
            text += &format!(" ({})", cell(&help));
        }
    }
    if !values.is_empty() {
        text.push('.');
    }
    let default = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let default: Vec<_> = default.filter(|value| takes && !value.is_empty()).collect();
    if !default.is_empty() {
        text += &format!(" Default: `{}`.", default.join(" "));
    }
    text
}

#[test]
fn the_page_of_commands_says_what_the_parser_says() {
    let mut cli = Cli::command();
    cli.build();
    let mut commands = Vec::new();
    leaves(&cli, "kmem", &mut commands);
    let mut text = String::from("| command | effect |\n|---|---|\n");
    for (name, command) in &commands {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let anchor = name.replace(' ', "-");
        text += &format!("| [`{name}`](#{anchor}) | {} |\n", sentence(&about));
    }
    for (name, command) in &commands {
        let usage = (*command).clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        text += &format!("\n### {name}\n\n```\n{usage}\n```\n\n| option | effect |\n|---|---|\n");
        let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let args = args.filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"));
        let (named, rest): (Vec<_>, Vec<_>) = args.partition(|arg| !arg.is_positional());
        for arg in rest.into_iter().chain(named) {
            text += &format!("| {} | {} |\n", spelling(arg), effect(arg));
        }
    }
    check("docs/commands.md", "commands", &text);
}

#[test]
fn the_page_of_the_exporter_has_every_family() {
    let mut text = String::from("| family | meaning |\n|---|---|\n");
    for metric in Metric::ALL {
        text += &format!("| `{}` | {} |\n", metric.name(), cell(metric.help()));
    }
    check("docs/export.md", "families", &text);
}

fn set<T: ToString>(names: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    names.into_iter().map(|name| name.to_string()).collect()
}

fn keys(value: &Value) -> BTreeSet<String> {
    set(value.as_object().expect("an object").keys())
}

#[test]
fn the_page_of_outputs_has_every_format_and_column() {
    assert_eq!(names("docs/outputs.md", "formats", 0), set(Format::ALL.map(Format::name)));
    assert_eq!(names("docs/outputs.md", "csv", 0), set(output::csv::COLUMNS));
}

#[test]
fn the_page_of_statistics_has_the_terms_of_the_account() {
    let json = keys(&output::json::accounting(&Snapshot::default()));
    assert_eq!(names(STATISTICS, "account", 0), json);
    assert_eq!(names(STATISTICS, "overhead", 0), set(Table::ALL.map(Table::name)));
}

#[test]
fn the_page_of_statistics_has_the_columns_of_slabinfo() {
    let mut out = Vec::new();
    report::write_slabinfo(&mut out, &[]).unwrap();
    let text = String::from_utf8(out).unwrap();
    let columns = text.split_whitespace().filter(|word| word.starts_with('<'));
    assert_eq!(names(STATISTICS, "slabinfo", 0), set(columns));
}

#[test]
fn the_page_of_statistics_has_the_fields_of_zones() {
    let zone = Buddy { root: 0, node: 0, base: 0, pages: 0, free: Default::default() };
    let json = buddyinfo::json(&Buddyinfo { zones: vec![zone], ..Buddyinfo::default() });
    assert_eq!(names(STATISTICS, "buddyinfo", 0), keys(&json["zones"][0]));
}

#[test]
fn the_page_of_statistics_has_the_counters_of_loaders() {
    let values = [1; Stat::ALL.len()];
    let stats = Stats { values, failed: vec![("m".to_owned(), 1, 1)], held: 0, held_peak: 0 };
    assert_eq!(names(STATISTICS, "modules", 1), keys(&modstats::json(&stats)));
    // The kernel's text has a number behind a tab, and a colon behind the name of a list.
    let text = stats.to_string();
    let labels = text.lines().filter_map(|line| match line.split_once('\t') {
        Some((label, number)) => number.trim().parse::<f64>().ok().map(|_| label.trim()),
        None => line.strip_suffix(':').map(str::trim),
    });
    assert_eq!(names(STATISTICS, "modules", 0), set(labels));
}
