//! Models of a whole instance: four threads allocate, free, split and exchange pages and objects,
//! and drain CPUs. The instance has real memory. Its CPUs use try-locks in place of restartable
//! sections.

use std::sync::{Arc, Mutex};

use kmem_core::sync::Ordering;
use kmem_core::units::{Gfp, MAX_ORDER, Order, PAGE_SIZE, PAGEBLOCK_SIZE};
use kmem_core::{Caller, Instance};
use kmem_layout::root::{RootBlock, ZoneBlock};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::explore::{Outcomes, explore};
use crate::leaked::leaked;
use crate::machine::{Machine, me, random};
use crate::stamps::NOBODY;
use crate::watch::credit_is_covered;

const CPUS: usize = 4;
/// Memory of the machine: a few huge pages, beside the tables.
const MEMORY: usize = 16 << 20;
const STEPS: u32 = 12;
/// Owner of blocks that one thread sent and no other thread received yet.
const POST: u8 = 0x7E;
const USER: Caller = Caller::at(0x1000);
const GFP: Gfp = Gfp::NOWARN;

/// A block that a thread owns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Pages(usize, Order),
    /// A page of a block that was split.
    Piece(usize),
    Object(usize, usize),
}

/// The instance, and the blocks that threads send each other.
pub(crate) struct Model {
    pub(crate) a: &'static Instance<Machine>,
    _memory: Mapping,
    post: Mutex<Vec<Block>>,
    outcomes: Outcomes,
}

// SAFETY: only the machine uses the memory, and `Drop` unmaps it.
unsafe impl Send for Model {}
// SAFETY: the instance may be shared; threads reach the memory through it only.
unsafe impl Sync for Model {}

/// Fresh memory, which the system has filled with zeroes. Unmapped when it is dropped.
struct Mapping(*mut libc::c_void);

/// Bytes with room to begin at a huge page. So an instance has the same number of them in each run.
const MAPPED: usize = MEMORY + PAGEBLOCK_SIZE;

impl Mapping {
    fn new() -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), MAPPED, rights, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at)
    }

    fn start(&self) -> *mut u8 {
        let at = self.0.cast::<u8>();
        at.wrapping_add(at.align_offset(PAGEBLOCK_SIZE))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and no instance uses it any more.
        unsafe { libc::munmap(self.0, MAPPED) };
    }
}

impl Model {
    pub(crate) fn new(outcomes: &Outcomes, nodes: u32) -> Self {
        let memory = Mapping::new();
        // SAFETY: zeroed memory that the machine alone uses, and that is unmapped after it.
        let machine = unsafe { Machine::with_memory(memory.start(), MEMORY, CPUS as u32) };
        let a = leaked(machine.with_nodes(nodes));
        let model =
            Self { a, _memory: memory, post: Mutex::new(Vec::new()), outcomes: outcomes.clone() };
        // The first call starts the instance.
        a.drain();
        model
    }

    /// The blocks of the zones, as a reader outside finds them.
    fn zones(&self) -> &'static [ZoneBlock] {
        let root = self.a.platform().root.load(Ordering::Relaxed) as *const RootBlock;
        // SAFETY: the instance, with its tables, lives as long as the model.
        unsafe {
            let count = (*root).zone_count.load(Ordering::Relaxed) as usize;
            std::slice::from_raw_parts((*root).zones as *const ZoneBlock, count)
        }
    }

    /// Changes the owner of a block. An object has the mark in its contents only, because other
    /// objects share its page.
    fn pass(&self, block: Block, from: u8, to: u8) {
        let (at, pages) = match block {
            Block::Pages(at, order) => (at, order.pages().0),
            Block::Piece(at) => (at, 1),
            Block::Object(at, size) => {
                let byte = |at: usize, from: u8, to: u8| {
                    // SAFETY: live, and this thread alone owns it.
                    unsafe {
                        assert!(from == NOBODY || *(at as *const u8) == from, "{at:#x} of {size}");
                        *(at as *mut u8) = to;
                    }
                };
                byte(at, from, to);
                return if size > 1 {
                    byte(at + size - 1, from, to)
                };
            }
        };
        let machine = self.a.platform();
        machine.stamps.pass(machine.page(at), pages, from, to, false);
        for page in (0..pages as usize).map(|n| (at + n * PAGE_SIZE) as *mut u8) {
            // SAFETY: a live page that this thread alone owns.
            unsafe {
                assert!(from == NOBODY || *page == from, "contents of {page:?} are gone");
                *page = to;
            }
        }
    }

    fn note(&self, outcome: &'static str) {
        self.outcomes.note(outcome);
    }

    fn free(&self, block: Block) {
        // SAFETY: live, given up.
        unsafe {
            match block {
                Block::Pages(at, order) => self.a.free_pages(at as *mut u8, order),
                Block::Piece(at) => self.a.free_pages(at as *mut u8, Order(0)),
                Block::Object(at, _) => self.a.free(at as *mut u8),
            }
        }
    }

    /// Checks, when all threads have ended, that no page was lost. All are huge pages again.
    fn finish(&self) {
        let a = self.a;
        let held = std::mem::take(&mut *self.post.lock().expect("not poisoned"));
        assert_eq!(a.stats().objects, held.len() as u64);
        for block in held {
            self.pass(block, POST, NOBODY);
            self.free(block);
        }
        a.drain();
        assert_eq!(a.validate(), Ok(()));
        assert_eq!((a.stats().objects, a.stats().used), (0, 0));
        let huge = || Some(a.alloc_pages(Order(9), GFP, USER)).filter(|at| !at.is_null());
        let whole = std::iter::from_fn(huge).count() as u64;
        let pages: u64 = self.zones().iter().map(|zone| zone.pages).sum();
        assert_eq!(whole, pages / 512, "huge pages");
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: `new` leaked it, and no thread uses the instance or its memory any more.
        unsafe { drop(Box::from_raw((&raw const *self.a).cast_mut())) };
    }
}

struct Cpu {
    model: Arc<Model>,
    held: Vec<Block>,
}

impl Cpu {
    fn take(&mut self, block: Block, outcome: &'static str) {
        let (Block::Pages(at, _) | Block::Piece(at) | Block::Object(at, _)) = block;
        if at == 0 {
            return self.model.note("no memory");
        }
        self.model.pass(block, NOBODY, me() as u8);
        self.held.push(block);
        self.model.note(outcome);
    }

    fn pages(&mut self, order: u8) {
        let at = self.model.a.alloc_pages(Order(order), GFP, USER) as usize;
        self.take(Block::Pages(at, Order(order)), "pages");
    }

    /// Allocates between one byte and many pages.
    fn object(&mut self) {
        let size = random(1..2 << random(4..20)) as usize;
        let at = self.model.a.alloc(size, USER.with(GFP)) as usize;
        self.take(Block::Object(at, size), "object");
    }

    fn free(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let block = self.held.swap_remove(thread_rng().gen_range(0..self.held.len()));
        self.model.pass(block, me() as u8, NOBODY);
        self.model.free(block);
    }

    fn split(&mut self) {
        let is_short = |block: &Block| matches!(block, Block::Pages(_, order) if order.0 > 0);
        let Some(which) = self.held.iter().position(is_short) else { return };
        let Block::Pages(at, order) = self.held.swap_remove(which) else { return };
        // SAFETY: a live block that this thread alone owns.
        unsafe { self.model.a.split_page(at as *mut u8, order) };
        let pieces = (0..order.pages().0 as usize).map(|n| Block::Piece(at + n * PAGE_SIZE));
        self.held.extend(pieces);
        self.model.note("split");
    }

    /// Sends a block to any other thread. False: the thread has none.
    fn send(&mut self) -> bool {
        let block = self.held.pop();
        if let Some(block) = block {
            self.model.pass(block, me() as u8, POST);
            self.model.post.lock().expect("not poisoned").push(block);
        }
        block.is_some()
    }

    fn receive(&mut self) {
        let found = self.model.post.lock().expect("not poisoned").pop();
        if let Some(block) = found {
            self.model.pass(block, POST, me() as u8);
            self.held.push(block);
            self.model.note("another's");
        }
    }

    fn step(&mut self) {
        match random(0..18) {
            0..3 => self.pages(0),
            3 | 4 => self.pages(9),
            5 | 6 => self.pages(random(0..MAX_ORDER) as u8),
            7..10 => self.object(),
            10..13 => self.free(),
            13 => self.split(),
            14 => _ = self.send(),
            15 => self.receive(),
            16 => self.model.a.drain(),
            _ => {
                if self.model.a.trim() > 0 {
                    self.model.note("trimmed");
                }
            }
        }
    }
}

#[test]
fn an_instance_serves_pages_and_objects_to_all_its_cpus() {
    serves_all_cpus(1);
}

#[test]
fn an_instance_serves_pages_and_objects_to_the_cpus_of_two_nodes() {
    serves_all_cpus(2);
}

fn serves_all_cpus(nodes: u32) {
    const CASES: &[&str] = &["another's", "no memory", "object", "pages", "split", "trimmed"];
    explore(300, CASES, move |outcomes| {
        let model = Arc::new(Model::new(outcomes, nodes));
        let zones = model.zones();
        kmem_core::sync::race(
            move || zones.iter().for_each(credit_is_covered),
            || {
                let work = |mut cpu: Cpu| {
                    thread::spawn(move || {
                        (0..STEPS).for_each(|_| cpu.step());
                        while cpu.send() {}
                    })
                };
                let cpu = |_| work(Cpu { model: model.clone(), held: Vec::new() });
                let threads: Vec<_> = (0..CPUS).map(cpu).collect();
                threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
            },
        );
        model.finish();
    });
}
