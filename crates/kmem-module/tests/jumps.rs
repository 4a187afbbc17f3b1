//! Inits and exits that do not return to the loader but jump out of it, on a thread that lives on
//! (D29).

mod harness;

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::thread;

use harness::{directory, insmod, loader, module, nothing_is_left};
use kmem_module::{Errno, Loader};

/// Loads a module on a thread that comes back by a jump. Checks what that thread and others find
/// until it ends.
fn jumped_out(name: &str, text: &str, leave: impl Fn(&Loader, &Path) + Sync) {
    type Try = extern "C" fn(unsafe extern "C" fn(*const c_void), *const c_void) -> c_int;
    type Work<'a> = &'a (dyn Fn() + Sync);
    unsafe extern "C" fn work(work: *const c_void) {
        // SAFETY: what is given below.
        unsafe { (*work.cast::<Work<'_>>())() }
    }
    let dir = directory();
    let loader = loader();
    // Both sides of the jump are C.
    let jumps = module(
        dir.path(),
        &format!("{name}_jumps"),
        "#include <setjmp.h>\njmp_buf jumps_to; EXPORT_SYMBOL(jumps_to);
         int jumps_count; EXPORT_SYMBOL(jumps_count);
         int jumps_try(void (*work)(const void *), const void *data);
         int jumps_try(void (*work)(const void *), const void *data) {
            if (setjmp(jumps_to)) return 1; work(data); return 0; }
         EXPORT_SYMBOL(jumps_try);",
    );
    let path = module(
        dir.path(),
        name,
        &format!(
            "#include <setjmp.h>\nextern jmp_buf jumps_to; extern int jumps_count;
             static void jump(void) {{ if (!jumps_count++) longjmp(jumps_to, 1); }} {text}"
        ),
    );
    let other = module(dir.path(), &format!("{name}_other"), "int x;");
    insmod(&loader, &jumps, "").unwrap();
    let symbol = loader.symbol("jumps_try").unwrap();
    // SAFETY: what the module exports under this name.
    let attempt = unsafe { std::mem::transmute::<usize, Try>(symbol.address as usize) };
    let (loader, path, leave) = (&loader, &*path, &leave);
    let (left, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    thread::scope(|scope| {
        let (left, end) = (&left, &end);
        let leaver = scope.spawn(move || {
            let leaves: Work<'_> = &|| leave(loader, path);
            assert_eq!(attempt(work, (&raw const leaves).cast()), 1);
            // It is this thread's to end, which is not waited for.
            assert_eq!(insmod(loader, path, "").unwrap_err().errno, Errno::EDEADLK);
            left.wait();
            end.wait();
        });
        left.wait();
        assert_eq!(loader.delete_module(name, 0).unwrap_err().errno, Errno::EBUSY);
        insmod(loader, &other, "").unwrap();
        loader.delete_module(&format!("{name}_other"), 0).unwrap();
        let waits = scope.spawn(|| insmod(loader, path, ""));
        while loader.waiting() != 1 {
            thread::yield_now();
        }
        end.wait();
        leaver.join().unwrap();
        waits.join().unwrap().unwrap();
    });
    loader.delete_module(name, 0).unwrap();
    drop(symbol);
    loader.delete_module(&format!("{name}_jumps"), 0).unwrap();
    nothing_is_left(loader);
}

#[test]
fn d29_an_init_that_jumps_out_keeps_its_name_until_its_thread_ends() {
    let text = "static int __init go(void) { jump(); return 0; } module_init(go);
                static void stop(void) { } module_exit(stop);";
    jumped_out("jumps_in", text, |loader, path| drop(insmod(loader, path, "")));
}

#[test]
fn d29_an_exit_that_jumps_out_keeps_its_name_until_its_thread_ends() {
    let text = "static void stop(void) { jump(); } module_exit(stop);";
    jumped_out("jumps_off", text, |loader, path| {
        insmod(loader, path, "").unwrap();
        let _ = loader.delete_module("jumps_off", 0);
    });
}
