//! The page zone against the classic buddy zone: the same operations, the same answers.
//!
//! The two put blocks in different places. So after some operations one of them may have a large
//! block left, and the other none. Each must serve a block exactly when its own free pages hold an
//! aligned block of that order. Both serve and refuse single pages alike. A block that only one of
//! them served is given back, so that their totals stay equal.

use kmem_buddy::{Checks, Zone as Buddy};
use kmem_core::os::regions::Regions;
use kmem_core::page::{Reserve, Run, Zone};
use kmem_core::units::{Item, MAX_ORDER, Order, PageCount, Pfn};
use proptest::prelude::*;

use crate::instance::cases;
use crate::{PAGES, zone};

/// The pages that one of the two zones has out.
struct Map(Vec<bool>);

impl Map {
    fn new() -> Self {
        Self(vec![false; PAGES as usize])
    }

    /// True if an aligned block of that many pages is free.
    fn has_block(&self, pages: u32) -> bool {
        self.0.chunks(pages as usize).any(|block| !block.contains(&true))
    }

    /// True if a run of that many pages is free.
    fn has_run(&self, pages: u32) -> bool {
        let mut free = 0;
        self.0.iter().any(|&out| {
            free = if out { 0 } else { free + 1 };
            free == pages
        })
    }

    /// Marks pages as out or in. False: some of them were so already.
    fn set(&mut self, first: u32, pages: u32, out: bool) -> bool {
        let part = &mut self.0[first as usize..(first + pages) as usize];
        let right = part.iter().all(|&was| was != out);
        part.fill(out);
        right
    }

    fn out(&self) -> u32 {
        self.0.iter().filter(|&&out| out).count() as u32
    }
}

#[derive(Clone, Debug)]
enum Step {
    Block(u8),
    /// Several blocks of an order at once.
    Bulk(u8, usize),
    Run(u32),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..=MAX_ORDER as u8).prop_map(Step::Block),
        2 => Just(Step::Block(0)),
        2 => (0u8..=3, 1usize..40).prop_map(|(order, count)| Step::Bulk(order, count)),
        2 => (1u32..1500).prop_map(Step::Run),
        4 => any::<usize>().prop_map(Step::Free),
    ]
}

/// A block or run that both zones have out.
struct Held {
    pages: u32,
    /// A block of an order, not a run.
    order: Option<u8>,
    ours: u32,
    theirs: u32,
}

struct Both {
    zone: &'static Zone,
    platform: &'static Regions,
    buddy: Buddy,
    ours: Map,
    theirs: Map,
    held: Vec<Held>,
}

impl Both {
    fn new() -> Self {
        let (zone, platform) = zone();
        let buddy = Buddy::new(PAGES, Checks::Default);
        Self { zone, platform, buddy, ours: Map::new(), theirs: Map::new(), held: Vec::new() }
    }

    fn alloc(&mut self, pages: u32, order: Option<u8>) -> Result<(), TestCaseError> {
        let on = self.zone.on(self.platform);
        let (ours, theirs) = match order {
            Some(order) => (on.claim_order(Order(order)), self.buddy.alloc(order)),
            None => (on.claim(PageCount(pages), PageCount(1)), self.buddy.alloc_exact(pages)),
        };
        self.compare(pages, order, ours, theirs)
    }

    fn alloc_bulk(&mut self, order: u8, count: usize) -> Result<(), TestCaseError> {
        let mut out = vec![Item::NONE; count];
        let mut reserve = Reserve::NONE;
        let got = self.zone.on(self.platform).claim_bulk(Order(order), &mut reserve, &mut out);
        self.zone.unreserve(reserve);
        for item in &out[count - got..] {
            let start = self.zone.pfn(item.address()).expect("a page of the zone");
            let theirs = self.buddy.alloc(order);
            let ours = Run { start, pages: PageCount(1 << order) };
            self.compare(1 << order, Some(order), Some(ours), theirs)?;
        }
        // It grows for the first of them only.
        if got == 0 {
            let theirs = self.buddy.alloc(order);
            self.compare(1 << order, Some(order), None, theirs)?;
        }
        Ok(())
    }

    /// Checks the answers of both zones to a request.
    fn compare(
        &mut self,
        pages: u32,
        order: Option<u8>,
        ours: Option<Run>,
        theirs: Option<u32>,
    ) -> Result<(), TestCaseError> {
        let align = if order.is_some() { pages } else { 1 };
        if let Some(run) = ours {
            prop_assert_eq!(run.pages, PageCount(pages));
            prop_assert!(run.start.0.is_multiple_of(align), "{} for {:?}", run.start.0, order);
            prop_assert!(self.ours.set(run.start.0, pages, true), "{} is out", run.start.0);
        } else if order.is_some() {
            prop_assert!(
                !self.ours.has_block(pages),
                "order {order:?} refused though there is one"
            );
        } else if pages <= 64 {
            // A row holds runs of up to its length; a longer run begins at a row.
            prop_assert!(!self.ours.has_block(pages.next_power_of_two()), "run of {pages} refused");
        }
        if let Some(first) = theirs {
            prop_assert!(first.is_multiple_of(align));
            prop_assert!(self.theirs.set(first, pages, true));
        } else {
            prop_assert!(!self.theirs.has_block(pages.next_power_of_two()));
        }
        if pages == 1 {
            prop_assert_eq!(ours.is_some(), theirs.is_some(), "a single page");
            prop_assert_eq!(ours.is_some(), self.ours.out() <= PAGES && self.had_one());
        }
        match (ours, theirs) {
            (Some(run), Some(first)) => {
                self.held.push(Held { pages, order, ours: run.start.0, theirs: first });
            }
            (Some(run), None) => self.free_ours(run.start.0, pages, order)?,
            (None, Some(first)) => self.free_theirs(first, pages, order)?,
            (None, None) => prop_assert!(!self.ours.has_run(pages) || pages > 1),
        }
        Ok(())
    }

    /// True if the last request found a free page: it is not in `held` yet.
    fn had_one(&self) -> bool {
        self.held.iter().map(|held| held.pages).sum::<u32>() < PAGES
    }

    fn free_ours(
        &mut self,
        first: u32,
        pages: u32,
        order: Option<u8>,
    ) -> Result<(), TestCaseError> {
        prop_assert!(self.ours.set(first, pages, false));
        let given = match order {
            Some(order @ 0..=3) => {
                let block = Item::at(self.zone.address(Pfn(first)));
                // SAFETY: a block of the zone, which was claimed.
                unsafe { self.zone.give_bulk(Order(order), &[block]) }
            }
            _ => self.zone.give(Run { start: Pfn(first), pages: PageCount(pages) }),
        };
        prop_assert_eq!(given, Ok(()));
        Ok(())
    }

    fn free_theirs(
        &mut self,
        first: u32,
        pages: u32,
        order: Option<u8>,
    ) -> Result<(), TestCaseError> {
        prop_assert!(self.theirs.set(first, pages, false));
        let given = match order {
            Some(order) => self.buddy.free(first, order),
            None => self.buddy.free_exact(first, pages),
        };
        prop_assert_eq!(given, Ok(()));
        Ok(())
    }

    fn free(&mut self, which: usize) -> Result<(), TestCaseError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let held = self.held.swap_remove(which % self.held.len());
        self.free_ours(held.ours, held.pages, held.order)?;
        self.free_theirs(held.theirs, held.pages, held.order)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let ours = u64::from(PAGES - self.zone.committed().0) + self.zone.free_pages();
        prop_assert_eq!(ours, u64::from(self.buddy.free_pages()));
        prop_assert_eq!(ours, u64::from(PAGES - self.ours.out()));
        prop_assert_eq!(self.zone.validate(), Ok(()));
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn the_same_operations_get_the_same_answers(steps in prop::collection::vec(step(), 1..200)) {
        let mut both = Both::new();
        for step in steps {
            match step {
                Step::Block(order) => both.alloc(1 << order, Some(order))?,
                Step::Bulk(order, count) => both.alloc_bulk(order, count)?,
                Step::Run(pages) => both.alloc(pages, None)?,
                Step::Free(which) => both.free(which)?,
            }
            both.check()?;
        }
        while !both.held.is_empty() {
            both.free(0)?;
        }
        both.check()?;
        prop_assert_eq!(both.buddy.free_blocks(kmem_buddy::MAX_ORDER), PAGES >> MAX_ORDER);
        let whole = both.zone.on(both.platform).claim(PageCount(PAGES), PageCount(1));
        prop_assert!(whole.is_some(), "all of the zone is one run again");
    }
}
