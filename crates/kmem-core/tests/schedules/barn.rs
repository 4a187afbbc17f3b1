//! Models of the barn: four threads fill, empty and pass on the sheaves of two classes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use kmem_core::class::SizeClass;
use kmem_core::os::regions::Regions;
use kmem_core::os::stepped::Part;
use kmem_core::slab::sheaf::{Barn, Held, Sheaf};
use kmem_core::units::Item;
use kmem_layout::geometry::ClassGeometry;
use shuttle::thread;

use crate::explore::{Outcomes, explore};
use crate::machine::{me, random};
use crate::stamps::{NOBODY, Stamps};

const THREADS: usize = 4;
/// Sheaves of the pool: fewer than the threads ask for.
const SHEAVES: u32 = 5;
const CLASSES: [SizeClass; 2] = [SizeClass(1), SizeClass(2)];
const GEOMETRY: ClassGeometry = ClassGeometry::new(64, false);
const STEPS: u32 = 12;

/// A barn with its pool, and the owner of each sheaf.
struct Model {
    barn: Barn,
    /// A platform without memory: all of the pool is committed.
    platform: Regions,
    pool: *mut u8,
    stamps: Stamps,
    outcomes: Outcomes,
}

// SAFETY: only the barn and `Drop` use the pool.
unsafe impl Send for Model {}
// SAFETY: the barn may be shared; threads reach the pool through it only.
unsafe impl Sync for Model {}

fn layout() -> Layout {
    let layout = Layout::from_size_align(Barn::pool_bytes(SHEAVES), align_of::<Sheaf>());
    layout.expect("a layout")
}

impl Model {
    fn new(outcomes: &Outcomes) -> Self {
        let barn = Barn::new();
        // SAFETY: the size is not zero.
        let pool = unsafe { alloc_zeroed(layout()) };
        // SAFETY: zeroed memory that the barn alone uses; `Drop` frees it.
        unsafe { barn.start(Part::whole(pool, Barn::pool_bytes(SHEAVES)), SHEAVES) };
        // SAFETY: a region of no bytes.
        let platform =
            unsafe { Regions::of(std::ptr::null_mut(), 0, 1, |_| (), || panic!("fatal")) };
        Self { barn, platform, pool, stamps: Stamps::new(SHEAVES), outcomes: outcomes.clone() }
    }

    fn number(&self, held: &Held) -> u32 {
        let offset = (&raw const *held.sheaf) as usize - self.pool as usize;
        (offset / size_of::<Sheaf>()) as u32
    }

    /// Changes the owner of a sheaf.
    fn pass(&self, held: &Held, from: u8, to: u8) {
        self.stamps.pass(self.number(held), 1, from, to, false);
    }

    /// Fills a sheaf with items that name its number and class.
    fn fill(&self, class: SizeClass) {
        let Some(held) = self.barn.take_empty(&self.platform, class, &GEOMETRY) else {
            return self.outcomes.note("no empty one");
        };
        self.pass(&held, NOBODY, me() as u8);
        let number = self.number(&held);
        assert_eq!(held.sheaf.len, 0);
        held.sheaf.len = 1 + number;
        held.sheaf.objects.fill(Item::at(usize::from(class.0) << 16 | number as usize));
        self.give(class, held);
        self.outcomes.note("filled");
    }

    fn take(&self, class: SizeClass) -> Option<Held<'_>> {
        let held = self.barn.take_full(class)?;
        self.pass(&held, NOBODY, me() as u8);
        let number = self.number(&held);
        assert_eq!(held.sheaf.len, 1 + number);
        let item = usize::from(class.0) << 16 | number as usize;
        assert!(held.sheaf.objects.iter().all(|found| found.address() == item));
        Some(held)
    }

    fn give(&self, class: SizeClass, held: Held) {
        self.pass(&held, me() as u8, NOBODY);
        self.barn.give_full(class, held);
    }

    fn empty(&self, class: SizeClass) {
        let Some(held) = self.take(class) else { return self.outcomes.note("no full one") };
        self.pass(&held, me() as u8, NOBODY);
        self.barn.give_empty(held);
        self.outcomes.note("emptied");
    }

    /// Takes two sheaves and puts the first back first. The top of the stack is the same then, but
    /// the sheaf below it is not.
    fn exchange(&self, class: SizeClass) {
        let (first, second) = (self.take(class), self.take(class));
        if second.is_some() {
            self.outcomes.note("exchanged");
        }
        first.into_iter().chain(second).for_each(|held| self.give(class, held));
    }

    fn step(&self) {
        let class = CLASSES[random(0..2) as usize];
        match random(0..3) {
            0 => self.fill(class),
            1 => self.empty(class),
            _ => self.exchange(class),
        }
    }

    /// Checks, when all threads have ended, that every sheaf is full or empty.
    fn finish(&self) {
        let full = CLASSES.map(|class| std::iter::from_fn(|| self.take(class)).count());
        let empty = || self.barn.take_empty(&self.platform, CLASSES[0], &GEOMETRY);
        let empty = std::iter::from_fn(empty).inspect(|held| self.pass(held, NOBODY, 1)).count();
        assert_eq!(full[0] + full[1] + empty, SHEAVES as usize);
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it, and no thread uses the barn any more.
        unsafe { dealloc(self.pool, layout()) };
    }
}

#[test]
fn sheaves_go_round_and_none_is_lost_or_doubled() {
    const CASES: &[&str] = &["emptied", "exchanged", "filled", "no empty one", "no full one"];
    explore(2000, CASES, |outcomes| {
        let model = Arc::new(Model::new(outcomes));
        kmem_core::sync::race(
            || (),
            || {
                let work = |model: Arc<Model>| {
                    thread::spawn(move || (0..STEPS).for_each(|_| model.step()))
                };
                let threads: Vec<_> = (0..THREADS).map(|_| work(model.clone())).collect();
                threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
            },
        );
        model.finish();
    });
}
