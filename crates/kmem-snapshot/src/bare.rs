//! A process without kmem: its memory by kind, and how it was started.
//!
//! Sources: proc(5); systemd.unit(5) for names of units; the names that Docker, Podman, containerd
//! and CRI-O give to control groups.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::books::Snapshot;
use crate::error::ReadError;
use crate::maps::Resident;
use crate::process::Process;
use crate::program::base_name;

/// Most bytes of a command line.
const MAX_COMMAND: u64 = 128 << 10;
/// Most bytes of the name of a unit, as in systemd.
const MAX_UNIT: usize = 255;
/// Libraries that are allocators, by the beginning of their names.
const ALLOCATORS: [(&str, &str); 7] = [
    ("libjemalloc", "jemalloc"),
    ("libtcmalloc", "tcmalloc"),
    ("libmimalloc", "mimalloc"),
    ("libsnmalloc", "snmalloc"),
    ("librpmalloc", "rpmalloc"),
    ("libhardened_malloc", "hardened_malloc"),
    ("libasan", "AddressSanitizer"),
];

/// Resident memory by kind, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds {
    /// The heap of `brk`.
    pub heap: u64,
    /// Other memory without a file: further heaps, mappings of the program, stacks of threads.
    pub anonymous: u64,
    /// The stack of the first thread.
    pub stack: u64,
    /// Code and data of files.
    pub files: u64,
}

impl Kinds {
    /// All resident memory.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.heap, self.anonymous, self.stack, self.files].into_iter().fold(0, u64::saturating_add)
    }

    fn of(all: &[Resident]) -> Self {
        let mut sums = Self::default();
        for Resident { mapping, resident } in all {
            let sum = match &*mapping.path {
                "[heap]" => &mut sums.heap,
                "[stack]" => &mut sums.stack,
                _ if mapping.is_file() || mapping.path.starts_with("[v") => &mut sums.files,
                _ => &mut sums.anonymous,
            };
            *sum = sum.saturating_add(*resident);
        }
        sums
    }
}

/// The program that starts a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manager {
    /// A service of systemd.
    Unit {
        /// Its name.
        name: String,
        /// True for one of a user's own systemd.
        user: bool,
    },
    /// A container.
    Container {
        /// The program that runs it: `docker`, `podman` or `kubernetes`.
        runtime: &'static str,
        /// Its number, in hexadecimal digits.
        id: String,
    },
}

/// A process, and how it was started.
#[derive(Debug, Clone)]
pub struct Bare {
    /// Its pid.
    pub pid: u32,
    /// Path of its executable, as it knows it.
    pub exe: String,
    /// Short name.
    pub comm: String,
    /// True when it runs under kmem.
    pub has_kmem: bool,
    /// Its resident memory; none where the caller may not read it.
    pub memory: Option<Kinds>,
    /// Another allocator that it has loaded.
    pub allocator: Option<&'static str>,
    /// Its arguments, the name of the program first; empty when there are none, or too many.
    pub args: Vec<OsString>,
    /// Its working directory.
    pub directory: Option<PathBuf>,
    /// Number of its user.
    pub user: Option<u32>,
    /// The program that starts it; none where a shell or another program does.
    pub manager: Option<Manager>,
}

impl Bare {
    /// Looks at a process, which is not stopped.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`], [`ReadError::Recycled`]; [`ReadError::Permission`] for the
    /// process of another user.
    pub fn of(process: &Process) -> Result<Self, ReadError> {
        let maps = process.maps()?;
        let files = maps.all().iter().filter(|mapping| mapping.is_file());
        let mut names = files.map(|mapping| base_name(&mapping.path));
        let allocator = names.find_map(|name| {
            ALLOCATORS.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, name)| *name)
        });
        let this = Self {
            pid: process.pid(),
            exe: process.exe(),
            comm: process.comm(),
            has_kmem: Snapshot::is_in(&maps),
            memory: process.residents().map(|all| Kinds::of(&all)),
            allocator,
            args: arguments(process),
            directory: fs::read_link(process.path("cwd")).ok(),
            user: fs::metadata(process.path("")).ok().map(|of| of.uid()),
            manager: manager(&process.read_file("cgroup").unwrap_or_default()),
        };
        process.verify()?;
        Ok(this)
    }
}

fn arguments(process: &Process) -> Vec<OsString> {
    let mut bytes = Vec::new();
    let read = File::open(process.path("cmdline"))
        .and_then(|file| file.take(MAX_COMMAND + 1).read_to_end(&mut bytes));
    if read.is_err() || bytes.len() as u64 > MAX_COMMAND {
        return Vec::new();
    }
    let Some(text) = bytes.strip_suffix(&[0]) else { return Vec::new() };
    text.split(|&byte| byte == 0).map(|arg| OsString::from_vec(arg.to_vec())).collect()
}

/// The manager, by the text of `/proc/PID/cgroup`. The innermost name counts.
fn manager(cgroup: &str) -> Option<Manager> {
    // Version 2, or the hierarchy of systemd itself.
    let is_systemd = |line: &&str| line.starts_with("0::") || line.contains(":name=systemd:");
    let line = cgroup.lines().find(is_systemd).or_else(|| cgroup.lines().next())?;
    let path: Vec<&str> = line.splitn(3, ':').nth(2)?.split('/').collect();
    path.iter().enumerate().rev().find_map(|(at, name)| {
        let before = &path[..at];
        container(name, before).or_else(|| unit(name, before))
    })
}

fn container(name: &str, before: &[&str]) -> Option<Manager> {
    let named = name.strip_suffix(".scope").unwrap_or(name);
    let named = named.strip_suffix(".container").unwrap_or(named);
    let is_id = |id: &str| id.len() >= 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let prefixes = [
        ("docker-", "docker"),
        ("libpod-", "podman"),
        ("cri-containerd-", "kubernetes"),
        ("crio-", "kubernetes"),
    ];
    let of_prefix = prefixes.into_iter().find_map(|(prefix, runtime)| {
        Some((runtime, named.strip_prefix(prefix).filter(|id| is_id(id))?))
    });
    let of_parent = || {
        let pod = before.iter().any(|of| of.starts_with("kubepods"));
        let docker = before.last() == Some(&"docker");
        let runtime = if pod { "kubernetes" } else { "docker" };
        ((pod || docker) && is_id(named)).then_some((runtime, named))
    };
    let (runtime, id) = of_prefix.or_else(of_parent)?;
    let pod = before.iter().any(|of| of.starts_with("kubepods"));
    let runtime = if pod { "kubernetes" } else { runtime };
    Some(Manager::Container { runtime, id: id.to_owned() })
}

fn unit(name: &str, before: &[&str]) -> Option<Manager> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let is_unit =
        name.ends_with(".service") && name.len() <= MAX_UNIT && name.chars().all(is_plain);
    let user = before.iter().any(|of| of.starts_with("user@"));
    let own = name.starts_with("user@");
    (is_unit && !own).then(|| Manager::Unit { name: name.to_owned(), user })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_is_the_innermost_name_of_the_control_group() {
        let id = "0123456789abcdef".repeat(4);
        let unit = |name: &str, user| Some(Manager::Unit { name: name.to_owned(), user });
        let of = |runtime| Some(Manager::Container { runtime, id: id.clone() });
        for (path, expected) in [
            ("/system.slice/redis.service", unit("redis.service", false)),
            ("/system.slice/a\\x2db@1.service/sub", unit("a\\x2db@1.service", false)),
            (
                "/user.slice/user-1.slice/user@1.service/app.slice/x.service",
                unit("x.service", true),
            ),
            ("/user.slice/user-1.slice/user@1.service/app.slice/x.scope", None),
            ("/user.slice/user-1.slice/session-2.scope", None),
            (&format!("/system.slice/docker-{id}.scope"), of("docker")),
            (&format!("/docker/{id}"), of("docker")),
            (&format!("/machine.slice/libpod-{id}.scope/container"), of("podman")),
            (
                &format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
                of("kubernetes"),
            ),
            (&format!("/kubepods/burstable/pod1/{id}"), of("kubernetes")),
            ("/system.slice/$(reboot).service", None),
            ("/", None),
        ] {
            assert_eq!(manager(&format!("0::{path}\n")), expected, "{path}");
        }
        let old = "5:cpu:/\n1:name=systemd:/system.slice/a.service\n";
        assert_eq!(manager(old), unit("a.service", false));
        assert_eq!((manager(""), manager("x"), manager("0::")), (None, None, None));
    }

    #[test]
    fn this_process_is_told_by_its_arguments_and_its_memory() {
        let process = Process::open(std::process::id()).expect("this process");
        let bare = Bare::of(&process).expect("it can be read");
        assert_eq!(bare.args, std::env::args_os().collect::<Vec<_>>());
        assert_eq!(bare.directory, std::env::current_dir().ok());
        let memory = bare.memory.expect("it may read itself");
        assert!(memory.stack > 0 && memory.files > 0 && memory.total() > memory.files);
    }
}
