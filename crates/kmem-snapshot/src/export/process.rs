//! The families of one process: call sites, groups, the account.

use std::collections::BTreeMap;

use kmem_layout::group::group_event;

use super::Bounds;
use super::kernel::{site_labels, sum};
use super::rows::{Rows, Sum};
use super::text::{Metric, Page, Value, labels};
use crate::books::{Group, Snapshot};
use crate::reading::{By, Reading};
use crate::sites::Site;

/// Rows that were exported last.
#[derive(Debug)]
pub(super) struct Shown {
    sites: Rows,
    groups: Rows,
}

impl Default for Shown {
    fn default() -> Self {
        // A counter that vanishes and comes again looks like one that was reset.
        Self { sites: Rows::default(), groups: Rows::with_counters() }
    }
}

/// Keys of call sites.
pub(super) fn keys(by_group: bool) -> By {
    if by_group { By::GroupAndSite } else { By::Site }
}

/// Writes all families of a process. Returns its labels.
pub(super) fn write(
    reading: &Reading,
    bounds: Bounds,
    shown: &mut Shown,
    page: &mut Page,
) -> String {
    let pid = reading.snapshot.pid.to_string();
    let of = [("pid", &*pid), ("name", &*reading.snapshot.comm)];
    sites(reading, &of, bounds.sites, &mut shown.sites, page);
    groups(&reading.snapshot, &of, bounds.groups, &mut shown.groups, page);
    let of = labels(&of);
    account(reading, &of, page);
    of
}

fn sites(reading: &Reading, of: &[(&str, &str)], most: usize, shown: &mut Rows, page: &mut Page) {
    let row = |site: &Site| match &site.group {
        Some(group) => (site_labels(&[of, &[("group", &**group)]].concat(), site), sum(site)),
        None => (site_labels(of, site), sum(site)),
    };
    let other = labels(&[of, &[("site", "other")]].concat());
    for (labels, sum) in shown.choose(reading.sites.iter().map(row), most, other) {
        page.add(Metric::SiteBytes, labels.clone(), Value::Signed(sum.bytes));
        page.add(Metric::SiteObjects, labels, Value::Signed(sum.objects));
    }
}

/// A limit of a group in all copies of the library together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Limit {
    /// No copy has been added.
    #[default]
    Unknown,
    /// One of the copies has no limit, so that the sum has none.
    Unlimited,
    Bytes(u64),
}

impl Limit {
    fn add(self, more: Option<u64>) -> Self {
        match (self, more) {
            (Self::Unknown, Some(bytes)) => Self::Bytes(bytes),
            (Self::Bytes(sum), Some(bytes)) => Self::Bytes(sum.saturating_add(bytes)),
            (Self::Unlimited, _) | (_, None) => Self::Unlimited,
        }
    }

    fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Unknown | Self::Unlimited => None,
        }
    }
}

/// A group in all copies of the library together.
#[derive(Default)]
struct Total {
    own: Sum,
    current: u64,
    peak: Option<u64>,
    max: Limit,
    high: Limit,
    /// Without protection 0, and not shown.
    low: u64,
    events: [u64; group_event::COUNT],
}

impl Total {
    fn add(&mut self, group: &Group) {
        let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
        self.own.bytes = self.own.bytes.saturating_add(signed(group.own.current()));
        self.own.objects = self.own.objects.saturating_add(signed(group.own.objects));
        self.current = self.current.saturating_add(group.usage.current());
        if !group.is_root() {
            self.peak = Some(self.peak.unwrap_or(0).saturating_add(group.peak));
        }
        self.max = self.max.add(group.max);
        self.high = self.high.add(group.high);
        self.low = self.low.saturating_add(group.low.unwrap_or(0));
        for (sum, more) in self.events.iter_mut().zip(group.events) {
            *sum = sum.saturating_add(more);
        }
    }
}

fn groups(
    snapshot: &Snapshot,
    of: &[(&str, &str)],
    most: usize,
    shown: &mut Rows,
    page: &mut Page,
) {
    let mut totals: BTreeMap<String, Total> = BTreeMap::new();
    for books in &snapshot.books {
        for (at, group) in books.groups.all().iter().enumerate() {
            let path = books.groups.path(at);
            totals.entry(labels(&[of, &[("group", &*path)]].concat())).or_default().add(group);
        }
    }
    let other = labels(&[of, &[("group", "other")]].concat());
    let own = totals.iter().map(|(labels, total)| (labels.clone(), total.own));
    for (labels, own) in shown.choose(own, most, other) {
        page.add(Metric::GroupOwnBytes, labels.clone(), Value::Signed(own.bytes));
        page.add(Metric::GroupOwnObjects, labels.clone(), Value::Signed(own.objects));
        // The others have no sum: a group has the memory of those below it, too.
        let Some(total) = totals.get(&labels) else { continue };
        page.add(Metric::GroupBytes, labels.clone(), Value::Count(total.current));
        if let Some(peak) = total.peak {
            page.add(Metric::GroupPeakBytes, labels.clone(), Value::Count(peak));
        }
        let low = Some(total.low).filter(|&bytes| bytes != 0);
        let limits = [("max", total.max.bytes()), ("high", total.high.bytes()), ("low", low)];
        for (name, limit) in limits {
            if let Some(bytes) = limit {
                let labels = with(&labels, "limit", name);
                page.add(Metric::GroupLimitBytes, labels, Value::Count(bytes));
            }
        }
        for (name, count) in group_event::NAMES.into_iter().zip(total.events) {
            let labels = with(&labels, "event", name);
            page.add(Metric::GroupEvents, labels, Value::Count(count));
        }
    }
}

/// Adds a label to others.
fn with(others: &str, name: &str, value: &str) -> String {
    format!("{},{name}=\"{value}\"}}", others.trim_end_matches('}'))
}

fn account(reading: &Reading, of: &str, page: &mut Page) {
    let Some(account) = reading.accounting() else { return };
    for (metric, bytes) in [
        (Metric::Tracked, Some(account.tracked)),
        (Metric::Cached, Some(account.cached)),
        (Metric::Overhead, Some(account.overhead)),
        (Metric::Untouched, account.untouched),
        (Metric::Swapped, account.swapped),
        (Metric::Resident, Some(account.resident)),
        (Metric::PageTables, account.page_tables),
    ] {
        if let Some(bytes) = bytes {
            page.add(metric, of.to_owned(), Value::Count(bytes));
        }
    }
    page.add(Metric::Unaccounted, of.to_owned(), Value::Signed(account.unaccounted()));
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn a_copy_without_a_limit_makes_the_sum_unlimited_in_any_order() {
        let sum = |of: &[Option<u64>]| of.iter().fold(Limit::default(), |sum, &more| sum.add(more));
        assert_eq!(sum(&[None, Some(5)]).bytes(), None);
        assert_eq!(sum(&[Some(5), None]).bytes(), None);
        assert_eq!(sum(&[Some(5), None, Some(6)]).bytes(), None);
        assert_eq!(sum(&[Some(5), Some(6)]).bytes(), Some(11));
        assert_eq!(sum(&[]).bytes(), None);
    }
}
