//! `/proc/PID/maps`.

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// May be read.
    pub readable: bool,
    /// May be written.
    pub writable: bool,
    /// May be executed.
    pub executable: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file, as `(major, minor)`.
    pub device: (u32, u32),
    /// Inode of the file; 0 for none.
    pub inode: u64,
    /// File, or a name in brackets, or nothing; without the ` (deleted)` mark.
    pub path: String,
    /// The file has been unlinked.
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
        let (start, end) = field().split_once('-')?;
        let permissions = field().as_bytes();
        let offset = field();
        let (major, minor) = field().split_once(':')?;
        let inode = field();
        let path = rest.trim_start_matches(' ');
        let (path, deleted) = match path.strip_suffix(" (deleted)") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mapping = Self {
            start: hex(start)?,
            end: hex(end)?,
            readable: permissions.first() == Some(&b'r'),
            writable: permissions.get(1) == Some(&b'w'),
            executable: permissions.get(2) == Some(&b'x'),
            offset: hex(offset)?,
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            inode: inode.parse().ok()?,
            path: path.to_owned(),
            deleted,
        };
        (mapping.start < mapping.end).then_some(mapping)
    }

    /// Plain memory: anonymous, or a memfd. Only such mappings may hold books: reading a
    /// mapping of, say, a FUSE file could wait for ever.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        self.path.is_empty()
            || self.path.starts_with("/memfd:")
            || self.path.starts_with("[anon")
            || self.path == "[heap]"
    }

    /// A file that can be opened by name.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.starts_with('/') && !self.path.starts_with("/memfd:")
    }
}

/// All mappings of a process, by address.
#[derive(Debug, Clone, Default)]
pub struct Maps {
    mappings: Vec<Mapping>,
}

impl Maps {
    /// Parses the text of `/proc/PID/maps`. Lines that are not mappings are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::new(text.lines().filter_map(Mapping::parse).collect())
    }

    /// These mappings, in any order; they do not overlap.
    #[must_use]
    pub fn new(mut mappings: Vec<Mapping>) -> Self {
        mappings.sort_by_key(|m| m.start);
        Self { mappings }
    }

    /// The mappings in order of address.
    #[must_use]
    pub fn all(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The mapping that holds `addr`.
    #[must_use]
    pub fn find(&self, addr: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= addr);
        self.mappings[..after].last().filter(|m| addr < m.end)
    }

    /// True when every byte of the range is readable plain memory. Empty ranges are not.
    #[must_use]
    pub fn is_readable_memory(&self, addr: u64, len: u64) -> bool {
        len != 0 && self.readable_memory_at(addr, len) == len
    }

    /// How many bytes from `addr` on, at most `most`, are readable plain memory without a gap.
    #[must_use]
    pub fn readable_memory_at(&self, addr: u64, most: u64) -> u64 {
        self.memory_at(addr, most, |m| m.readable)
    }

    /// True when every byte of the range is plain memory that is readable and writable.
    /// Empty ranges are not.
    #[must_use]
    pub fn is_writable_memory(&self, addr: u64, len: u64) -> bool {
        len != 0 && self.memory_at(addr, len, |m| m.readable && m.writable) == len
    }

    /// How many bytes from `addr` on are plain memory of the kind asked for, up to `most`; 0
    /// for a range beyond the end of the address space.
    fn memory_at(&self, addr: u64, most: u64, of_kind: impl Fn(&Mapping) -> bool) -> u64 {
        let Some(end) = addr.checked_add(most) else {
            return 0;
        };
        let mut at = addr;
        while at < end {
            match self.find(at) {
                Some(m) if m.is_memory() && of_kind(m) => at = m.end,
                _ => break,
            }
        }
        at.min(end) - addr
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
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
        let maps = Maps::parse(TEXT);
        assert_eq!(maps.all().len(), 5);
        let exe = &maps.all()[0];
        assert_eq!((exe.path.as_str(), exe.deleted), ("/usr/bin/a name", true));
        assert_eq!((exe.device, exe.inode, exe.offset), ((0xfe, 1), 131, 0x2000));
        assert!(exe.executable && exe.is_file());
        assert_eq!(maps.all()[2].path, "/memfd:kmem-root");
        assert!(!maps.all()[2].is_file());
    }

    #[test]
    fn readable_memory_is_contiguous_and_plain() {
        let maps = Maps::parse(TEXT);
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
}
