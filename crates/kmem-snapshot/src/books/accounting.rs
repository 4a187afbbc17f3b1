//! The equation: `tracked + cached + overhead + unaccounted = resident`.

use serde::Serialize;

use super::Source;
use super::census::Census;
use super::metadata::Metadata;
use super::zone::{PAGE, WHOLE_TAKEN, Zone};
use crate::memory::Pages;
use crate::process::PageState;

/// Longest bitmap copied: that of 32 TiB.
const MAX_BITS: usize = 1 << 30;

/// How well the allocator's tables in the overhead are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tables {
    /// Page by page.
    #[default]
    Counted,
    /// From how much of each mapping is in memory.
    Estimated,
    /// Not at all: they are in the unaccounted rest.
    Unknown,
}

impl Tables {
    pub(super) fn known_by(pages: Option<&Pages>) -> Self {
        match pages {
            Some(Pages::Live(_) | Pages::Core(_)) => Self::Counted,
            Some(Pages::Likely(_)) => Self::Estimated,
            None => Self::Unknown,
        }
    }
}

/// Where a process's resident memory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Accounting {
    /// Bytes of live objects and page allocations.
    pub tracked: u64,
    /// Bytes of free objects in slabs, and of free pages with old contents.
    pub cached: u64,
    /// Resident bytes of metadata, and bytes of slabs that are not objects.
    pub overhead: u64,
    /// How well `overhead` is known.
    pub tables: Tables,
    /// Bytes the kernel says are resident; of a core file, bytes of memory present in it.
    pub resident: u64,
    /// Bytes of pages in use that are not in memory: allocated, never touched. It explains a
    /// negative `unaccounted`. None where the page map cannot be read.
    pub untouched: Option<u64>,
    /// Bytes of pages in use that are in swap.
    pub swapped: Option<u64>,
}

impl Accounting {
    /// The remainder: code, stacks, files, other allocators; less what was never touched.
    #[must_use]
    pub fn unaccounted(&self) -> i64 {
        let sum = i128::from(self.tracked) + i128::from(self.cached) + i128::from(self.overhead);
        let rest = i128::from(self.resident) - sum;
        i64::try_from(rest).unwrap_or(if rest < 0 { i64::MIN } else { i64::MAX })
    }

    /// Adds another root block's part.
    pub(super) fn add(&mut self, other: &Self) {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.tracked += other.tracked;
        self.cached += other.cached;
        self.overhead += other.overhead;
        self.untouched = sum(self.untouched, other.untouched);
        self.swapped = sum(self.swapped, other.swapped);
    }
}

/// The part of one root block; `resident` is left at zero.
pub(super) fn of_root(
    source: &Source<'_>,
    metadata: &Metadata,
    zones: &[Zone],
    census: &Census<'_>,
) -> Accounting {
    let mut of = Accounting {
        tracked: census.live,
        cached: census.objects.saturating_sub(census.live_in_slabs),
        overhead: metadata.total(),
        ..Accounting::default()
    };
    for zone in zones {
        of.cached += free_dirty(source, zone).unwrap_or(0);
        if let Some((untouched, swapped)) = not_resident(source, zone) {
            of.untouched = Some(of.untouched.unwrap_or(0) + untouched);
            of.swapped = Some(of.swapped.unwrap_or(0) + swapped);
        }
    }
    of
}

/// One bit per page, up to `committed`.
fn bits(source: &Source<'_>, zone: &Zone, table: u64) -> Option<Vec<u8>> {
    let len = usize::try_from(zone.committed.div_ceil(64) * 8).ok();
    let mut bytes = vec![0; len.filter(|&len| len <= MAX_BITS)?];
    source.memory.read(table, &mut bytes).ok()?;
    Some(bytes)
}

/// One bit per free page: frames that are taken as a whole have none.
fn free_bits(source: &Source<'_>, zone: &Zone) -> Option<Vec<u8>> {
    let mut free = bits(source, zone, zone.rows)?;
    let credit = zone.credit(source.memory).ok()?;
    for (frame, _) in free.chunks_mut(512 / 8).zip(&credit).filter(|(_, c)| **c == WHOLE_TAKEN) {
        frame.fill(0);
    }
    Some(free)
}

fn is_set(bits: &[u8], page: u64) -> bool {
    usize::try_from(page / 8)
        .ok()
        .and_then(|i| bits.get(i))
        .is_some_and(|byte| byte >> (page % 8) & 1 != 0)
}

/// Bytes of free pages that may hold old contents.
fn free_dirty(source: &Source<'_>, zone: &Zone) -> Option<u64> {
    let free = free_bits(source, zone)?;
    let dirty = bits(source, zone, zone.dirty)?;
    let both = free.iter().zip(&dirty).map(|(f, d)| u64::from((f & d).count_ones()));
    Some(both.sum::<u64>() * PAGE)
}

/// Bytes of pages in use that are nowhere, and of those in swap.
fn not_resident(source: &Source<'_>, zone: &Zone) -> Option<(u64, u64)> {
    let free = free_bits(source, zone)?;
    let pagemap = source.pagemap?;
    let used = (0..zone.committed).filter(|&page| !is_set(&free, page)).count() as u64;
    let count = |state| {
        let mut pages = 0;
        pagemap.regions(zone.base, zone.committed * PAGE, state, |region| {
            let first = region.start.saturating_sub(zone.base) / PAGE;
            let last = (region.end.saturating_sub(zone.base) / PAGE).min(zone.committed);
            pages += (first..last).filter(|&page| !is_set(&free, page)).count() as u64;
        })?;
        Some(pages)
    };
    let present = count(PageState::Present)?;
    let swapped = count(PageState::Swapped)?;
    let untouched = used.saturating_sub(present).saturating_sub(swapped);
    Some((untouched * PAGE, swapped * PAGE))
}
