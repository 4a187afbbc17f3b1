//! A bounded number of rows, the others as one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

/// Live bytes and objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) bytes: i64,
    /// A kernel writes -1 as 2^64 - 1.
    pub(super) objects: i64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.objects = self.objects.wrapping_add(other.objects);
    }
}

/// Rows that were chosen last.
///
/// A row that was chosen keeps its place until another one is a quarter larger, or more than twice
/// as large where rows have counters. So rows of nearly one size do not come and go with every
/// scrape.
#[derive(Debug, Default)]
pub(super) struct Rows {
    before: HashSet<String>,
    /// True for rows with counters, whose places only those of more than twice their size take.
    counters: bool,
}

impl Rows {
    /// Rows with counters: they keep their places until another one is more than twice as large.
    pub(super) fn with_counters() -> Self {
        Self { counters: true, ..Self::default() }
    }

    /// Chooses the `most` largest rows by labels, and adds up the others as the last row, whose
    /// labels are `other`. Rows of equal labels are one.
    pub(super) fn choose(
        &mut self,
        rows: impl Iterator<Item = (String, Sum)>,
        most: usize,
        other: String,
    ) -> Vec<(String, Sum)> {
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for (labels, sum) in rows {
            sums.entry(labels).or_default().add(sum);
        }
        let mut rest = sums.remove(&other).unwrap_or_default();
        let mut chosen: Vec<(String, Sum)> = sums.into_iter().collect();
        chosen.sort_by_key(|(labels, sum)| {
            let was = self.before.contains(labels);
            let part = if self.counters { 1 } else { 4 };
            let bonus = if was { sum.bytes.max(0) / part } else { 0 };
            Reverse((sum.bytes.saturating_add(bonus), was))
        });
        chosen.drain(most.min(chosen.len())..).for_each(|(_, sum)| rest.add(sum));
        self.before = chosen.iter().map(|(labels, _)| labels.clone()).collect();
        chosen.push((other, rest));
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::{Rows, Sum};

    fn choose(rows: &mut Rows, of: &[(&str, i64)], most: usize) -> Vec<(String, i64)> {
        let sum = |bytes| Sum { bytes, objects: 1 };
        let of = of.iter().map(|&(labels, bytes)| (labels.to_owned(), sum(bytes)));
        let chosen = rows.choose(of, most, "other".to_owned());
        chosen.into_iter().map(|(labels, sum)| (labels, sum.bytes)).collect()
    }

    fn pairs(of: &[(&str, i64)]) -> Vec<(String, i64)> {
        of.iter().map(|&(labels, bytes)| (labels.to_owned(), bytes)).collect()
    }

    #[test]
    fn the_largest_rows_stay_and_the_sum_is_that_of_all() {
        let rows = &mut Rows::default();
        let of = [("a", 1), ("b", 3), ("a", 4), ("c", 2), ("other", 7)];
        assert_eq!(choose(rows, &of, 2), pairs(&[("a", 5), ("b", 3), ("other", 9)]));
        assert_eq!(choose(rows, &of, 0), pairs(&[("other", 17)]));
    }

    #[test]
    fn a_row_keeps_its_place_until_another_is_a_quarter_larger() {
        let rows = &mut Rows::default();
        choose(rows, &[("a", 100), ("b", 99)], 1);
        let kept = choose(rows, &[("a", 100), ("b", 124)], 1);
        assert_eq!(kept, pairs(&[("a", 100), ("other", 124)]));
        let gone = choose(rows, &[("a", 100), ("b", 126)], 1);
        assert_eq!(gone, pairs(&[("b", 126), ("other", 100)]));
        // The sizes of a kernel may be negative.
        assert_eq!(choose(rows, &[("a", -8)], 1), pairs(&[("a", -8), ("other", 0)]));
    }

    #[test]
    fn a_row_with_counters_keeps_its_place_until_another_is_more_than_twice_as_large() {
        let rows = &mut Rows::with_counters();
        choose(rows, &[("z", 10), ("y", 50)], 2);
        let kept = choose(rows, &[("z", 10), ("y", 50), ("b", 20)], 2);
        assert_eq!(kept, pairs(&[("y", 50), ("z", 10), ("other", 20)]));
        let gone = choose(rows, &[("z", 10), ("y", 50), ("b", 21)], 2);
        assert_eq!(gone, pairs(&[("y", 50), ("b", 21), ("other", 10)]));
    }
}
