//! `kmem group create` and `kmem group rm`: groups that are made and deleted from outside.

use std::time::Duration;

use super::set::{Request, parse};
use crate::failure::Failure;
use crate::options::interval;
use crate::process::Named;

/// Arguments of `kmem group create`.
#[derive(clap::Args)]
pub(super) struct Create {
    #[command(flatten)]
    of: Of,
    /// Limits of the group, with a size such as 100M
    #[arg(value_name = "FILE=SIZE", value_parser = parse)]
    limits: Vec<Request>,
}

/// Arguments of `kmem group rm`.
#[derive(clap::Args)]
pub(super) struct Remove {
    #[command(flatten)]
    of: Of,
}

#[derive(clap::Args)]
struct Of {
    /// Change the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Named,
    /// Longest wait for an allocation of the process, which serves the request
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "5s")]
    wait: Duration,
    /// Path of the group, such as /tenants/a
    group: String,
}

pub(super) fn create(args: &Create) -> Result<(), Failure> {
    let Of { pid, wait, group } = &args.of;
    let limits: Vec<_> = args.limits.iter().map(|request| (request.limit, request.bytes)).collect();
    Ok(pid.open()?.control()?.create_group(group, &limits, *wait)?)
}

pub(super) fn remove(args: &Remove) -> Result<(), Failure> {
    let Of { pid, wait, group } = &args.of;
    Ok(pid.open()?.control()?.delete_group(group, *wait)?)
}
