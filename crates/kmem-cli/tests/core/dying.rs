//! A real process that waits, and dies with a core.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use serde_json::Value;

pub(crate) use super::program::text;
use super::program::{KMEM, compile, directory, leaves_cores, library};

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
    child: Mutex<Child>,
    pid: u32,
    dir: tempfile::TempDir,
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
            command.env("KMEM_CONF", conf.replace("DIR", dir.path().to_str().unwrap()));
            command.env("LD_PRELOAD", library());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let pid = child.id();
        let (mut dump, mut json) = (String::new(), Value::Null);
        if conf.is_some() {
            let id = pid.to_string();
            dump = text(&kmem(&["dump", "-p", &id], Path::new("")).stdout);
            let output = kmem(&["dump", "--json", "-p", &id], Path::new(""));
            json = serde_json::from_slice(&output.stdout).unwrap();
        }
        Self { child: Mutex::new(child), pid, dir, dump, json }
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
        self.dir.path().join("dies")
    }

    /// Path of its black box.
    pub(crate) fn black_box(&self) -> PathBuf {
        self.dir.path().join("box")
    }

    /// Lets it die. Returns the core file, where this machine leaves cores in the directory of the
    /// process.
    pub(crate) fn kill(&self) -> Option<PathBuf> {
        if !leaves_cores() {
            return None;
        }
        let mut child = self.child.lock().unwrap();
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        let status = child.wait().unwrap();
        assert!(status.to_string().contains("core dumped"), "{status}");
        let entries = std::fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().path());
        let mut cores =
            entries.filter(|p| p.file_name().is_some_and(|n| n != "dies" && n != "box"));
        Some(cores.next().expect("a core in the directory of the process"))
    }
}

impl Drop for Dying {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The core that gdb writes of the live process; none without gdb.
pub(crate) fn by_gcore(live: &Dying) -> Option<PathBuf> {
    let core = live.dir.path().join("by-gdb");
    // The limit stops gdb at 2 GB.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 2000000; exec gcore -o \"$0\" \"$1\""])
        .arg(&core)
        .arg(live.pid.to_string())
        .output()
        .unwrap();
    if !output.status.success() {
        eprintln!("skipped: no gcore, or it may not trace: {}", text(&output.stderr));
        return None;
    }
    Some(core.with_file_name(format!("by-gdb.{}", live.pid)))
}
