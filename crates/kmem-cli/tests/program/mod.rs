//! Programs under libkmem.so, and the command on them. A program prints answers, then `ready`, and
//! waits for a byte on its standard input.

// Each test program uses a part of this.
#![allow(dead_code)]

pub(crate) mod terminal;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) use kmem_testing::directory;
use kmem_testing::library::{LIBRARY, built};
use kmem_testing::{
    Compiler, Coprocess, copy_program, is_missing, is_not_root, not_run, this_test,
};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const KMEM: &str = env!("CARGO_BIN_EXE_kmem");

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Path of the library that the command finds by itself.
pub(crate) fn library() -> PathBuf {
    built(LIBRARY)
}

/// Compiles `programs/NAME.c` into the directory.
#[track_caller]
pub(crate) fn compile(name: &str, flags: &[&str], dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    Compiler::c()
        .include()
        .args(["-g", "-O1", "-pthread"])
        .args(flags)
        .arg(source)
        .compile(dir.join(name))
}

/// A copy of the command that every user may run, while the directory exists. None, and recorded,
/// where the test cannot become another user.
pub(crate) fn for_another_user() -> Option<(TempDir, PathBuf)> {
    if is_not_root("become another user") {
        return None;
    }
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("kmem");
    copy_program(KMEM, &copy);
    std::fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    Some((dir, copy))
}

/// Makes a memory control group with a limit in bytes. None, and recorded, where it cannot.
pub(crate) fn control_group(limit: u64) -> Option<PathBuf> {
    // The tests of one file run in one process.
    let name = format!("kmem-test-{}-{limit}", std::process::id());
    for (root, file) in
        [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
    {
        let group = Path::new(root).join(&name);
        if !Path::new(root).join("cgroup.procs").exists() || std::fs::create_dir(&group).is_err() {
            continue;
        }
        // Swap would only delay the kill.
        for swap in ["memory.swap.max", "memory.swappiness"] {
            let _ = std::fs::write(group.join(swap), "0");
        }
        if std::fs::write(group.join(file), limit.to_string()).is_ok() {
            return Some(group);
        }
        let _ = std::fs::remove_dir(&group);
    }
    not_run(&this_test(), "no memory control group can be made");
    None
}

/// Checks that a unit of systemd is understood and hardened, and that the parser takes its command,
/// which begins with these words.
#[track_caller]
pub(crate) fn check_unit(name: &str, begin: &[&str]) {
    if is_missing("systemd-analyze") {
        return;
    }
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let unit = unit.join(format!("{name}.service"));
    let mut verify = Command::new("systemd-analyze");
    let output = verify.args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    let said = text(&output.stderr);
    // The command is not installed where the tests run.
    let other = said.lines().find(|line| !line.contains("/usr/bin/kmem is not executable"));
    assert_eq!(other, None);
    let mut security = Command::new("systemd-analyze");
    let security = security.args(["security", "--offline=true", "--threshold=25"]).arg(&unit);
    let output = security.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stdout));
    // The options that the unit gives are those of the command.
    let exec = std::fs::read_to_string(&unit).unwrap();
    let exec = exec.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/kmem ")).unwrap();
    let args: Vec<&str> = exec.split(' ').collect();
    assert!(args.starts_with(begin), "{args:?}");
    let known = Command::new(KMEM).args(&args).arg("--help").output().unwrap();
    assert!(known.status.success());
}

/// True when a process that dies leaves a core in its directory on this machine. Recorded
/// otherwise.
fn leaves_cores() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with('|') || pattern.contains('/') {
        not_run(&this_test(), &format!("core files go to {}", pattern.trim_end()));
        return false;
    }
    let limit = Command::new("sh").args(["-c", "ulimit -H -c"]).output().unwrap();
    let none = text(&limit.stdout).trim_end() == "0";
    if none {
        not_run(&this_test(), "no core file may be written (ulimit -H -c)");
    }
    !none
}

/// Runs the command, which must succeed, and parses its JSON.
pub(crate) fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Files of a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A program under the library that waits for input.
pub(crate) struct Program {
    process: Coprocess,
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
        preload(&mut command, conf, dir.path());
        Self::run(command, dir)
    }

    /// Starts a program whose files are in `dir`, and waits until it is ready.
    #[track_caller]
    pub(crate) fn run(mut command: Command, dir: TempDir) -> Self {
        let mut process = Coprocess::start(&mut command);
        process.wait_for("ready");
        Self { process, dir }
    }

    /// Sends it a byte, and reads its answers until it is ready.
    #[track_caller]
    pub(crate) fn tell(&mut self, command: u8) -> Vec<String> {
        self.process.write(&[command]);
        self.process.wait_for("ready")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn kmem(&self, args: &[&str]) -> Output {
        Command::new(KMEM).args(args).args(["-p", &self.pid().to_string()]).output().unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        json(Command::new(KMEM).args(args).args(["-p", &self.pid().to_string()]))
    }

    /// Sends it a byte that ends it. Returns the core file, where this machine leaves cores in the
    /// directory of the process.
    #[track_caller]
    pub(crate) fn die(&mut self, command: u8) -> Option<PathBuf> {
        if !leaves_cores() {
            return None;
        }
        let before = files(self.dir.path());
        self.process.write(&[command]);
        let status = self.process.wait();
        assert!(status.to_string().contains("core dumped"), "{status}");
        let mut new = files(self.dir.path()).into_iter().filter(|path| !before.contains(path));
        Some(new.next().expect("a core in the directory of the process"))
    }

    /// Sends it a byte, and does not wait for an answer.
    pub(crate) fn write(&mut self, command: u8) {
        self.process.write(&[command]);
    }

    /// Ends its input, and does not wait for its end.
    pub(crate) fn close(&mut self) {
        self.process.close_input();
    }

    /// Sends it a byte that ends it, and waits for its end.
    pub(crate) fn end(&mut self, command: u8) {
        self.process.write(&[command]);
        self.process.wait();
    }

    /// Ends it by SIGKILL.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        let status = self.process.kill();
        assert!(status.to_string().contains("SIGKILL"), "{status}");
    }
}

/// Preloads a command with the library, configured. `DIR` stands for the directory.
pub(crate) fn preload(command: &mut Command, conf: &str, dir: &Path) {
    command.env("LD_PRELOAD", library());
    command.env("KMEM_CONF", conf.replace("DIR", dir.to_str().unwrap()));
}
