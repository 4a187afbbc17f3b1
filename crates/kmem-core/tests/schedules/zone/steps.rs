//! Steps of a CPU in the models of the page zone.

use std::sync::Arc;

use kmem_core::class::PageClass;
use kmem_core::os::Cpus;
use kmem_core::page::{Keep, Run};
use kmem_core::units::{Item, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, PageCount, Pageblock};
use shuttle::rand::{Rng, thread_rng};

use super::{CPUS, DECAY, Model, POST};
use crate::machine::{me, random};
use crate::stamps::NOBODY;

/// One thread, with the runs that it owns.
pub(super) struct Cpu {
    model: Arc<Model>,
    pub(super) held: Vec<Run>,
}

/// One step.
pub(super) type Step = fn(&mut Cpu);

/// All kinds of steps. A thread does those more often that are listed several times.
pub(super) const ALL: &[Step] = &[
    Cpu::claim_order,
    Cpu::claim_order,
    Cpu::claim_order,
    Cpu::claim_huge,
    Cpu::claim_long,
    Cpu::give,
    Cpu::give,
    Cpu::give,
    Cpu::give_part,
    Cpu::split,
    Cpu::refill,
    Cpu::refill,
    Cpu::steal,
    Cpu::drain,
    Cpu::give_blocks,
    Cpu::claim_pageblocks,
    Cpu::give_pageblocks,
    Cpu::lengthen,
    Cpu::lengthen_by_pageblock,
    Cpu::send,
    Cpu::receive,
    Cpu::purge,
    Cpu::decay,
];

impl Cpu {
    pub(super) fn new(model: Arc<Model>) -> Self {
        Self { model, held: Vec::new() }
    }

    fn me(&self) -> u8 {
        me() as u8
    }

    /// Becomes the owner of a claimed run.
    fn take(&mut self, run: Run) {
        let blank = self.model.bare.zone.reads_zero(run);
        let stamps = &self.model.machine.stamps;
        assert!(!blank || stamps.are_blank(run.start.0, run.pages.0), "old contents in {run:?}");
        self.model.pass(run, NOBODY, self.me());
        self.held.push(run);
    }

    fn take_items(&mut self, items: &[Item], pages: PageCount) {
        for item in items {
            let start = self.model.bare.zone.pfn(item.address()).expect("a page of the zone");
            self.take(Run { start, pages });
        }
    }

    /// Takes a random run that fits out of the held ones. The caller gives it back at once.
    pub(super) fn part_with(&mut self, which: impl Fn(&Run) -> bool) -> Option<Run> {
        let fits: Vec<_> = (0..self.held.len()).filter(|&i| which(&self.held[i])).collect();
        let which = *fits.get(thread_rng().gen_range(0..fits.len().max(1)))?;
        let run = self.held.swap_remove(which);
        self.model.pass(run, self.me(), NOBODY);
        Some(run)
    }

    pub(super) fn part_with_some(
        &mut self,
        most: usize,
        which: impl Fn(&Run) -> bool,
    ) -> Vec<Item> {
        let runs: Vec<_> = (0..most).map_while(|_| self.part_with(&which)).collect();
        let zone = &self.model.bare.zone;
        runs.iter().map(|run| Item::at(zone.address(run.start))).collect()
    }

    fn note(&self, outcome: &'static str) {
        self.model.outcomes.note(outcome);
    }

    pub(super) fn claim_order(&mut self) {
        let order = Order(random(0..10) as u8);
        if let Some(run) = self.model.on().claim_order(order) {
            assert!(run.start.0.is_multiple_of(run.pages.0));
            self.take(run);
            self.note("claimed");
        } else {
            self.note("failed to claim");
        }
    }

    pub(super) fn claim_huge(&mut self) {
        if let Some(run) = self.model.on().claim_order(Order(PAGEBLOCK_ORDER as u8)) {
            self.take(run);
            self.note("claimed a huge page");
        }
    }

    /// Claims the whole zone.
    pub(super) fn claim_all(&mut self) {
        let pages = self.model.bare.zone.pages();
        let all = self.model.on().claim(pages, PageCount(1)).expect("the zone is empty");
        self.take(all);
    }

    /// Claims more than a row, up to two pageblocks and a part.
    pub(super) fn claim_long(&mut self) {
        if let Some(run) = self.model.on().claim(PageCount(random(65..1200)), PageCount(1)) {
            self.take(run);
            self.note("claimed a long run");
        }
    }

    pub(super) fn give(&mut self) {
        if let Some(run) = self.part_with(|_| true) {
            assert_eq!(self.model.bare.zone.give(run), Ok(()));
        }
    }

    /// Gives the end of a run back.
    pub(super) fn give_part(&mut self) {
        let Some(run) = self.part_with(|run| run.pages.0 > 1) else { return };
        let keep = PageCount(random(1..run.pages.0));
        self.model.pass(Run { pages: keep, ..run }, NOBODY, self.me());
        self.held.push(Run { pages: keep, ..run });
        let rest = Run { start: run.start + keep, pages: run.pages - keep };
        assert_eq!(self.model.bare.zone.give(rest), Ok(()));
        self.note("gave a part");
    }

    /// Splits a run into several, each of which is given back by itself.
    pub(super) fn split(&mut self) {
        let Some(which) = self.held.iter().position(|run| run.pages.0 > 1) else { return };
        let run = self.held.swap_remove(which);
        self.model.bare.zone.loosen(run);
        let mut done = 0;
        while done < run.pages.0 {
            let pages = random(1..200).min(run.pages.0 - done);
            self.held.push(Run { start: run.start + PageCount(done), pages: PageCount(pages) });
            done += pages;
        }
        self.note("split");
    }

    /// CPU that the thread runs on.
    fn cpu(&self) -> usize {
        self.model.machine.slot_hint() as usize
    }

    /// Takes single pages or small blocks out of the reserve of `cpu`. The rest of the reserve goes
    /// to the CPU that the thread runs on. True: the reserve had pages.
    pub(super) fn refill_from(&mut self, cpu: usize) -> bool {
        let model = self.model.clone();
        let order = random(0..4) as u8;
        let class = PageClass::of(Order(order)).expect("an order that CPUs keep");
        let (zone, mut reserve) = model.pcps[cpu].take_reserve(class);
        let had = reserve.credit > 0;
        let mut items = [Item::NONE; 8];
        let out = &mut items[..random(1..9) as usize];
        let got = model.on().claim_bulk(Order(order), &mut reserve, out);
        if !model.pcps[self.cpu()].put_reserve(class, zone, reserve) {
            model.bare.zone.unreserve(reserve);
            self.note("put a reserve back");
        }
        let from = out.len() - got;
        let got = out[from..].to_vec();
        self.take_items(&got, class.pages());
        had
    }

    pub(super) fn refill(&mut self) {
        self.refill_from(self.cpu());
    }

    pub(super) fn steal(&mut self) {
        if self.refill_from(random(0..CPUS as u32) as usize) {
            self.note("used a reserve");
        }
    }

    /// Gives the reserves of a random CPU back to the zone.
    pub(super) fn drain(&mut self) {
        if self.model.unreserve(random(0..CPUS as u32) as usize) {
            self.note("drained");
        }
    }

    pub(super) fn give_blocks(&mut self) {
        let order = Order(random(0..4) as u8);
        let size = order.pages();
        let is_block = |run: &Run| run.pages == size && run.start.0.is_multiple_of(size.0);
        let items = self.part_with_some(8, is_block);
        // SAFETY: blocks of the zone, which this thread claimed.
        let given = unsafe { self.model.bare.zone.give_bulk(order, &items) };
        assert_eq!(given, Ok(()));
    }

    pub(super) fn claim_pageblocks(&mut self) {
        let mut items = [Item::NONE; 3];
        let got = self.model.on().claim_pageblocks_bulk(&mut items);
        self.take_items(&items[items.len() - got..], PageCount::PAGEBLOCK);
    }

    /// Gives whole pageblocks back, which were taken as a whole or page by page.
    pub(super) fn give_pageblocks(&mut self) {
        let is_pageblock = |run: &Run| {
            run.start.0.is_multiple_of(PAGEBLOCK_PAGES) && run.pages.0 == PAGEBLOCK_PAGES
        };
        let items = self.part_with_some(3, is_pageblock);
        // SAFETY: pageblocks of the zone, which this thread claimed.
        let given = unsafe { self.model.bare.zone.give_pageblocks_bulk(&items) };
        assert_eq!(given, Ok(()));
    }

    pub(super) fn lengthen(&mut self) {
        let model = self.model.clone();
        let zone = &model.bare.zone;
        let Some(run) = self.held.first().copied() else { return };
        let (end, more) = (run.end(), PageCount(random(1..100)));
        // A run that ends in a pageblock that is taken as a whole has the rest of it.
        if end.0 + more.0 <= zone.pages().0 && zone.claim_at(end, more) {
            self.take(Run { start: end, pages: more });
            self.note("lengthened");
        }
    }

    pub(super) fn lengthen_by_pageblock(&mut self) {
        let pageblock = Pageblock(random(0..self.model.bare.zone.pages().0 / PAGEBLOCK_PAGES));
        if self.model.on().claim_pageblocks_at(pageblock, 1) {
            self.take(Run { start: pageblock.first(), pages: PageCount(PAGEBLOCK_PAGES) });
            self.note("took a pageblock at its place");
        }
    }

    pub(super) fn send(&mut self) {
        if let Some(run) = self.held.pop() {
            self.model.pass(run, self.me(), POST);
            self.model.post.lock().expect("not poisoned").push(run);
        }
    }

    pub(super) fn receive(&mut self) {
        let found = self.model.post.lock().expect("not poisoned").pop();
        if let Some(run) = found {
            self.model.pass(run, POST, self.me());
            self.held.push(run);
            self.note("another's");
        }
    }

    pub(super) fn purge(&mut self) {
        if self.model.on().purge(Keep::NOTHING, random(1..4)).bytes > 0 {
            self.note("purged");
        }
    }

    pub(super) fn decay(&mut self) {
        let on = self.model.on();
        let Some(look) = on.look(DECAY) else { return };
        if look.new {
            self.note("a generation ended");
        }
        let keep = Keep { spare: PageCount(random(0..600)), ..Keep::YOUNG };
        if on.purge(keep, 16).spared_all {
            self.note("all free pages were spared");
        }
    }
}
