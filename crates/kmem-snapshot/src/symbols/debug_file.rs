//! Separate debug files of an ELF file (GDB manual, "Debugging Information in Separate Files").
//!
//! Distributions put the DWARF of the files they strip under `/usr/lib/debug`. It is found by
//! build-id in `.build-id`, or by the name in `.gnu_debuglink`. Debug files may share parts in a
//! third file (`dwz`, `.gnu_debugaltlink`).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::Object as _;

use super::bytes::Bytes;
use crate::budget::Budget;
use crate::process::open_regular;

/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 8 << 30;
/// Directory of separate debug files.
pub(super) const DEBUG_DIR: &str = "usr/lib/debug";

pub(super) type Object<'a> = object::File<'a, &'a Bytes>;

/// Opens a regular file of at most 8 GiB.
pub(super) fn open(path: &Path, flags: i32) -> Option<File> {
    let (file, metadata) = open_regular(path, flags).ok()?;
    (metadata.len() <= MAX_FILE).then_some(file)
}

/// A debug file that several others share: its name, and the build-id it must have.
#[derive(Debug, Clone)]
pub(super) struct SharedLink {
    name: PathBuf,
    build_id: Vec<u8>,
}

/// Links from an ELF file to its debug files.
#[derive(Debug)]
pub(super) struct Links {
    /// True when the file has DWARF itself.
    pub(super) has_dwarf: bool,
    /// The file that several debug files share.
    pub(super) shared: Option<SharedLink>,
    build_id: Option<Vec<u8>>,
    /// Base name and CRC-32.
    debug_link: Option<(PathBuf, u32)>,
}

impl Links {
    /// The links in a file.
    pub(super) fn of(file: &Object<'_>) -> Self {
        let path = |name: &[u8]| PathBuf::from(OsStr::from_bytes(name));
        let link = file.gnu_debuglink().ok().flatten();
        let shared = file.gnu_debugaltlink().ok().flatten();
        Self {
            has_dwarf: file.section_by_name(".debug_info").is_some(),
            build_id: file.build_id().ok().flatten().map(<[u8]>::to_vec),
            debug_link: link
                .map(|(name, crc)| (path(name), crc))
                // A path of several parts could lead out of the directories.
                .filter(|(name, _)| name.components().count() == 1 && name.file_name().is_some()),
            shared: shared.map(|(name, id)| SharedLink { name: path(name), build_id: id.to_vec() }),
        }
    }
}

/// Places to look for debug files.
pub(super) struct SearchPath<'a> {
    /// Path of the module in its process.
    pub(super) module: &'a Path,
    /// Root directories: the reader's own, and the process's.
    pub(super) roots: &'a [PathBuf],
}

impl SearchPath<'_> {
    /// Finds the separate debug file of a module.
    pub(super) fn debug_file(&self, links: &Links, budget: &Budget) -> Option<Bytes> {
        let cache = |file| cache(file, budget);
        if let Some(id) = &links.build_id
            && let Some(path) = build_id_path(id)
        {
            let path = Path::new(DEBUG_DIR).join(path);
            let files = self.roots.iter().filter_map(|root| open(&root.join(&path), 0));
            if let Some(found) = files.map(cache).find(|bytes| has_build_id(bytes, id)) {
                return Some(found);
            }
        }
        let (name, crc) = links.debug_link.as_ref()?;
        let dir = self.module.parent()?.strip_prefix("/").ok()?;
        let places = [
            dir.join(name),
            dir.join(".debug").join(name),
            Path::new(DEBUG_DIR).join(dir).join(name),
        ];
        let paths = self.roots.iter().flat_map(|root| places.iter().map(|p| root.join(p)));
        paths
            .filter_map(|path| open(&path, 0))
            .find_map(|file| with_crc(file, *crc, budget))
            .map(cache)
    }

    /// Finds the file that several debug files share.
    pub(super) fn shared_file(&self, link: &SharedLink, budget: &Budget) -> Option<Bytes> {
        let name = link.name.strip_prefix("/").unwrap_or(&link.name);
        // A relative name is relative to the debug file, in DEBUG_DIR/.build-id/ab.
        let beside = Path::new(DEBUG_DIR).join(".build-id/xx").join(name);
        let dwz = Path::new(DEBUG_DIR).join(".dwz").join(name.file_name()?);
        let by_id = build_id_path(&link.build_id).map(|path| Path::new(DEBUG_DIR).join(path));
        let places = [Some(name.to_owned()), Some(beside), Some(dwz), by_id];
        let files = self.roots.iter().flat_map(|root| {
            places.iter().flatten().filter_map(move |place| open(&root.join(place), 0))
        });
        let mut files = files.map(|file| cache(file, budget));
        files.find(|bytes| has_build_id(bytes, &link.build_id))
    }
}

/// `.build-id/ab/cdef.debug`, in a directory of debug files.
pub(super) fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) =
        id.split_first().filter(|(_, rest)| !rest.is_empty() && rest.len() <= 64)?;
    let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
    Some(PathBuf::from(format!(".build-id/{first:02x}/{rest}.debug")))
}

fn cache(file: File, budget: &Budget) -> Bytes {
    Bytes::new(Box::new(file), budget)
}

/// True when an ELF file has this build-id.
pub(super) fn has_build_id(bytes: &Bytes, expected: &[u8]) -> bool {
    object::File::parse(bytes).is_ok_and(|f| f.build_id().ok().flatten() == Some(expected))
}

/// Returns the file when its CRC-32 is the one in the debug link.
fn with_crc(mut file: File, expected: u32, budget: &Budget) -> Option<File> {
    budget.work(file.metadata().ok()?.len()).ok()?;
    // The reflected polynomial of IEEE 802.3.
    let table: [u32; 256] = std::array::from_fn(|i| {
        (0..8).fold(i as u32, |c, _| if c & 1 != 0 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 })
    });
    let mut crc = !0_u32;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len = file.read(&mut buffer).ok()?;
        if len == 0 {
            break;
        }
        for byte in &buffer[..len] {
            crc = table[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
        }
    }
    file.rewind().ok()?;
    (!crc == expected).then_some(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn build_id_paths() {
        let path = build_id_path(&[0xab, 0xcd, 0x01]).unwrap();
        assert_eq!(path, Path::new(".build-id/ab/cd01.debug"));
        assert_eq!(build_id_path(&[]), None);
        assert_eq!(build_id_path(&[1]), None);
        assert_eq!(build_id_path(&[1; 1000]), None);
    }

    #[test]
    fn crc_is_that_of_the_debug_link() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"123456789").unwrap();
        file.rewind().unwrap();
        let file = with_crc(file, 0xcbf4_3926, &Budget::default()).unwrap();
        assert!(with_crc(file, 1, &Budget::default()).is_none());
    }

    #[test]
    fn only_regular_files() {
        assert!(open(Path::new("/dev/zero"), 0).is_none());
        assert!(open(Path::new("/"), 0).is_none());
        assert!(open(Path::new("/proc/self/exe"), 0).is_some());
    }
}
