//! A real process that waits, and dies with a core.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

use serde_json::Value;

pub(crate) use super::program::text;
use super::program::{KMEM, compile, directory, leaves_cores, library};

/// Runs the command with these arguments and a file at the end.
pub(crate) fn kmem(args: &[&str], file: &Path) -> Output {
    let mut command = Command::new(KMEM);
    command.args(args);
    if !file.as_os_str().is_empty() {
        command.arg(file);
    }
    command.output().unwrap()
}

/// The process, and what was said of it while it lived.
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

    /// The same with a configuration of the library, where `DIR` is the process's directory.
    pub(crate) fn start_with(how: &str, conf: Option<&str>) -> Self {
        let dir = directory();
        let flags = ["-fno-omit-frame-pointer", "-Wl,--build-id"];
        let program = compile("dies", &flags, dir.path());
        // Address space is bounded because gcore writes all of it, cores because disks are.
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

    /// What the command says of it while it waits.
    pub(crate) fn live(&self, args: &[&str]) -> String {
        let id = self.pid.to_string();
        text(&kmem(&[args, &["-p", &id]].concat(), Path::new("")).stdout)
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.dir.path().join("dies")
    }

    /// The black box that it keeps.
    pub(crate) fn black_box(&self) -> PathBuf {
        self.dir.path().join("box")
    }

    /// Lets it die; the core, where this machine puts cores into the directory of the process.
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

/// The core that gdb writes of the live process, where there is gdb.
pub(crate) fn by_gcore(live: &Dying) -> Option<PathBuf> {
    let core = live.dir.path().join("by-gdb");
    // No more than 2 GB, whatever gdb thinks it must write.
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
