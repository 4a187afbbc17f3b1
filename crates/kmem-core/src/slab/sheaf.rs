//! Sheaves and the barn: full arrays of free objects on their way from one CPU to another.
//!
//! Each node has a barn, for objects of that node. A sheaf is a fixed array in a pool that never
//! shrinks. The barn keeps a stack of full sheaves for each class, and one stack of empty sheaves.
//! Stacks are linked by sheaf number. A count in the head word detects reuse of a sheaf between a
//! read and its compare-and-swap (Treiber, IBM RJ 5118, 1986).
//!
//! Context: any. Lock-free; nothing here waits.

use crate::class::{CLASS_COUNT, SizeClass};
use crate::os::Memory;
use crate::os::stepped::{Part, Stepped};
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics, const_fn};
use crate::units::{Item, PAGE_SIZE};
use kmem_layout::geometry::ClassGeometry;

#[cfg(not(loom))]
mod validate;
#[cfg(not(loom))]
pub use validate::BarnFault;

/// Objects a sheaf can hold.
pub const SHEAF_OBJECTS: usize = 64;
/// Most sheaves of an instance.
const MAX_SHEAVES: u32 = 1 << 13;
/// Most bytes of objects of a class in the barn.
const BARN_BYTES: u32 = 256 << 10;

/// A full sheaf: `len` objects of one class.
#[repr(C, align(64))]
pub struct Sheaf {
    /// Number of the next sheaf in the stack, plus one; 0 at the bottom.
    next: AtomicU32,
    /// Number of objects in it.
    pub len: u32,
    /// The objects.
    pub objects: [Item; SHEAF_OBJECTS],
}

/// A stack of sheaves: `count << 32 | number + 1` of the top one, a low half of 0 if it is empty.
struct Stack(AtomicU64);

/// A sheaf that the caller alone uses.
///
/// # Invariants
/// `number` is that of `sheaf`, which is on no stack.
pub struct Held<'a> {
    number: u32,
    /// The sheaf.
    pub sheaf: &'a mut Sheaf,
}

/// The barn of an instance. Zeroed memory is an empty barn without a pool.
///
/// # Invariants
/// `pool` has no memory, or that of `sheaves` sheaves. Only sheaves whose number is below `used`
/// are on stacks, each on at most one, and these are committed. No stack has a sheaf of a [`Held`].
pub struct Barn {
    full: [Stack; CLASS_COUNT],
    /// Number of full sheaves of each class, approximately.
    count: [AtomicU32; CLASS_COUNT],
    /// Least such number since the last [`Barn::surplus`], approximately.
    least: [AtomicU32; CLASS_COUNT],
    empty: Stack,
    /// Number of sheaves of the pool that were handed out so far.
    used: AtomicU32,
    /// Number of sheaves in the pool.
    sheaves: AtomicU32,
    pool: Stepped,
}

impl Barn {
    const_fn! {
        /// An empty barn without a pool: it accepts no sheaf.
        pub const fn new() -> Self {
            Self {
                full: atomics![Stack(AtomicU64::new(0)); CLASS_COUNT],
                count: atomics![AtomicU32::new(0); CLASS_COUNT],
                least: atomics![AtomicU32::new(0); CLASS_COUNT],
                empty: Stack(AtomicU64::new(0)),
                used: AtomicU32::new(0),
                sheaves: AtomicU32::new(0),
                pool: Stepped::new(),
            }
        }
    }

    /// Number of sheaves for a heap of `bytes`.
    pub const fn sheaves_for(bytes: usize) -> u32 {
        let sheaves = bytes >> 16;
        if sheaves < 64 {
            64
        } else if sheaves > MAX_SHEAVES as usize {
            MAX_SHEAVES
        } else {
            sheaves as u32
        }
    }

    /// Bytes of a pool of `sheaves`.
    pub const fn pool_bytes(sheaves: u32) -> usize {
        sheaves as usize * size_of::<Sheaf>()
    }

    /// Bytes of `count` barns, without their pools.
    pub const fn bytes(count: u32) -> usize {
        count as usize * size_of::<Self>()
    }

    /// Bytes of `count` pools of `sheaves` each, of whole pages.
    pub const fn pools_bytes(count: u32, sheaves: u32) -> usize {
        count as usize * Self::pool_bytes(sheaves).next_multiple_of(PAGE_SIZE)
    }

    /// Makes `count` barns with pools of `sheaves` each.
    ///
    /// # Safety
    /// `at` is zeroed memory of [`Self::bytes`], aligned as a barn. `pools` is memory of
    /// [`Self::pools_bytes`] at the start of a page, for which [`Stepped::start`] may be called.
    /// These barns alone use both, and neither is ever freed.
    pub unsafe fn start_all<'a>(at: *mut u8, pools: Part, count: u32, sheaves: u32) -> &'a [Self] {
        let each = Self::pools_bytes(1, sheaves);
        // SAFETY: the memory has that many barns, and zeroes are a barn. Each gets its pages of the
        // pools, by the contract.
        unsafe {
            let barns = core::slice::from_raw_parts(at.cast::<Self>(), count as usize);
            for (i, barn) in barns.iter().enumerate() {
                barn.start(pools.part(i * each, each), sheaves);
            }
            barns
        }
    }

    /// Gives the barn its pool.
    ///
    /// # Safety
    /// `pool` is memory of at least [`Self::pool_bytes`], aligned as a [`Sheaf`], for which
    /// [`Stepped::start`] may be called. Called once.
    pub unsafe fn start(&self, pool: Part, sheaves: u32) {
        self.sheaves.store(sheaves, Ordering::Relaxed);
        // INVARIANT: the pool has that many sheaves, none of them handed out, by the contract.
        // SAFETY: the contract of `Stepped::start`, by the contract.
        unsafe { self.pool.start(pool) };
    }

    /// Address of a sheaf of the pool.
    fn sheaf(&self, number: u32) -> *mut Sheaf {
        self.pool.base().cast::<Sheaf>().wrapping_add(number as usize)
    }

    /// Takes the top of a stack of this barn.
    fn pop(&self, stack: &Stack) -> Option<Held<'_>> {
        let mut head = stack.0.load(Ordering::Acquire);
        loop {
            let number = (head as u32).checked_sub(1)?;
            // If another thread has popped the sheaf, this `next` is stale, but the count in the
            // head has changed, and the exchange fails.
            // SAFETY: numbers on stacks are those of sheaves of the pool, by the invariant.
            let next = unsafe { (*self.sheaf(number)).next.load(Ordering::Relaxed) };
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            // Acquire pairs with the release in `push`: the sheaf's contents are visible.
            // INVARIANT: success takes the sheaf off its stack, and a `Held` has it.
            match stack.0.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: the exchange took the sheaf off the stack, so this thread alone uses
                    // it.
                    let sheaf = unsafe { &mut *self.sheaf(number) };
                    return Some(Held { number, sheaf });
                }
                Err(now) => head = now,
            }
        }
    }

    /// Puts a sheaf on top of a stack of this barn.
    fn push(&self, stack: &Stack, held: Held<'_>) {
        let mut head = stack.0.load(Ordering::Relaxed);
        loop {
            held.sheaf.next.store(head as u32, Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(held.number + 1);
            match stack.0.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes a full sheaf of a class. `None`: the barn has none.
    pub fn take_full(&self, class: SizeClass) -> Option<Held<'_>> {
        let held = self.pop(&self.full[class.0 as usize])?;
        let left = self.count[class.0 as usize].fetch_sub(1, Ordering::Relaxed).wrapping_sub(1);
        let least = &self.least[class.0 as usize];
        if least.load(Ordering::Relaxed) > left {
            least.store(left, Ordering::Relaxed);
        }
        Some(held)
    }

    /// Number of full sheaves of a class that no thread needed since the last call.
    pub fn surplus(&self, class: SizeClass) -> u32 {
        let now = self.count[class.0 as usize].load(Ordering::Relaxed);
        self.least[class.0 as usize].swap(now, Ordering::Relaxed).min(now)
    }

    /// Takes an empty sheaf to be filled. `None`: the pool is used up, or the platform has no
    /// memory for more of it. Or the barn must not keep more sheaves of this class.
    pub fn take_empty(
        &self,
        platform: &impl Memory,
        class: SizeClass,
        geometry: &ClassGeometry,
    ) -> Option<Held<'_>> {
        let most = (BARN_BYTES / (u32::from(geometry.batch) * geometry.size).max(1)).clamp(2, 64);
        if self.count[class.0 as usize].load(Ordering::Relaxed) >= most {
            return None;
        }
        if let Some(held) = self.pop(&self.empty) {
            return Some(held);
        }
        let next = |used| {
            let room = used < self.sheaves.load(Ordering::Relaxed)
                && self.pool.ensure(platform, Self::pool_bytes(used + 1));
            room.then_some(used + 1)
        };
        // INVARIANT: the sheaf with the number is committed.
        let number = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        // SAFETY: a sheaf of the pool, which the update hands out to this thread only.
        let sheaf = unsafe { &mut *self.sheaf(number) };
        Some(Held { number, sheaf })
    }

    /// Puts a filled sheaf into the barn.
    pub fn give_full(&self, class: SizeClass, held: Held<'_>) {
        self.count[class.0 as usize].fetch_add(1, Ordering::Relaxed);
        self.push(&self.full[class.0 as usize], held);
    }

    /// Puts a sheaf back whose objects were taken.
    pub fn give_empty(&self, held: Held<'_>) {
        held.sheaf.len = 0;
        self.push(&self.empty, held);
    }

    /// In a forked child: forgets the contents of all sheaves, and makes all of them free to use.
    ///
    /// # Safety
    /// No other thread exists that could use the barn.
    pub unsafe fn forget(&self) {
        for (full, count) in self.full.iter().zip(&self.count) {
            full.0.store(0, Ordering::Relaxed);
            count.store(0, Ordering::Relaxed);
        }
        for least in &self.least {
            least.store(0, Ordering::Relaxed);
        }
        self.empty.0.store(0, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod model;

impl Default for Barn {
    fn default() -> Self {
        Self::new()
    }
}
