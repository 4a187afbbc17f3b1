//! Refusals that are told to a function of the program, in place of a report. The console is a
//! string.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::regions::{Doors, Regions};
use kmem_core::{Caller, Instance, Refusal, RefusalReason};

use crate::instance::leaked;
use kmem_layout::group::Limit;

type Kernel = Instance<Regions>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const BYTES: usize = 32 * MIB;
/// A request that the regions cannot serve while half of them are allocated.
const TOO_MUCH: usize = 20 * MIB;

thread_local! {
    /// Text that instances printed on this thread.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

fn print(text: &[u8]) {
    SAID.with_borrow_mut(|said| said.push_str(&String::from_utf8_lossy(text)));
}

fn instance() -> &'static Kernel {
    let doors = Doors { print, fatal: || panic!("the allocator gave up"), ..Doors::NONE };
    let kmem = leaked(Regions::new(1, doors));
    let layout = Layout::from_size_align(BYTES, 4096).expect("a layout");
    // SAFETY: fresh zeroed memory, which is never freed and used by this instance alone.
    assert!(unsafe { kmem.platform().add(alloc_zeroed(layout), BYTES) });
    (0..15).for_each(|_| assert!(!kmem.alloc(MIB, Caller::at(0x40_0000)).is_null()));
    kmem
}

/// A group below another one, the upper one with a `max` of 600 KiB.
fn tenant(kmem: &'static Kernel) -> (GroupId, GroupId) {
    let upper = kmem.group_create(GroupId::ROOT, b"upper").expect("a group");
    kmem.group_set(upper, Limit::Max, 600 << 10).expect("a living group");
    (upper, kmem.group_create(upper, b"tenant").expect("a group"))
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

#[test]
fn a_function_is_told_what_was_refused_to_whom_by_which_limit() {
    let kmem = instance();
    let (upper, id) = tenant(kmem);
    let told = leak(Mutex::new(Vec::<(Refusal, String)>::new()));
    kmem.tell_refusals(leak(|refusal: &Refusal| {
        let site = String::from_utf8_lossy(kmem.refusal_site(refusal).text()).into_owned();
        told.lock().expect("no panic").push((*refusal, site));
    }))
    .expect("not within one");
    let tenant = Caller::at(0x10_0000).charged_to(id.objcg());
    assert!(!kmem.alloc(64 * KIB, tenant).is_null());
    assert!(kmem.alloc(MIB, tenant).is_null());
    let tagged = Caller::tagged(kmem_core::static_tag!("load"));
    assert!(kmem.alloc(MIB, tagged.charged_to(upper.objcg())).is_null());
    assert!(kmem.alloc(TOO_MUCH, Caller::at(0x20_0000)).is_null());
    // Optional requests are not told, and those that must not fail are served.
    assert!(kmem.alloc(MIB, tenant.once()).is_null());
    assert!(!kmem.alloc(MIB, tenant.nofail()).is_null());
    assert_eq!(SAID.take(), "");

    let told = told.lock().expect("no panic");
    let [(first, at), (second, tag), (third, _)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((first.group, first.payer, first.bytes), (upper, id, MIB as u64));
    assert_eq!((first.usage, first.limit), (16 * 4100, 600 << 10));
    assert_eq!((first.reason, first.caller), (RefusalReason::AtMax, 0x10_0000));
    assert_eq!(at, "0x100000:0 func:0x100000");
    assert_eq!((second.group, second.payer, second.caller), (upper, upper, 0));
    assert!(tag.starts_with(&format!("{}:", file!())) && tag.ends_with(" func:load"), "{tag}");
    assert_eq!(
        (third.group, third.payer, third.bytes),
        (GroupId::ROOT, GroupId::ROOT, TOO_MUCH as u64)
    );
    assert_eq!((third.reason, third.caller), (RefusalReason::NoMemory, 0x20_0000));
    assert!(third.usage >= 64 << 10 && third.usage < third.limit, "{third:?}");
}

#[test]
fn within_the_function_the_root_pays_and_a_failure_is_reported_not_told() {
    let kmem = instance();
    let (upper, id) = tenant(kmem);
    let calls = leak(AtomicUsize::new(0));
    kmem.tell_refusals(leak(|_: &Refusal| {
        calls.fetch_add(1, Ordering::Relaxed);
        let here = Caller::at(0x30_0000).here();
        let note = kmem.alloc(MIB, here);
        // SAFETY: a live allocation, which only this call frees.
        unsafe {
            assert_eq!(kmem.group_of_allocation(note), GroupId::ROOT);
            kmem.free(note);
        }
        assert!(kmem.alloc(TOO_MUCH, here).is_null());
        assert_eq!(kmem.report_refusals(), Err(GroupError::InShrinker));
    }))
    .expect("not within one");
    let before = kmem.group_enter(id).expect("a living group");
    assert!(kmem.alloc(MIB, Caller::at(0x10_0000).here()).is_null());
    assert_eq!(kmem.group_current(), id);
    kmem.group_leave(before);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let said = SAID.take();
    assert!(said.starts_with("kmem: out of memory: no 20971520 bytes for 0x300000:0"), "{said}");
    assert_eq!(kmem.group_stat(upper).map(|stat| stat.current), Ok(0));
    // Without the function, refusals are reported again; one report was made just now.
    kmem.report_refusals().expect("not within one");
    assert!(kmem.alloc(MIB, Caller::at(0x10_0000).charged_to(id.objcg())).is_null());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}
