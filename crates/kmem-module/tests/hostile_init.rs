//! Inits that harm their loader, and loads that wait for each other (D29 to D33).

mod harness;

use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

use harness::{books, config, directory, insmod, module, nothing_is_left};
use kmem_module::symbols::{Core, Definition};
use kmem_module::{Config, Errno, Loader};

/// The core of these tests: a gate that init waits at, and functions that call the loader.
struct WithCalls(&'static Shared);

#[derive(Default)]
struct Shared {
    /// How often init began; whether it may go on; what it returns.
    gate: [AtomicI32; 3],
    loader: std::sync::OnceLock<Loader>,
}

impl Core for WithCalls {
    fn find(&self, name: &CStr) -> Option<Definition> {
        let value = match name.to_bytes() {
            b"gate" => self.0.gate.as_ptr() as u64,
            b"shared" => std::ptr::from_ref(self.0) as u64,
            b"host_delete" => host_delete as *const () as u64,
            b"host_panic" => host_panic as *const () as u64,
            _ => return harness::Host.find(name),
        };
        Some(Definition { value, version: None, gpl: false })
    }
}

unsafe extern "C" fn host_delete(shared: &'static Shared, name: *const c_char) -> c_int {
    // SAFETY: the module gives a string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    shared.loader.get().unwrap().delete_module(name, 0).map_or_else(|e| -e.errno.0, |()| 0)
}

extern "C-unwind" fn host_panic() {
    std::panic::resume_unwind(Box::new("init gives up"));
}

fn host(search_path: &[&Path]) -> (&'static Shared, Loader) {
    host_with(search_path, 50)
}

fn host_with(search_path: &[&Path], most_requests: u32) -> (&'static Shared, Loader) {
    let shared: &'static Shared = Box::leak(Box::default());
    let search_path = search_path.iter().map(|path| path.to_path_buf()).collect();
    let core = Box::new(WithCalls(shared));
    let loader = Loader::new(Config { core, search_path, most_requests, ..config() }).unwrap();
    let _ = shared.loader.set(loader.clone());
    (shared, loader)
}

/// A module with an init of this text; it may call what the core has.
fn with_init(dir: &Path, name: &str, init: &str) -> PathBuf {
    let text = format!(
        "extern int gate[3]; extern char shared[];
         int host_delete(void *, const char *); void host_panic(void);
         #include <stdlib.h>\n#include <unistd.h>\n#include <pthread.h>\n#include <sys/wait.h>
         static inline int wait_at_gate(void) {{ __atomic_add_fetch(&gate[0], 1, __ATOMIC_SEQ_CST);
            while (!__atomic_load_n(&gate[1], __ATOMIC_ACQUIRE)) sched_yield(); return gate[2]; }}
         static int __init go(void) {{ {init} }} module_init(go);
         static void stop(void) {{ }} module_exit(stop);"
    );
    module(dir, name, &text)
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

#[test]
fn d29_errors_of_init_leave_nothing_of_memory_tags_and_symbols() {
    let dir = directory();
    let (_, loader) = host(&[]);
    let path = with_init(dir.path(), "fails", "kfree(kmalloc(10, 0)); return -5;");
    for _ in 0..3 {
        assert_eq!(insmod(&loader, &path, "").unwrap_err().errno, Errno::EIO);
        nothing_is_left(&loader);
        assert!(books("fails").is_empty());
    }
}

#[test]
fn d29_a_recursive_load_is_an_error_and_so_is_a_circle_of_threads() {
    let dir = directory();
    let (_, loader) = host(&[dir.path()]);
    let own = with_init(dir.path(), "own", "return request_module(\"own\");");
    assert_eq!(insmod(&loader, &own, "").unwrap_err().errno, Errno::EDEADLK);
    assert_eq!(loader.request_module("own").unwrap_err().errno, Errno::EDEADLK);
    nothing_is_left(&loader);
    // Each waits for the other, once both have begun.
    let both = "__atomic_add_fetch(&gate[0], 1, __ATOMIC_SEQ_CST);
                while (__atomic_load_n(&gate[0], __ATOMIC_ACQUIRE) < 2) sched_yield();";
    let a =
        with_init(dir.path(), "circle_a", &format!("{both} return request_module(\"circle_b\");"));
    let b =
        with_init(dir.path(), "circle_b", &format!("{both} return request_module(\"circle_a\");"));
    let loader = &loader;
    let results = thread::scope(|scope| {
        let all =
            [&a, &b].map(|path| scope.spawn(move || insmod(loader, path, "").map_err(|e| e.errno)));
        all.map(|thread| thread.join().unwrap())
    });
    assert!(results.contains(&Err(Errno::EDEADLK)), "{results:?}");
    for name in ["circle_a", "circle_b"] {
        let _ = loader.delete_module(name, 0);
    }
    nothing_is_left(loader);
}

#[test]
fn d29_init_may_not_unload_itself_and_may_fork() {
    let dir = directory();
    let (_, loader) = host(&[]);
    let path = with_init(
        dir.path(),
        "unloads",
        "return host_delete(shared, \"unloads\") == -16 ? 0 : -1;",
    );
    insmod(&loader, &path, "").unwrap();
    let forks = with_init(
        dir.path(),
        "forks",
        "int status; pid_t pid = fork(); if (pid == 0) _exit(7);
         waitpid(pid, &status, 0); return WEXITSTATUS(status) == 7 ? 0 : -1;",
    );
    insmod(&loader, &forks, "").unwrap();
    loader.delete_module("unloads", 0).unwrap();
    loader.delete_module("forks", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn d29_an_init_that_does_not_end_holds_up_nobody_else() {
    let dir = directory();
    let (shared, loader) = host(&[]);
    let endless = with_init(dir.path(), "endless", "return wait_at_gate();");
    let other = with_init(dir.path(), "other", "return 0;");
    thread::scope(|scope| {
        let loops = scope.spawn(|| insmod(&loader, &endless, ""));
        wait_until(|| shared.gate[0].load(Ordering::Acquire) == 1);
        for _ in 0..3 {
            insmod(&loader, &other, "").unwrap();
            loader.delete_module("other", 0).unwrap();
        }
        assert_eq!(loader.modules(false)[0].state, "Loading");
        shared.gate[1].store(1, Ordering::Release);
        loops.join().unwrap().unwrap();
    });
    loader.delete_module("endless", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn d29_a_crash_in_init_is_the_processs() {
    if std::env::var_os("CRASH").is_none() {
        let name = "d29_a_crash_in_init_is_the_processs";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("CRASH", "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
        return;
    }
    let dir = directory();
    let (_, loader) = host(&[]);
    let path = with_init(dir.path(), "crashes", "*(volatile int *)8 = 1; return 0;");
    let _ = insmod(&loader, &path, "");
}

/// A thread that never returns from init gives up the load it began, and a thread that waits for
/// the module takes over.
fn takes_over(name: &str, leave: &str) {
    let dir = directory();
    let (shared, loader) = host(&[]);
    let path = with_init(
        dir.path(),
        name,
        &format!(
            "int first = gate[0] == 0; int result = wait_at_gate();
             if (first) {{ {leave} }} return result;"
        ),
    );
    let begins = {
        let (loader, path) = (loader.clone(), path.clone());
        // Never joined: the standard library does not expect threads that end like that.
        move || drop(insmod(&loader, &path, ""))
    };
    drop(thread::Builder::new().spawn(begins).unwrap());
    wait_until(|| shared.gate[0].load(Ordering::Acquire) == 1);
    thread::scope(|scope| {
        let waits = scope.spawn(|| insmod(&loader, &path, ""));
        wait_until(|| loader.waiting() == 1);
        shared.gate[1].store(1, Ordering::Release);
        waits.join().unwrap().unwrap();
    });
    assert_eq!(
        shared.gate[0].load(Ordering::Acquire),
        2,
        "init ran again, for the one that waited"
    );
    loader.delete_module(name, 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn d31_a_thread_that_exits_in_init_does_not_hold_up_others() {
    takes_over("exits", "pthread_exit(0);");
}

#[test]
fn d31_a_thread_that_is_cancelled_in_init_does_not_hold_up_others() {
    takes_over("cancelled", "pthread_cancel(pthread_self()); pthread_testcancel();");
}

#[test]
fn d31_requests_that_do_not_come_back_give_their_places_back() {
    let dir = directory();
    with_init(
        dir.path(),
        "leaves",
        "__atomic_add_fetch(&gate[0], 1, __ATOMIC_SEQ_CST);
         if (!__atomic_load_n(&gate[1], __ATOMIC_ACQUIRE)) pthread_exit(0); return 0;",
    );
    let (shared, loader) = host_with(&[dir.path()], 1);
    for begun in 1..=3 {
        let loader = loader.clone();
        drop(thread::Builder::new().spawn(move || loader.request_module("leaves")).unwrap());
        wait_until(|| shared.gate[0].load(Ordering::Acquire) == begun);
    }
    shared.gate[1].store(1, Ordering::Release);
    loader.request_module("leaves").unwrap();
    loader.delete_module("leaves", 0).unwrap();
    nothing_is_left(&loader);
}

#[test]
fn d31_a_signal_ends_waiting() {
    extern "C" fn nothing(_: c_int) {}
    let dir = directory();
    let (shared, loader) = host(&[]);
    let path = with_init(dir.path(), "slow", "return wait_at_gate();");
    // SAFETY: a handler that does nothing, without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
    let loader = &loader;
    thread::scope(|scope| {
        let winner = scope.spawn(|| insmod(loader, &path, ""));
        wait_until(|| shared.gate[0].load(Ordering::Acquire) == 1);
        let (send, receive) = std::sync::mpsc::channel();
        let path = &path;
        let waits = scope.spawn(move || {
            // SAFETY: asks for a number.
            send.send(unsafe { libc::pthread_self() }).unwrap();
            insmod(loader, path, "")
        });
        let waiter = receive.recv().unwrap();
        while !waits.is_finished() {
            wait_until(|| loader.waiting() == 1 || waits.is_finished());
            // SAFETY: a thread that has not been joined.
            unsafe { libc::pthread_kill(waiter, libc::SIGUSR2) };
            thread::yield_now();
        }
        assert_eq!(waits.join().unwrap().unwrap_err().errno, Errno::EINTR);
        shared.gate[1].store(1, Ordering::Release);
        winner.join().unwrap().unwrap();
    });
    loader.delete_module("slow", 0).unwrap();
    nothing_is_left(loader);
}

#[test]
fn d33_a_module_is_not_unloaded_while_init_runs_nor_twice() {
    let dir = directory();
    let (shared, loader) = host(&[]);
    let path = with_init(dir.path(), "busy", "return wait_at_gate();");
    thread::scope(|scope| {
        let winner = scope.spawn(|| insmod(&loader, &path, ""));
        wait_until(|| shared.gate[0].load(Ordering::Acquire) == 1);
        assert_eq!(loader.delete_module("busy", 0).unwrap_err().errno, Errno::EBUSY);
        assert_eq!(loader.modules(false)[0].state, "Loading");
        shared.gate[1].store(1, Ordering::Release);
        winner.join().unwrap().unwrap();
    });
    let deleted: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| loader.delete_module("busy", 0))).collect();
        all.into_iter().map(|thread| thread.join().unwrap().map_err(|e| e.errno)).collect()
    });
    assert_eq!(deleted.iter().filter(|result| result.is_ok()).count(), 1, "{deleted:?}");
    assert!(
        deleted.iter().all(|r| matches!(r, Ok(()) | Err(Errno::EBUSY | Errno::ENOENT))),
        "{deleted:?}"
    );
    nothing_is_left(&loader);
}

#[test]
fn a_symbol_of_a_module_that_is_coming_is_waited_for() {
    let dir = directory();
    let (shared, loader) = host(&[]);
    let slow = module(
        dir.path(),
        "provider",
        "extern int gate[3]; int provided = 5; EXPORT_SYMBOL(provided);
         static int __init go(void) { gate[0] = 1;
            while (!__atomic_load_n(&gate[1], __ATOMIC_ACQUIRE)) ; return gate[2]; }
         module_init(go); static void stop(void) { } module_exit(stop);",
    );
    let user = module(
        dir.path(),
        "consumer",
        "extern int provided; int *consumer_p = &provided; EXPORT_SYMBOL(consumer_p);",
    );
    let loader = &loader;
    thread::scope(|scope| {
        let winner = scope.spawn(|| insmod(loader, &slow, ""));
        wait_until(|| shared.gate[0].load(Ordering::Acquire) == 1);
        let waits = scope.spawn(|| insmod(loader, &user, ""));
        wait_until(|| loader.waiting() == 1);
        shared.gate[1].store(1, Ordering::Release);
        winner.join().unwrap().unwrap();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(loader.delete_module("provider", 0).unwrap_err().errno, Errno::EAGAIN);
    loader.delete_module("consumer", 0).unwrap();
    loader.delete_module("provider", 0).unwrap();
    nothing_is_left(loader);
}

#[test]
fn a_panic_out_of_init_unwinds_to_nobody_but_leaves_nothing_behind_where_it_can() {
    // A module has no unwinding tables: a panic through it ends the process, as documented.
    if std::env::var_os("PANIC").is_none() {
        let name = "a_panic_out_of_init_unwinds_to_nobody_but_leaves_nothing_behind_where_it_can";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env("PANIC", "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{child:?}");
        return;
    }
    let dir = directory();
    let (_, loader) = host(&[]);
    let path = with_init(dir.path(), "panics", "host_panic(); return 0;");
    let file = File::open(path).unwrap();
    let _ = loader.finit_module(file.as_raw_fd(), "", 0);
}
