//! Options that choose rows, shared by `dump` and `top`.

use kmem_snapshot::filter::{Filter, Pattern};
use kmem_snapshot::report;
use kmem_snapshot::sites::Site;

use crate::source;

/// Which rows to print. All options given must hold; of the values of one option any may.
/// Texts match as a whole, as allocinfo shows them, or by `*` and `?`.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Filters")]
#[group(skip)]
pub(crate) struct Args {
    /// Only what this group, such as /tenants/a, and those below it pay for
    #[arg(long, value_name = "GROUP", conflicts_with = "blackbox")]
    group: Option<String>,
    /// Only rows of this module (base name, that of the program included); may be repeated
    #[arg(long, value_name = "GLOB")]
    module: Vec<String>,
    /// Only rows of this source file; may be repeated
    #[arg(long, value_name = "GLOB")]
    file: Vec<String>,
    /// Only rows of this function; may be repeated
    #[arg(long, value_name = "GLOB")]
    function: Vec<String>,
    /// Only rows of this line; may be repeated
    #[arg(long, value_name = "N")]
    line: Vec<u32>,
    /// Leave out rows, stacks or nodes of the tree below this size
    #[arg(short, long, value_name = "SIZE", value_parser = source::parse_size)]
    min: Option<i64>,
    /// Leave out rows or stacks above this size
    #[arg(long, value_name = "SIZE", value_parser = source::parse_size)]
    max: Option<i64>,
}

impl Args {
    /// The filter they ask for.
    pub(crate) fn filter(&self) -> Filter {
        let patterns = |texts: &[String]| texts.iter().map(|t| Pattern::new(t)).collect();
        Filter {
            module: patterns(&self.module),
            file: patterns(&self.file),
            function: patterns(&self.function),
            line: self.line.clone(),
            min: self.min,
            max: self.max,
            group: self.group.clone(),
        }
    }

    /// Whether it is a group's.
    pub(crate) fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// The same without sizes, where it is not rows whose sizes count.
    pub(crate) fn names(&self) -> Filter {
        Filter { min: None, max: None, ..self.filter() }
    }

    /// Whether the sizes asked for have this one among them.
    pub(crate) fn admits_size(&self, bytes: i64) -> bool {
        Filter { min: self.min, max: self.max, ..Filter::default() }.admits_size(bytes)
    }

    /// Least size.
    pub(crate) fn least(&self) -> Option<i64> {
        self.min
    }
}

/// Bytes and objects of the rows that passed.
pub(crate) fn total(sites: &[Site]) -> (i64, u64) {
    sites.iter().fold((0, 0), |(bytes, calls), site| {
        (site.bytes.saturating_add(bytes), site.calls.saturating_add(calls))
    })
}

/// Says what a filter left, of what there is.
pub(crate) fn summary(sites: &[Site], of: (i64, u64)) -> String {
    let (bytes, calls) = total(sites);
    format!(
        "a filter is on: {} in {calls} live objects from {} call sites match, of {} in {}",
        report::size(bytes),
        sites.len(),
        report::size(of.0),
        of.1
    )
}
