//! A program without an operating system: kmem is its only memory manager, on two CPUs, under
//! Rust's `alloc`. It does some work, then prints the books and its own counts over the serial
//! line. `scripts/unikernel.sh` compares them.
#![no_std]
#![no_main]

extern crate alloc;

mod devices;
mod heap;
mod scopes;
mod structures;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use heap::{HEAP, kmem};
use kmem_core::memcg::GroupId;
use kmem_core::units::{Gfp, Order, TagId};
use kmem_core::{Caller, Scope, StaticTag, static_tag};
use kmem_layout::group::group_event;
use machine::{boot, interrupts, line, serial};

/// Live objects that each CPU keeps in the end.
const KEPT: usize = 500;

/// State of the second CPU, written by both: 0 not there, 1 there, 2 work, 3 done, 4 asked for its
/// group, 5 has answered.
static SECOND: AtomicUsize = AtomicUsize::new(0);
static SECONDS_BYTES: AtomicUsize = AtomicUsize::new(0);
static SECONDS_GROUP: AtomicUsize = AtomicUsize::new(0);
/// A per-CPU counter.
static COUNTER: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
extern "C" fn kernel_main(info: usize) -> ! {
    // SAFETY: `info` is PVH's information, and no other code uses the memory it names.
    let (bytes, later) = unsafe { heap::start(info) };
    line!("memory {bytes}");
    let _scope = Scope::enter(rust());
    boot::start_second();
    let mut patience = 100;
    while SECOND.load(Ordering::Acquire) == 0 && patience > 0 {
        serial::pause(10_000_000);
        patience -= 1;
    }
    let cpus = 1 + SECOND.load(Ordering::Acquire);
    line!("cpus {cpus}");
    devices::start();
    let held = work(cpus, later);
    interrupts::stop();
    devices::expect();
    report();
    let left = give_back(held);
    line!("left {left}");
    line!("done");
    serial::exit(if left == 0 { 0 } else { 1 })
}

/// The second CPU.
#[unsafe(no_mangle)]
extern "C" fn second_cpu() -> ! {
    SECOND.store(1, Ordering::Release);
    wait_for(2);
    let _scope = Scope::enter(rust());
    let (objects, bytes) = churn(static_tag!("second"), 2);
    SECONDS_BYTES.store(bytes, Ordering::Relaxed);
    core::mem::forget(objects);
    SECOND.store(3, Ordering::Release);
    wait_for(4);
    SECONDS_GROUP.store(kmem_core::task::group().0 as usize, Ordering::Relaxed);
    SECOND.store(5, Ordering::Release);
    loop {
        core::hint::spin_loop();
    }
}

/// Waits for a state of the second CPU.
fn wait_for(state: usize) {
    while SECOND.load(Ordering::Acquire) != state {
        core::hint::spin_loop();
    }
}

/// Number of the group that the second CPU works in; 0 without that CPU.
fn group_of_second() -> usize {
    if SECOND.load(Ordering::Acquire) < 2 {
        return 0;
    }
    wait_for(3);
    SECOND.store(4, Ordering::Release);
    wait_for(5);
    SECONDS_GROUP.load(Ordering::Relaxed)
}

/// The tag of Rust's collections.
fn rust() -> &'static StaticTag {
    static_tag!("rust")
}

/// Live allocations of the program.
struct Held {
    objects: Vec<*mut u8>,
    pages: Vec<(*mut u8, Order)>,
    handle: *mut u8,
}

fn expect(tag: &StaticTag, bytes: usize, calls: usize) {
    // SAFETY: names of tags are C strings.
    let name = unsafe { core::ffi::CStr::from_ptr(tag.function) };
    line!("expect {} {bytes} {calls}", name.to_str().unwrap_or("?"));
}

/// Allocates and frees, and keeps some; and their bytes. The task's group pays.
fn churn(tag: &'static StaticTag, seed: u64) -> (Vec<*mut u8>, usize) {
    let (a, caller) = (kmem(), Caller::tagged(tag).here());
    let counter = COUNTER.load(Ordering::Relaxed) as *mut u64;
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut objects: Vec<*mut u8> = Vec::with_capacity(KEPT);
    for round in 0..40 * KEPT {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = a.alloc(1 + (random >> 33) as usize % 3000, caller);
        if at.is_null() {
            line!("no memory in round {round}");
            serial::exit(4);
        }
        // SAFETY: live words; objects are freed once.
        unsafe {
            a.this_cpu_add(counter, 1);
            at.write(round as u8);
            if objects.len() < KEPT {
                objects.push(at);
            } else {
                let other = core::mem::replace(&mut objects[round % KEPT], at);
                a.free(other);
            }
        }
    }
    // SAFETY: live.
    let bytes = objects.iter().map(|&at| unsafe { a.usable_size(at) }).sum();
    (objects, bytes)
}

fn work(cpus: usize, later: heap::Later) -> Held {
    let a = kmem();
    let handle = a.alloc_percpu(8, 8, Gfp::KERNEL, Caller::tagged(static_tag!("counter")));
    COUNTER.store(handle as usize, Ordering::Relaxed);
    if cpus > 1 {
        SECOND.store(2, Ordering::Release);
    }
    // Rust's own.
    let mut map: BTreeMap<u32, String> =
        (0..2000).map(|i| (i, format!("the number {i}"))).collect();
    map.retain(|key, _| key % 3 == 0);
    let first = static_tag!("first");
    let (mut objects, bytes) = churn(first, 1);
    expect(first, bytes, objects.len());
    // Pages of three orders.
    let tag = static_tag!("pages");
    let orders = [0, 3, 9].map(Order);
    let pages: Vec<_> = orders
        .iter()
        .map(|&order| (a.alloc_pages(order, Gfp::ZERO, Caller::tagged(tag)), order))
        .collect();
    expect(tag, orders.iter().map(|order| order.pages().bytes()).sum(), 3);
    // A group with a limit, and one below it.
    let tag = static_tag!("tenant");
    let tenant = a.group_create(GroupId::ROOT, b"tenant").ok();
    let inner = tenant.and_then(|id| a.group_create(id, b"inner").ok());
    if let Some((tenant, inner)) = tenant.zip(inner) {
        for (group, size, count) in [(tenant, 100, 30), (inner, 1000, 20)] {
            let caller = Caller::tagged(tag).charged_to(group.objcg());
            objects.extend((0..count).map(|_| a.alloc(size, caller)));
        }
        expect(tag, 30 * 112 + 20 * 1024, 50);
        // An object pays for its extension word, too.
        line!("expect-group tenant {}", 30 * 116 + 20 * 1028);
        line!("expect-group tenant/inner {}", 20 * 1028);
    }
    let tagged = scopes::work();
    structures::work();
    heap::grow(later);
    let mut added = 40 * KEPT;
    if cpus > 1 {
        expect(static_tag_of_second(), SECONDS_BYTES.load(Ordering::Relaxed), KEPT);
        added += 40 * KEPT;
    }
    expect(static_tag!("counter"), 16, 1);
    // SAFETY: live.
    let counted = unsafe { a.percpu_sum(handle.cast::<u64>()) };
    line!("counted {counted} of {added}");
    let held = Held { objects, pages, handle };
    core::mem::forget(map);
    // Last, for the lines above are no allocations.
    let (bytes, calls) = (HEAP.bytes.load(Ordering::Relaxed), HEAP.calls.load(Ordering::Relaxed));
    line!("expect rust {} {}", bytes - tagged as i64, calls - 1);
    held
}

/// Only its name counts.
fn static_tag_of_second() -> &'static StaticTag {
    static_tag!("second")
}

/// The books, as the kernel's files have them.
fn report() {
    let a = kmem();
    line!("allocinfo - version: 1.0");
    line!("#     <size>  <calls> <tag info>");
    // No allocation between the census and the lines: rows are few.
    let mut rows = [(TagId(0), 0u64, 0u64); 64];
    let mut count = 0;
    a.census(|tag, bytes, calls| {
        let row = match rows[..count].iter().position(|row| row.0 == tag) {
            Some(row) => row,
            None => {
                count += 1;
                count - 1
            }
        };
        rows[row] = (tag, rows[row].1 + bytes, rows[row].2 + calls);
    });
    for (tag, bytes, calls) in &rows[..count] {
        match a.sites().names(*tag) {
            Some(names) => {
                let text = |bytes| core::str::from_utf8(bytes).unwrap_or("?");
                line!(
                    "{bytes:12} {calls:8} {}:{} func:{}",
                    text(names.file),
                    names.line,
                    text(names.function)
                );
            }
            None => line!("{bytes:12} {calls:8} kmem:0 func:unknown"),
        }
    }
    for (zone, blocks) in a.buddyinfo().enumerate() {
        use core::fmt::Write;
        let _ = write!(serial::Line, "Node 0, zone {zone:8} ");
        for count in blocks {
            let _ = write!(serial::Line, "{count:6} ");
        }
        line!("");
    }
    line!("used {} committed {}", a.stats().used, a.stats().committed);
    for path in ["tenant", "tenant/inner", "scoped"] {
        if let Ok(stat) = a.group_at(path.as_bytes()).and_then(|id| a.group_stat(id)) {
            line!("group {path} memory.current {}", stat.current);
            line!("group {path} memory.peak {}", stat.peak);
            let events = [group_event::MAX, group_event::OOM].map(|event| stat.events[event]);
            line!("group {path} memory.events max {} oom {}", events[0], events[1]);
        }
        if let Ok(kinds) = a.group_at(path.as_bytes()).and_then(|id| a.group_kinds(id)) {
            line!("group {path} memory.stat slab {}", kinds.slab);
            line!("group {path} memory.stat pages {}", kinds.pages);
            line!("group {path} memory.stat vmalloc {}", kinds.vmalloc);
            line!("group {path} memory.stat percpu {}", kinds.percpu);
        }
    }
}

/// Frees everything but what Rust and the second CPU hold. Returns the count of other allocations
/// that are still live, or `usize::MAX` if the books are damaged.
fn give_back(held: Held) -> usize {
    let a = kmem();
    let Held { objects, pages, handle } = held;
    // SAFETY: live, given up.
    unsafe {
        objects.into_iter().for_each(|at| a.free(at));
        pages.into_iter().for_each(|(at, order)| a.free_pages(at, order));
        a.free_percpu(handle);
    }
    scopes::give_back();
    devices::give_back();
    structures::give_back();
    a.drain();
    let valid = a.validate().is_ok() && a.validate_groups().is_ok();
    let mut left = 0;
    a.census(|tag, _, calls| {
        let name = a.sites().names(tag).map_or(&b""[..], |names| names.function);
        // A group's shrinker stays, for the next that is added; and per-CPU variables do.
        let stay = ["rust", "second", "scope", "shrinker", "FOUND", "INTERRUPTS"];
        if !stay.iter().any(|stays| stays.as_bytes() == name) {
            left += calls as usize;
        }
    });
    if valid { left } else { usize::MAX }
}
