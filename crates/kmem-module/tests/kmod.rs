//! The cases of the kernel's kmod self-test (tools/testing/selftests/kmod/kmod.sh), by number.
//! `get_fs_type` is a request for the alias `fs-NAME`, as it is there.

mod harness;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use harness::{EMPTY, config, directory, module, nothing_is_left};
use kmem_module::stats::Stat;
use kmem_module::symbols::{Core, Definition};
use kmem_module::{Config, Errno, Loader};
use kmem_testing::is_not_root;
use tempfile::TempDir;

const MODULE: &str = "test_module";
const FILESYSTEM: &str = "fs-kmodfs";
/// Requests that the kernel serves concurrently.
const LIMIT: u32 = 50;

/// A directory with a module, and with a module that has the alias of a file system, as depmod
/// leaves it or as cc does.
fn modules() -> TempDir {
    let dir = directory();
    module(dir.path(), MODULE, EMPTY);
    module(dir.path(), "kmodfs", &format!("{EMPTY} MODULE_ALIAS(\"{FILESYSTEM}\");"));
    dir
}

fn loader(path: &[&Path]) -> Loader {
    let search_path = path.iter().map(|path| path.to_path_buf()).collect();
    Loader::new(Config { search_path, most_requests: LIMIT, ..config() }).unwrap()
}

/// Results of `threads` threads that request modules concurrently, by these names in turn.
fn requests(loader: &Loader, threads: u32, names: &[&str]) -> Vec<Result<(), Errno>> {
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads as usize)
            .map(|number| {
                let (barrier, name) = (&barrier, names[number % names.len()]);
                scope.spawn(move || {
                    barrier.wait();
                    loader.request_module(name).map_err(|e| e.errno)
                })
            })
            .collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn unload_all(loader: &Loader) {
    for info in loader.modules(false) {
        loader.delete_module(&info.name, 0).unwrap();
    }
    nothing_is_left(loader);
}

/// All succeed, each module is loaded once per round, nothing is wasted.
fn storm(threads: u32, rounds: u64, names: &[&str]) {
    let dir = modules();
    let loader = loader(&[dir.path()]);
    for round in 1..=rounds {
        assert_eq!(requests(&loader, threads, names), vec![Ok(()); threads as usize]);
        assert_eq!(loader.stats().get(Stat::Loaded), round * names.len() as u64);
        unload_all(&loader);
    }
    assert_eq!(loader.stats().wasted(), 0);
}

#[test]
fn kmod_0001_an_empty_name_is_an_error() {
    let dir = modules();
    let loader = loader(&[dir.path()]);
    for _ in 0..3 {
        assert_eq!(requests(&loader, 1, &[""]), [Err(Errno::ENOENT)]);
    }
    nothing_is_left(&loader);
}

#[test]
fn kmod_0002_missing_modules_and_file_systems_are_errors() {
    let dir = modules();
    let loader = loader(&[dir.path()]);
    for name in ["nosuchmodule", "fs-nosuchfs"] {
        for _ in 0..3 {
            let error = loader.request_module(name).unwrap_err();
            assert_eq!(error.errno, Errno::ENOENT);
            assert!(error.to_string().contains("no module or alias"), "{error}");
        }
    }
    nothing_is_left(&loader);
}

#[test]
fn kmod_0003_one_thread_for_a_file_system() {
    storm(1, 1, &[FILESYSTEM]);
}

#[test]
fn kmod_0004_two_threads_for_a_file_system() {
    storm(2, 1, &[FILESYSTEM]);
}

#[test]
fn kmod_0005_fifty_threads_for_a_module_ten_times() {
    storm(LIMIT, 10, &[MODULE]);
}

#[test]
fn kmod_0006_fifty_threads_for_a_file_system_ten_times() {
    storm(LIMIT, 10, &[FILESYSTEM]);
}

#[test]
fn kmod_0007_fifty_threads_for_both_ten_times() {
    storm(LIMIT, 10, &[MODULE, FILESYSTEM]);
}

#[test]
fn kmod_0008_a_sixth_more_threads_than_are_served_150_times_for_a_module() {
    storm(LIMIT + LIMIT / 6, 150, &[MODULE]);
}

#[test]
fn kmod_0009_a_quarter_more_threads_than_are_served_150_times_for_a_file_system() {
    storm(LIMIT + LIMIT / 4, 150, &[FILESYSTEM]);
}

#[test]
fn kmod_0010_a_directory_that_is_not_there_is_an_error() {
    let loader = loader(&[Path::new("/nonexistent/modules")]);
    assert_eq!(requests(&loader, 1, &[MODULE]), [Err(Errno::ENOENT)]);
    // One that is there beside it is enough.
    let dir = modules();
    let loader = self::loader(&[Path::new("/nonexistent/modules"), dir.path()]);
    assert_eq!(requests(&loader, 1, &[MODULE]), [Ok(())]);
    unload_all(&loader);
}

#[test]
fn kmod_0011_without_a_search_path_nothing_is_loaded_and_that_is_no_success() {
    let loader = loader(&[]);
    let error = loader.request_module(MODULE).unwrap_err();
    assert_eq!(error.errno, Errno::ENOENT);
    assert!(error.to_string().contains("no search path"), "{error}");
}

#[test]
fn kmod_0012_addresses_in_the_list_are_for_those_who_may_know_them() {
    let dir = modules();
    let loader = loader(&[dir.path()]);
    loader.request_module(MODULE).unwrap();
    let base = loader.modules(true)[0].base;
    assert_ne!(base, 0);
    assert!(loader.proc_modules(true).ends_with(&format!(" Live {base:#018x}\n")));
    assert!(loader.proc_modules(false).ends_with(" Live 0x0000000000000000\n"));
    unload_all(&loader);
}

#[test]
fn kmod_0013_nobody_else_reads_addresses_out_of_the_process() {
    // As another user: the board is memory of this process, which the kernel does not show.
    if is_not_root("become another user") {
        return;
    }
    let dir = modules();
    let loader = loader(&[dir.path()]);
    loader.request_module(MODULE).unwrap();
    let path = format!("/proc/{}/maps", std::process::id());
    let mut command = Command::new("head");
    let output =
        std::os::unix::process::CommandExt::uid(&mut command, 65534).args(["-c1", &path]).output();
    assert!(!output.unwrap().status.success());
    unload_all(&loader);
}

/// Init waits until the test lets it go on.
struct Gate(&'static [AtomicU32; 2]);

impl Core for Gate {
    fn find(&self, name: &std::ffi::CStr) -> Option<Definition> {
        let value = self.0.as_ptr() as u64;
        match name.to_bytes() {
            b"gate" => Some(Definition { value, version: None, gpl: false }),
            _ => harness::Host.find(name),
        }
    }
}

#[test]
fn so_many_requests_are_served_at_a_time_and_the_rest_wait() {
    let dir = directory();
    let names: Vec<String> = (0..5).map(|number| format!("slow{number}")).collect();
    for name in &names {
        module(
            dir.path(),
            name,
            "extern unsigned int gate[2];
             static int __init go(void) { __atomic_add_fetch(&gate[0], 1, __ATOMIC_SEQ_CST);
             while (!__atomic_load_n(&gate[1], __ATOMIC_ACQUIRE)) ; return 0; } module_init(go);
             static void stop(void) { } module_exit(stop);",
        );
    }
    let words: &'static [AtomicU32; 2] = Box::leak(Box::default());
    let search_path = vec![dir.path().to_path_buf()];
    let core = Box::new(Gate(words));
    let loader = Loader::new(Config { core, search_path, most_requests: 2, ..config() }).unwrap();
    let loader = &loader;
    std::thread::scope(|scope| {
        let all: Vec<_> =
            names.iter().map(|name| scope.spawn(|| loader.request_module(name))).collect();
        while words[0].load(Ordering::Acquire) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(
            loader.modules(false).len(),
            2,
            "two inits run, and no other request has memory"
        );
        words[1].store(1, Ordering::Release);
        all.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    assert_eq!(words[0].load(Ordering::Acquire), 5);
    unload_all(loader);
}

#[test]
fn dependencies_are_loaded_first_soft_ones_if_they_are_there_and_circles_refused() {
    let dir = directory();
    let provide = |name: &str, more: &str| -> PathBuf {
        module(
            dir.path(),
            name,
            &format!("int {name}_here = 1; EXPORT_SYMBOL({name}_here); {more}"),
        )
    };
    provide("low", "");
    provide("soft", "");
    provide("mid", "extern int low_here; int *mid_p = &low_here; MODULE_DEPENDS(\"low\");");
    provide(
        "top",
        "extern int mid_here; int *top_p = &mid_here; MODULE_DEPENDS(\"mid\");
         MODULE_SOFTDEP(\"pre: soft absent\"); MODULE_ALIAS(\"dev-[0-9]*\");",
    );
    let loader = loader(&[dir.path()]);
    loader.request_module("dev-7x").unwrap();
    let names: Vec<String> = loader.modules(false).into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["low", "mid", "soft", "top"]);
    // It is there.
    loader.request_module("top").unwrap();
    for name in ["top", "soft", "mid", "low"] {
        loader.delete_module(name, 0).unwrap();
    }
    nothing_is_left(&loader);
    provide("ring_a", "MODULE_DEPENDS(\"ring_b\");");
    provide("ring_b", "MODULE_DEPENDS(\"ring_a\");");
    assert_eq!(loader.request_module("ring_a").unwrap_err().errno, Errno::EDEADLK);
    provide("wants", "MODULE_DEPENDS(\"nowhere\");");
    assert_eq!(loader.request_module("wants").unwrap_err().errno, Errno::ENOENT);
    // depmod's files, if there are some, are what counts.
    fs::write(dir.path().join("modules.dep"), "mid.ko: low.ko\nlow.ko:\n").unwrap();
    assert_eq!(loader.request_module("top").unwrap_err().errno, Errno::ENOENT);
    loader.request_module("mid").unwrap();
    unload_in_order(&loader, &["mid", "low"]);
}

#[test]
fn what_depmod_wrote_is_loaded_in_its_order_packed_or_not() {
    let dir = directory();
    let make = |name: &str, more: &str| {
        module(dir.path(), name, &format!("int {name}_v = 1; EXPORT_SYMBOL({name}_v); {more}"))
    };
    make("dep_low", "");
    make("dep_soft", "extern int dep_top_v; int *soft_p = &dep_top_v;");
    let mid = make("dep_mid", "extern int dep_low_v; int *mid_p = &dep_low_v;");
    make("dep_top", "extern int dep_low_v, dep_mid_v; int *top_p[] = { &dep_low_v, &dep_mid_v };");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&fs::read(&mid).unwrap()).unwrap();
    fs::create_dir(dir.path().join("kernel")).unwrap();
    fs::write(dir.path().join("kernel/dep-mid.ko.gz"), packed.finish().unwrap()).unwrap();
    fs::remove_file(mid).unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write(
        "modules.dep",
        "dep_top.ko: kernel/dep-mid.ko.gz dep_low.ko\nkernel/dep-mid.ko.gz: dep_low.ko\n\
         dep_low.ko:\ndep_soft.ko:\n",
    );
    write("modules.alias", "alias top-* dep_top\n");
    write("modules.softdep", "softdep dep_top post: dep_soft\n");
    let loader = loader(&[dir.path()]);
    loader.request_module("top-7").unwrap();
    assert_eq!(loader.modules(false).len(), 4);
    unload_in_order(&loader, &["dep_soft", "dep_top", "dep_mid", "dep_low"]);
}

fn unload_in_order(loader: &Loader, names: &[&str]) {
    for name in names {
        loader.delete_module(name, 0).unwrap();
    }
    nothing_is_left(loader);
}
