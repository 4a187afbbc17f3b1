//! Models of the page zone: four CPUs with their reserves claim, give, split, steal, drain and
//! purge concurrently. The zone has a few pageblocks, and grows.

use std::sync::{Arc, Mutex};

use kmem_core::page::{On, Pcp, Run};
use kmem_core::sync::Ordering;
use kmem_core::units::{Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, PageCount};
use kmem_layout::root::ZoneBlock;
use shuttle::thread;

use crate::bare::{BASE, Bare};
use crate::explore::{Outcomes, explore};
use crate::machine::{Machine, random};
use crate::stamps::NOBODY;
use crate::watch::credit_is_covered;

/// CPUs, each with a thread of its own.
const CPUS: usize = 4;
/// Owner of runs that one CPU sent and no other CPU received yet.
const POST: u8 = 0x7E;
/// Decay time in milliseconds: two generations.
const DECAY: u32 = 20;

mod steps;

use steps::{ALL, Cpu, Step};

struct Model {
    bare: Bare,
    machine: Machine,
    pcps: Vec<Pcp>,
    post: Mutex<Vec<Run>>,
    outcomes: Outcomes,
}

impl Model {
    fn new(pageblocks: u32, outcomes: &Outcomes) -> Self {
        let pages = pageblocks * PAGEBLOCK_PAGES;
        Self {
            bare: Bare::new(pages),
            machine: Machine::without_memory(BASE, pages, CPUS as u32),
            pcps: (0..CPUS).map(|_| Pcp::new()).collect(),
            post: Mutex::new(Vec::new()),
            outcomes: outcomes.clone(),
        }
    }

    fn on(&self) -> On<'_, Machine> {
        self.bare.zone.on(&self.machine)
    }

    fn block(&self) -> &ZoneBlock {
        // SAFETY: lives as long as the zone.
        unsafe { &*self.bare.block }
    }

    fn used(&self) -> u32 {
        // SAFETY: the counter lives as long as the zone.
        unsafe { (*self.bare.used).load(Ordering::Relaxed) }
    }

    fn pass(&self, run: Run, from: u8, to: u8) {
        self.machine.stamps.pass(run.start.0, run.pages.0, from, to, to != NOBODY && to != POST);
    }

    /// Gives the reserves of a CPU back to the zone. True: they had pages.
    fn unreserve(&self, cpu: usize) -> bool {
        let mut any = false;
        for (_, reserve) in self.pcps[cpu].take_reserves() {
            self.bare.zone.unreserve(reserve);
            any |= reserve.credit > 0;
        }
        any
    }

    /// Checks, when all threads have ended, that each page exists once. All pages can be claimed,
    /// in every size.
    fn finish(self, held: Vec<Run>) {
        let zone = &self.bare.zone;
        (0..CPUS).for_each(|cpu| _ = self.unreserve(cpu));
        let out: u32 = held.iter().map(|run| run.pages.0).sum();
        assert_eq!(zone.validate(), Ok(()));
        assert_eq!(zone.free_pages(), u64::from(zone.committed().0 - out));
        assert_eq!(self.used(), out);
        // Each free page is found before the zone grows.
        let committed = zone.committed();
        let page = |_| self.on().claim_order(Order(0)).expect("a page of those that are free");
        let pages: Vec<_> = (0..committed.0 - out).map(page).collect();
        assert_eq!((zone.committed(), zone.free_pages()), (committed, 0));
        for run in held.into_iter().chain(pages) {
            assert_eq!(zone.give(run), Ok(()));
        }
        assert_eq!(zone.validate(), Ok(()));
        assert_eq!(zone.free_pages(), u64::from(zone.committed().0));
        assert_eq!(self.used(), 0);
        let pageblocks = zone.pages().0 / PAGEBLOCK_PAGES;
        let huge = || self.on().claim_order(Order(PAGEBLOCK_ORDER as u8));
        let whole: Vec<_> = std::iter::from_fn(huge).collect();
        assert_eq!(whole.len() as u32, pageblocks, "huge pages");
        assert!(whole.into_iter().all(|run| zone.give(run).is_ok()));
        assert!(self.on().claim(zone.pages(), PageCount(1)).is_some(), "all as one run");
        if self.machine.dropped.load(Ordering::Relaxed) > 0 {
            self.outcomes.note("decommitted");
        }
    }
}

/// Runs a thread for each CPU, which takes `count` of `steps` at random.
fn race(
    pageblocks: u32,
    prepare: fn(&mut Cpu),
    steps: &'static [Step],
    count: u32,
    out: &Outcomes,
) {
    let model = Arc::new(Model::new(pageblocks, out));
    let mut held = {
        let mut cpu = Cpu::new(model.clone());
        prepare(&mut cpu);
        cpu.held
    };
    let watched = model.clone();
    kmem_core::sync::race(
        move || credit_is_covered(watched.block()),
        || {
            let work = |mut cpu: Cpu| {
                thread::spawn(move || {
                    (0..count)
                        .for_each(|_| steps[random(0..steps.len() as u32) as usize](&mut cpu));
                    cpu.held
                })
            };
            let threads: Vec<_> = (0..CPUS).map(|_| work(Cpu::new(model.clone()))).collect();
            held.extend(threads.into_iter().flat_map(|thread| thread.join().expect("it ends")));
        },
    );
    held.append(&mut model.post.lock().expect("not poisoned"));
    Arc::into_inner(model).expect("the threads have ended").finish(held);
}

#[test]
fn cpus_do_everything_at_once_and_each_page_has_one_owner() {
    const CASES: &[&str] = &[
        "a generation ended",
        "another's",
        "claimed",
        "claimed a huge page",
        "claimed a long run",
        "failed to claim",
        "decommitted",
        "drained",
        "gave a part",
        "lengthened",
        "purged",
        "put a reserve back",
        "split",
        "took a pageblock at its place",
        "used a reserve",
    ];
    explore(1500, CASES, |outcomes| race(5, |_| (), ALL, 12, outcomes));
}

#[test]
fn a_full_zone_serves_every_page_that_comes_back() {
    // The zone cannot grow: a claim can only get pages that other threads give back concurrently.
    const CASES: &[&str] = &["claimed", "failed to claim", "claimed a huge page", "split"];
    let prepare = |cpu: &mut Cpu| {
        cpu.claim_all();
        cpu.split();
        (0..20).for_each(|_| cpu.give());
    };
    explore(1500, CASES, move |outcomes| race(2, prepare, ALL, 12, outcomes));
}

#[test]
fn a_reserve_has_one_holder() {
    const STEPS: &[Step] = &[Cpu::refill, Cpu::steal, Cpu::drain, Cpu::give_blocks];
    const CASES: &[&str] = &["drained", "put a reserve back", "used a reserve"];
    explore(2000, CASES, |outcomes| race(2, |_| (), STEPS, 8, outcomes));
}

#[test]
fn huge_pages_and_their_parts_take_turns_in_a_pageblock() {
    const STEPS: &[Step] = &[
        Cpu::claim_huge,
        Cpu::claim_pageblocks,
        Cpu::claim_order,
        Cpu::give,
        Cpu::give_pageblocks,
        Cpu::split,
        Cpu::lengthen_by_pageblock,
        Cpu::purge,
    ];
    const CASES: &[&str] = &["claimed", "claimed a huge page", "split", "purged"];
    explore(2000, CASES, |outcomes| race(2, |_| (), STEPS, 10, outcomes));
}
