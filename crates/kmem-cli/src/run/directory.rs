//! The private directory of black boxes. A `kmem run` that is killed leaves it behind, and the next
//! one of the same user removes it.
//!
//! The name holds the number of its owner, and the time of the owner's start. The owner also keeps
//! the directory locked: a process of another PID namespace has a number that means nothing here.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use kmem_snapshot::Process;

use super::sys;

/// Longest path of the directory: `KMEM_CONF` takes 512 bytes.
const MAX_PATH: usize = 500;
const PREFIX: &str = "kmem-run-";

/// A directory that only this user may enter. It is removed in the end.
pub(super) struct Directory {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Directory {
    /// Makes a directory under a random name, in memory if there is such a file system. Removes
    /// those that other owners left there.
    pub(super) fn make() -> Option<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        // The first two are file systems in memory.
        let memory = [runtime, Some(PathBuf::from("/dev/shm"))].into_iter().flatten();
        let places: Vec<PathBuf> = memory.chain([std::env::temp_dir()]).collect();
        places.iter().for_each(|place| remove_abandoned(place));

        let mut random = [0; 8];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).ok()?;
        let own = std::process::id();
        // Where `/proc` is that of another namespace, the start is not known: the lock counts.
        let start = started(own).unwrap_or(0);
        let name = format!("{}{:016x}", prefix(own, start), u64::from_ne_bytes(random));
        // The configuration splits its text at commas, and expands `%` in paths.
        let fits = |dir: &Path| {
            let text = dir.to_str().unwrap_or(",");
            text.len() <= MAX_PATH && text.trim() == text && !text.contains([',', '%'])
        };
        let places = places.iter().filter(|place| fits(&place.join(&name)));
        places.filter_map(|place| Self::make_in(place, &name).ok()).next()
    }

    fn make_in(place: &Path, name: &str) -> io::Result<Self> {
        let path = place.canonicalize()?.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::open(&path)?;
        // A file system without locks is one that no other namespace is likely to share.
        let _ = lock.try_lock();
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Beginning of the name of a directory, by its owner.
fn prefix(pid: u32, started: u64) -> String {
    format!("{PREFIX}{pid}-{started}-")
}

/// Time at which a process started, in clock ticks since boot.
fn started(pid: u32) -> Option<u64> {
    Process::open(pid).ok().map(|process| process.start_time())
}

/// The owner in the name of a directory: its number, and the time of its start.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let is_random = |part: &str| part.len() == 16 && part.bytes().all(|b| b.is_ascii_hexdigit());
    (parts.next().is_some_and(is_random) && parts.next().is_none()).then_some((pid, started))
}

/// Removes the directories of this user in `place` whose owners are gone.
fn remove_abandoned(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((pid, start)) = name.to_str().and_then(owner) else { continue };
        if Process::open(pid).is_ok_and(|process| process.start_time() == start) {
            continue;
        }
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(entry.path());
        let Ok(dir) = opened else { continue };
        let is_own = dir.metadata().is_ok_and(|of| of.uid() == sys::effective_ids().0);
        if is_own && dir.try_lock().is_ok() {
            // Follows no links.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    /// Number that no process has: above the kernel's limit.
    const GONE: u32 = 1 << 22;

    #[test]
    fn the_directory_is_private_and_removed_at_the_end() {
        let dir = Directory::make().expect("a directory");
        let path = dir.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(path.join("1.box"), "no box").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_is_removed_when_its_owner_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("7.box"), "").unwrap();
            path
        };
        let own = std::process::id();
        let start = started(own).unwrap();
        let random = "0123456789abcdef";
        let gone = make(&format!("{}{random}", prefix(GONE, 5)));
        let recycled = make(&format!("{}{random}", prefix(own, start + 1)));
        let alive = make(&format!("{}{random}", prefix(own, start)));
        let other = make(&format!("{PREFIX}{GONE}-5-short"));
        let locked = make(&format!("{}{random}", prefix(GONE, 6)));
        let lock = File::open(&locked).unwrap();
        lock.try_lock().unwrap();
        let target = make("target");
        let link = place.path().join(format!("{}{random}", prefix(GONE, 7)));
        symlink(&target, &link).unwrap();
        let file = place.path().join(format!("{}{random}", prefix(GONE, 8)));
        fs::write(&file, "").unwrap();

        remove_abandoned(place.path());
        assert!(!gone.exists() && !recycled.exists());
        for kept in [&alive, &other, &locked, &link, &file, &target.join("7.box")] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }
}
