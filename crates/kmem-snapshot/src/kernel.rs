//! The books of the Linux kernel on this machine: `/proc/allocinfo`, joined with the tables of its
//! slabs and zones.
//!
//! | [`Missing`] | known by |
//! |---|---|
//! | `Absent` | no `/proc/allocinfo`, and no setting `vm.mem_profiling` |
//! | `Off` | the setting without the file, or with a file in which nothing was counted |
//! | `Permission` | the kernel refuses to open the file: its mode is 0400, its owner root |
//! | `Masked` | another file is mounted over it, or `/proc` shows processes alone |
//!
//! Source: `alloc_tag_init` in Linux' `lib/alloc_tag.c`.

mod tables;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use crate::error::{ALLOCINFO, Missing, ReadError};
use crate::listed::List;
use crate::notes::Note;
use crate::sites::total;
use tables::{Slabs, Zones};

/// The switch of profiling; absent where the kernel was built without.
const SWITCH: &str = "/proc/sys/vm/mem_profiling";

/// Reads `/proc/allocinfo`.
///
/// # Errors
///
/// [`ReadError::NoAllocinfo`] with the reason; the errors of [`List::read`].
pub(crate) fn read(notes: &mut Vec<Note>) -> Result<List, ReadError> {
    let path = Path::new(ALLOCINFO);
    let missing = |why| ReadError::NoAllocinfo { why };
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(why_absent()),
        io::ErrorKind::PermissionDenied => missing(Missing::Permission),
        _ => ReadError::File { path: ALLOCINFO.to_owned(), source: error },
    })?;
    let is_device = file.metadata().is_ok_and(|of| of.file_type().is_char_device());
    let mut source = BufReader::new(file);
    if is_device || source.fill_buf().is_ok_and(<[u8]>::is_empty) {
        return Err(missing(Missing::Masked));
    }
    let list = List::read(source, path, notes)?;
    if switch().is_some_and(|text| text.starts_with('0')) {
        if list.heap.sites.iter().all(|site| site.bytes == 0 && site.calls == 0) {
            return Err(missing(Missing::Off));
        }
        notes.push(Note::ProfilingOff);
    }
    Ok(list)
}

/// The text of the switch; none without one.
fn switch() -> Option<String> {
    fs::read_to_string(SWITCH).ok()
}

/// The reason for which there is no file.
fn why_absent() -> Missing {
    if Path::new(SWITCH).exists() {
        Missing::Off
    } else if Path::new("/proc/sys").exists() {
        Missing::Absent
    } else {
        Missing::Masked
    }
}

/// The memory of the kernel: zones, slabs and call sites.
///
/// `managed = free + in_use()`, and `in_use() = tracked + slab_free + not_tracked()`. The kernel
/// counts the pages of slabs at the call site that takes them, and their objects at those that
/// allocate them. So `tracked` leaves out the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Bytes that the page allocator manages.
    pub managed: u64,
    /// Free bytes, in zones and on the lists of CPUs.
    pub free: u64,
    /// Bytes of all slabs.
    pub slab: u64,
    /// Bytes of slabs without an object in use: free ones, and room between objects.
    pub slab_free: u64,
    /// Count of slabs.
    pub slabs: u64,
    /// Bytes of the pages of slabs that have a call site.
    pub slab_tracked: i64,
    /// Bytes of all other call sites: objects, and pages that are no slabs.
    pub tracked: i64,
    /// Count of call sites that hold memory.
    pub sites: usize,
}

impl Summary {
    /// Reads `/proc/allocinfo`, `/proc/slabinfo` and `/proc/zoneinfo`, one after another.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoAllocinfo`] with the reason; [`ReadError::File`] and [`ReadError::BadFile`]
    /// for the other files.
    pub fn take(notes: &mut Vec<Note>) -> Result<Self, ReadError> {
        let list = read(notes)?;
        let slabs = slabinfo("/proc/slabinfo")?;
        let zones = zoneinfo("/proc/zoneinfo")?;
        let page = rustix::param::page_size() as u64;
        Ok(Self::of(&list, slabs, zones, page))
    }

    fn of(list: &List, slabs: Slabs, zones: Zones, page: u64) -> Self {
        let (of_slabs, others): (Vec<_>, Vec<_>) =
            list.heap.sites.iter().cloned().partition(|site| {
                let tag = site.origin.tag();
                tag.function == "alloc_slab_page" && tag.file.ends_with("mm/slub.c")
            });
        let slab = slabs.pages.saturating_mul(page);
        Self {
            managed: zones.managed.saturating_mul(page),
            free: zones.free.saturating_mul(page),
            slab,
            slab_free: slab.saturating_sub(slabs.used_bytes),
            slabs: slabs.count,
            slab_tracked: total(&of_slabs).0,
            tracked: total(&others).0,
            sites: others.iter().filter(|site| site.bytes != 0).count(),
        }
    }

    /// Bytes in use.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.managed.saturating_sub(self.free)
    }

    /// Bytes in use without a call site. Negative where memory is counted at two call sites, or
    /// lies on pages that no zone manages, as per-CPU memory may.
    #[must_use]
    pub fn not_tracked(&self) -> i64 {
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(self.in_use()).saturating_sub(self.tracked).saturating_sub(signed(self.slab_free))
    }
}

/// Reads the table of slabs.
pub(crate) fn slabinfo(path: &str) -> Result<Slabs, ReadError> {
    table(path, Slabs::read)
}

/// Reads the table of zones.
pub(crate) fn zoneinfo(path: &str) -> Result<Zones, ReadError> {
    table(path, Zones::read)
}

/// Reads a file of `/proc`.
fn table<T>(
    path: &str,
    read: impl FnOnce(BufReader<File>) -> Result<T, String>,
) -> Result<T, ReadError> {
    let file =
        File::open(path).map_err(|source| ReadError::File { path: path.to_owned(), source })?;
    read(BufReader::new(file)).map_err(|what| ReadError::BadFile { path: path.to_owned(), what })
}
