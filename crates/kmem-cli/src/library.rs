//! `kmem library`: where libkmem.so is.

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use crate::failure::Failure;
use crate::run::library;

/// Arguments of `kmem library`.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn main(_args: &Args) -> Result<(), Failure> {
    let (path, _) = library::find(None)?;
    let mut line = path.as_os_str().as_bytes().to_owned();
    line.push(b'\n');
    std::io::stdout().write_all(&line)?;
    Ok(())
}
