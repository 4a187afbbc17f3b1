//! Separate debug files, where distributions put the DWARF of what they strip:
//! by build-id in `/usr/lib/debug/.build-id`, and by the name in `.gnu_debuglink`.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use object::{Object as _, ReadCache};

use super::elf::{Bytes, MAX_FILE};

const DEBUG_DIR: &str = "usr/lib/debug";

/// Where to look: the directory of the module, and the roots under which to look for it.
pub(super) struct SearchPath<'a> {
    /// Path of the module as the process knows it.
    pub(super) module: &'a Path,
    /// The process's root directory, and ours.
    pub(super) roots: &'a [PathBuf],
}

/// A name and the build-id expected of the file.
#[derive(Debug, Clone)]
pub(super) struct SharedLink {
    name: PathBuf,
    build_id: Vec<u8>,
}

/// What a file says of its debug files.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) has_dwarf: bool,
    pub(super) shared: Option<SharedLink>,
    build_id: Option<Vec<u8>>,
    debug_link: Option<(PathBuf, u32)>,
}

impl Links {
    pub(super) fn of<'a>(file: &object::File<'a, &'a Bytes>) -> Self {
        use std::os::unix::ffi::OsStrExt as _;
        let path = |name: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(name));
        let link = file.gnu_debuglink().ok().flatten();
        let shared = file.gnu_debugaltlink().ok().flatten();
        Self {
            has_dwarf: file.section_by_name(".debug_info").is_some(),
            build_id: file.build_id().ok().flatten().map(<[u8]>::to_vec),
            debug_link: link
                .map(|(name, crc)| (path(name), crc))
                // A bare file name: anything else could lead out of the directories.
                .filter(|(name, _)| name.components().count() == 1 && name.file_name().is_some()),
            shared: shared.map(|(name, id)| SharedLink { name: path(name), build_id: id.to_vec() }),
        }
    }
}

/// `.build-id/ab/cdef.debug`.
fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) =
        id.split_first().filter(|(_, rest)| !rest.is_empty() && rest.len() <= 64)?;
    let rest: String = rest.iter().map(|b| format!("{b:02x}")).collect();
    Some(Path::new(DEBUG_DIR).join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// Opens a regular file of bounded size; never waits for a FIFO.
pub(super) fn open_regular(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.len() <= MAX_FILE).then_some(file)
}

fn cache(file: File) -> Bytes {
    ReadCache::new(Box::new(file))
}

fn has_build_id(bytes: &Bytes, expected: &[u8]) -> bool {
    object::File::parse(bytes).is_ok_and(|f| f.build_id().ok().flatten() == Some(expected))
}

/// The debug file of a module.
pub(super) fn find(links: &Links, search: &SearchPath<'_>) -> Option<Bytes> {
    if let Some(id) = &links.build_id
        && let Some(path) = build_id_path(id)
    {
        let files = search.roots.iter().filter_map(|root| open_regular(&root.join(&path)));
        if let Some(found) = files.map(cache).find(|bytes| has_build_id(bytes, id)) {
            return Some(found);
        }
    }
    let (name, crc) = links.debug_link.as_ref()?;
    let dir = search.module.parent()?.strip_prefix("/").ok()?;
    let places =
        [dir.join(name), dir.join(".debug").join(name), Path::new(DEBUG_DIR).join(dir).join(name)];
    for root in search.roots {
        for place in &places {
            if let Some(file) = open_regular(&root.join(place)).and_then(|f| with_crc(f, *crc)) {
                return Some(cache(file));
            }
        }
    }
    None
}

/// The file shared by several debug files.
pub(super) fn find_shared(link: &SharedLink, search: &SearchPath<'_>) -> Option<Bytes> {
    let name = link.name.strip_prefix("/").unwrap_or(&link.name);
    // Relative names are relative to the debug file, which lies under DEBUG_DIR/.build-id/ab.
    let beside = Path::new(DEBUG_DIR).join(".build-id/xx").join(name);
    let dwz = Path::new(DEBUG_DIR).join(".dwz").join(name.file_name()?);
    let by_id = build_id_path(&link.build_id);
    let places = [Some(name.to_owned()), Some(beside), Some(dwz), by_id];
    let files = search.roots.iter().flat_map(|root| {
        places.iter().flatten().filter_map(move |place| open_regular(&root.join(place)))
    });
    files.map(cache).find(|bytes| has_build_id(bytes, &link.build_id))
}

/// The file, if its CRC-32 is as the debug link says.
fn with_crc(mut file: File, expected: u32) -> Option<File> {
    let mut crc = !0_u32;
    let mut buffer = vec![0; 1 << 16];
    let table = crc_table();
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

fn crc_table() -> [u32; 256] {
    std::array::from_fn(|i| {
        (0..8).fold(i as u32, |c, _| if c & 1 != 0 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn build_id_paths() {
        let path = build_id_path(&[0xab, 0xcd, 0x01]).unwrap();
        assert_eq!(path, Path::new("usr/lib/debug/.build-id/ab/cd01.debug"));
        assert_eq!(build_id_path(&[]), None);
        assert_eq!(build_id_path(&[1]), None);
        assert_eq!(build_id_path(&[1; 1000]), None);
    }

    #[test]
    fn crc_is_that_of_the_debug_link() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"123456789").unwrap();
        file.rewind().unwrap();
        let file = with_crc(file, 0xcbf4_3926).unwrap();
        assert!(with_crc(file, 1).is_none());
    }

    #[test]
    fn only_regular_files() {
        assert!(open_regular(Path::new("/dev/zero")).is_none());
        assert!(open_regular(Path::new("/")).is_none());
        assert!(open_regular(Path::new("/proc/self/exe")).is_some());
    }
}
