//! Call sites that hold much of the memory, and whether their calls come from several places.
//!
//! A function through which many parts of a program allocate tells little about its memory. Some
//! have names that are known: see [`kmem_layout::wrapper`]. The others are found by what they do.
//!
//! ```text
//! record of the books:  a site holds a large part          its probe begins
//! next CALLS calls:     a second caller is seen            told apart by one caller more, for good
//!                       all come from one place            as before, until the next record
//! ```
//!
//! Without a probe a site is in the cache of call sites, so it costs nothing. Threads may lose each
//! other's counts. Then a probe takes longer.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::TagId;

/// Most sites that are probed.
const SITES: usize = 16;
/// Calls after which a site has one caller.
const CALLS: u32 = 64;
/// In place of the calls left: the site's callers are told apart.
const APART: u32 = u32::MAX;

/// Set in a probe's return address if the site is that call alone, not one through wrappers.
const ALONE: u64 = 1 << 63;

/// The state of a site's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is none, or it has found one caller.
    Over,
    /// The next calls are looked at.
    Active,
    /// It has found several callers, which are told apart from then on.
    Apart,
}

/// The probe of a site.
struct Probe {
    /// The site's tag; 0: the entry is free.
    tag: AtomicU32,
    /// Calls to look at: 0 if the probe is over, or [`APART`].
    left: AtomicU32,
    /// Tag of the first chain that was seen; 0: none yet.
    first: AtomicU32,
    /// The return address of its calls, with [`ALONE`].
    ret: AtomicU64,
}

impl Probe {
    const fn new() -> Self {
        Self {
            tag: AtomicU32::new(0),
            left: AtomicU32::new(0),
            first: AtomicU32::new(0),
            ret: AtomicU64::new(0),
        }
    }

    fn is_active(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }
}

/// The probes of an instance. Zeroed, there is none.
pub(super) struct Probes {
    /// A bit for the return addresses of sites with an active probe: most calls have none.
    mask: AtomicU64,
    /// A bit for the tags of all sites with a probe.
    tags: AtomicU64,
    sites: [Probe; SITES],
}

impl Probes {
    pub(super) const fn new() -> Self {
        Self {
            mask: AtomicU64::new(0),
            tags: AtomicU64::new(0),
            sites: [const { Probe::new() }; SITES],
        }
    }

    /// Begins a probe of a site whose calls return to `ret`, alone or through wrappers. One thread
    /// at a time may do so. Where there is no free entry, it takes that of a probe that is over.
    pub(super) fn begin(&self, tag: TagId, ret: u64, is_alone: bool) {
        let of = |probe: &Probe| probe.tag.load(Ordering::Relaxed);
        let find = |is_it: &dyn Fn(&Probe) -> bool| self.sites.iter().find(|probe| is_it(probe));
        let place = find(&|probe| of(probe) == tag.0)
            .or_else(|| find(&|probe| of(probe) == 0))
            .or_else(|| find(&|probe| !probe.is_active()));
        let Some(probe) = place else { return };
        if probe.left.load(Ordering::Relaxed) != APART {
            let mark = if is_alone { ALONE } else { 0 };
            if of(probe) != tag.0 {
                probe.tag.store(0, Ordering::Relaxed);
            }
            probe.ret.store(ret | mark, Ordering::Relaxed);
            probe.first.store(0, Ordering::Relaxed);
            probe.left.store(CALLS, Ordering::Relaxed);
            probe.tag.store(tag.0, Ordering::Release);
        }
        self.tags.fetch_or(1 << (tag.0 % 64), Ordering::Relaxed);
        self.mask.fetch_or(bit(ret), Ordering::Relaxed);
    }

    /// Returns false for most calls whose site has no active probe, and is not told apart.
    #[inline(always)]
    pub(super) fn may_have(&self, ret: usize) -> bool {
        self.mask.load(Ordering::Relaxed) & bit(ret as u64) != 0
    }

    /// Returns false for most sites without a probe.
    #[inline(always)]
    pub(super) fn may_be(&self, tag: TagId) -> bool {
        self.tags.load(Ordering::Relaxed) >> (tag.0 % 64) & 1 != 0
    }

    /// The state of a site's probe.
    pub(super) fn state(&self, tag: TagId) -> State {
        match self.probe(tag).map_or(0, |probe| probe.left.load(Ordering::Relaxed)) {
            0 => State::Over,
            APART => State::Apart,
            _ => State::Active,
        }
    }

    /// The site, active or told apart, that is the call which returns to `ret`.
    pub(super) fn site_of(&self, ret: usize) -> Option<TagId> {
        let is_it = |probe: &&Probe| {
            probe.ret.load(Ordering::Relaxed) == ret as u64 | ALONE && probe.is_active()
        };
        Some(TagId(self.sites.iter().find(is_it)?.tag.load(Ordering::Acquire)))
    }

    /// Notes the tag of the chain by which a call of a site was told apart.
    pub(super) fn note(&self, tag: TagId, ret: usize, chain: TagId) {
        let Some(probe) = self.probe(tag) else { return };
        let left = probe.left.load(Ordering::Relaxed);
        if left == APART || left == 0 {
            return;
        }
        let first = probe.first.load(Ordering::Relaxed);
        if first == 0 {
            probe.first.store(chain.0, Ordering::Relaxed);
        }
        let next = if first != 0 && first != chain.0 { APART } else { left - 1 };
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        if probe.left.compare_exchange(left, next, done, failed).is_ok() && next == 0 {
            self.unmark(ret);
        }
    }

    /// Ends the probe of a site, also if it is told apart.
    pub(super) fn end(&self, tag: TagId, ret: usize) {
        if let Some(probe) = self.probe(tag) {
            probe.left.store(0, Ordering::Relaxed);
            self.unmark(ret);
        }
    }

    /// Takes a return address out of the mask, unless another site needs its bit.
    fn unmark(&self, ret: usize) {
        self.mask.fetch_and(!bit(ret as u64), Ordering::Relaxed);
        let active = self.sites.iter().filter(|probe| probe.is_active());
        let others = active.map(|probe| bit(probe.ret.load(Ordering::Relaxed) & !ALONE));
        self.mask.fetch_or(others.fold(0, |mask, bit| mask | bit), Ordering::Relaxed);
    }

    fn probe(&self, tag: TagId) -> Option<&Probe> {
        if !self.may_be(tag) {
            return None;
        }
        self.sites.iter().find(|probe| probe.tag.load(Ordering::Acquire) == tag.0)
    }
}

/// The bit of a return address in the mask.
#[inline(always)]
fn bit(ret: u64) -> u64 {
    1 << (ret.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RET: usize = 0x5555_0000_1234;
    const SITE: TagId = TagId(20);

    fn begun() -> Probes {
        let probes = Probes::new();
        assert!(!probes.may_have(RET) && probes.state(SITE) == State::Over);
        probes.begin(SITE, RET as u64, true);
        assert!(probes.may_have(RET) && probes.state(SITE) == State::Active);
        assert_eq!(probes.site_of(RET), Some(SITE));
        probes
    }

    #[test]
    fn a_probe_of_a_site_with_one_caller_ends_and_may_begin_again() {
        let probes = begun();
        // Another site through the same return address has a probe of its own.
        probes.begin(TagId(30), RET as u64, false);
        for call in 0..CALLS {
            assert!(probes.state(SITE) == State::Active, "{call}");
            probes.note(SITE, RET, TagId(21));
        }
        assert!(probes.state(SITE) == State::Over && probes.site_of(RET).is_none());
        assert!(probes.may_have(RET) && probes.state(TagId(30)) == State::Active);
        probes.note(SITE, RET, TagId(22));
        assert!(probes.state(SITE) == State::Over, "a probe that is over finds nothing");
        for _ in 0..CALLS {
            probes.note(TagId(30), RET, TagId(31));
        }
        assert!(!probes.may_have(RET));
        probes.begin(SITE, RET as u64, true);
        assert!(probes.state(SITE) == State::Active && probes.may_have(RET));
    }

    #[test]
    fn a_site_with_two_callers_is_told_apart_for_good() {
        let probes = begun();
        probes.note(SITE, RET, TagId(21));
        probes.note(SITE, RET, TagId(22));
        for _ in 0..2 * CALLS {
            probes.note(SITE, RET, TagId(22));
        }
        probes.begin(SITE, RET as u64, true);
        assert!(probes.state(SITE) == State::Apart && probes.may_have(RET));
        probes.end(SITE, RET);
        assert!(probes.state(SITE) == State::Over && !probes.may_have(RET));
    }

    #[test]
    fn sites_beyond_the_table_are_not_probed() {
        let probes = Probes::new();
        for tag in 0..SITES as u32 {
            probes.begin(TagId(100 + tag), 0x1000 + u64::from(tag), true);
        }
        probes.begin(SITE, RET as u64, true);
        assert!(probes.state(SITE) == State::Over);
    }

    #[test]
    fn a_site_takes_the_place_of_one_whose_probe_is_over_and_of_no_other() {
        let probes = Probes::new();
        let (first, other) = (TagId(100), TagId(101));
        for tag in 0..SITES as u32 {
            probes.begin(TagId(100 + tag), 0x1000 + u64::from(tag), true);
        }
        probes.note(other, 0x1001, TagId(21));
        probes.note(other, 0x1001, TagId(22));
        probes.end(first, 0x1000);
        probes.begin(SITE, RET as u64, true);
        assert!(probes.state(SITE) == State::Active && probes.site_of(RET) == Some(SITE));
        assert!(probes.state(first) == State::Over && probes.site_of(0x1000).is_none());
        assert!(probes.state(other) == State::Apart);
        probes.begin(first, 0x1000, true);
        assert!(probes.state(first) == State::Over, "there is no place");
    }
}
