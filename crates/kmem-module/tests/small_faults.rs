//! Every small allocation of a request fails once, first to last: names, tables, texts, decoders.
//! Each time that is an error, with nothing left and the statistics exact, and never the end of the
//! process. `faults.rs` does the same to memory of the platform.

mod harness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;

use harness::{compile, directory, loader, module, nothing_is_left};
use kmem_module::loader::{delete, flags};
use kmem_module::stats::Stat;
use kmem_module::{Errno, Loader, Result};

thread_local! {
    /// Allocations of this thread until one fails; below zero none does.
    static LEFT: Cell<i64> = const { Cell::new(-1) };
}

/// The system's allocator, out of which one allocation fails.
struct Failing;

impl Failing {
    fn fails() -> bool {
        LEFT.with(|left| {
            let before = left.get();
            if before >= 0 {
                left.set(before - 1);
            }
            before == 0
        })
    }
}

// SAFETY: the system's, or nothing.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if Self::fails() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Self::fails() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static FAILING: Failing = Failing;

/// Runs `request` with its allocation of this number failing. Returns its result, and true if it
/// reached that allocation.
fn with_fault<T>(number: i64, request: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(number);
    let result = request();
    (result, LEFT.replace(-1) < 0)
}

fn failed(loader: &Loader) -> u64 {
    let stats = loader.stats();
    [Stat::FailedKreads, Stat::FailedDecompress, Stat::FailedBecoming, Stat::FailedLoads]
        .iter()
        .map(|&stat| stats.get(stat))
        .sum()
}

/// Makes the first, second, .. allocation of `request` fail, until none fails. Each attempt has a
/// thread of its own, and a loader that `prepare` made ready. `undo` follows each attempt. The last
/// `request` ends with `errno`, 0 for success. Returns the number of allocations.
fn exhaust(
    errno: i32,
    prepare: impl Fn(&Loader) + Sync,
    request: impl Fn(&Loader) -> Result<()> + Sync,
    undo: impl Fn(&Loader) + Sync,
) -> i64 {
    let (prepare, request, undo) = (&prepare, &request, &undo);
    let attempt = |number: i64| {
        let loader = loader();
        prepare(&loader);
        let before = (loader.gauge().now(), loader.modules(true), failed(&loader));
        let loaded = loader.stats().get(Stat::Loaded);
        let (result, reached) = with_fault(number, || request(&loader));
        let got = result.as_ref().map_or_else(|error| error.errno.0, |()| 0);
        if got == 0 {
            assert_eq!(errno, 0);
            assert_eq!((failed(&loader), loader.stats().get(Stat::Loaded)), (before.2, loaded + 1));
        } else {
            // A text that there was no memory for leaves the error as it is.
            assert!(got == errno || (reached && got == Errno::ENOMEM.0), "{number}: {result:?}");
            let now = (loader.gauge().now(), loader.modules(true), failed(&loader));
            assert_eq!(now, (before.0, before.1, before.2 + 1), "{number}: {result:?}");
            assert_eq!(loader.stats().get(Stat::Loaded), loaded);
            // The request then goes on as if nothing had been.
            let again = request(&loader).map_or_else(|error| error.errno.0, |()| 0);
            assert_eq!(again, errno, "after {number}");
        }
        undo(&loader);
        nothing_is_left(&loader);
        assert_eq!(loader.waiting(), 0);
        reached
    };
    (0..)
        .find(|&number| {
            let attempt = &attempt;
            // A new thread allocates anew what threads keep for themselves.
            std::thread::scope(|scope| !scope.spawn(move || attempt(number)).join().unwrap())
        })
        .unwrap_or_default()
}

fn nothing(_: &Loader) {}

fn unload(loader: &Loader, name: &str) {
    loader.delete_module(name, delete::FORCE).unwrap();
}

fn open(path: &Path) -> (File, RawFd) {
    let file = File::open(path).unwrap();
    let fd = file.as_raw_fd();
    (file, fd)
}

#[test]
fn a_load_from_a_file_or_from_memory_survives_each() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let (_file, fd) = open(&path);
    let args = "text=abc name=x list=1,2";
    let load = |loader: &Loader| loader.finit_module(fd, args, 0);
    assert!(exhaust(0, nothing, load, |loader| unload(loader, "everything")) > 20);
    let bytes = fs::read(&path).unwrap();
    let load = |loader: &Loader| loader.init_module(&bytes, args);
    assert!(exhaust(0, nothing, load, |loader| unload(loader, "everything")) > 10);
}

#[test]
fn a_load_of_a_compressed_file_survives_each() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let bytes = fs::read(path).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&bytes).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 6);
    xz.write_all(&bytes).unwrap();
    let zstd = zstd::encode_all(&bytes[..], 9).unwrap();
    for packed in [gzip.finish().unwrap(), xz.finish().unwrap(), zstd] {
        let path = dir.path().join("packed");
        fs::write(&path, &packed).unwrap();
        let (_file, fd) = open(&path);
        let load = |loader: &Loader| loader.finit_module(fd, "", flags::COMPRESSED_FILE);
        assert!(exhaust(0, nothing, load, |loader| unload(loader, "everything")) > 20);
        // Cut off.
        fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let (_file, fd) = open(&path);
        let load = |loader: &Loader| loader.finit_module(fd, "", flags::COMPRESSED_FILE);
        exhaust(Errno::EIO.0, nothing, load, nothing);
    }
}

#[test]
fn a_module_that_uses_another_and_its_unloading_survive_each() {
    let dir = directory();
    let base = module(dir.path(), "sf_base", "int sf_base = 1; EXPORT_SYMBOL_VERSION(sf_base, 2);");
    let text = "extern int sf_base; int *sf_user = &sf_base;
                IMPORT_SYMBOL_VERSION(sf_base, 2); EXPORT_SYMBOL(sf_user);";
    let user = module(dir.path(), "sf_user", text);
    let (_base, base) = open(&base);
    let (_user, user) = open(&user);
    let prepare = |loader: &Loader| loader.finit_module(base, "", 0).unwrap();
    let load = |loader: &Loader| loader.finit_module(user, "", 0);
    let undo = |loader: &Loader| {
        assert_eq!(loader.modules(false)[0].users, ["sf_user"]);
        unload(loader, "sf_user");
        unload(loader, "sf_base");
    };
    assert!(exhaust(0, prepare, load, undo) > 10);
    for number in 0.. {
        let loader = loader();
        prepare(&loader);
        load(&loader).unwrap();
        // A module in use is not unloaded, and the error says so even without memory for its text.
        let (result, _) = with_fault(number, || loader.delete_module("sf_base", 0));
        assert_eq!(result.unwrap_err().errno, Errno::EAGAIN);
        let (result, reached) = with_fault(number, || loader.delete_module("sf_user", 0));
        if let Err(error) = result {
            assert_eq!(error.errno, Errno::ENOMEM);
            unload(&loader, "sf_user");
        }
        unload(&loader, "sf_base");
        nothing_is_left(&loader);
        if !reached {
            break;
        }
    }
}

#[test]
fn what_is_refused_anyhow_survives_each() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let (_file, fd) = open(&path);
    let bytes = fs::read(&path).unwrap();
    for (args, errno) in
        [("number=x", Errno::EINVAL), ("tiny=300", Errno::ERANGE), ("a=\"", Errno::EINVAL)]
    {
        exhaust(errno.0, nothing, |loader| loader.finit_module(fd, args, 0), nothing);
    }
    let cut = &bytes[..bytes.len() / 2];
    exhaust(Errno::ENOEXEC.0, nothing, |loader| loader.init_module(cut, ""), nothing);
    let fails = "static int __init go(void) { return -5; } module_init(go);";
    let (_fails, fails) = open(&module(dir.path(), "sf_fails", fails));
    exhaust(Errno::EIO.0, nothing, |loader| loader.finit_module(fails, "", 0), nothing);
    let (_lost, lost) = open(&module(dir.path(), "sf_lost", "extern int sf_no; int *p = &sf_no;"));
    exhaust(Errno::ENOENT.0, nothing, |loader| loader.finit_module(lost, "", 0), nothing);
    // Duplicates.
    let load = |loader: &Loader| loader.finit_module(fd, "", 0);
    let prepare = |loader: &Loader| load(loader).unwrap();
    let undo = |loader: &Loader| unload(loader, "everything");
    exhaust(Errno::EEXIST.0, prepare, load, undo);
    exhaust(Errno::EEXIST.0, prepare, |loader| loader.init_module(&bytes, ""), undo);
}
