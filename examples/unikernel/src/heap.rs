//! kmem over the machine's memory, and under Rust's `alloc`.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use kmem_core::os::regions::{Doors, Regions};
use kmem_core::os::task_word::{self, TaskWord};
use kmem_core::{Caller, Instance, static_tag};
use machine::{boot, interrupts, line, paging, serial};

/// The one instance.
pub(crate) static KMEM: Instance<Regions> = Instance::over(Regions::new(2, DOORS));

const DOORS: Doors = Doors {
    cpu: boot::cpu,
    now_ms: boot::now_ms,
    ticks: boot::ticks,
    entropy: boot::entropy,
    print: serial::write,
    fatal: || serial::exit(3),
    give_way: crate::structures::give_way,
    protect: Some(paging::protect),
    configuration: "shuffle:1",
    ..Doors::NONE
};

/// The instance.
pub(crate) fn kmem() -> &'static Instance<Regions> {
    &KMEM
}

/// Task words: each CPU has one task, and the first has interrupt handlers.
static WORDS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

fn word() -> &'static AtomicUsize {
    &WORDS[if interrupts::is_in_one() { 2 } else { boot::cpu() as usize % 2 }]
}

// SAFETY: a word of the calling CPU's one task, which stays there, or of the handler. The handler
// ends its scopes before it returns.
static TASK_WORD: TaskWord = unsafe {
    TaskWord::new(|| word().load(Ordering::Relaxed), |value| word().store(value, Ordering::Relaxed))
};

/// Memory that is given to kmem later.
pub(crate) struct Later(*mut u8, usize);

/// Gives a part of the machine's memory to kmem. Returns its bytes, and the rest.
///
/// # Safety
/// See [`boot::memory`].
pub(crate) unsafe fn start(info: usize) -> (usize, Later) {
    task_word::give(&TASK_WORD);
    // SAFETY: the same contract.
    let largest = unsafe { boot::memory(info) }.max_by_key(|range| range.1);
    let Some((at, bytes)) = largest else { serial::exit(6) };
    let first = bytes / 4 * 3;
    // SAFETY: zeroed memory that no other code uses.
    unsafe { KMEM.platform().add(at, first) };
    (first, Later(at.wrapping_add(first), bytes - first))
}

/// Fills the memory that kmem has, adds the rest, and uses that.
pub(crate) fn grow(Later(at, bytes): Later) {
    const SIZE: usize = 1 << 20;
    let caller = Caller::tagged(static_tag!("grow")).quietly();
    let next = |_: &usize| Some(KMEM.alloc(SIZE, caller) as usize).filter(|&at| at != 0);
    // A list through the blocks themselves.
    let fill = |mut list: usize, inside: &dyn Fn(usize) -> bool| {
        let mut count = 0;
        while let Some(block) = next(&list) {
            // SAFETY: a live block of a megabyte.
            unsafe { (block as *mut usize).write(list) };
            list = block;
            count += usize::from(inside(block));
        }
        (list, count)
    };
    let (list, early) = fill(0, &|_| true);
    let high = at.wrapping_add(boot::HIGH) as usize;
    // SAFETY: zeroed memory that no other code uses, at its second address.
    unsafe { KMEM.platform().add(high as *mut u8, bytes) };
    let (mut list, late) = fill(list, &|block| (high..high + bytes).contains(&block));
    line!("check memory-is-added {} 1", u8::from(early > 0 && late > bytes / SIZE / 2));
    while list != 0 {
        // SAFETY: a live block, whose first word is the next one.
        unsafe {
            let block = list as *mut usize;
            list = block.read();
            KMEM.free(block.cast());
        }
    }
}

/// Rust's heap, with its own counts to compare the books with.
pub(crate) struct Heap {
    pub(crate) bytes: AtomicI64,
    pub(crate) calls: AtomicI64,
}

#[global_allocator]
pub(crate) static HEAP: Heap = Heap { bytes: AtomicI64::new(0), calls: AtomicI64::new(0) };

impl Heap {
    fn count(&self, at: *mut u8, calls: i64) {
        if !at.is_null() {
            // SAFETY: a live allocation.
            let bytes = unsafe { kmem().usable_size(at) } as i64;
            self.bytes.fetch_add(bytes * calls, Ordering::Relaxed);
            self.calls.fetch_add(calls, Ordering::Relaxed);
        }
    }
}

// SAFETY: kmem's own guarantees.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same contract.
        let at = unsafe { GlobalAlloc::alloc(kmem(), layout) };
        self.count(at, 1);
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.count(at, -1);
        // SAFETY: the same contract.
        unsafe { GlobalAlloc::dealloc(kmem(), at, layout) }
    }
}
