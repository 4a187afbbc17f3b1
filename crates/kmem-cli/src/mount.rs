//! `kmem mount`: the books of processes as files, like those of `/proc` and of control groups.
//!
//! ```text
//! filesystem  requests of the kernel, and open files
//! books       contents of files, and names in directories
//! node        a file or a directory, and its number
//! ```
//!
//! The kernel's part is FUSE (`Documentation/filesystems/fuse`); the protocol is the fuser crate's.

mod books;
mod filesystem;
mod node;

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;
use std::{io, thread};

use fuser::{MountOption, Session};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::failure::{Failure, say};
use crate::run::sys::{self, Signals};
use filesystem::Files;

/// Arguments of `kmem mount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show the files in this empty directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let path = args.directory.display();
    let failed = |error| {
        Failure::Trouble(format!(
            "cannot mount on {path}: {error}; name an empty directory, as root, or install \
             fusermount3"
        ))
    };
    // A second file system over the first one would hide it.
    let mut inside = std::fs::read_dir(&args.directory).map_err(failed)?;
    if inside.next().is_some() {
        return Err(Failure::Trouble(format!("{path} is not empty: name an empty directory")));
    }
    let signals = sys::ends()?;
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName("kmem".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoExec,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    let session = Session::new(Files::new(), &args.directory, &config).map_err(failed)?;
    let directory = args.directory.clone();
    thread::spawn(move || end_at_signals(&signals, &directory));
    say(&format!(
        "{path} has the files of processes under kmem, until Ctrl-C or until it is unmounted"
    ));
    session.run().map_err(|error| Failure::Trouble(format!("{path}: {error}; mount it again")))
}

/// Unmounts at a signal. The session ends when no file is open any more, or at a second signal.
fn end_at_signals(signals: &Signals, directory: &Path) {
    let mut is_unmounted = false;
    while sys::poll(&[signals.fd.as_raw_fd()], Duration::MAX).is_ok() {
        // One signal is taken off the descriptor.
        if rustix::io::read(&signals.fd, &mut [0; 128]).is_err() {
            continue;
        }
        if is_unmounted {
            process::exit(0);
        }
        match unmount(directory) {
            Ok(()) => is_unmounted = true,
            Err(error) => say(&format!("cannot unmount {}: {error}", directory.display())),
        }
    }
}

/// Takes the files away at once. Those that are open stay.
fn unmount(directory: &Path) -> io::Result<()> {
    match rustix::mount::unmount(directory, UnmountFlags::DETACH) {
        // Other users than root need a program of root's.
        Err(Errno::PERM) => {
            let status = Command::new("fusermount3").arg("-uz").arg(directory).status()?;
            if status.success() { Ok(()) } else { Err(Errno::PERM.into()) }
        }
        result => Ok(result?),
    }
}
