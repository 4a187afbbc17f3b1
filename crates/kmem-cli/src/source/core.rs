//! Reading the core file of a process.

use std::path::Path;

use kmem_snapshot::filter::Filter;
use kmem_snapshot::live::By;
use kmem_snapshot::symbols::Modules;
use kmem_snapshot::{CoreFile, ReadError, Snapshot, report};

use super::{Reading, say_state};
use crate::failure::{Failure, say};

/// Reads a core that must have books, and names its rows.
pub(super) fn read(
    path: &Path,
    exe: Option<&Path>,
    filter: &Filter,
    by: By,
) -> Result<Reading, Failure> {
    let core = CoreFile::open(path)?;
    let snapshot = snapshot(path, &core)?;
    let modules = Modules::of_core(&core, &snapshot.addresses(), exe);
    Reading::new(snapshot, &modules, filter, by)
}

/// Reads a core that must have books; says what is odd about them.
pub(super) fn snapshot(path: &Path, core: &CoreFile) -> Result<Snapshot, Failure> {
    if core.missing() != 0 {
        say(&format!(
            "{}: the core was cut off: {} of memory that should be in it are not",
            path.display(),
            report::size_u(core.missing())
        ));
    }
    let snapshot = Snapshot::of_core(core)?;
    let command = if core.command().is_empty() { core.comm() } else { core.command() };
    let end = match core.signal() {
        0 => String::new(),
        signal => format!(", ended by signal {signal}"),
    };
    say(&format!("core of process {} ({command}){end}", core.pid()));
    if snapshot.never() {
        return Err(ReadError::ProfilingNever { pid: core.pid() }.into());
    }
    say_state(&snapshot);
    if snapshot.torn() != 0 {
        say(&format!(
            "{} slabs or page allocations are not in the core or make no sense, and are left out",
            snapshot.torn()
        ));
    }
    Ok(snapshot)
}
