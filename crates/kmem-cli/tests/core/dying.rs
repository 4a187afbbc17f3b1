//! A real process that waits, and dies with a core.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use kmem_testing::{not_run, this_test};
use serde_json::Value;

pub(crate) use super::program::text;
use super::program::{KMEM, Program, compile, directory, preload};

/// Runs the command with these arguments and a file as the last one.
pub(crate) fn kmem(args: &[&str], file: &Path) -> Output {
    let mut command = Command::new(KMEM);
    command.args(args);
    if !file.as_os_str().is_empty() {
        command.arg(file);
    }
    command.output().unwrap()
}

/// The process, and its books from the time when it lived.
pub(crate) struct Dying {
    process: Mutex<Program>,
    pid: u32,
    dir: PathBuf,
    pub(crate) dump: String,
    pub(crate) json: Value,
}

impl Dying {
    /// Starts `dies HOW`, under the library or not, and reads its books while it waits.
    pub(crate) fn start(how: &str, library_too: bool) -> Self {
        Self::start_with(how, library_too.then_some(""))
    }

    /// Starts `dies HOW` with a configuration of the library, or without the library, and reads its
    /// books while it waits. `DIR` stands for the process's directory.
    pub(crate) fn start_with(how: &str, conf: Option<&str>) -> Self {
        let dir = directory();
        let flags = ["-fno-omit-frame-pointer", "-Wl,--build-id"];
        let program = compile("dies", &flags, dir.path());
        // gcore writes all of the address space, so it is bounded; so is the size of cores.
        let limits = "ulimit -v 1000000; ulimit -c 1000000; exec \"$0\" \"$1\"";
        let mut command = Command::new("sh");
        command.arg("-c").arg(limits).arg(&program).arg(how);
        command.current_dir(dir.path());
        if let Some(conf) = conf {
            preload(&mut command, conf, dir.path());
        }
        let process = Program::run(command, dir);
        let (pid, dir) = (process.pid(), process.dir.path().to_owned());
        let (mut dump, mut json) = (String::new(), Value::Null);
        if conf.is_some() {
            dump = text(&process.kmem(&["dump", "--no-mmap"]).stdout);
            json = process.json(&["dump", "--no-mmap", "--json"]);
        }
        Self { process: Mutex::new(process), pid, dir, dump, json }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Output of the command on the waiting process.
    pub(crate) fn live(&self, args: &[&str]) -> String {
        let id = self.pid.to_string();
        text(&kmem(&[args, &["-p", &id]].concat(), Path::new("")).stdout)
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.dir.join("dies")
    }

    /// Path of its black box.
    pub(crate) fn black_box(&self) -> PathBuf {
        self.dir.join("box")
    }

    /// Lets it die. Returns the core file, where this machine leaves cores in the directory of the
    /// process.
    pub(crate) fn kill(&self) -> Option<PathBuf> {
        self.process.lock().unwrap().die(b'x')
    }
}

/// The core that gdb writes of the live process; none, and recorded, without gdb.
pub(crate) fn by_gcore(live: &Dying) -> Option<PathBuf> {
    let core = live.dir.join("by-gdb");
    // The limit stops gdb at 2 GB.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 2000000; exec gcore -o \"$0\" \"$1\""])
        .arg(&core)
        .arg(live.pid.to_string())
        .output()
        .unwrap();
    if !output.status.success() {
        let said = text(&output.stderr);
        let said = said.lines().last().unwrap_or_default();
        not_run(&this_test(), &format!("there is no gcore, or it may not trace: {said}"));
        return None;
    }
    Some(core.with_file_name(format!("by-gdb.{}", live.pid)))
}
