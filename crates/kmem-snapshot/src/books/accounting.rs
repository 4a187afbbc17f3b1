//! The equation of a process's memory, and its terms.

use std::ops::Range;

use serde::Serialize;

use super::census::Census;
use super::mappings::Parts;
use super::metadata::Metadata;
use super::source::Source;
use super::zone::Zone;
use crate::maps::PAGE;
use crate::memory::{PageState, Pages};

/// How well the memory of the allocator's tables is known, the best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tables {
    /// Counted page by page.
    #[default]
    Counted,
    /// Estimated from the resident size of each mapping.
    Estimated,
    /// Unknown; the tables are in the unaccounted rest.
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

/// The equation of a process's memory, in bytes:
/// `tracked + cached + overhead - untouched - swapped + unaccounted = resident`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Accounting {
    /// Live objects and page allocations.
    pub tracked: u64,
    /// Free objects in slabs, and free pages with old contents.
    pub cached: u64,
    /// Resident metadata, and bytes of slabs that are not objects.
    pub overhead: u64,
    /// How well `overhead` is known.
    pub tables: Tables,
    /// Resident memory, as the kernel counts it; of a core file, the memory in the file.
    pub resident: u64,
    /// Pages in use or kept for reuse that are not in memory, because the program never touched
    /// them. They are part of the terms above. None where the page map cannot be read.
    pub untouched: Option<u64>,
    /// Pages in use or kept for reuse that are in swap, part of the terms above, too. None where
    /// the page map cannot be read.
    pub swapped: Option<u64>,
    /// The parts of `unaccounted` that have a name. None where they are not known.
    pub parts: Option<Parts>,
    /// Bytes of page tables, which the kernel does not count as resident. None where that is not
    /// known.
    pub page_tables: Option<u64>,
}

impl Accounting {
    /// The rest of the equation: mappings of the program, stacks, code, files.
    #[must_use]
    pub fn unaccounted(&self) -> i64 {
        let sum = [self.tracked, self.cached, self.overhead].map(i128::from).iter().sum::<i128>();
        let absent = [self.untouched, self.swapped].map(|of| i128::from(of.unwrap_or(0)));
        let rest = i128::from(self.resident) - sum + absent.iter().sum::<i128>();
        i64::try_from(rest).unwrap_or(if rest < 0 { i64::MIN } else { i64::MAX })
    }

    /// The part of `unaccounted` that has no name: memory that changed while it was read, and what
    /// the terms of the heap miss. None where the parts are not known.
    #[must_use]
    pub fn other(&self) -> Option<i64> {
        let named = i64::try_from(self.parts?.total()).unwrap_or(i64::MAX);
        Some(self.unaccounted().saturating_sub(named))
    }

    /// The sum of the equations of several root blocks, or of several processes. A page that
    /// processes share counts in each of them. A term that one of them does not know is not known.
    pub(crate) fn together<'a>(mut all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = all.next().copied().unwrap_or_default();
        for of in all {
            let both = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
            sum = Self {
                tracked: sum.tracked.saturating_add(of.tracked),
                cached: sum.cached.saturating_add(of.cached),
                overhead: sum.overhead.saturating_add(of.overhead),
                tables: sum.tables.max(of.tables),
                resident: sum.resident.saturating_add(of.resident),
                untouched: both(sum.untouched, of.untouched),
                swapped: both(sum.swapped, of.swapped),
                parts: sum.parts.zip(of.parts).map(|(a, b)| a.plus(b)),
                page_tables: both(sum.page_tables, of.page_tables),
            };
        }
        sum
    }

    /// The part of one root block, without `resident`.
    pub(super) fn of(
        source: &Source<'_>,
        metadata: &Metadata,
        zones: &[Zone],
        census: &Census<'_>,
    ) -> Self {
        // A root block without zones has no page that is absent.
        let counted = (Tables::known_by(source.pages) == Tables::Counted).then_some(0);
        let mut of = Self {
            tracked: census.live,
            cached: census.objects.saturating_sub(census.live_in_slabs),
            overhead: metadata.total(),
            untouched: counted,
            swapped: counted,
            ..Self::default()
        };
        for (zone, &placed) in zones.iter().zip(&census.placed) {
            let rest = Rest::of(source, zone, placed).unwrap_or_default();
            of.cached += rest.kept;
            if let Some((untouched, swapped)) = rest.absent {
                of.untouched = Some(of.untouched.unwrap_or(0) + untouched);
                of.swapped = Some(of.swapped.unwrap_or(0) + swapped);
            }
        }
        of
    }
}

/// Pages of one zone that are not objects in memory, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    /// Free pages that may hold old contents, or are in memory as parts of huge pages. Also pages
    /// in use that are neither in slabs nor allocated. CPUs keep them, or they lie behind an area
    /// of `vmalloc`.
    kept: u64,
    /// Pages in use or with old contents that are neither in memory nor in swap, and those in swap.
    /// None where that is not known.
    absent: Option<(u64, u64)>,
}

impl Rest {
    /// Counts the pages of a zone. `placed` is bytes of slabs and of live page allocations; none
    /// where not all were counted. None when its tables cannot be read, or do not fit in the
    /// budget.
    fn of(source: &Source<'_>, zone: &Zone, placed: Option<u64>) -> Option<Self> {
        let mut this = Self { kept: 0, absent: source.pages.map(|_| (0, 0)) };
        let mut handed_out = 0;
        for pages in zone.windows() {
            // Two bitmaps.
            if let Err(over) = source.budget.work((pages.end - pages.start).div_ceil(4)) {
                let what = "free and untouched pages are counted in part, all of them are";
                source.budget.remark(format!("zone at {:#x}: {what} {over}", zone.base));
                return Some(this);
            }
            let free = zone.free_bits(source, &pages).ok()?;
            let dirty = zone.bits(source, zone.dirty, &pages).ok()?;
            let both = free.iter().zip(&dirty).map(|(f, d)| u64::from((f & d).count_ones()));
            this.kept += both.sum::<u64>() * PAGE;
            handed_out += clear_bits(&free, 0..pages.end - pages.start) * PAGE;
            // Pages that count as neither in use nor with old contents.
            let clean: Vec<u8> = free.iter().zip(&dirty).map(|(f, d)| f & !d).collect();
            this.absent = this.absent.and_then(|(untouched, swapped)| {
                let of = Residency::of(source, zone, &pages, &clean)?;
                this.kept += of.clean;
                Some((untouched + of.untouched, swapped + of.swapped))
            });
        }
        this.kept += placed.map_or(0, |placed| handed_out.saturating_sub(placed));
        Some(this)
    }
}

/// Where the pages of a part of a zone are, in bytes.
struct Residency {
    /// Clean pages in memory.
    clean: u64,
    /// Other pages, neither in memory nor in swap.
    untouched: u64,
    /// Other pages, in swap.
    swapped: u64,
}

impl Residency {
    /// That of `pages`. Those whose bits in `clean` are set are free, and never had contents. None
    /// when it is not known.
    fn of(source: &Source<'_>, zone: &Zone, pages: &Range<u64>, clean: &[u8]) -> Option<Self> {
        let known = source.pages?;
        let start = zone.base + pages.start * PAGE;
        let count = pages.end - pages.start;
        // All pages in a state, and those of them that are not clean.
        let count_in = |state| {
            let (mut all, mut others) = (0, 0);
            known.regions(start, count * PAGE, state, |region| {
                let first = region.start.saturating_sub(start) / PAGE;
                let last = (region.end.saturating_sub(start) / PAGE).min(count);
                all += last.saturating_sub(first);
                others += clear_bits(clean, first..last);
            })?;
            Some((all, others))
        };
        let ((all, present), (_, swapped)) =
            (count_in(PageState::Present)?, count_in(PageState::Swapped)?);
        let used = clear_bits(clean, 0..count);
        let untouched = used.saturating_sub(present).saturating_sub(swapped);
        let bytes = |pages: u64| pages * PAGE;
        Some(Self {
            clean: bytes(all.saturating_sub(present)),
            untouched: bytes(untouched),
            swapped: bytes(swapped),
        })
    }
}

/// Count of clear bits among these. Bits beyond the end of the bytes count as clear.
fn clear_bits(bytes: &[u8], bits: Range<u64>) -> u64 {
    let mut clear = 0;
    let mut at = bits.start;
    while at < bits.end {
        let byte = usize::try_from(at / 8).ok().and_then(|at| bytes.get(at)).copied().unwrap_or(0);
        let next = (at / 8 + 1) * 8;
        let mask = 0xff_u8 << (at % 8) & 0xff_u8 >> (next - next.min(bits.end));
        clear += u64::from((!byte & mask).count_ones());
        at = next;
    }
    clear
}

#[cfg(test)]
mod tests {
    use super::clear_bits;

    #[test]
    fn clear_bits_of_any_range() {
        let bytes = [0b1010_0110, 0xff, 0, 0b0111_1111];
        let clear = |at: u64| bytes.get(at as usize / 8).is_none_or(|b| b >> (at % 8) & 1 == 0);
        for start in 0..40 {
            for end in start..40 {
                let plain = (start..end).filter(|&at| clear(at)).count() as u64;
                assert_eq!(clear_bits(&bytes, start..end), plain, "{start}..{end}");
            }
        }
    }
}
