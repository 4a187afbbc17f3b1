//! `kmem sysctl`: reads and writes the settings of a running process.

use std::io::{self, Write};

use kmem_snapshot::ReadError;
use kmem_snapshot::books::Profiling;
use kmem_snapshot::control::Setting;

use crate::failure::{Failure, say};
use crate::process::Named;

/// Arguments of `kmem sysctl`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read or change the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Named,
    /// Settings to print, or to set if a value is given; without any, all are printed. The only
    /// one is vm.mem_profiling. With 1, each object has the tag of its call site. With 0, new
    /// objects count as not tagged. The value never can only be chosen at the start
    #[arg(value_name = "NAME[=VALUE]", value_parser = parse)]
    variables: Vec<Request>,
}

/// A variable, and its new value if one is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    variable: Variable,
    value: Option<u32>,
}

/// A setting of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    MemProfiling,
}

impl Variable {
    const ALL: [Self; 1] = [Self::MemProfiling];

    fn name(self) -> &'static str {
        match self {
            Self::MemProfiling => "vm.mem_profiling",
        }
    }

    /// Value in one root block.
    fn of(self, setting: &Setting) -> &'static str {
        match (self, setting.profiling) {
            (Self::MemProfiling, Profiling::Off) => "0",
            (Self::MemProfiling, Profiling::On) => "1",
            (Self::MemProfiling, Profiling::Never) => "never",
        }
    }
}

/// Parses `name` or `name=value`. Slashes stand for dots, as in sysctl(8).
fn parse(text: &str) -> Result<Request, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (text.trim(), None),
    };
    let dotted = name.replace('/', ".");
    let variable = Variable::ALL
        .into_iter()
        .find(|variable| variable.name() == dotted)
        .ok_or_else(|| format!("unknown name {name:?}; there is vm.mem_profiling"))?;
    let value = match value {
        None => None,
        Some("0") => Some(0),
        Some("1") => Some(1),
        Some("never") => {
            return Err("`never` can only be chosen when a process starts, with \
                        KMEM_CONF=mem_profiling:never"
                .to_owned());
        }
        Some(other) => return Err(format!("{other:?} is not 0 or 1")),
    };
    Ok(Request { variable, value })
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let control = args.pid.open()?.control()?;
    let all = Variable::ALL.map(|variable| Request { variable, value: None });
    let requests = if args.variables.is_empty() { &all[..] } else { &args.variables };
    let mut out = io::stdout().lock();
    for Request { variable, value } in requests {
        if let Some(value) = value {
            control.set_profiling(*value).map_err(|e| refused(*variable, e))?;
        }
        print(&mut out, *variable, &control.settings()?)?;
    }
    out.flush()?;
    Ok(())
}

/// Prints one line when all root blocks agree, or one line for each.
fn print(out: &mut impl Write, variable: Variable, settings: &[Setting]) -> io::Result<()> {
    let mut values: Vec<&str> = settings.iter().map(|setting| variable.of(setting)).collect();
    values.dedup();
    if values.len() > 1 {
        values = settings.iter().map(|setting| variable.of(setting)).collect();
        let roots: Vec<String> = settings.iter().map(|s| format!("{:#x}", s.root)).collect();
        say(&format!("copies of kmem in the process differ; in order: {}", roots.join(", ")));
    }
    values.iter().try_for_each(|value| writeln!(out, "{} = {value}", variable.name()))
}

/// Makes the refusal to change a setting trouble. The source is not absent.
fn refused(variable: Variable, error: ReadError) -> Failure {
    match error {
        ReadError::ProfilingNever { pid } => Failure::Trouble(format!(
            "{} of process {pid} is `never` (KMEM_CONF=mem_profiling:never) and cannot be changed: \
             its objects have no place for a tag. Start it without that option",
            variable.name()
        )),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values() {
        let variable = Variable::MemProfiling;
        for (text, value) in [
            ("vm.mem_profiling", None),
            ("vm/mem_profiling", None),
            ("vm.mem_profiling=0", Some(0)),
            ("vm.mem_profiling = 1", Some(1)),
        ] {
            assert_eq!(parse(text), Ok(Request { variable, value }), "{text}");
        }
        for (text, what) in [
            ("", "unknown name"),
            ("vm.swappiness", "unknown name \"vm.swappiness\""),
            ("vm.mem_profiling=", "\"\" is not 0 or 1"),
            ("vm.mem_profiling=2", "\"2\" is not 0 or 1"),
            ("vm.mem_profiling=never", "only be chosen when a process starts"),
        ] {
            assert!(parse(text).unwrap_err().contains(what), "{text}");
        }
    }
}
