//! The black box that a live process writes, held open beyond the end of the process.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use kmem_layout::blackbox::BoxHeader;

use super::header::Header;
use super::{BlackBox, Moment};
use crate::maps::{Mapping, Maps};
use crate::process::{Process, open_regular};

/// Most files among the mappings of a process that may be its black box.
const MAX_BOXES: usize = 64;

/// The file that a live process writes its black box to.
///
/// It stays open, so it can be read after the process has ended and its file has been removed.
#[derive(Debug)]
pub struct LiveBox(File);

impl LiveBox {
    /// Finds the file among those that the process has mapped. None without a black box, and where
    /// the caller may not read it.
    #[must_use]
    pub fn find(process: &Process, maps: &Maps) -> Option<Self> {
        let (pid, start) = (process.inner_pid(), process.start_time());
        candidates(maps).find_map(|mapping| {
            let (file, len) = open(process, mapping)?;
            let head = Header::read(&file, len).ok()?;
            let is_own = head.pid == pid && (head.start_ticks == start || head.start_ticks == 0);
            is_own.then_some(Self(file))
        })
    }

    /// Addresses and inode numbers of the files that are looked at. While they stay as they are,
    /// so does the answer.
    #[must_use]
    pub fn key(maps: &Maps) -> Vec<(u64, u64)> {
        candidates(maps).map(|of| (of.start, of.inode)).collect()
    }

    /// Moment of the newest whole record.
    #[must_use]
    pub fn moment(&self) -> Option<Moment> {
        BlackBox::open(&self.path()).ok()?.moment().cloned()
    }

    /// A path of the file in this process. It is good as long as this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Mappings of files that a process writes to and that are as long as a header.
fn candidates(maps: &Maps) -> impl Iterator<Item = &Mapping> {
    let may_be = |of: &&Mapping| {
        of.is_file()
            && of.writable
            && !of.executable
            && of.offset == 0
            && of.end - of.start > size_of::<BoxHeader>() as u64
    };
    maps.all().iter().filter(may_be).take(MAX_BOXES)
}

/// Opens the file of a mapping, and returns its length, too. The mapping itself leads to it even if
/// it was deleted, but needs privilege. By its path, another file may be there.
fn open(process: &Process, mapping: &Mapping) -> Option<(File, u64)> {
    let by_mapping = process.path(&format!("map_files/{:x}-{:x}", mapping.start, mapping.end));
    let by_path = || open_regular(&process.in_root(Path::new(&mapping.path)), libc::O_NOFOLLOW);
    let (file, metadata) = open_regular(&by_mapping, 0).or_else(|_| by_path()).ok()?;
    Some((file, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_to_and_is_no_box_of_the_process_is_left_out() {
        let maps = "1000-9000 rw-s 00000000 fe:01 7 /proc/self/exe\n\
                    a000-b000 r--s 00000000 fe:01 8 /read/only\n\
                    c000-d000 rw-p 00001000 fe:01 9 /data/of/a/library\n";
        let maps = Maps::parse(maps);
        assert_eq!(LiveBox::key(&maps), [(0x1000, 7)]);
        let process = Process::open(std::process::id()).expect("this process");
        assert!(LiveBox::find(&process, &maps).is_none());
    }
}
