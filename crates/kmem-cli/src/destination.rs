//! The destination of a command's output: a file, or a standard stream.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Most links of a path, as in Linux.
const MAX_LINKS: usize = 40;
/// Most names that are tried for a temporary file.
const MAX_TRIES: usize = 1000;
/// The permissions of a file that a new one keeps; not those to run as another user.
const PERMISSIONS: u32 = 0o777;

/// Destination of output that is written at once.
pub(crate) enum Destination {
    Stdout,
    Stderr,
    /// A device, a pipe, or another file that is not replaced.
    Direct(File),
    /// A regular file.
    Replace(Replacement),
}

impl Destination {
    /// Opens the file, if there is a path; without one it is `otherwise`.
    ///
    /// # Errors
    ///
    /// [`Failure::Trouble`] when the file cannot be opened.
    pub(crate) fn open(path: Option<&Path>, otherwise: Self) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(otherwise);
        };
        Self::at(path).map_err(|e| Failure::Trouble(format!("{}: {e}", path.display())))
    }

    fn at(path: &Path) -> io::Result<Self> {
        // The kernel refuses some links of other users, see protected_symlinks in proc(5).
        match fs::metadata(path) {
            Ok(of) if !of.is_file() => {
                return Ok(Self::Direct(File::options().write(true).open(path)?));
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(_) | Err(_) => {}
        }
        Ok(match behind_links(path)? {
            Some(path) => Self::Replace(Replacement::begin(path)?),
            None if is_stdout(path) => Self::Stdout,
            None => Self::Direct(File::options().append(true).open(path)?),
        })
    }

    /// True when a person would see the output as it is written.
    pub(crate) fn is_terminal(&self) -> bool {
        match self {
            Self::Stdout => io::stdout().is_terminal(),
            Self::Stderr => io::stderr().is_terminal(),
            Self::Direct(file) => file.is_terminal(),
            Self::Replace(_) => false,
        }
    }

    /// Writes the output. A file has either all of it, or what it had before.
    ///
    /// # Errors
    ///
    /// The errors of `output`, and those of writing or renaming the file.
    pub(crate) fn write<E: From<io::Error>>(
        self,
        output: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Stdout => buffered(io::stdout().lock(), output),
            Self::Stderr => {
                let mut buffer = Vec::new();
                output(&mut buffer)?;
                match io::stderr().write_all(&buffer) {
                    Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    result => Ok(result?),
                }
            }
            Self::Direct(file) => buffered(file, output),
            Self::Replace(replacement) => {
                buffered(&replacement.file, output)?;
                Ok(replacement.finish()?)
            }
        }
    }
}

fn buffered<E: From<io::Error>>(
    to: impl Write,
    output: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let mut to = BufWriter::new(to);
    output(&mut to)?;
    Ok(to.flush()?)
}

/// The path at the end of a chain of links, which may lead to no file yet. None for a link of
/// `/proc`, such as `/dev/stdout`: it stands for an open file, whose name says nothing.
fn behind_links(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::symlink_metadata(&path) {
            Ok(of) if of.is_symlink() => {}
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(_) | Err(_) => return Ok(Some(path)),
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        if here.canonicalize()?.starts_with("/proc") {
            return Ok(None);
        }
        path = directory.join(fs::read_link(&path)?);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// True when a path leads to the file that standard output is.
fn is_stdout(path: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|of| (of.dev(), of.ino()));
    matches!((file(path), file(Path::new("/proc/self/fd/1"))), (Ok(a), Ok(b)) if a == b)
}

/// A file under a temporary name beside that of the file that it replaces, with the permissions of
/// that file. Without [`Replacement::finish`] it is removed.
pub(crate) struct Replacement {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl Replacement {
    fn begin(path: PathBuf) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let name = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        let old = fs::metadata(&path).ok().map(|of| of.permissions().mode() & PERMISSIONS);
        let mut options = File::options();
        options.write(true).create_new(true).mode(old.unwrap_or(0o666));
        // A command that was killed has left its file. In a container all have one number.
        let mut temporary = path.with_file_name(&name);
        let mut tries = 1;
        let file = loop {
            match options.open(&temporary) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < MAX_TRIES => {
                    temporary = path.with_file_name(format!("{name}.{tries}"));
                    tries += 1;
                }
                result => break result?,
            }
        };
        let this = Self { file, temporary, path };
        if let Some(mode) = old {
            // The file mode creation mask has no say in it.
            this.file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(this)
    }

    fn finish(self) -> io::Result<()> {
        fs::rename(&self.temporary, &self.path)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After a rename there is no such file.
        let _ = fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_has_all_of_the_output_or_what_it_had_before() {
        let dir = kmem_testing::directory();
        let path = dir.path().join("out");
        let names = || fs::read_dir(dir.path()).unwrap().count();
        fs::write(&path, "before").unwrap();
        let failed = Destination::open(Some(&path), Destination::Stdout).unwrap().write(|out| {
            out.write_all(b"a part")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert_eq!((fs::read(&path).unwrap(), names()), (b"before".to_vec(), 1));
        drop(Destination::open(Some(&path), Destination::Stdout).unwrap());
        assert_eq!((fs::read(&path).unwrap(), names()), (b"before".to_vec(), 1));
        let all = Destination::open(Some(&path), Destination::Stdout).unwrap();
        all.write(|out| out.write_all(b"all")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names()), (b"all".to_vec(), 1));
    }

    fn replace(path: &Path, text: &str) {
        let to = Destination::open(Some(path), Destination::Stdout).unwrap();
        assert!(matches!(to, Destination::Replace(_)), "{}", path.display());
        to.write(|out| out.write_all(text.as_bytes())).unwrap();
    }

    #[test]
    fn a_file_behind_links_is_replaced_and_the_links_stay() {
        let dir = kmem_testing::directory();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("far")).unwrap();
        symlink("far/near", at("link")).unwrap();
        symlink("../file", at("far/near")).unwrap();
        // The first time there is no file at the end.
        for text in ["first", "second"] {
            replace(&at("link"), text);
            assert_eq!(fs::read_to_string(at("file")).unwrap(), text);
            assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("far/near"));
            assert_eq!(fs::read_link(at("far/near")).unwrap(), Path::new("../file"));
        }
        let names = |dir: PathBuf| fs::read_dir(dir).unwrap().count();
        assert_eq!((names(at("")), names(at("far"))), (3, 1));
        symlink("circle", at("circle")).unwrap();
        assert!(Destination::open(Some(&at("circle")), Destination::Stdout).is_err());
    }

    #[test]
    fn a_device_and_an_open_file_are_written_to_under_links_too() {
        let dir = kmem_testing::directory();
        let at = |name: &str| dir.path().join(name);
        symlink("/dev/null", at("null")).unwrap();
        let mut open = File::create_new(at("open")).unwrap();
        open.write_all(b"before ").unwrap();
        symlink(format!("/dev/fd/{}", open.as_raw_fd()), at("fd")).unwrap();
        for name in ["null", "fd"] {
            let to = Destination::open(Some(&at(name)), Destination::Stdout).unwrap();
            assert!(matches!(to, Destination::Direct(_)), "{name}");
            to.write(|out| out.write_all(b"rows")).unwrap();
            assert!(fs::symlink_metadata(at(name)).unwrap().is_symlink(), "{name}");
        }
        assert_eq!(fs::read(at("open")).unwrap(), b"before rows");
        // The open file is still the one that the name stands for.
        assert_eq!(open.metadata().unwrap().len(), 11);
    }

    #[test]
    fn temporary_files_of_killed_commands_do_not_stop_another_one() {
        let dir = kmem_testing::directory();
        let path = dir.path().join("out");
        let left = format!(".out.{}", std::process::id());
        for name in [left.clone(), format!("{left}.1")] {
            fs::write(dir.path().join(name), "a part").unwrap();
        }
        replace(&path, "all");
        assert_eq!(fs::read(&path).unwrap(), b"all");
        assert_eq!(fs::read(dir.path().join(left)).unwrap(), b"a part");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn the_permissions_of_a_file_that_is_replaced_are_kept() {
        let dir = kmem_testing::directory();
        let path = dir.path().join("out");
        replace(&path, "new");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        for (before, after) in [(0o600, 0o600), (0o666, 0o666), (0o4755, 0o755)] {
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            let to = Destination::open(Some(&path), Destination::Stdout).unwrap();
            let Destination::Replace(of) = &to else { panic!("it is not replaced") };
            // Other users do not see a part of it, either.
            assert_eq!(of.file.metadata().unwrap().permissions().mode() & 0o7777, after);
            to.write(|out| out.write_all(b"all")).unwrap();
            assert_eq!(mode(), after, "{before:o}");
        }
    }

    #[test]
    fn a_directory_that_is_absent_is_told_by_name() {
        let path = Path::new("/no/such/directory/out");
        let Err(Failure::Trouble(text)) = Destination::open(Some(path), Destination::Stdout) else {
            panic!("it was opened");
        };
        assert!(text.starts_with("/no/such/directory/out: "), "{text}");
    }
}
