//! `/tmp/perf-PID.map`: names of functions for perf, which cannot read a module's symbols itself
//! (`tools/perf/Documentation/jit-interface.txt` in Linux). Lines are only appended, because perf
//! reads the file after the process. The functions of a module that was unloaded stay in it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use crate::alloc::{self, Lossy};
use crate::error::warn;
use crate::image::Image;
use crate::kallsyms;

/// Appends the functions of a module to the map of this process. A failure is a warning.
pub(crate) fn append(module: &str, image: &Image) {
    let text = kallsyms::functions(image).try_fold(String::new(), |mut text, (at, size, name)| {
        let line = alloc::written(format_args!("{at:x} {size:x} {} [{module}]\n", Lossy(name)))?;
        text.try_reserve(line.len()).ok()?;
        text.push_str(&line);
        Some(text)
    });
    let done = match text {
        Some(text) => open().and_then(|mut file| file.write_all(text.as_bytes())),
        None => Err(io::ErrorKind::OutOfMemory.into()),
    };
    if let Err(error) = done {
        warn(format_args!("{module}: its functions are not in the map for perf: {error}"));
    }
}

/// Opens the map. Every user may write to `/tmp`, so it must be a regular file of this user.
fn open() -> io::Result<File> {
    let path = format!("/tmp/perf-{}.map", std::process::id());
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    // SAFETY: takes no pointer.
    let mine = metadata.uid() == unsafe { libc::geteuid() };
    // Another user could have linked a file of this one.
    if !metadata.is_file() || !mine || metadata.nlink() != 1 {
        return Err(io::Error::other("another user's file is in its place"));
    }
    Ok(file)
}
