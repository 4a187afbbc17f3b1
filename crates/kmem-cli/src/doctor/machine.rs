//! The files and calls that tell of the machine, and the judgement of each.
//!
//! Sources: proc(5), core(5), ptrace(2), membarrier(2); `Documentation/admin-guide/sysctl` and
//! `Documentation/admin-guide/mm/transhuge.rst` in Linux.

use std::env;
use std::fs::{self, File};
use std::path::Path;

use kmem_snapshot::{Query, Target};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{MembarrierCommand, membarrier_query};

use super::{Check, State};
use crate::run::library;

/// Number of the capability to trace other processes, in the mask of `/proc/self/status`.
const CAP_SYS_PTRACE: u32 = 19;
/// Key of the size of the kernel's rseq area in the auxiliary vector, from Linux 6.3 on.
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
/// Where separate debug files lie.
const DEBUG: &str = "/usr/lib/debug";

/// Looks at all things.
pub(super) fn checks() -> Vec<Check> {
    let libc = fs::read_to_string("/proc/self/maps").ok().and_then(|maps| c_library(&maps));
    let status = read("/proc/self/status").unwrap_or_default();
    vec![
        library(),
        page(page_size()),
        glibc(libc.as_deref()),
        rseq(
            fs::read("/proc/self/auxv").ok().as_deref(),
            read("/proc/sys/kernel/osrelease").as_deref(),
            env::var("GLIBC_TUNABLES").ok().as_deref(),
        ),
        membarrier(
            membarrier_query().contains_command(MembarrierCommand::RegisterPrivateExpeditedRseq),
        ),
        sandbox(field(&status, "Seccomp")),
        ptrace(read("/proc/sys/kernel/yama/ptrace_scope").as_deref(), may_trace(&status)),
        page_map(File::open("/proc/self/pagemap").is_ok()),
        overcommit(read("/proc/sys/vm/overcommit_memory").as_deref()),
        huge(read("/sys/kernel/mm/transparent_hugepage/enabled").as_deref()),
        cores(
            read("/proc/sys/kernel/core_pattern").as_deref(),
            getrlimit(Resource::Core).current == Some(0),
        ),
        perf_maps(Path::new("/tmp")),
        debug_files(Path::new(DEBUG)),
        allocinfo(),
    ]
}

/// Text of a small file, without the end of its line.
fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// A field of `/proc/self/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find(|line| line.split(':').next() == Some(name))?;
    Some(line.split_once(':')?.1.trim())
}

fn may_trace(status: &str) -> bool {
    let mask = field(status, "CapEff").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask >> CAP_SYS_PTRACE & 1 == 1)
}

fn library() -> Check {
    match library::find(None) {
        Ok((path, _)) => Check::ok("library", path.display().to_string()),
        Err(_) => Check::not(
            "library",
            State::Broken,
            "there is no libkmem.so that can be preloaded",
            "no program runs under kmem",
            "`kmem library` says where it was looked for; name one with KMEM_LIBRARY",
        ),
    }
}

fn page(bytes: usize) -> Check {
    let found = format!("{} KiB", bytes / 1024);
    if bytes == 4096 {
        return Check::ok("pages", found);
    }
    Check::not(
        "pages",
        State::Broken,
        found,
        "kmem refuses kernels with other pages than of 4 KiB",
        "boot a kernel that was built for pages of 4 KiB",
    )
}

/// Content of the C library, by the mappings of this process.
fn c_library(maps: &str) -> Option<Vec<u8>> {
    let path = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let path = path.into_iter().find(|path| {
        path.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("libc.so") || name.starts_with("libc-"))
    })?;
    fs::read(path).ok()
}

/// glibc of 2.35 or later defines this version of symbols.
fn glibc(library: Option<&[u8]>) -> Check {
    const VERSION: &[u8] = b"\0GLIBC_2.35\0";
    let name = "C library";
    let effect =
        "arrays of CPUs are behind a try-lock, and wrappers hold the memory of their callers";
    match library {
        Some(bytes) if bytes.windows(VERSION.len()).any(|at| at == VERSION) => {
            Check::ok(name, "glibc 2.35 or later")
        }
        Some(_) => Check::not(
            name,
            State::Slower,
            "older than glibc 2.35",
            effect,
            "run programs on a newer distribution, or in a container of one",
        ),
        None => Check::not(
            name,
            State::Note,
            "this command has none of its own, so that of programs is not known",
            effect,
            "see that programs use glibc 2.35 or later",
        ),
    }
}

fn rseq(auxv: Option<&[u8]>, release: Option<&str>, tunables: Option<&str>) -> Check {
    let name = "restartable sequences";
    let effect = "malloc and free take a try-lock for each call";
    if tunables.is_some_and(|text| text.split(':').any(|one| one == "glibc.pthread.rseq=0")) {
        return Check::not(
            name,
            State::Slower,
            "switched off by GLIBC_TUNABLES=glibc.pthread.rseq=0",
            effect,
            "run programs without this tunable",
        );
    }
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    let keys =
        |auxv: &[u8]| -> Vec<u64> { auxv.chunks_exact(16).map(|pair| word(&pair[..8])).collect() };
    let told = auxv.is_some_and(|auxv| keys(auxv).contains(&AT_RSEQ_FEATURE_SIZE));
    let release = release.unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if told {
        return Check::ok(name, "the kernel has them");
    }
    // Before 6.3 a kernel does not say.
    if ((4, 18)..(6, 3)).contains(&version) {
        return Check::ok(
            name,
            format!("Linux {}.{} has them, unless built without", version.0, version.1),
        );
    }
    Check::not(
        name,
        State::Slower,
        "the kernel has none",
        effect,
        "boot Linux 4.18 or later with CONFIG_RSEQ; a container of gVisor has none",
    )
}

fn membarrier(has: bool) -> Check {
    if has {
        return Check::ok("membarrier", "the kernel interrupts restartable sequences");
    }
    Check::not(
        "membarrier",
        State::Slower,
        "the kernel or a filter refuses it",
        "free memory on the arrays of other CPUs stays there, and vfork is fork",
        "boot Linux 5.10 or later, and allow membarrier in the filter of the container",
    )
}

fn sandbox(mode: Option<&str>) -> Check {
    match mode {
        Some("2") => Check::not(
            "sandbox",
            State::Note,
            "this process has a filter of system calls (seccomp)",
            "a filter that is smaller than those of systemd and containers may end programs",
            "KMEM_CONF=sandbox:1 for a program that is started in a small one",
        ),
        _ => Check::ok("sandbox", "no filter of system calls"),
    }
}

fn ptrace(scope: Option<&str>, privileged: bool) -> Check {
    let name = "reading processes";
    let remedy = "run kmem as root, or: sysctl kernel.yama.ptrace_scope=0";
    match (scope, privileged) {
        (Some("3"), _) => Check::not(
            name,
            State::Missing,
            "kernel.yama.ptrace_scope is 3",
            "no running process can be read; kmem run, black boxes and core files work",
            "boot with another setting: 3 cannot be changed until then",
        ),
        (_, true) => Check::ok(name, "all processes (CAP_SYS_PTRACE)"),
        (None | Some("0"), _) => Check::not(
            name,
            State::Note,
            "those of this user",
            "processes of other users cannot be read",
            "run kmem as root for these",
        ),
        (Some("1"), _) => Check::not(
            name,
            State::Missing,
            "kernel.yama.ptrace_scope is 1",
            "only processes that this command started itself can be read",
            remedy,
        ),
        (Some(_), _) => Check::not(
            name,
            State::Missing,
            "kernel.yama.ptrace_scope is 2",
            "only root may read running processes",
            remedy,
        ),
    }
}

fn page_map(readable: bool) -> Check {
    if readable {
        return Check::ok("page map", "resident pages are counted");
    }
    Check::not(
        "page map",
        State::Missing,
        "/proc/self/pagemap cannot be opened",
        "untouched memory is not known, and the overhead is an estimate",
        "run kmem outside of the container, or as root",
    )
}

fn overcommit(mode: Option<&str>) -> Check {
    match mode {
        Some("2") => Check::not(
            "overcommit",
            State::Note,
            "strict (vm.overcommit_memory=2)",
            "tables count as used when they are made: 8 MiB for a small program",
            "raise vm.overcommit_ratio where programs are refused memory",
        ),
        mode => Check::ok("overcommit", format!("vm.overcommit_memory={}", mode.unwrap_or("?"))),
    }
}

fn huge(enabled: Option<&str>) -> Check {
    let name = "huge pages";
    let effect = "programs with large heaps miss more in the TLB";
    let remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    let chosen = enabled.and_then(|text| text.split(['[', ']']).nth(1));
    match chosen {
        Some("never") => Check::not(name, State::Slower, "switched off", effect, remedy),
        Some(mode) => Check::ok(name, mode),
        None => Check::not(name, State::Note, "the kernel has none", effect, "none"),
    }
}

fn cores(pattern: Option<&str>, none: bool) -> Check {
    let name = "core files";
    let pattern = pattern.unwrap_or_default();
    if pattern.starts_with('|') {
        let found = format!("they go to a program: {pattern}");
        let effect = "`kmem dump --core` needs the file, which that program keeps or drops";
        let remedy = "fetch it from there, as by `coredumpctl dump`; or use a black box";
        return Check::not(name, State::Note, found, effect, remedy);
    }
    if none {
        let effect = "a process that crashes leaves no books but those of its black box";
        let remedy = "ulimit -c unlimited, or KMEM_CONF=blackbox:PATH";
        return Check::not(name, State::Note, "switched off (ulimit -c)", effect, remedy);
    }
    Check::ok(name, pattern)
}

fn perf_maps(dir: &Path) -> Check {
    let name = "names of run-time code";
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_map = |name: &str| name.starts_with("perf-") && name.ends_with(".map");
    let maps = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_map)).count();
    if maps != 0 {
        return Check::ok(name, format!("perf maps in /tmp: {maps}"));
    }
    Check::not(
        name,
        State::Note,
        "no program writes a perf map",
        "code that node, Java or Python compile at run time has no names",
        "node --perf-basic-prof, java -XX:+DumpPerfMapAtExit, python3 -X perf",
    )
}

fn debug_files(dir: &Path) -> Check {
    if dir.join(".build-id").is_dir() {
        return Check::ok("debug files", dir.join(".build-id").display().to_string());
    }
    Check::not(
        "debug files",
        State::Note,
        "none in /usr/lib/debug",
        "call sites in stripped programs are MODULE+0xOFFSET, without function and line",
        "install the debug packages of these programs (-dbgsym, -debuginfo)",
    )
}

fn allocinfo() -> Check {
    match Target::Kernel.read(&Query::default()) {
        Ok(reading) => Check::ok("books of the kernel", format!("{} rows", reading.sites.len())),
        Err(failure) => Check::not(
            "books of the kernel",
            State::Note,
            failure.error.to_string(),
            "`kmem top --kernel` and `kmem kernel` have nothing to show",
            "docs/kernel-allocinfo.md says how to get them",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_to_read_processes_are_told() {
        let of = |scope, privileged| ptrace(scope, privileged).state;
        assert_eq!(of(Some("0"), true), State::Ok);
        assert_eq!(of(None, false), State::Note);
        for scope in ["1", "2"] {
            assert_eq!(of(Some(scope), true), State::Ok);
            assert_eq!(of(Some(scope), false), State::Missing);
        }
        assert_eq!(of(Some("3"), true), State::Missing);
        assert!(may_trace("Name:\ta\nCapEff:\t0000000000080000\n"));
        assert!(!may_trace("CapEff:\t0000000000040000\nCapBnd:\tffffffffffffffff\n"));
    }

    #[test]
    fn restartable_sequences_are_known_by_the_kernel_and_the_tunables() {
        let auxv: Vec<u8> =
            [6_u64, 4096, 27, 28, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let of = |auxv, release, tunables| rseq(auxv, release, tunables).state;
        assert_eq!(of(Some(&auxv[..]), Some("6.18.1"), None), State::Ok);
        assert_eq!(of(Some(&auxv[..16]), Some("5.15.0-91-generic"), None), State::Ok);
        assert_eq!(of(Some(&auxv[..16]), Some("6.18.1"), None), State::Slower);
        assert_eq!(of(Some(&auxv[..16]), Some("4.4.0"), None), State::Slower);
        let off = "glibc.malloc.check=1:glibc.pthread.rseq=0";
        assert_eq!(of(Some(&auxv[..]), None, Some(off)), State::Slower);
        assert_eq!(of(None, None, None), State::Slower);
    }

    #[test]
    fn settings_of_the_kernel_are_judged() {
        assert_eq!(huge(Some("always [madvise] never")).state, State::Ok);
        assert_eq!(huge(Some("always madvise [never]")).state, State::Slower);
        assert_eq!(cores(Some("|/usr/lib/systemd/systemd-coredump %P"), false).state, State::Note);
        assert_eq!(cores(Some("core"), true).state, State::Note);
        assert_eq!(cores(Some("core.%p"), false).found, "core.%p");
        assert_eq!(overcommit(Some("2")).state, State::Note);
        assert_eq!(page(65536).state, State::Broken);
        assert_eq!(membarrier(false).state, State::Slower);
        assert_eq!(glibc(Some(b"x\0GLIBC_2.34\0")).state, State::Slower);
        assert_eq!(glibc(Some(b"x\0GLIBC_2.35\0")).state, State::Ok);
        assert_eq!(sandbox(Some("2")).state, State::Note);
    }
}
