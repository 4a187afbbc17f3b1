//! What the groups hold: of each tag, and of each size class.

use std::collections::BTreeMap;
use std::ops::Range;

use super::census::TagTotal;
use super::charges::Charges;
use super::group::Groups;

/// What groups hold, by where they are in [`Groups::all`]. What was charged to a group that is
/// deleted is who pays for it now.
#[derive(Debug, Clone, Default)]
pub struct Holdings {
    /// Group and tag, in this order.
    pairs: Vec<(usize, u32, TagTotal)>,
    classes: usize,
    /// `[group][class]`: live objects.
    objects: Vec<u64>,
    beyond: bool,
}

impl Holdings {
    /// Joins counts by id with who pays; `totals` is those of all tags.
    pub(super) fn new(charges: &Charges, groups: &Groups, totals: &[TagTotal]) -> Self {
        let mut pairs: Vec<(usize, u32, TagTotal)> = Vec::new();
        let mut of_root = totals.to_vec();
        for (objcg, tag, total) in charges.pairs() {
            // What did not fit is in the row of another tag; then the root's may be too large.
            let rest = &mut of_root[tag as usize];
            rest.bytes = rest.bytes.saturating_sub(total.bytes);
            rest.calls = rest.calls.saturating_sub(total.calls);
            pairs.push((groups.payer(objcg), tag, total));
        }
        let of_root = (0..).zip(of_root).filter(|(_, total)| total.calls != 0);
        pairs.extend(of_root.map(|(tag, total)| (0, tag, total)));
        pairs.sort_unstable_by_key(|&(group, tag, _)| (group, tag));
        // Several ids may have one who pays.
        pairs.dedup_by(|next, sum| {
            let same = (next.0, next.1) == (sum.0, sum.1);
            if same {
                sum.2.bytes += next.2.bytes;
                sum.2.calls += next.2.calls;
            }
            same
        });
        let classes = charges.objects(0).len();
        let mut objects = vec![0; groups.all().len() * classes];
        for objcg in 0..charges.groups() {
            let from = groups.payer(objcg) * classes;
            for (sum, &calls) in objects[from..].iter_mut().zip(charges.objects(objcg)) {
                *sum += calls;
            }
        }
        Self { pairs, classes, objects, beyond: charges.beyond }
    }

    /// False when there were more pairs of group and tag than are kept: some of what a group holds
    /// is then in its row of other sites, and in the root's row of the right one.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.beyond
    }

    /// What groups hold together, by tag.
    pub(super) fn tags(&self, groups: &Range<usize>) -> BTreeMap<u32, TagTotal> {
        let from = self.pairs.partition_point(|pair| pair.0 < groups.start);
        let pairs = self.pairs[from..].iter().take_while(|pair| pair.0 < groups.end);
        let mut sums: BTreeMap<u32, TagTotal> = BTreeMap::new();
        for (_, tag, total) in pairs {
            let sum = sums.entry(*tag).or_default();
            sum.bytes += total.bytes;
            sum.calls += total.calls;
        }
        sums
    }

    /// Live objects of a size class that groups hold together.
    pub(super) fn objects(&self, groups: &Range<usize>, class: usize) -> u64 {
        let counts = self.objects.chunks_exact(self.classes.max(1));
        let of = counts.skip(groups.start).take(groups.len());
        of.filter_map(|counts| counts.get(class)).sum()
    }
}
