//! What the census counts for groups: live objects by group and class, and bytes by group and tag.

use std::collections::HashMap;

use kmem::root::{CHARGED_METADATA, EXT_LIVE, OBJCG_SHIFT, TAG_MASK, TAG_OTHER};

use super::census::TagTotal;
use super::zone::{Class, PAGE};

/// Most pairs of group and tag that are kept (some 50 MiB). A process with more than that has its
/// groups' sums exact all the same, and the rest of each group in the row of other sites.
const MAX_PAIRS: usize = 1 << 20;

/// What one group pays for, in bytes unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live objects and page allocations; a count.
    pub objects: u64,
    /// Bytes of objects in slabs.
    pub slab: u64,
    /// Bytes of page allocations.
    pub pages: u64,
    /// Bytes of virtually contiguous allocations.
    pub vmalloc: u64,
    /// Bytes of per-CPU objects.
    pub percpu: u64,
    /// What is charged beside these: the words that say who holds an object or a page.
    pub metadata: u64,
    /// Charged without being allocated.
    pub reserved: u64,
}

impl Usage {
    /// All that is charged and in use.
    #[must_use]
    pub fn current(&self) -> u64 {
        [self.slab, self.pages, self.vmalloc, self.percpu, self.metadata, self.reserved]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Adds another group's.
    pub(super) fn add(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.objects, other.objects),
            (&mut self.slab, other.slab),
            (&mut self.pages, other.pages),
            (&mut self.vmalloc, other.vmalloc),
            (&mut self.percpu, other.percpu),
            (&mut self.metadata, other.metadata),
            (&mut self.reserved, other.reserved),
        ] {
            *to = to.saturating_add(from);
        }
    }
}

/// What an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An object of a class.
    Slab(usize),
    /// Pages.
    Pages,
    /// Virtually contiguous pages.
    Vmalloc,
    /// A per-CPU object.
    PerCpu,
}

/// The counts, by the groups' ids as extension words have them.
#[derive(Debug)]
pub(super) struct Charges {
    /// Classes, the unused class 0 included.
    classes: usize,
    /// `[objcg][class]`: live objects.
    objects: Vec<u64>,
    /// `[objcg]`: all but objects of classes.
    others: Vec<Usage>,
    /// By extension word without its live bit, where the group is not the root.
    pairs: HashMap<u32, TagTotal>,
    /// There were more pairs than are kept.
    pub(super) beyond: bool,
}

impl Charges {
    pub(super) fn new(classes: usize) -> Self {
        let classes = classes.max(1);
        Self {
            classes,
            objects: vec![0; classes],
            others: vec![Usage::default()],
            pairs: HashMap::new(),
            beyond: false,
        }
    }

    /// Counts `calls` allocations with this extension word, of together `bytes`.
    #[inline]
    pub(super) fn add(&mut self, word: u32, kind: Kind, bytes: u64, calls: u64) {
        let objcg = (word >> OBJCG_SHIFT) as usize;
        if objcg >= self.others.len() {
            self.others.resize(objcg + 1, Usage::default());
            self.objects.resize((objcg + 1) * self.classes, 0);
        }
        let others = &mut self.others[objcg];
        match kind {
            Kind::Slab(class) => {
                if let Some(sum) = self.objects.get_mut(objcg * self.classes + class) {
                    *sum += calls;
                }
            }
            Kind::Pages => others.pages += bytes,
            Kind::Vmalloc => others.vmalloc += bytes,
            Kind::PerCpu => others.percpu += bytes,
        }
        if !matches!(kind, Kind::Slab(_)) {
            let words = if kind == Kind::PerCpu { calls } else { bytes / PAGE };
            others.objects += calls;
            others.metadata += words * CHARGED_METADATA;
        }
        if objcg != 0 {
            self.pair(word & !EXT_LIVE, bytes, calls);
        }
    }

    fn pair(&mut self, key: u32, bytes: u64, calls: u64) {
        let mut key = key;
        if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&key) {
            self.beyond = true;
            key = key & !TAG_MASK | TAG_OTHER;
        }
        let sum = self.pairs.entry(key).or_default();
        sum.bytes += bytes;
        sum.calls += calls;
    }

    /// Groups that something was seen of, the root included: their ids are below this.
    pub(super) fn groups(&self) -> usize {
        self.others.len()
    }

    /// Live objects of a group by class.
    pub(super) fn objects(&self, objcg: usize) -> &[u64] {
        let from = objcg * self.classes;
        self.objects.get(from..from + self.classes).unwrap_or_default()
    }

    /// What a group's own objects come to, whether it is deleted or not.
    pub(super) fn usage(&self, objcg: usize, classes: &[Option<Class>]) -> Usage {
        let mut usage = self.others[objcg];
        for (&calls, class) in self.objects(objcg).iter().zip(classes) {
            if let Some(class) = class {
                usage.objects += calls;
                usage.slab += calls * u64::from(class.size);
                usage.metadata += calls * CHARGED_METADATA;
            }
        }
        usage
    }

    /// Id, tag and sums of all pairs of the groups that are not the root; in no order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (usize, u32, TagTotal)> {
        self.pairs
            .iter()
            .map(|(&word, &total)| ((word >> OBJCG_SHIFT) as usize, word & TAG_MASK, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_group_stay_exact_when_there_is_no_room_for_pairs() {
        let mut charges = Charges::new(2);
        // As many tags as there are, of more groups than fit.
        let groups = MAX_PAIRS as u32 / (TAG_MASK + 1) + 2;
        for objcg in 1..=groups {
            for tag in 0..=TAG_MASK {
                charges.add(objcg << OBJCG_SHIFT | EXT_LIVE | tag, Kind::Slab(1), 16, 1);
            }
        }
        assert!(charges.beyond);
        assert!(charges.pairs.len() <= MAX_PAIRS + groups as usize);
        let mut sums = vec![TagTotal::default(); groups as usize + 1];
        for (objcg, _, total) in charges.pairs() {
            sums[objcg].bytes += total.bytes;
            sums[objcg].calls += total.calls;
        }
        let all = u64::from(TAG_MASK) + 1;
        for (objcg, sum) in sums.iter().enumerate().skip(1) {
            assert_eq!((sum.bytes, sum.calls), (16 * all, all));
            assert_eq!(charges.objects(objcg), [0, all]);
        }
    }
}
