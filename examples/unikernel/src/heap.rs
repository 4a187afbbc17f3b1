//! kmem over the machine's memory, and under Rust's `alloc`.

use core::alloc::{GlobalAlloc, Layout};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use kmem_core::Instance;
use kmem_core::os::region::FixedRegion;
use kmem_core::os::task_word::{self, TaskWord};

/// The one instance.
pub(crate) type Kmem = Instance<FixedRegion>;

struct Place(core::cell::UnsafeCell<MaybeUninit<Kmem>>);
// SAFETY: written once, before the second CPU starts.
unsafe impl Sync for Place {}
static PLACE: Place = Place(core::cell::UnsafeCell::new(MaybeUninit::zeroed()));
static READY: AtomicUsize = AtomicUsize::new(0);

fn fatal() -> ! {
    crate::serial::exit(3)
}

/// The CPU's number: that of its APIC.
fn cpu() -> u32 {
    core::arch::x86_64::__cpuid(1).ebx >> 24
}

/// A task word for each CPU, because each CPU has one task.
static WORDS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

fn word() -> &'static AtomicUsize {
    &WORDS[cpu() as usize % WORDS.len()]
}

// SAFETY: a word of the calling CPU, and so of its one task, which stays there.
static TASK_WORD: TaskWord = unsafe {
    TaskWord::new(|| word().load(Ordering::Relaxed), |value| word().store(value, Ordering::Relaxed))
};

/// Gives the machine's memory to kmem.
///
/// # Safety
/// No other code uses the memory, and the function is called once.
pub(crate) unsafe fn start(at: usize, bytes: usize, cpus: u32) {
    // SAFETY: no other code uses the memory or `PLACE` yet, by the contract.
    unsafe {
        core::ptr::write_bytes(at as *mut u8, 0, bytes);
        let region = FixedRegion::new(at as *mut u8, bytes, cpus, crate::serial::write, fatal);
        (*PLACE.0.get()).write(Instance::over(region.with_cpu(cpu)));
    }
    task_word::give(&TASK_WORD);
    READY.store(1, Ordering::Release);
}

/// The instance.
pub(crate) fn kmem() -> &'static Kmem {
    if READY.load(Ordering::Acquire) == 0 {
        fatal();
    }
    // SAFETY: written before.
    unsafe { (*PLACE.0.get()).assume_init_ref() }
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
