//! Memory in a core file.
//!
//! The first `p_filesz` bytes of a segment are in the file. The rest is zero or absent:
//!
//! - No byte of an anonymous, readable segment is in the file: Linux leaves out private memory
//!   that was never written. It reads as zeroes, as it did in the process. Two cases are absent
//!   instead. A core without any anonymous memory had all of it left out (`coredump_filter`). A
//!   range larger than any table of kmem could make a reader copy terabytes. (Linux leaves out
//!   memory under `MADV_DONTDUMP`, too. kmem uses that only for memory that was never written.)
//! - Part of the segment is in the file, or it is of a mapped file: the rest was not dumped, and
//!   is absent.
//! - The file ends before the segment does: it was cut off (`RLIMIT_CORE`, a full disk), and the
//!   rest is absent.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use object::elf;

use super::header::{Headers, Segment};
use super::notes::MappedFile;
use crate::error::ReadError;
use crate::extents;
use crate::maps::Span;

/// Largest segment that reads as zeroes: one word for every page of 64 TiB.
const MAX_ZERO: u64 = 64 << 30;

/// A part of memory. Its first `there` bytes are in the file.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    offset: u64,
    there: u64,
    /// True when the bytes that are not in the file are zero, not absent.
    zero: bool,
}

#[derive(Debug)]
struct Inner {
    file: File,
    path: String,
    /// In order of address, without overlap.
    parts: Vec<Part>,
    missing: u64,
}

/// The memory in a core file.
#[derive(Debug, Clone)]
pub struct CoreMemory(Arc<Inner>);

impl CoreMemory {
    pub(super) fn new(
        file: File,
        len: u64,
        path: &str,
        headers: &Headers,
        files: &[MappedFile],
    ) -> Result<Self, String> {
        let is_file = |s: &Segment| {
            let after = files.partition_point(|f| f.start < s.end);
            files.iter().take(after).next_back().is_some_and(|f| f.end > s.start)
        };
        let anonymous = |s: &Segment| s.flags & elf::PF_R != 0 && !is_file(s);
        let any_dumped = headers
            .loads
            .iter()
            .any(|s| s.flags & elf::PF_W != 0 && s.file_size != 0 && anonymous(s));
        let mut missing = 0;
        let mut parts = Vec::new();
        for s in &headers.loads {
            let size = s.file_size.min(s.end - s.start);
            if s.file_size > size {
                return Err(format!(
                    "the segment at {:#x} has {:#x} bytes in the file and {:#x} in memory",
                    s.start,
                    s.file_size,
                    s.end - s.start
                ));
            }
            let there = size.min(len.saturating_sub(s.offset));
            missing += size - there;
            parts.push(Part {
                start: s.start,
                end: s.end,
                offset: s.offset,
                there,
                zero: size == 0 && any_dumped && anonymous(s) && s.end - s.start <= MAX_ZERO,
            });
        }
        Ok(Self(Arc::new(Inner { file, path: path.to_owned(), parts, missing })))
    }

    pub(super) fn missing(&self) -> u64 {
        self.0.missing
    }

    /// Copies `into.len()` bytes from `addr`.
    ///
    /// # Errors
    ///
    /// [`ReadError::NotInCore`] when part of the range was not dumped; [`ReadError::File`] when the
    /// file cannot be read.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let (mut at, mut rest) = (addr, into);
        while !rest.is_empty() {
            let len = rest.len();
            let absent = || ReadError::NotInCore { path: self.0.path.clone(), addr: at, len };
            let part = self.part(at).ok_or_else(absent)?;
            let within = at - part.start;
            let in_file = within < part.there;
            let left = if in_file { part.there - within } else { part.end - at };
            if !in_file && !part.zero {
                return Err(absent());
            }
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(len);
            let Some((into, tail)) = rest.split_at_mut_checked(size) else { break };
            if in_file {
                self.0
                    .file
                    .read_exact_at(into, part.offset + within)
                    .map_err(|source| ReadError::File { path: self.0.path.clone(), source })?;
            } else {
                into.fill(0);
            }
            rest = tail;
            at += size as u64;
        }
        Ok(())
    }

    /// Copies spans into `into`, one after the other. Returns, for each, whether all of it is in
    /// the core.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when the file cannot be read.
    ///
    /// # Panics
    ///
    /// When `into` is shorter than all spans together.
    pub fn read_spans(&self, spans: &[Span], into: &mut [u8]) -> Result<Vec<bool>, ReadError> {
        let mut rest = into;
        let mut whole = Vec::with_capacity(spans.len());
        for span in spans {
            let (one, tail) = rest.split_at_mut(span.len);
            rest = tail;
            whole.push(match self.read(span.addr, one) {
                Ok(()) => true,
                Err(ReadError::NotInCore { .. }) => false,
                Err(other) => return Err(other),
            });
        }
        Ok(whole)
    }

    /// Calls `each` with the address ranges, among `len` bytes at `addr`, that are in the file and
    /// are no holes of it. Linux writes a core sparse: pages that were not in memory are holes.
    pub fn present(&self, addr: u64, len: u64, mut each: impl FnMut(Range<u64>)) {
        let end = addr.saturating_add(len);
        let first = self.0.parts.partition_point(|p| p.end <= addr);
        for part in self.0.parts.iter().skip(first).take_while(|p| p.start < end) {
            let from = addr.max(part.start);
            let to = end.min(part.start + part.there);
            if from < to {
                let offset = |at| at - part.start + part.offset;
                extents::data(&self.0.file, offset(from)..offset(to), |data| {
                    each(
                        data.start - part.offset + part.start..data.end - part.offset + part.start,
                    );
                });
            }
        }
    }

    /// True when one part of the file holds all of a range.
    pub fn is_there(&self, addr: u64, len: u64) -> bool {
        let end = addr.checked_add(len);
        let there = |p: &Part| end.is_some_and(|end| end <= p.start + p.there);
        self.part(addr).is_some_and(there)
    }

    /// Counts the bytes of memory that are in the core.
    #[must_use]
    pub fn resident(&self) -> u64 {
        let mut bytes = 0;
        self.present(0, u64::MAX, |range| bytes += range.end - range.start);
        bytes
    }

    fn part(&self, addr: u64) -> Option<&Part> {
        let after = self.0.parts.partition_point(|p| p.start <= addr);
        self.0.parts.get(..after)?.last().filter(|p| addr < p.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RW: u32 = elf::PF_R | elf::PF_W;

    fn load(start: u64, end: u64, flags: u32, offset: u64, file_size: u64) -> Segment {
        Segment { flags, offset, start, end, file_size, align: 4096 }
    }

    /// A file of 0x3000 bytes. Each byte is its offset in pages, plus one.
    fn memory(loads: Vec<Segment>, files: &[MappedFile]) -> Result<CoreMemory, String> {
        let file = tempfile::tempfile().unwrap();
        for page in 0..3_u8 {
            file.write_all_at(&[page + 1; 0x1000], u64::from(page) * 0x1000).unwrap();
        }
        let headers = Headers { notes: Vec::new(), loads, has_sections: false };
        CoreMemory::new(file, 0x3000, "core", &headers, files)
    }

    fn read(memory: &CoreMemory, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0xee; len];
        match memory.read(at, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(ReadError::NotInCore { .. }) => None,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_not_in_the_file_is_zero_or_absent() {
        let mapped = MappedFile { start: 0x50000, end: 0x52000, offset: 0, name: "/a".to_owned() };
        let loads = vec![
            load(0x10000, 0x12000, RW, 0, 0x2000),
            // Never written.
            load(0x12000, 0x14000, RW, 0x2000, 0),
            // Half of it dumped.
            load(0x20000, 0x22000, RW, 0x2000, 0x1000),
            // Cut off by the end of the file.
            load(0x30000, 0x34000, RW, 0x1000, 0x4000),
            // Not readable; of a mapped file; as large as an address space.
            load(0x40000, 0x41000, 0, 0, 0),
            load(0x50000, 0x52000, elf::PF_R, 0, 0),
            load(0x1000_0000, 0x7000_0000_0000, RW, 0, 0),
        ];
        let core = memory(loads, &[mapped]).unwrap();
        assert_eq!(read(&core, 0x10ffe, 4), Some(vec![1, 1, 2, 2]));
        // From one segment into the next.
        assert_eq!(read(&core, 0x11ffe, 4), Some(vec![2, 2, 0, 0]));
        assert_eq!(read(&core, 0x13ffe, 2), Some(vec![0, 0]));
        assert_eq!(read(&core, 0x13ffe, 3), None);
        assert_eq!(read(&core, 0x20ffe, 2), Some(vec![3, 3]));
        assert_eq!(read(&core, 0x20ffe, 3), None);
        assert_eq!(read(&core, 0x31ffe, 2), Some(vec![3, 3]));
        assert_eq!(read(&core, 0x31ffe, 3), None);
        assert_eq!(core.missing(), 0x2000);
        for absent in [0, 0x14000, 0x40000, 0x50000, 0x1000_0000, u64::MAX] {
            assert_eq!(read(&core, absent, 1), None, "{absent:#x}");
        }
        let spans = [(0x10000, 1), (0x40000, 3), (0x12000, 2)];
        let spans = spans.map(|(addr, len)| Span { addr, len });
        let mut into = [9; 6];
        assert_eq!(core.read_spans(&spans, &mut into).unwrap(), [true, false, true]);
        assert_eq!((into[0], &into[4..]), (1, &[0, 0][..]));
        // Only bytes of memory that the file has count.
        assert_eq!(core.resident(), 0x2000 + 0x1000 + 0x2000);
    }

    #[test]
    fn nothing_is_zero_in_a_core_without_anonymous_memory() {
        let core = memory(vec![load(0x12000, 0x14000, RW, 0, 0)], &[]).unwrap();
        assert_eq!(read(&core, 0x12000, 1), None);
    }

    #[test]
    fn more_in_the_file_than_in_memory_is_refused() {
        let error = memory(vec![load(0x12000, 0x13000, RW, 0, 0x2000)], &[]).unwrap_err();
        assert!(error.contains("0x2000 bytes in the file and 0x1000 in memory"), "{error}");
    }
}
