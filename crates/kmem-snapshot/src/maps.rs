//! The mappings of a process, as `/proc/PID/maps` and `/proc/PID/smaps` show them.
//!
//! Formats: proc(5); `Documentation/filesystems/proc.rst` in Linux.

use std::ops::Range;

use kmem_layout::root::{ZERO_FILE, is_root};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Most mappings of a process: sixteen times as many as Linux allows by default.
pub const MAX_MAPPINGS: usize = 1 << 20;

/// A path without the mark that the kernel puts behind that of a file that was removed, and whether
/// it had the mark.
#[must_use]
pub fn unmarked(path: &str) -> (&str, bool) {
    path.strip_suffix(" (deleted)").map_or((path, false), |path| (path, true))
}

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// True when the process may read it.
    pub readable: bool,
    /// True when the process may write it.
    pub writable: bool,
    /// True when the process may execute it.
    pub executable: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device of the file, as `(major, minor)`.
    pub device: (u32, u32),
    /// Inode number of the file; 0 for none.
    pub inode: u64,
    /// File, or a name in brackets, or nothing; without the ` (deleted)` mark.
    pub path: String,
    /// True when the file has been unlinked.
    pub deleted: bool,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut field = || {
            let trimmed = rest.trim_start_matches(' ');
            let (field, tail) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
            rest = tail;
            field
        };
        let Range { start, end } = address_range(field())?;
        let permissions = field().as_bytes();
        let offset = u64::from_str_radix(field(), 16).ok()?;
        let (major, minor) = field().split_once(':')?;
        let inode = field().parse().ok()?;
        let path = rest.trim_start_matches(' ');
        let (path, deleted) = unmarked(path);
        Some(Self {
            start,
            end,
            readable: permissions.first() == Some(&b'r'),
            writable: permissions.get(1) == Some(&b'w'),
            executable: permissions.get(2) == Some(&b'x'),
            offset,
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            inode,
            path: path.to_owned(),
            deleted,
        })
    }

    /// True for plain memory: anonymous, a memfd, or a root block's. A reader follows pointers into
    /// such mappings only, because a read from a mapped FUSE file, say, could wait for ever.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        self.path.is_empty()
            || self.path.starts_with("/memfd:")
            || self.path.starts_with("[anon")
            || self.path == "[heap]"
            || is_root(&self.path, self.offset)
    }

    /// True for a mapped file that can be opened by name.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.starts_with('/') && !self.is_memory()
    }
}

/// A range of a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
}

/// Addresses of a mapping, as `maps` and `smaps` write them; none when they are no range.
fn address_range(field: &str) -> Option<Range<u64>> {
    let (start, end) = field.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let range = hex(start)?..hex(end)?;
    (!range.is_empty()).then_some(range)
}

/// All mappings of a process, in order of address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Maps {
    mappings: Vec<Mapping>,
}

impl Maps {
    /// Parses the text of `/proc/PID/maps`. Lines that are not mappings are left out, and so are
    /// those beyond [`MAX_MAPPINGS`].
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::new(text.lines().filter_map(Mapping::parse).take(MAX_MAPPINGS).collect())
    }

    /// Sorts mappings that do not overlap.
    #[must_use]
    pub fn new(mut mappings: Vec<Mapping>) -> Self {
        mappings.sort_by_key(|m| m.start);
        Self { mappings }
    }

    /// Takes mappings of files that are called as the device of zeroes, but are not `device`, for
    /// those of other files. `device` returns the numbers of its file system and inode.
    #[must_use]
    pub(crate) fn with_zeroes_of(
        mut self,
        device: impl FnOnce() -> Option<((u32, u32), u64)>,
    ) -> Self {
        let is_called = |m: &&mut Mapping| m.path.as_bytes() == ZERO_FILE.to_bytes();
        let mut called = self.mappings.iter_mut().filter(is_called).peekable();
        if called.peek().is_some() {
            let device = device();
            for mapping in called.filter(|m| Some((m.device, m.inode)) != device) {
                mapping.path.push_str(" of another");
            }
        }
        self
    }

    /// All mappings, in order of address.
    #[must_use]
    pub fn all(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping that holds `addr`.
    #[must_use]
    pub fn find(&self, addr: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= addr);
        self.mappings.get(..after)?.last().filter(|m| addr < m.end)
    }

    /// The mappings that share addresses with a range, in order of address.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = &Mapping> {
        let first = self.mappings.partition_point(|m| m.end <= range.start);
        self.mappings.iter().skip(first).take_while(move |m| m.start < range.end)
    }

    /// True when every byte of the range is readable plain memory. False for an empty range.
    #[must_use]
    pub fn is_readable_memory(&self, addr: u64, len: u64) -> bool {
        len != 0 && self.readable_memory_at(addr, len) == len
    }

    /// Counts the bytes from `addr` that are readable plain memory without a gap, `most` at most.
    #[must_use]
    pub fn readable_memory_at(&self, addr: u64, most: u64) -> u64 {
        self.memory_at(addr, most, |m| m.readable)
    }

    /// True when every byte of the range is plain memory that is readable and writable. False
    /// for an empty range.
    #[must_use]
    pub fn is_writable_memory(&self, addr: u64, len: u64) -> bool {
        len != 0 && self.memory_at(addr, len, |m| m.readable && m.writable) == len
    }

    /// Counts the bytes from `addr` that are plain memory of the wanted kind, `most` at most.
    /// Returns 0 for a range beyond the end of the address space.
    fn memory_at(&self, addr: u64, most: u64, wanted: impl Fn(&Mapping) -> bool) -> u64 {
        let Some(end) = addr.checked_add(most) else {
            return 0;
        };
        let mut at = addr;
        while at < end {
            match self.find(at) {
                Some(m) if m.is_memory() && wanted(m) => at = m.end,
                _ => break,
            }
        }
        at.min(end) - addr
    }
}

/// A mapping with its resident bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) mapping: Mapping,
    pub(crate) resident: u64,
}

impl Resident {
    /// Parses the text of `/proc/PID/smaps`, in order of address. Mappings beyond [`MAX_MAPPINGS`]
    /// are left out.
    pub(crate) fn parse(text: &str) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for line in text.lines() {
            if let Some(rss) = line.strip_prefix("Rss:") {
                if let (Some(last), Some(bytes)) = (all.last_mut(), kib(rss)) {
                    last.resident = bytes;
                }
            } else if line
                .as_bytes()
                .first()
                .is_some_and(|c| c.is_ascii_digit() || c.is_ascii_lowercase())
                && let Some(mapping) = Mapping::parse(line)
            {
                if all.len() == MAX_MAPPINGS {
                    break;
                }
                all.push(Self { mapping, resident: 0 });
            }
        }
        all.sort_by_key(|one| one.mapping.start);
        all
    }
}

/// Resident bytes of each mapping, from `/proc/PID/smaps`. Which pages are resident is not known.
///
/// It replaces the page map where the reader may read `smaps` but not `pagemap`. Every user who
/// may read the process may read `smaps`. `pagemap` belongs to the process's owner, or to root
/// when the process is not dumpable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Smaps {
    /// Address range and resident bytes of each mapping, in order of address.
    mappings: Vec<(Range<u64>, u64)>,
}

impl Smaps {
    /// Parses the text of `/proc/PID/smaps`; none when no mapping in it has a size.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut mappings = Vec::new();
        let mut current = None;
        for line in text.lines() {
            if let Some(rss) = line.strip_prefix("Rss:") {
                let (Some(range), Some(bytes)) = (current.take(), kib(rss)) else { continue };
                mappings.push((range, bytes));
            } else if let Some(range) = line.split(' ').next().and_then(address_range) {
                current = Some(range);
            }
        }
        mappings.sort_by_key(|(range, _): &(Range<u64>, u64)| range.start);
        (!mappings.is_empty()).then_some(Self { mappings })
    }

    /// Calls `each` with address ranges as large as the memory that is likely to be resident in
    /// the `len` bytes at `addr`.
    ///
    /// A mapping within these bytes counts with its exact size. A mapping that reaches beyond
    /// them counts with their share of it. The ranges are the first pages of each mapping, since
    /// tables fill from their beginning.
    pub fn likely(&self, addr: u64, len: u64, mut each: impl FnMut(Range<u64>)) {
        let end = addr.saturating_add(len);
        let first = self.mappings.partition_point(|(range, _)| range.end <= addr);
        for (range, rss) in self.mappings.iter().skip(first).take_while(|(r, _)| r.start < end) {
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

/// Bytes of a field such as `  123 kB`.
pub(crate) fn kib(field: &str) -> Option<u64> {
    let kib: u64 = field.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55cded1c9000-55cded1ca000 r-xp 00002000 fe:01 131 /usr/bin/a name (deleted)
7f0000000000-7f0000010000 rw-p 00000000 00:00 0 
7f0000010000-7f0000020000 rw-p 00000000 00:01 7                          /memfd:kmem-root (deleted)
7f0000020000-7f0000030000 ---p 00000000 00:00 0 
7f0000030000-7f0000040000 r--s 00000000 00:31 9 /mnt/fuse/x
garbage
7f0000050000-7f0000040000 r--s 00000000 00:31 9 /backwards
";

    #[test]
    fn lines_are_taken_apart() {
        let maps = Maps::parse(MAPS);
        assert_eq!(maps.all().len(), 5);
        let exe = &maps.all()[0];
        assert_eq!((exe.path.as_str(), exe.deleted), ("/usr/bin/a name", true));
        assert_eq!((exe.device, exe.inode, exe.offset), ((0xfe, 1), 131, 0x2000));
        assert!(exe.executable && exe.is_file());
        assert_eq!(maps.all()[2].path, "/memfd:kmem-root");
        assert!(!maps.all()[2].is_file());
    }

    #[test]
    fn a_file_that_is_called_as_the_device_of_zeroes_is_not_memory() {
        let line = "7f0000000000-7f0000001000 rw-p 6b6d656d0000 00:06 4          /dev/zero\n";
        let own = Maps::parse(line).with_zeroes_of(|| Some(((0, 6), 4)));
        assert!(own.all()[0].is_memory() && !own.all()[0].is_file());
        for device in [Some(((0, 6), 5)), Some(((0, 7), 4)), None] {
            let other = Maps::parse(line).with_zeroes_of(|| device);
            assert!(!other.all()[0].is_memory(), "{device:?}");
        }
    }

    #[test]
    fn readable_memory_is_contiguous_and_plain() {
        let maps = Maps::parse(MAPS);
        assert!(maps.is_readable_memory(0x7f00_0000_0000, 0x20000));
        assert!(maps.is_readable_memory(0x7f00_0000_ffff, 2));
        assert!(!maps.is_readable_memory(0x7f00_0001_ffff, 2));
        assert!(!maps.is_readable_memory(0x7f00_0003_0000, 1));
        assert!(!maps.is_readable_memory(0x55cd_ed1c_9000, 1));
        assert!(!maps.is_readable_memory(0x7f00_0000_0000, 0));
        assert!(!maps.is_readable_memory(u64::MAX, 2));
        assert!(!maps.is_readable_memory(0, 1));
        assert_eq!(maps.readable_memory_at(0x7f00_0001_fff0, 0x100), 0x10);
        assert_eq!(maps.readable_memory_at(u64::MAX, 2), 0);
        assert!(maps.is_writable_memory(0x7f00_0000_0000, 0x20000));
        assert!(!maps.is_writable_memory(0x7f00_0001_ffff, 2));
        assert!(!maps.is_writable_memory(0x55cd_ed1c_9000, 1));
    }

    const SMAPS: &str = "\
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
        Smaps::parse(SMAPS).unwrap().likely(addr, len, |range| found.push(range));
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
        // Never more than the range, and at least one page where one may be resident.
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
