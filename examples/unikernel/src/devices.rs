//! An interrupt handler that allocates and frees, wherever it interrupts the first CPU.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::heap::{KMEM, kmem};
use kmem_core::memcg::GroupId;
use kmem_core::os::regions::Regions;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, StaticTag, static_tag, task};
use machine::{interrupts, line, serial};

kmem_core::define_per_cpu! {
    /// Interrupts of each CPU.
    static INTERRUPTS: u64 => KMEM, Regions;
}

/// Objects that the handler keeps, with that many pages.
static OBJECTS: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];
static PAGES: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
/// Requests that were refused, and calls of the handler under a group.
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static IN_GROUP: AtomicUsize = AtomicUsize::new(0);

fn object() -> &'static StaticTag {
    static_tag!("interrupt")
}

fn page() -> &'static StaticTag {
    static_tag!("interrupt_page")
}

/// The handler: replaces an object and a page.
fn handle() {
    let number = INTERRUPTS.read() as usize;
    INTERRUPTS.add(1);
    crate::structures::free_lent();
    let group = usize::from(task::group() != GroupId::ROOT.objcg());
    IN_GROUP.fetch_add(group, Ordering::Relaxed);
    let caller = |tag| Caller::tagged(tag).here();
    let new = kmem().kmalloc(1 + number % 3000, Gfp::NOWAIT, caller(object()));
    let block = kmem().alloc_pages(Order(0), Gfp::NOWAIT, caller(page()));
    REFUSED.fetch_add(usize::from(new.is_null() || block.is_null()), Ordering::Relaxed);
    let (old, from) = (&OBJECTS[number % 32], &PAGES[number % 8]);
    // SAFETY: null, or allocated here before, and used no longer.
    unsafe {
        kmem().free(old.swap(new as usize, Ordering::Relaxed) as *mut u8);
        let before = from.swap(block as usize, Ordering::Relaxed) as *mut u8;
        if !before.is_null() {
            kmem().free_pages(before, Order(0));
        }
    }
}

/// Starts the handler. By the rules for interrupts, the first use of per-CPU memory comes before.
pub(crate) fn start() {
    INTERRUPTS.add(0);
    interrupts::start(handle);
}

/// Waits for interrupts while the task is in a group.
pub(crate) fn interrupt_the_scope() {
    let until = INTERRUPTS.sum() + 50;
    let mut patience = 1000;
    while INTERRUPTS.sum() < until && patience > 0 {
        serial::pause(1_000_000);
        patience -= 1;
    }
    line!("check interrupts-come {} 1", u8::from(patience > 0));
}

/// Prints what the handler has. Interrupts are off.
pub(crate) fn expect() {
    let live = |all: &[AtomicUsize]| {
        let each = all.iter().map(|at| at.load(Ordering::Relaxed)).filter(|&at| at != 0);
        // SAFETY: live allocations.
        each.fold((0, 0), |sum, at| unsafe {
            (sum.0 + kmem().usable_size(at as *mut u8), sum.1 + 1)
        })
    };
    let (bytes, calls) = live(&OBJECTS);
    line!("expect interrupt {bytes} {calls}");
    let (bytes, calls) = live(&PAGES);
    line!("expect interrupt_page {bytes} {calls}");
    line!("expect INTERRUPTS 16 1");
    line!("check interrupts-refused {} 0", REFUSED.load(Ordering::Relaxed));
    line!("check interrupts-in-a-group {} 0", IN_GROUP.load(Ordering::Relaxed));
}

/// Frees what the handler has.
pub(crate) fn give_back() {
    for at in &OBJECTS {
        // SAFETY: null or live, given up.
        unsafe { kmem().free(at.load(Ordering::Relaxed) as *mut u8) };
    }
    for at in PAGES.iter().map(|at| at.load(Ordering::Relaxed)).filter(|&at| at != 0) {
        // SAFETY: live, given up.
        unsafe { kmem().free_pages(at as *mut u8, Order(0)) };
    }
}
