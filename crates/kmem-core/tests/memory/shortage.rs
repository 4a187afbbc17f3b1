//! Reports on lack of memory, and on a group at its own limit: text, number, and what becomes of
//! those during others. Time is simulated.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use kmem_core::memcg::GroupId;
use kmem_core::os::regions::{Doors, Regions};
use kmem_core::{Caller, Instance, StaticTag};

use crate::instance::leaked;
use kmem_layout::group::Limit;

type Kernel = Instance<Regions>;

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;
const BYTES: usize = 32 * MIB;
/// Looks at the clock after which a thread waits for another.
const LOOKS: u64 = 1 << 20;
/// A request that the regions cannot serve while half of them are allocated.
const TOO_MUCH: usize = 20 * MIB;

thread_local! {
    /// Text that instances printed on this thread.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
    /// Work for the moment when this thread prints the next text.
    static DURING: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    /// Time on this thread, and its advance at each look.
    static NOW: Cell<u64> = const { Cell::new(100_000) };
    static STEP: Cell<u64> = const { Cell::new(0) };
    /// Number of looks at the clock. The last of [`LOOKS`] waits until the number is higher.
    static LOOKED: RefCell<Arc<AtomicU64>> = RefCell::default();
}

fn print(text: &[u8]) {
    SAID.with_borrow_mut(|said| said.push_str(&String::from_utf8_lossy(text)));
    if let Some(work) = DURING.take() {
        work();
    }
}

fn now_ms() -> u64 {
    LOOKED.with_borrow(|looked| {
        if looked.fetch_add(1, Ordering::SeqCst) + 1 == LOOKS {
            wait_until(|| looked.load(Ordering::SeqCst) > LOOKS);
        }
    });
    NOW.set(NOW.get() + STEP.get());
    NOW.get()
}

fn wait_until(done: impl Fn() -> bool) {
    while !done() {
        thread::yield_now();
    }
}

fn instance() -> &'static Kernel {
    let doors = Doors { print, now_ms, fatal: || panic!("the allocator gave up"), ..Doors::NONE };
    let kmem = leaked(Regions::new(1, doors));
    let layout = Layout::from_size_align(BYTES, 4096).expect("a layout");
    // SAFETY: fresh zeroed memory, which is never freed and used by this instance alone.
    assert!(unsafe { kmem.platform().add(alloc_zeroed(layout), BYTES) });
    kmem
}

fn hold(kmem: &'static Kernel, count: usize, bytes: usize, caller: Caller) {
    (0..count).for_each(|_| assert!(!kmem.alloc(bytes, caller).is_null()));
}

/// Fails a request. Returns what was printed.
fn fail(kmem: &'static Kernel, bytes: usize, caller: Caller) -> String {
    assert!(kmem.alloc(bytes, caller).is_null());
    SAID.take()
}

/// Number of reports in a text.
fn reports(said: &str) -> usize {
    said.lines().filter(|line| line.starts_with("kmem: ")).count()
}

#[test]
fn the_ten_largest_sites_are_listed_with_bytes_and_calls_in_columns() {
    let kmem = instance();
    hold(kmem, 100, 64, Caller::at(0x10_0000));
    hold(kmem, 3, MIB, Caller::at(0x20_0000));
    hold(kmem, 48, 256 * KIB, Caller::at(0x30_0000));
    hold(kmem, 1, 64 * KIB, Caller::tagged(kmem_core::static_tag!("ring")));
    // Of these, two are too small for the list.
    (1..=8).for_each(|i| hold(kmem, i, 128, Caller::at(0x40_0000 + i)));
    let said = fail(kmem, TOO_MUCH, Caller::at(0x50_0000));
    let (head, rows) = said.split_once("Memory allocations:\n").expect("a list");
    assert_eq!(head, "kmem: out of memory: no 20971520 bytes for 0x500000:0 func:0x500000\n");
    let place = format!("{}:", file!());
    let expected = [
        "    12.0 MiB       48 0x300000:0 func:0x300000",
        "     3.0 MiB        3 0x200000:0 func:0x200000",
        "    64.0 KiB        1 ring",
        "     6.2 KiB      100 0x100000:0 func:0x100000",
        "     1.0 KiB        8 0x400008:0 func:0x400008",
        "       896 B        7 0x400007:0 func:0x400007",
        "       768 B        6 0x400006:0 func:0x400006",
        "       640 B        5 0x400005:0 func:0x400005",
        "       512 B        4 0x400004:0 func:0x400004",
        "       384 B        3 0x400003:0 func:0x400003",
    ];
    for (row, expected) in rows.lines().zip(expected) {
        match expected.split_once("ring") {
            Some((columns, _)) => {
                let tag = row.strip_prefix(columns).expect("the columns");
                assert!(tag.starts_with(&place) && tag.ends_with(" func:ring"), "{row}");
            }
            None => assert_eq!(row, expected),
        }
    }
    assert_eq!(rows.lines().count(), expected.len(), "{rows}");
}

#[test]
fn there_is_one_report_in_five_seconds_whatever_lacks() {
    let kmem = instance();
    let tenant = tenant(kmem);
    hold(kmem, 15, MIB, Caller::at(0x10_0000));
    let is_reported = |after_ms: u64, of_group: bool| {
        NOW.set(NOW.get() + after_ms);
        let at = Caller::at(0x20_0000);
        let caller = if of_group { at.charged_to(tenant.objcg()) } else { at };
        let said = fail(kmem, if of_group { MIB } else { TOO_MUCH }, caller);
        assert_eq!(said.contains("the group"), of_group && !said.is_empty(), "{said}");
        reports(&said) == 1
    };
    assert!(is_reported(0, false), "the first");
    assert!(!is_reported(0, false) && !is_reported(0, true) && !is_reported(4_999, false));
    assert!(is_reported(1, true), "five seconds after the first");
    assert!(!is_reported(4_999, true) && is_reported(1, false) && is_reported(60_000, true));
}

#[test]
fn a_request_that_no_machine_could_serve_and_a_quiet_one_are_not_reported() {
    let kmem = instance();
    hold(kmem, 15, MIB, Caller::at(0x10_0000));
    assert_eq!(fail(kmem, usize::MAX >> 1, Caller::at(0x20_0000)), "");
    assert_eq!(fail(kmem, TOO_MUCH, Caller::at(0x20_0000).quietly()), "");
    assert_eq!(reports(&fail(kmem, TOO_MUCH, Caller::at(0x20_0000))), 1);
}

/// A group that may have 600 KiB.
fn tenant(kmem: &'static Kernel) -> GroupId {
    let id = kmem.group_create(GroupId::ROOT, b"tenant").expect("a group");
    let tenant = kmem.group(id).expect("a living group");
    tenant.set(Limit::Max, Some(600 << 10)).expect("a living group");
    // The handle would delete the group.
    std::mem::forget(tenant);
    id
}

#[test]
fn a_report_of_a_group_lists_what_it_and_groups_below_hold() {
    let kmem = instance();
    let id = tenant(kmem);
    let below = kmem.group_create(id, b"below").expect("a group");
    let at = |site, id: GroupId| Caller::at(site).charged_to(id.objcg());
    hold(kmem, 5, MIB, Caller::at(0x10_0000));
    hold(kmem, 2, 64 * KIB, at(0x20_0000, id));
    hold(kmem, 3, 64 * KIB, at(0x30_0000, below));
    hold(kmem, 1, 64 * KIB, at(0x10_0000, id));
    let said = fail(kmem, 512 * KIB, at(0x40_0000, below));
    let expected = "kmem: the group /tenant is at its max: no 524800 bytes for 0x400000:0 \
        func:0x400000\n\
        Memory allocations of the group:\n\
        \x20  192.0 KiB        3 0x300000:0 func:0x300000\n\
        \x20  128.0 KiB        2 0x200000:0 func:0x200000\n\
        \x20   64.0 KiB        1 0x100000:0 func:0x100000\n";
    assert_eq!(said, expected);
}

/// Fails a request while another report is made, five seconds after that. Returns all text.
fn fail_during_a_report(kmem: &'static Kernel, bytes: usize, caller: Caller) -> String {
    hold(kmem, 15, MIB, Caller::at(0x10_0000));
    DURING.set(Some(Box::new(move || {
        NOW.set(NOW.get() + 6_000);
        let before = SAID.with_borrow(String::len);
        assert!(kmem.alloc(bytes, caller).is_null());
        assert_eq!(SAID.with_borrow(String::len), before, "the scratch table is in use");
    })));
    fail(kmem, TOO_MUCH, Caller::at(0x20_0000))
}

#[test]
fn a_report_during_another_is_made_after_it() {
    let kmem = instance();
    let said = fail_during_a_report(kmem, TOO_MUCH - 4096, Caller::at(0x30_0000));
    let rows = "Memory allocations:\n    15.0 MiB       15 0x100000:0 func:0x100000\n";
    let expected = [("20971520", "0x200000"), ("20967424", "0x300000")].map(|(bytes, site)| {
        format!("kmem: out of memory: no {bytes} bytes for {site}:0 func:{site}\n{rows}")
    });
    assert_eq!(said, expected.concat());
}

#[test]
fn a_report_of_a_group_during_another_is_made_after_it() {
    let kmem = instance();
    let tenant = Caller::at(0x30_0000).charged_to(tenant(kmem).objcg());
    let said = fail_during_a_report(kmem, MIB, tenant);
    let (first, second) = said.split_once("kmem: the group ").expect("a second report");
    assert!(first.starts_with("kmem: out of memory: ") && first.contains("15.0 MiB"), "{said}");
    let expected = "/tenant is at its max: no 1049600 bytes for 0x300000:0 func:0x300000\n\
        Memory allocations of the group:\n";
    assert_eq!(second, expected);
}

/// Unloads an object with live memory while this thread makes a report, which takes that long by
/// the other thread's clock. Returns the text of the unloading thread.
fn unload_during_a_report(ms_per_look: u64) -> String {
    let kmem = instance();
    let tag: &'static StaticTag = Box::leak(Box::new(StaticTag::new(c"plugin.c", c"work", 7)));
    let end = std::ptr::from_ref(tag).wrapping_add(1);
    // SAFETY: the tag is never freed.
    unsafe { kmem.register_tags(tag, end, b"plugin.so") };
    hold(kmem, 2, 64, Caller::tagged(tag));
    hold(kmem, 15, MIB, Caller::at(0x10_0000));
    let (sender, receiver) = std::sync::mpsc::channel();
    DURING.set(Some(Box::new(move || {
        // The thread waits for this one after 20 looks.
        let looked = Arc::new(AtomicU64::new(LOOKS - 20));
        let counter = looked.clone();
        let unloading = thread::spawn(move || {
            LOOKED.set(counter);
            STEP.set(ms_per_look);
            kmem.unregister_tags(tag, std::ptr::from_ref(tag).wrapping_add(1), b"plugin.so");
            SAID.take()
        });
        // The report goes on when the other thread has waited for it, or has given up.
        wait_until(|| looked.load(Ordering::SeqCst) == LOOKS || unloading.is_finished());
        sender.send((unloading, looked)).expect("the test receives it");
    })));
    assert_eq!(reports(&fail(kmem, TOO_MUCH, Caller::at(0x20_0000))), 1);
    let (unloading, looked) = receiver.recv().expect("it was sent");
    looked.fetch_add(1, Ordering::SeqCst);
    unloading.join().expect("no panic")
}

#[test]
fn a_warning_about_an_object_that_is_unloaded_waits_for_a_report() {
    let warning = "kmem: plugin.so is unloaded, and memory it allocated is in use:\n\
        \x20      128 B        2 plugin.c:7 [plugin.so] func:work\n";
    assert_eq!(unload_during_a_report(0), warning);
    assert_eq!(unload_during_a_report(1), warning);
    assert_eq!(unload_during_a_report(100), "", "half a second is the most that it waits");
}
