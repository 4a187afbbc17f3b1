//! `/proc/PID/smaps`: how much of each mapping is in memory, though not which pages.
//!
//! It stands in for the page map where a reader may look into a process but not open that file:
//! `smaps` may be read by whoever may read the process, while `pagemap` belongs to its owner (to
//! root, when the process is not dumpable).

use std::ops::Range;

const PAGE: u64 = 4096;

/// How much of each mapping is in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Smaps {
    /// Addresses and bytes in memory, by address.
    mappings: Vec<(Range<u64>, u64)>,
}

impl Smaps {
    /// Parses the text of `/proc/PID/smaps`. `None` when it says of no mapping what is in memory.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut mappings = Vec::new();
        let mut current = None;
        for line in text.lines() {
            if let Some(rss) = line.strip_prefix("Rss:") {
                let (Some(range), Some(bytes)) = (current.take(), kib(rss)) else { continue };
                mappings.push((range, bytes));
            } else if let Some(range) = addresses(line) {
                current = Some(range);
            }
        }
        mappings.sort_by_key(|(range, _): &(Range<u64>, u64)| range.start);
        (!mappings.is_empty()).then_some(Self { mappings })
    }

    /// Calls `each` with address ranges of `len` bytes at `addr` that are as large as what is likely
    /// to be in memory there.
    ///
    /// Of a mapping that lies within the range that is its size in memory to the byte; of one that
    /// goes on beyond it, the same share of the range as of the mapping. Which pages these are is
    /// not known: the first ones are taken, since tables are filled from their beginning.
    pub fn likely(&self, addr: u64, len: u64, mut each: impl FnMut(Range<u64>)) {
        let end = addr.saturating_add(len);
        let first = self.mappings.partition_point(|(range, _)| range.end <= addr);
        for (range, rss) in self.mappings[first..].iter().take_while(|(r, _)| r.start < end) {
            let (from, to) = (range.start.max(addr), range.end.min(end));
            let share = u128::from(*rss) * u128::from(to.saturating_sub(from))
                / u128::from(range.end - range.start);
            let pages = u64::try_from(share).unwrap_or(u64::MAX).div_ceil(PAGE);
            let bytes = pages.saturating_mul(PAGE).min(to.saturating_sub(from));
            if bytes != 0 {
                each(from..from + bytes);
            }
        }
    }
}

/// The addresses in the first line of a mapping.
fn addresses(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let range = hex(start)?..hex(end)?;
    (!range.is_empty()).then_some(range)
}

/// Bytes of the field `  123 kB`.
pub(super) fn kib(field: &str) -> Option<u64> {
    let kib: u64 = field.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000010000 rw-p 00000000 00:00 0 
Size:                 64 kB
Rss:                  32 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me ac 
7f0000010000-7f0000020000 ---p 00000000 00:00 0 
Rss:                   0 kB
7f0000030000-7f0000040000 r--p 00000000 fe:00 7          /a-b Rss: 9 kB
Rss:                   4 kB
garbage
Rss:                 999 kB
9-8 r--p 00000000 00:00 0 
Rss:                 999 kB
7f0000050000-7f0000060000 rw-p 00000000 00:00 0 
Rss: 18446744073709551615 kB
";

    fn likely(addr: u64, len: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        Smaps::parse(TEXT).unwrap().likely(addr, len, |range| found.push(range));
        found
    }

    #[test]
    fn whole_mappings_count_to_the_byte() {
        let all = [0x7f00_0000_0000..0x7f00_0000_8000, 0x7f00_0003_0000..0x7f00_0003_1000];
        assert_eq!(likely(0, u64::MAX), all);
        assert_eq!(likely(0x7f00_0000_0000, 0x10000), all[..1]);
    }

    #[test]
    fn parts_of_mappings_count_by_their_share() {
        let one = |start, len, end| assert_eq!(likely(start, len), vec![start..end]);
        one(0x7f00_0000_8000, 0x8000, 0x7f00_0000_c000);
        // Never more than there is of it, and a page at least where there may be one.
        one(0x7f00_0003_f000, 0x9000, 0x7f00_0004_0000);
        assert_eq!(likely(0x7f00_0001_0000, 0x20000), []);
        assert_eq!(likely(u64::MAX, 2), []);
    }

    #[test]
    fn text_without_sizes_is_no_answer() {
        assert_eq!(Smaps::parse(""), None);
        assert_eq!(Smaps::parse("7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \n"), None);
        assert!(Smaps::parse(&std::fs::read_to_string("/proc/self/smaps").unwrap()).is_some());
    }
}
