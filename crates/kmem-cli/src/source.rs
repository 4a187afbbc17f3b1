//! A source as an argument: a process, a file or the kernel.

use std::path::Path;

use kmem_snapshot::Target;

use crate::failure::Failure;
use crate::process::Named;

/// The target that an argument names: `kernel`, the number of a process, the path of a file, or
/// the name of a process. A file of that name comes before a process. `FILE@MOMENT` is a moment of
/// a recording.
pub(crate) fn target(source: &Path) -> Result<Target, Failure> {
    if let Some(target) = moment(source)? {
        return Ok(target);
    }
    let Some(text) = source.to_str() else { return Ok(Target::recognise(source)?) };
    if text == "kernel" {
        return Ok(Target::Kernel);
    }
    match text.parse() {
        Ok(Named::Pid(pid)) => Ok(Target::Process(pid)),
        _ if text.contains('/') || source.exists() => Ok(Target::recognise(source)?),
        Ok(named) => match named.pid() {
            Err(Failure::Absent(why)) => {
                Err(Failure::Absent(format!("there is no file {text}, and {why}")))
            }
            found => Ok(Target::Process(found?)),
        },
        Err(never) => match never {},
    }
}

/// The moment of a recording that `FILE@MOMENT` names. None where there is no such file.
fn moment(source: &Path) -> Result<Option<Target>, Failure> {
    let named = source.to_str().filter(|_| !source.exists()).and_then(|s| s.rsplit_once('@'));
    let Some((file, moment)) = named.filter(|(file, _)| Path::new(file).is_file()) else {
        return Ok(None);
    };
    match (Target::recognise(Path::new(file))?, moment.parse()) {
        (Target::Recording { path, .. }, Ok(at)) => Ok(Some(Target::Recording { path, at })),
        (Target::Recording { .. }, Err(what)) => Err(Failure::Trouble(what)),
        _ => Err(Failure::Trouble(format!(
            "{file} is no recording, so @{moment} means nothing: name the file alone"
        ))),
    }
}
