//! The notes of a core file: identity of the process, and the files it mapped.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use object::LittleEndian as LE;
use object::elf::{self, FileHeader64};
use object::read::elf::NoteIterator;

use super::header::Headers;
use crate::budget::Budget;
use crate::maps::MAX_MAPPINGS;
use crate::process::MAX_THREADS;
use crate::report::size_u;

/// Most bytes of notes read, in all segments together. One thread takes 3 KiB, one mapped file 100
/// bytes.
const MAX_NOTES: u64 = 256 << 20;

/// Work of a byte of notes, in bytes: notes are parsed step by step.
const NOTE_WORK: u64 = 4;
/// Memory of a mapped file and of its mapping, in bytes, besides its name.
const MAPPED_FILE: u64 = 256;

/// A range of memory with the file that was mapped to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappedFile {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset in the file, in bytes.
    pub(super) offset: u64,
    /// Path of the file, with the ` (deleted)` mark.
    pub(super) name: String,
}

/// Content of the notes.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) pid: u32,
    pub(super) comm: String,
    pub(super) command: String,
    pub(super) signal: u32,
    /// AT_PHDR.
    pub(super) program_headers: u64,
    /// AT_ENTRY.
    pub(super) entry: u64,
    /// AT_EXECFN.
    pub(super) exec_name: u64,
    /// AT_SYSINFO_EHDR.
    pub(super) vdso: u64,
    /// NT_FILE, in order of address, without overlap.
    pub(super) files: Vec<MappedFile>,
    /// The threads, in the order of their notes.
    pub(super) threads: Vec<Thread>,
}

/// A thread, by its NT_PRSTATUS.
#[derive(Debug, Clone, Copy)]
pub(super) struct Thread {
    tid: u32,
    /// Address of its descriptor (the thread pointer); 0: not known.
    descriptor: u64,
}

/// Offsets in `struct elf_prpsinfo` and `struct elf_prstatus` of 64-bit Linux.
const PSINFO_PID: usize = 24;
const PSINFO_NAME: std::ops::Range<usize> = 40..56;
const PSINFO_ARGUMENTS: std::ops::Range<usize> = 56..136;
const STATUS_SIGNAL: usize = 12;
const STATUS_PID: usize = 32;
/// Of `fs_base` in the registers of x86-64, which begin at 112.
#[cfg(target_arch = "x86_64")]
const STATUS_DESCRIPTOR: Option<usize> = Some(112 + 21 * 8);
/// Elsewhere a note of its own has the thread pointer.
#[cfg(not(target_arch = "x86_64"))]
const STATUS_DESCRIPTOR: Option<usize> = None;
/// Kind of that note on AArch64; its name is `LINUX`.
const NT_ARM_TLS: u32 = 0x401;

impl Notes {
    /// Reads the notes of a core file of `len` bytes.
    ///
    /// # Errors
    ///
    /// Says which note is missing or makes no sense.
    pub(super) fn read(
        file: &File,
        len: u64,
        headers: &Headers,
        budget: &Budget,
    ) -> Result<Self, String> {
        let mut notes = Self::default();
        let mut left = MAX_NOTES;
        let (mut has_files, mut has_status) = (false, false);
        for segment in &headers.notes {
            let size = segment.file_size;
            if segment.offset + size > len {
                return Err(format!(
                    "truncated: notes at offset {} end at {}, the file has {len} bytes",
                    segment.offset,
                    segment.offset + size
                ));
            }
            let Some(rest) = left.checked_sub(size) else {
                budget.remark(format!(
                    "{size} bytes of notes at offset {} are left out: a core has no more than {}",
                    segment.offset,
                    size_u(MAX_NOTES)
                ));
                continue;
            };
            left = rest;
            budget.work(NOTE_WORK * size).map_err(|over| format!("its notes are {over}"))?;
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            file.read_exact_at(&mut bytes, segment.offset).map_err(|e| format!("notes: {e}"))?;
            let mut found =
                NoteIterator::<FileHeader64<LE>>::new(LE, segment.align, bytes.as_slice())
                    .map_err(|e| e.to_string())?;
            // A broken note hides the notes behind it. The notes before it stand.
            while let Ok(Some(note)) = found.next() {
                // No note has neither name nor contents: this is a hole.
                if note.name().is_empty() && note.desc().is_empty() {
                    break;
                }
                if note.name() == b"LINUX" && note.n_type(LE) == NT_ARM_TLS {
                    notes.thread_pointer(note.desc());
                }
                if note.name() != b"CORE" {
                    continue;
                }
                match note.n_type(LE) {
                    elf::NT_PRPSINFO => notes.psinfo(note.desc()),
                    elf::NT_PRSTATUS => {
                        notes.thread(note.desc());
                        // The first is that of the thread which received the signal.
                        if !has_status {
                            has_status = true;
                            notes.status(note.desc());
                        }
                    }
                    elf::NT_AUXV => notes.auxv(note.desc()),
                    elf::NT_FILE if !has_files => {
                        has_files = true;
                        notes.files = files(note.desc())?;
                        let bytes = notes.files.iter().map(|f| MAPPED_FILE + f.name.len() as u64);
                        let drawn = budget.memory(bytes.sum());
                        drawn.map_err(|over| format!("its mapped files are {over}"))?;
                    }
                    _ => {}
                }
            }
        }
        if !has_files {
            return Err("no NT_FILE note: which memory is kmem's cannot be told".to_owned());
        }
        Ok(notes)
    }

    fn psinfo(&mut self, note: &[u8]) {
        let text = |range| {
            let bytes: &[u8] = note.get(range).unwrap_or_default();
            let bytes = bytes.split(|&b| b == 0).next().unwrap_or_default();
            String::from_utf8_lossy(bytes).trim_end().to_owned()
        };
        self.pid = u32_at(note, PSINFO_PID).unwrap_or(self.pid);
        self.comm = text(PSINFO_NAME);
        self.command = text(PSINFO_ARGUMENTS);
    }

    fn status(&mut self, note: &[u8]) {
        let signal = note.get(STATUS_SIGNAL..).and_then(|b| b.first_chunk());
        self.signal = signal.map_or(0, |b| u32::from(u16::from_le_bytes(*b)));
        if self.pid == 0 {
            // The id of a thread, for lack of the process's.
            self.pid = u32_at(note, STATUS_PID).unwrap_or(0);
        }
    }

    fn thread(&mut self, note: &[u8]) {
        if self.threads.len() < MAX_THREADS {
            let tid = u32_at(note, STATUS_PID).unwrap_or(0);
            let descriptor = STATUS_DESCRIPTOR.and_then(|at| u64_at(note, at)).unwrap_or(0);
            self.threads.push(Thread { tid, descriptor });
        }
    }

    /// Reads a note that follows those of its thread.
    fn thread_pointer(&mut self, note: &[u8]) {
        if let (Some(thread), Some(at)) = (self.threads.last_mut(), u64_at(note, 0)) {
            thread.descriptor = at;
        }
    }

    /// Addresses of the descriptors of threads besides the first. The C library puts them at the
    /// upper ends of the stacks.
    pub(super) fn other_threads(&self) -> Vec<u64> {
        let others = self.threads.iter().filter(|thread| thread.tid != self.pid);
        others.map(|thread| thread.descriptor).filter(|&at| at != 0).collect()
    }

    fn auxv(&mut self, note: &[u8]) {
        for pair in note.chunks_exact(16) {
            let value = u64_at(pair, 8).unwrap_or(0);
            match u64_at(pair, 0) {
                Some(libc::AT_PHDR) => self.program_headers = value,
                Some(libc::AT_ENTRY) => self.entry = value,
                Some(libc::AT_EXECFN) => self.exec_name = value,
                Some(libc::AT_SYSINFO_EHDR) => self.vdso = value,
                _ => {}
            }
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// Parses NT_FILE: count, page size, `[start, end, offset in pages]`, then the names.
fn files(note: &[u8]) -> Result<Vec<MappedFile>, String> {
    let bad = |what: String| format!("NT_FILE note of {} bytes: {what}", note.len());
    let (Some(count), Some(page)) = (u64_at(note, 0), u64_at(note, 8)) else {
        return Err(bad("too short".to_owned()));
    };
    if count > MAX_MAPPINGS as u64 {
        return Err(bad(format!("{count} mapped files")));
    }
    let (records, rest) = (note.get(16..).unwrap_or_default(), usize::try_from(count).ok());
    let Some((records, names)) =
        rest.and_then(|n| n.checked_mul(24)).and_then(|len| records.split_at_checked(len))
    else {
        return Err(bad(format!("{count} mapped files")));
    };
    let mut names = names.split(|&b| b == 0);
    let mut files = Vec::new();
    for (number, record) in records.chunks_exact(24).enumerate() {
        let field = |at| u64_at(record, at).unwrap_or(0);
        let (start, end) = (field(0), field(8));
        let offset = field(16).checked_mul(page);
        let Some(name) = names.next() else {
            return Err(bad(format!("{count} mapped files, {number} names")));
        };
        let Some(offset) = offset.filter(|_| start < end) else {
            return Err(bad(format!(
                "file {number} is mapped at {start:#x}-{end:#x}, offset {:#x} pages of {page}",
                field(16)
            )));
        };
        let name = String::from_utf8_lossy(name).into_owned();
        files.push(MappedFile { start, end, offset, name });
    }
    files.sort_by_key(|f| f.start);
    let mut pairs = files.iter().zip(files.iter().skip(1));
    if let Some((_, after)) = pairs.find(|(before, after)| after.start < before.end) {
        return Err(bad(format!("two files are mapped at {:#x}", after.start)));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(count: u64, page: u64, records: &[[u64; 3]], names: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = [count, page].iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.extend(records.iter().flatten().flat_map(|w| w.to_le_bytes()));
        bytes.extend_from_slice(names);
        bytes
    }

    #[test]
    fn mapped_files_in_order_of_address() {
        let note =
            note(2, 4096, &[[0x3000, 0x4000, 2], [0x1000, 0x2000, 0]], b"/b x\0/a (deleted)\0");
        let files = files(&note).unwrap();
        assert_eq!(files[0].name, "/a (deleted)");
        assert_eq!((files[1].name.as_str(), files[1].offset), ("/b x", 8192));
    }

    #[test]
    fn descriptors_of_threads_are_those_of_others_than_the_first() {
        let status = |tid: u32, descriptor: u64| {
            let mut note = vec![0; 336];
            note[STATUS_PID..STATUS_PID + 4].copy_from_slice(&tid.to_le_bytes());
            if let Some(at) = STATUS_DESCRIPTOR {
                note[at..at + 8].copy_from_slice(&descriptor.to_le_bytes());
            }
            note
        };
        let mut notes = Notes { pid: 7, ..Notes::default() };
        for (tid, descriptor) in [(8, 0x1000), (7, 0x2000), (9, 0x3000), (10, 0)] {
            notes.thread(&status(tid, descriptor));
            notes.thread_pointer(&descriptor.to_le_bytes());
        }
        assert_eq!(notes.other_threads(), [0x1000, 0x3000]);
        // Notes that are too short say nothing.
        notes.thread(&[0; 40]);
        notes.thread_pointer(&[0; 7]);
        assert_eq!(notes.other_threads().len(), 2);
    }

    #[test]
    fn absurd_notes_are_refused_by_what_is_wrong() {
        let one = [[0x1000, 0x2000, 0]];
        for (bytes, what) in [
            (vec![1; 8], "too short"),
            (note(u64::MAX, 4096, &one, b"/a\0"), "18446744073709551615 mapped files"),
            (note(u64::MAX / 24 + 2, 4096, &one, b"/a\0"), "mapped files"),
            (note(2, 4096, &one, b"/a\0"), "2 mapped files"),
            (note(1, 4096, &[[2, 2, 0]], b"/a\0"), "mapped at 0x2-0x2"),
            (note(1, 1 << 40, &[[1, 2, 1 << 40]], b"/a\0"), "offset 0x10000000000 pages"),
            (note(2, 4096, &[[1, 9, 0], [5, 10, 0]], b"/a\0/b\0"), "two files are mapped at 0x5"),
        ] {
            let error = files(&bytes).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let three = note(3, 4096, &[[1, 2, 0], [2, 3, 0], [3, 4, 0]], b"/a");
        assert!(files(&three).unwrap_err().contains("3 mapped files, 1 names"));
    }
}
