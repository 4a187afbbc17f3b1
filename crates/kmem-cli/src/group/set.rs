//! `kmem group set`: limits of a group, written from outside.

use std::path::PathBuf;

use kmem_layout::group::{Limit, NO_LIMIT};

use super::file::FILES;
use crate::failure::Failure;
use crate::options::parse_size;
use crate::process::Named;

/// Arguments of `kmem group set`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Change the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME", required_unless_present = "core")]
    pid: Option<Named>,
    /// Accepted, so that the refusal names the reason
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "pid")]
    core: Option<PathBuf>,
    /// Path of the group, such as /tenants/a
    group: String,
    /// Limits to write, with a size such as 100M, or max for no limit. The process applies them
    /// when it next charges the group
    #[arg(value_name = "FILE=SIZE", required = true, value_parser = parse)]
    limits: Vec<Request>,
}

/// A limit and its new value, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) limit: Limit,
    pub(super) bytes: u64,
}

/// Parses `memory.max=100M`.
pub(super) fn parse(text: &str) -> Result<Request, String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} has no value: expected memory.max=SIZE or =max"))?;
    let name = name.trim();
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        let files = FILES.iter().filter(|file| file.limit().is_some());
        let files: Vec<&str> = files.map(|file| file.name).collect();
        return Err(format!("unknown file {name:?}; there are {}", files.join(", ")));
    };
    let limit = file.limit().ok_or_else(|| format!("{name} can be read, not written"))?;
    Ok(Request { limit, bytes: size_or_max(value.trim())? })
}

/// Parses a size such as `100M`, or `max` for no limit, into bytes.
pub(crate) fn size_or_max(text: &str) -> Result<u64, String> {
    match text {
        "max" => Ok(NO_LIMIT),
        size => Ok(parse_size(size)?.unsigned_abs()),
    }
}

pub(super) fn main(args: &Args) -> Result<(), Failure> {
    let Some(named) = &args.pid else {
        let what = "a core file cannot be written: its process has ended; name a process with -p";
        return Err(Failure::Trouble(what.to_owned()));
    };
    let control = named.open()?.control()?;
    for Request { limit, bytes } in &args.limits {
        control.set_group_limit(&args.group, *limit, *bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_sizes() {
        for (text, limit, bytes) in [
            ("memory.max=100M", Limit::Max, 100 << 20),
            ("memory.high=max", Limit::High, NO_LIMIT),
            ("memory.low = 1.5KiB", Limit::Low, 1536),
            ("memory.max=0", Limit::Max, 0),
        ] {
            assert_eq!(parse(text), Ok(Request { limit, bytes }), "{text}");
        }
        for (text, what) in [
            ("memory.max", "has no value"),
            ("memory.max=", "is not a size"),
            ("memory.max=-1", "is not a size"),
            ("memory.max=lots", "is not a size"),
            ("memory.max=99999999999T", "too large"),
            ("memory.max=1\0", "unknown unit"),
            ("memory.current=1", "can be read, not written"),
            ("memory.swap=1", "unknown file \"memory.swap\""),
        ] {
            assert!(parse(text).unwrap_err().contains(what), "{text}: {:?}", parse(text));
        }
    }
}
