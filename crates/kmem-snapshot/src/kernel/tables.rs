//! `/proc/slabinfo` and `/proc/zoneinfo`: memory of slabs and of zones.
//!
//! ```text
//! slabinfo - version: 2.1
//! # name  active_objs num_objs objsize objperslab pagesperslab : tunables .. : slabdata ..
//! kmalloc-64  1230  1280  64  64  1 : tunables 0 0 0 : slabdata 20 20 0
//!
//! Node 0, zone   Normal
//!   pages free     18432
//!         managed  65536
//!   pagesets
//!     cpu: 0
//!               count:    317
//! ```
//!
//! Source: `print_slabinfo_header` in Linux' `mm/slab_common.c`, `zoneinfo_show_print` in
//! `mm/vmstat.c`.

use std::io::{BufRead, Read as _};

/// Longest line read, in bytes.
const MAX_LINE: u64 = 4096;

/// Memory of all slab caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slabs {
    /// Count of slabs.
    pub(super) count: u64,
    /// Their pages.
    pub(super) pages: u64,
    /// Bytes of the objects in use.
    pub(super) used_bytes: u64,
}

/// Pages of all zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Zones {
    /// Count of zones.
    pub(super) count: u64,
    /// Pages that the page allocator manages.
    pub(super) managed: u64,
    /// Free pages in zones and on the lists of CPUs.
    pub(super) free: u64,
}

impl Slabs {
    /// Reads slabinfo.
    ///
    /// # Errors
    ///
    /// The fault, with the number of its line.
    pub(super) fn read(source: impl BufRead) -> Result<Self, String> {
        let mut sum = Self::default();
        each_line(source, |number, line| {
            if number == 1 {
                return line.strip_prefix("slabinfo - version: 2.").map(|_| ());
            }
            if line.starts_with('#') || line.trim().is_empty() {
                return Some(());
            }
            let (sizes, rest) = line.split_once(" : tunables ")?;
            let (_, slabs) = rest.split_once(" : slabdata ")?;
            let mut sizes = sizes.split_ascii_whitespace().skip(1);
            let mut size = || sizes.next()?.parse::<u64>().ok();
            let (active, _, bytes, _, pages) = (size()?, size()?, size()?, size()?, size()?);
            let count: u64 = slabs.split_ascii_whitespace().nth(1)?.parse().ok()?;
            sum.count = sum.count.checked_add(count)?;
            sum.pages = sum.pages.checked_add(count.checked_mul(pages)?)?;
            sum.used_bytes = sum.used_bytes.checked_add(active.checked_mul(bytes)?)?;
            Some(())
        })?;
        Ok(sum)
    }
}

impl Zones {
    /// Reads zoneinfo.
    ///
    /// # Errors
    ///
    /// The fault, with the number of its line.
    pub(super) fn read(source: impl BufRead) -> Result<Self, String> {
        let mut sum = Self::default();
        each_line(source, |_, line| {
            let words: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
            let number = |word: &str| word.parse::<u64>().ok();
            match words[..] {
                ["Node", _, "zone", _] => sum.count = sum.count.checked_add(1)?,
                _ if sum.count == 0 => return None,
                ["pages", "free", pages] | ["count:", pages] => {
                    sum.free = sum.free.checked_add(number(pages)?)?;
                }
                ["managed", pages] => sum.managed = sum.managed.checked_add(number(pages)?)?,
                _ => {}
            }
            Some(())
        })?;
        Ok(sum)
    }
}

/// Takes the lines one by one, numbered from 1. `take` returns none for a line that it refuses.
fn each_line(
    mut source: impl BufRead,
    mut take: impl FnMut(u64, &str) -> Option<()>,
) -> Result<(), String> {
    let mut number = 0;
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        number += 1;
        let mut limited = (&mut source).take(MAX_LINE);
        let read = limited.read_until(b'\n', &mut bytes);
        if read.map_err(|error| format!("line {number}: {error}"))? == 0 {
            return if number == 1 { Err("empty file".to_owned()) } else { Ok(()) };
        }
        let line = String::from_utf8_lossy(&bytes);
        take(number, &line).ok_or_else(|| {
            let start: String = line.trim_end().chars().take(80).collect();
            format!("line {number} makes no sense: {start:?}")
        })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_kernels_slabs_add_up() {
        let text = include_str!("../../tests/data/slabinfo-6.12.txt");
        // By awk, from the columns of the file.
        let expected = Slabs { count: 773, pages: 5_332_992 / 4096, used_bytes: 5_243_176 };
        assert_eq!(Slabs::read(text.as_bytes()), Ok(expected));
    }

    #[test]
    fn zones_add_up_with_the_free_pages_on_cpus() {
        let text = "\
Node 0, zone      DMA
  per-node stats
      nr_free_pages 9
  pages free     10
        boost    0
        managed  100
  pagesets
    cpu: 0
              count:    3
Node 1, zone   Normal
  pages free     20
        managed  200
";
        assert_eq!(Zones::read(text.as_bytes()), Ok(Zones { count: 2, managed: 300, free: 33 }));
        let own = std::fs::read("/proc/zoneinfo").unwrap();
        let own = Zones::read(&own[..]).unwrap();
        assert!(own.count > 0 && own.managed > own.free && own.free > 0, "{own:?}");
    }

    #[test]
    fn lines_that_make_no_sense_are_told() {
        let head = "slabinfo - version: 2.1\n";
        let huge = "a 9999999999999 1 9999999999999 1 1 : tunables 0 0 0 : slabdata 1 1 0";
        for (text, what) in [
            (String::new(), "empty file"),
            ("slabinfo - version: 1.1\n".to_owned(), "line 1 makes no sense"),
            (format!("{head}a 1 2 3\n"), "line 2 makes no sense: \"a 1 2 3\""),
            (format!("{head}{huge}\n"), "line 2"),
        ] {
            let error = Slabs::read(text.as_bytes()).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        assert!(Zones::read(&b"pages free 1\n"[..]).unwrap_err().contains("line 1"));
        assert!(Zones::read(&b"Node 0, zone DMA\npages free x\n"[..]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..500),
        ) {
            let with = |head: &[u8]| [head, &bytes].concat();
            let _ = Slabs::read(&with(b"slabinfo - version: 2.1\n")[..]);
            let _ = Zones::read(&with(b"Node 0, zone DMA\n")[..]);
        }
    }
}
