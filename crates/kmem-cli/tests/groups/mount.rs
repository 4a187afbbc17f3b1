//! The books of a program with groups as files, under a real mount.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use kmem_testing::{is_not_root, not_run, this_test};
use tempfile::TempDir;

use super::program::{KMEM, Program, directory, text};
use super::tenants::{self, HOSTILE};

/// A mount, until it is dropped.
struct Mount {
    command: Child,
    directory: TempDir,
}

impl Mount {
    /// Mounts, and waits until the files are there. None, and recorded, where it cannot.
    fn start() -> Option<Self> {
        if is_not_root("mount") {
            return None;
        }
        if let Err(error) = fs::File::open("/dev/fuse") {
            not_run(&this_test(), &format!("/dev/fuse: {error}"));
            return None;
        }
        let directory = directory();
        let mut command = Command::new(KMEM);
        command.arg("mount").arg(directory.path()).stderr(Stdio::piped());
        let mut command = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(command.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("has the files of processes under kmem"), "{said}");
        Some(Self { command, directory })
    }

    fn of(&self, program: &Program) -> PathBuf {
        self.directory.path().join(program.pid().to_string())
    }

    fn signal(&self, name: &str) {
        let pid = self.command.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Ends the command by a signal. Returns whether it succeeded.
    fn end(&mut self) -> bool {
        self.signal("INT");
        self.command.wait().unwrap().success()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.command.try_wait().unwrap().is_none() {
            // A test that failed may have files open. The mount goes when they are closed.
            let mut unmount = Command::new("umount");
            let _ = unmount.arg("--lazy").arg(self.directory.path()).status();
            let _ = self.command.wait();
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn files_have_the_rows_and_the_groups_of_a_process() {
    let program = tenants::start();
    let Some(mut mount) = Mount::start() else { return };
    let of = mount.of(&program);
    assert!(names(mount.directory.path()).contains(&program.pid().to_string()));
    assert_eq!(names(&of), ["allocinfo", "groups", "slabinfo"]);
    // The kernel takes pages of files from memory when it likes.
    let heap = |rows: String| -> Vec<String> {
        rows.lines().filter(|row| !row.contains(" mapped:")).map(str::to_owned).collect()
    };
    let dump = text(&program.kmem(&["dump"]).stdout);
    assert_eq!(heap(read(of.join("allocinfo"))), heap(dump));
    assert_eq!(read(of.join("slabinfo")), text(&program.kmem(&["slabinfo"]).stdout));
    let groups = of.join("groups");
    assert_eq!(names(&groups), ["batch", "memory.current", "memory.stat", "tenants"]);
    assert_eq!(names(&groups.join("batch"))[0], HOSTILE);
    let tenant = groups.join("tenants/a");
    assert_eq!(names(&tenant).len(), 7);
    for file in names(&tenant) {
        let shown = program.kmem(&["group", "show", "/tenants/a", &file]);
        assert_eq!(read(tenant.join(&file)), text(&shown.stdout), "{file}");
    }
    // Tools read a file of size 0 to its end.
    let sorted = Command::new("sort").arg("-rn").arg(of.join("allocinfo")).output().unwrap();
    assert_eq!(text(&sorted.stdout).lines().count(), read(of.join("allocinfo")).lines().count());
    for absent in ["1", "0", "x", "4294967295"] {
        assert!(!mount.directory.path().join(absent).exists(), "{absent}");
    }
    assert!(!tenant.join("nosuch").exists());
    // A reader sees the moment at which it opened the file.
    let open = fs::File::open(of.join("allocinfo")).unwrap();
    drop(program);
    assert!(io::read_to_string(open).unwrap().starts_with("allocinfo - version: 2.0\n"));
    assert!(!of.exists());
    assert!(mount.end());
    assert_eq!(names(mount.directory.path()), [""; 0]);
}

fn make(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)
}

fn remove(directory: &Path) -> io::Result<()> {
    fs::remove_dir(directory)
}

#[test]
fn a_limit_is_written_and_a_directory_is_a_group() {
    let mut program = tenants::start();
    let Some(mut mount) = Mount::start() else { return };
    let groups = mount.of(&program).join("groups");
    let tenant = groups.join("tenants/a");
    let max = tenant.join("memory.max");
    for (written, read_back) in [("64M\n", "67108864\n"), ("max\n", "max\n"), ("4096", "4096\n")] {
        fs::write(&max, written).unwrap();
        assert_eq!(read(&max), read_back);
    }
    let failure = |path: &Path, text: &str| fs::write(path, text).unwrap_err().raw_os_error();
    assert_eq!(failure(&max, "lots"), Some(libc::EINVAL));
    assert_eq!(failure(&tenant.join("memory.peak"), "1"), Some(libc::EPERM));
    assert_eq!(read(&max), "4096\n");
    assert!(fs::File::create(tenant.join("new")).is_err() && fs::remove_file(&max).is_err());

    // The process makes and deletes groups when it allocates.
    let made = groups.join("made");
    let in_the_process = mount.of(&program).join("a");
    let mut while_it_allocates = |work: fn(&Path) -> io::Result<()>, path: &Path| {
        let path = path.to_owned();
        let worker = thread::spawn(move || work(&path).map_err(|error| error.raw_os_error()));
        while !worker.is_finished() {
            program.tell(b'm');
        }
        worker.join().unwrap()
    };
    assert_eq!(while_it_allocates(make, &made), Ok(()));
    assert_eq!(read(made.join("memory.max")), "max\n");
    assert_eq!(while_it_allocates(make, &made), Err(Some(libc::EEXIST)));
    assert_eq!(while_it_allocates(make, &groups.join("nosuch/a")), Err(Some(libc::ENOENT)));
    assert_eq!(while_it_allocates(make, &in_the_process), Err(Some(libc::EPERM)));
    assert_eq!(while_it_allocates(remove, &made), Ok(()));
    assert!(!made.exists());
    assert!(mount.end());
}

#[test]
fn a_directory_with_files_and_one_that_is_absent_are_refused() {
    let directory = directory();
    fs::write(directory.path().join("file"), "").unwrap();
    let refusal = Command::new(KMEM).arg("mount").arg(directory.path()).output().unwrap();
    let said = text(&refusal.stderr);
    assert_eq!(refusal.status.code(), Some(2), "{said}");
    assert!(said.contains(" is not empty: name an empty directory"), "{said}");
    let absent = Command::new(KMEM).args(["mount", "/nonexistent"]).output().unwrap();
    assert_eq!(absent.status.code(), Some(2), "{}", text(&absent.stderr));
}

#[test]
fn files_that_are_open_can_be_read_after_a_signal_and_a_second_one_ends_the_command() {
    let program = tenants::start();
    let Some(mut mount) = Mount::start() else { return };
    let open = fs::File::open(mount.of(&program).join("slabinfo")).unwrap();
    mount.signal("TERM");
    // The files go at once, though one of them is open.
    while mount.of(&program).exists() {
        thread::yield_now();
    }
    assert_eq!(names(mount.directory.path()), [""; 0]);
    assert!(io::read_to_string(&open).unwrap().starts_with("slabinfo - version: 2.1\n"));
    assert!(mount.command.try_wait().unwrap().is_none());
    assert!(mount.end());
}
