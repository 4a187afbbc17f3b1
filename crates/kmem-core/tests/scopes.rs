//! Scopes and tags in a Rust program whose global allocator is kmem: the bytes billed to each name.
#![cfg(target_os = "linux")]

use std::future::poll_fn;
use std::hint::black_box;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;

use kmem_core::request::Caller;
use kmem_core::{Kmem, tag};

#[global_allocator]
static A: Kmem = Kmem::new();

/// Size class of the allocations of this file.
const CLASS: u64 = 112;
type Hundred = Box<[u8; 100]>;

#[inline(never)]
fn hundred() -> Hundred {
    black_box(Box::new([1; 100]))
}

/// Bytes and calls of all tags of a name. Allocates nothing.
fn held_by(name: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    A.census(|tag, bytes, calls| {
        if A.sites().names(tag).is_some_and(|names| names.function == name.as_bytes()) {
            sum = (sum.0 + bytes, sum.1 + calls);
        }
    });
    sum
}

#[test]
fn the_innermost_scope_is_billed_until_it_ends() {
    let outer = tag!("nest outer");
    let first = hundred();
    let (second, third) = {
        let _inner = tag!("nest inner");
        let second = hundred();
        {
            let _innermost = tag!("nest innermost");
            (second, hundred())
        }
    };
    let fourth = hundred();
    drop(outer);
    let fifth = hundred();
    assert_eq!(held_by("nest outer"), (2 * CLASS, 2));
    assert_eq!(held_by("nest inner"), (CLASS, 1));
    assert_eq!(held_by("nest innermost"), (CLASS, 1));
    {
        // The scope of the freeing thread does not matter.
        let _other = tag!("nest other");
        drop((first, second, third));
    }
    assert_eq!(held_by("nest outer"), (CLASS, 1));
    assert_eq!(held_by("nest inner"), (0, 0));
    assert_eq!(held_by("nest innermost"), (0, 0));
    assert_eq!(held_by("nest other"), (0, 0));
    drop((fourth, fifth));
}

#[test]
fn a_tag_says_its_file_and_line() {
    let line = line!() + 1;
    let scope = tag!("where");
    let held = hundred();
    drop(scope);
    let mut found = 0;
    A.census(|tag, _, calls| {
        let Some(names) = A.sites().names(tag) else { return };
        if names.function == b"where" {
            assert!(calls == 1 && names.line == line && names.file == file!().as_bytes());
            assert!(names.module.is_empty());
            found += 1;
        }
    });
    assert_eq!(found, 1);
    drop(held);
}

#[test]
fn every_kind_of_request_of_a_collection_is_billed() {
    let scope = tag!("kinds");
    let zeroed = black_box(vec![0u8; 3000]);
    let mut grown = black_box(Vec::<u8>::with_capacity(10));
    grown.resize(5 << 20, 7);
    #[repr(align(256))]
    struct Aligned(#[expect(dead_code)] [u8; 256]);
    let aligned = black_box(Box::new(Aligned([0; 256])));
    drop(scope);
    let (bytes, calls) = held_by("kinds");
    assert_eq!(calls, 3);
    let least = 3000 + (5 << 20) + 256;
    assert!((least..least + least / 8 + 4096).contains(&bytes), "{bytes}");
    drop(zeroed);
    {
        let _scope = tag!("kinds grown elsewhere");
        grown.resize(9 << 20, 7);
    }
    assert_eq!(held_by("kinds"), (256, 1));
    let (bytes, calls) = held_by("kinds grown elsewhere");
    assert!(bytes >= 9 << 20 && calls == 1);
    drop((grown, aligned));
    assert_eq!(held_by("kinds"), (0, 0));
}

#[test]
fn a_scope_belongs_to_its_thread() {
    let ready = Arc::new(Barrier::new(2));
    let other = thread::spawn({
        let ready = Arc::clone(&ready);
        move || {
            ready.wait();
            // The other thread is in a scope now. This thread is in none, then in its own.
            let untagged = hundred();
            let scope = tag!("thread theirs");
            let own = hundred();
            drop(scope);
            ready.wait();
            (untagged, own)
        }
    });
    let scope = tag!("thread mine");
    let mine = hundred();
    ready.wait();
    ready.wait();
    let also_mine = hundred();
    drop(scope);
    let theirs = other.join().expect("no panic");
    assert_eq!(held_by("thread mine"), (2 * CLASS, 2));
    assert_eq!(held_by("thread theirs"), (CLASS, 1));
    drop((mine, also_mine, theirs));
}

#[test]
fn a_panic_leaves_the_scope() {
    let kept = catch_unwind(|| {
        let _scope = tag!("panic");
        // A panic with a message would allocate, for backtraces even without a later free.
        std::panic::resume_unwind(hundred());
    });
    let during = held_by("panic");
    let after = hundred();
    assert!(during.1 >= 1, "the payload is the scope's");
    assert_eq!(held_by("panic"), during);
    drop(kept);
    assert_eq!(held_by("panic"), (0, 0));
    drop(after);
}

#[test]
fn a_future_is_billed_wherever_it_is_polled() {
    const POLLS: usize = 60;
    const THREADS: usize = 3;
    type Work = Pin<Box<dyn Future<Output = Vec<Hundred>> + Send>>;

    let mut held = Vec::with_capacity(POLLS);
    let work: Work = Box::pin(tag!("future", async move {
        while held.len() < POLLS {
            held.push(hundred());
            // A scope in it ends before it waits.
            {
                let _scope = tag!("future inner");
                drop(hundred());
            }
            let mut waited = false;
            poll_fn(|_| {
                if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        held
    }));
    // Each thread polls once and passes it on to the next.
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::channel::<Work>()).unzip();
    let (done, result) = mpsc::channel();
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(me, inbox)| {
            let (next, done) = (senders[(me + 1) % THREADS].clone(), done.clone());
            thread::spawn(move || {
                let mut between = Vec::new();
                while let Ok(mut work) = inbox.recv() {
                    match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        Poll::Pending => {
                            between.push(hundred());
                            // The last one may be gone when it is all over.
                            let _ = next.send(work);
                        }
                        Poll::Ready(held) => {
                            done.send((held, between.len())).expect("the test waits");
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    senders[0].send(work).expect("a thread");
    drop(senders);
    let (held, polls_of_one) = result.recv().expect("it ends");
    assert_eq!(held.len(), POLLS);
    assert_eq!(polls_of_one, POLLS / THREADS);
    assert_eq!(held_by("future"), (POLLS as u64 * CLASS, POLLS as u64));
    assert_eq!(held_by("future inner"), (0, 0));
    drop(held);
    assert_eq!(held_by("future"), (0, 0));
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn what_bills_nobody_has_no_tag_and_is_counted() {
    static B: Kmem = Kmem::new();
    let held: Vec<usize> = (0..100).map(|_| B.alloc(100, Caller::NOBODY) as usize).collect();
    let mut sum = (0, 0);
    B.census(|tag, bytes, calls| {
        assert_eq!(tag.0, 0);
        sum = (sum.0 + bytes, sum.1 + calls);
    });
    assert_eq!(sum, (100 * CLASS, 100));
    for at in held {
        // SAFETY: live, given up.
        unsafe { B.free(at as *mut u8) };
    }
    assert_eq!(B.stats().objects, 0);
}

#[test]
fn macros_bill_the_line_they_are_written_in() {
    static C: Kmem = Kmem::new();
    let first = line!() + 1;
    let plain = kmem_core::alloc!(C, 100);
    let zeroed = kmem_core::alloc!(C, 5000, zeroed);
    let aligned = kmem_core::alloc!(C, 100, align = 4096);
    let many: Vec<_> = (0..10).map(|_| kmem_core::alloc!(C, 64)).collect();
    // SAFETY: live, and that long.
    unsafe {
        assert!(std::slice::from_raw_parts(zeroed, 5000).iter().all(|&byte| byte == 0));
        assert_eq!(aligned as usize % 4096, 0);
    }
    let mut rows = Vec::new();
    C.census(|tag, bytes, calls| {
        let names = C.sites().names(tag).expect("a static tag");
        assert_eq!(names.file, file!().as_bytes());
        assert_eq!(names.function, module_path!().as_bytes());
        rows.push((names.line - first, bytes, calls));
    });
    rows.sort_unstable();
    // SAFETY: live.
    let [of_zeroed, of_aligned] = [zeroed, aligned].map(|at| unsafe { C.usable_size(at) } as u64);
    assert_eq!(rows, [(0, CLASS, 1), (1, of_zeroed, 1), (2, of_aligned, 1), (3, 640, 10)]);
    for at in many.into_iter().chain([plain, zeroed, aligned]) {
        // SAFETY: live, given up.
        unsafe { C.free(at) };
    }
    assert_eq!(C.stats().objects, 0);
}
