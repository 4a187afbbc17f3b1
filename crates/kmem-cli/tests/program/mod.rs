//! Real programs under the real libkmem.so. A program prints answers, then `ready`, and waits for a
//! byte on its standard input.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const KMEM: &str = env!("CARGO_BIN_EXE_kmem");

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Path of the library that the command finds by itself.
pub(crate) fn library() -> PathBuf {
    let dir = Path::new(KMEM).parent().unwrap();
    let places = [dir.join("deps/libkmem.so"), dir.join("libkmem.so")];
    places.into_iter().find(|p| p.is_file()).expect("libkmem.so beside the command")
}

/// A directory on a disk. It is removed when the value is dropped.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Compiles `programs/NAME.c` into the directory.
pub(crate) fn compile(name: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let path = dir.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O1", "-pthread"]).args(flags).arg(source).arg("-o").arg(&path);
    assert!(cc.status().unwrap().success());
    path
}

/// A copy of the command that every user may run, while the directory exists. None, with a message,
/// where the test cannot become another user.
pub(crate) fn for_another_user() -> Option<(TempDir, PathBuf)> {
    // SAFETY: `geteuid` takes no pointers and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can become another user");
        return None;
    }
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("kmem");
    std::fs::copy(KMEM, &copy).unwrap();
    std::fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    Some((dir, copy))
}

/// True when a process that dies leaves a core in its directory on this machine. Prints the reason
/// otherwise.
pub(crate) fn leaves_cores() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with('|') || pattern.contains('/') {
        eprintln!("skipped: core files go to {}", pattern.trim_end());
        return false;
    }
    let limit = Command::new("sh").args(["-c", "ulimit -H -c"]).output().unwrap();
    let none = text(&limit.stdout).trim_end() == "0";
    if none {
        eprintln!("skipped: no core file may be written (ulimit -H -c)");
    }
    !none
}

/// Runs the command, which must succeed, and parses its JSON.
pub(crate) fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A program under the library that waits for input.
pub(crate) struct Program {
    child: Child,
    said: BufReader<ChildStdout>,
    pub(crate) dir: TempDir,
}

impl Program {
    /// Compiles `programs/NAME.c`, starts it, and waits until it is ready. `DIR` in the
    /// configuration stands for its directory.
    pub(crate) fn start(name: &str, flags: &[&str], args: &[&str], conf: &str) -> Self {
        let dir = directory();
        let path = compile(name, flags, dir.path());
        let mut command = Command::new(path);
        command.args(args);
        command.env("LD_PRELOAD", library());
        command.env("KMEM_CONF", conf.replace("DIR", dir.path().to_str().unwrap()));
        Self::run(command, dir)
    }

    /// Starts a program whose files are in `dir`, and waits until it is ready.
    pub(crate) fn run(mut command: Command, dir: TempDir) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self { child, said, dir };
        this.answers();
        this
    }

    /// Reads its answers until it is ready.
    fn answers(&mut self) -> Vec<String> {
        let mut answers = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "ended after {answers:?}");
            match line.trim_end() {
                "ready" => return answers,
                answer => answers.push(answer.to_owned()),
            }
        }
    }

    /// Sends it a byte, and reads its answers until it is ready.
    pub(crate) fn tell(&mut self, command: u8) -> Vec<String> {
        self.child.stdin.as_mut().unwrap().write_all(&[command]).unwrap();
        self.answers()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kmem(&self, args: &[&str]) -> Output {
        Command::new(KMEM).args(args).args(["-p", &self.pid().to_string()]).output().unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        json(Command::new(KMEM).args(args).args(["-p", &self.pid().to_string()]))
    }

    /// Sends it a byte that ends it. Returns the core file, where this machine leaves cores in the
    /// directory of the process.
    pub(crate) fn die(&mut self, command: u8) -> Option<PathBuf> {
        if !leaves_cores() {
            return None;
        }
        self.child.stdin.as_mut().unwrap().write_all(&[command]).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.to_string().contains("core dumped"), "{status}");
        let entries = std::fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().path());
        let is_core = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core"))
        };
        Some(entries.into_iter().find(is_core).expect("a core in the directory of the process"))
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.to_string().contains("SIGKILL"), "{status}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
