//! A kernel whose memory manager is kmem.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::regions::{Doors, Regions};
use kmem_core::os::task_word::{self, TaskWord};
use kmem_core::{Instance, Limit, fallible, tag};
use machine::{boot, line, serial}; // your kernel has its own

const DOORS: Doors = Doors {
    cpu: boot::cpu,
    now_ms: boot::now_ms,
    ticks: boot::ticks,
    entropy: boot::entropy,
    print: serial::write,
    fatal: || serial::exit(3),
    configuration: "shuffle:1",
    ..Doors::NONE
};

#[global_allocator]
static KMEM: Instance<Regions> = Instance::over(Regions::new(1, DOORS));

static TASK: AtomicUsize = AtomicUsize::new(0); // a field of your task structure
// SAFETY: the word of the one task, which begins at 0.
static WORD: TaskWord =
    unsafe { TaskWord::new(|| TASK.load(Relaxed), |word| TASK.store(word, Relaxed)) };

#[unsafe(no_mangle)]
extern "C" fn kernel_main(info: usize) -> ! {
    task_word::give(&WORD);
    // SAFETY: memory of the machine that nothing else uses, filled with zeroes.
    unsafe { boot::memory(info).for_each(|(at, bytes)| _ = KMEM.platform().add(at, bytes)) };
    let done = tenant();
    line!("{done:?}");
    KMEM.census(|tag, bytes, calls| line!("{bytes} bytes in {calls} objects of {tag:?}"));
    serial::exit(if done == Ok(true) { 0 } else { 1 })
}

/// A tenant that may have a megabyte: it pays for what it has, and is refused more.
fn tenant() -> Result<bool, GroupError> {
    let tenant = KMEM.group(GroupId::ROOT)?.create("tenant")?;
    tenant.set(Limit::Max, Some(1 << 20))?;
    let scope = tenant.enter();
    let _tag = tag!("text");
    let text = Vec::<u8>::with_capacity(100_000);
    let refused = fallible(|| Vec::<u8>::new().try_reserve(2 << 20)).is_err();
    drop(scope);
    let paid = tenant.stat().current >= 100_000;
    drop(text);
    KMEM.drain();
    Ok(refused && paid && tenant.stat().current == 0)
}
