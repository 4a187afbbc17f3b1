//! Every call to the platform fails once, from the first to the last. Each such load ends in an
//! error and leaves nothing, and the next one succeeds. Each read returns at most half of what the
//! loader asks for.

mod harness;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use harness::{compile, config, directory, nothing_is_left};
use kmem_module::loader::flags;
use kmem_module::os::{Linux, Os, Protection};
use kmem_module::{Config, Errno, Loader};

/// Linux, on which one call fails.
struct Failing {
    /// Calls until then.
    left: AtomicI64,
}

impl Failing {
    fn call(&self) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Ok(())
    }
}

impl Os for Failing {
    fn map(&self, len: usize) -> io::Result<NonNull<u8>> {
        self.call()?;
        Linux.map(len)
    }

    unsafe fn protect(&self, at: NonNull<u8>, len: usize, to: Protection) -> io::Result<()> {
        self.call()?;
        // SAFETY: the caller's promise.
        unsafe { Linux.protect(at, len, to) }
    }

    unsafe fn unmap(&self, at: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { Linux.unmap(at, len) }
    }

    fn reserve(&self, _bytes: usize) -> io::Result<()> {
        self.call()
    }

    fn read_at(&self, file: BorrowedFd<'_>, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.call()?;
        // At most half of what is asked for: the rest must be asked for again.
        let len = into.len().div_ceil(2);
        Linux.read_at(file, &mut into[..len], offset)
    }
}

/// Loads with the first, second, .. call failing, until none does; how many there were.
fn exhaust(load: impl Fn(&Loader) -> kmem_module::Result<()>) -> i64 {
    // They share their books.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let os = Arc::new(Failing { left: AtomicI64::new(i64::MAX) });
    let loader = Loader::new(Config { os: os.clone(), ..config() }).unwrap();
    let mut degraded = Vec::new();
    for fail_at in 0.. {
        os.left.store(fail_at, Ordering::Relaxed);
        let result = load(&loader);
        let reached = os.left.load(Ordering::Relaxed) < 0;
        if !reached {
            result.unwrap();
            os.left.store(i64::MAX, Ordering::Relaxed);
            loader.delete_module("everything", 0).unwrap();
            nothing_is_left(&loader);
            assert_eq!(degraded.len(), 2, "{degraded:?}");
            return fail_at;
        }
        let Err(error) = result else {
            // Sealing what init initialised: it stays writable. Or giving the memory of init back.
            loader.delete_module("everything", 0).unwrap();
            nothing_is_left(&loader);
            degraded.push(fail_at);
            continue;
        };
        assert!([Errno::ENOMEM, Errno::EIO].contains(&error.errno), "call {fail_at}: {error}");
        nothing_is_left(&loader);
        assert!(harness::all_books("everything").is_empty());
    }
    unreachable!()
}

#[test]
fn a_load_from_a_file_survives_every_failure() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let calls = exhaust(|loader| {
        let file = File::open(&path).unwrap();
        loader.finit_module(file.as_raw_fd(), "text=abc", 0)
    });
    assert!(calls > 20, "{calls}");
}

#[test]
fn a_load_from_memory_survives_every_failure() {
    let dir = directory();
    let bytes = fs::read(compile(dir.path(), "everything", &[])).unwrap();
    let calls = exhaust(|loader| loader.init_module(&bytes, ""));
    assert!(calls > 5, "{calls}");
}

#[test]
fn a_load_of_a_compressed_file_survives_every_failure() {
    let dir = directory();
    let path = compile(dir.path(), "everything", &[]);
    let packed = dir.path().join("everything.ko.xz");
    let mut encoder = liblzma::read::XzEncoder::new(File::open(&path).unwrap(), 6);
    io::copy(&mut encoder, &mut File::create(&packed).unwrap()).unwrap();
    let calls = exhaust(|loader| {
        let file = File::open(&packed).unwrap();
        loader.finit_module(file.as_raw_fd(), "", flags::COMPRESSED_FILE)
    });
    assert!(calls > 20, "{calls}");
}
