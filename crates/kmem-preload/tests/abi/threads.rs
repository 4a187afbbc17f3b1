//! Threads that come and go, that have little stack, and that are cancelled.

use kmem_testing::{library, not_run, this_test};

use crate::harness::{
    CONFIGURATIONS, Run, must_work, must_work_in, program, released_library, thorough,
};

#[test]
fn memory_does_not_grow_with_the_number_of_past_threads() {
    let path = program("thread_storm.c");
    let threads = if thorough() { "200000" } else { "20000" };
    must_work_in(&CONFIGURATIONS[..3], || Run::new(&path).arg(threads));
}

#[test]
fn small_stacks_are_enough() {
    // Unoptimized code needs more; a library that was named is as it is released.
    let named = library::named().is_some();
    let limit = if cfg!(debug_assertions) && !named { "6144" } else { "2048" };
    let path = program("small_stacks.c");
    let (hardened, guard) = if limit == "2048" { ("2560", "4608") } else { (limit, limit) };
    must_work_in(&CONFIGURATIONS[..5], || Run::new(&path).arg(limit));
    must_work_in(&CONFIGURATIONS[5..6], || Run::new(&path).arg(hardened));
    // A free looks for the call that frees.
    must_work_in(&CONFIGURATIONS[6..], || Run::new(&path).arg(guard));
}

#[test]
fn small_stacks_are_enough_for_records_of_a_black_box() {
    if cfg!(debug_assertions) && library::named().is_none() {
        not_run(&this_test(), "unoptimized code needs more; name a library that is released");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let conf = format!("peak:1,blackbox:{}/box", directory.path().display());
    let outcome = Run::new(program("small_stacks.c")).arg("2048").env("KMEM_CONF", conf).run();
    outcome.assert_quiet_success();
}

#[test]
fn cancelled_threads_leave_the_allocator_working() {
    must_work("cancellation.c", &["deferred", "300"]);
}

#[test]
fn asynchronously_cancelled_threads_leave_no_lock_behind() {
    if !thorough() {
        not_run(&this_test(), "only KMEM_THOROUGH=1 asks for it");
        return;
    }
    // Cancelling unwinds the stack, which the library that cargo builds for tests does not let
    // pass: it can unwind itself.
    let Some(library) = released_library() else {
        not_run(&this_test(), "there is no release build of the library");
        return;
    };
    let path = program("cancellation.c");
    must_work_in(CONFIGURATIONS, || {
        Run::new(&path).args(&["async", "300"]).without_preload().env("LD_PRELOAD", &library)
    });
}
