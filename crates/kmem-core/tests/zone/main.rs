//! The page zone against a plain map of pages.

#[path = "../instance/mod.rs"]
mod instance;

mod bare;
mod oracle;

use instance::{cases, fatal, print};
use std::collections::BTreeMap;

use bare::Bare;
use kmem_core::os::regions::Regions;
use kmem_core::page::{Bad, BadPage, Run, Zone};
use kmem_core::units::{MAX_ORDER, Order, PageCount, Pfn};
use proptest::prelude::*;

/// Pages of the zone.
const PAGES: u32 = 16 * 512;

/// A zone that is never freed, and a platform without memory.
fn zone() -> (&'static Zone, &'static Regions) {
    // SAFETY: the region has no bytes.
    let platform = unsafe { Regions::of(std::ptr::null_mut(), 0, 1, print, fatal) };
    (&Box::leak(Box::new(Bare::new(PAGES))).zone, Box::leak(Box::new(platform)))
}

#[test]
fn blocks_of_every_order_are_aligned_apart_and_come_back() {
    let (zone, platform) = zone();
    for order in 0..=MAX_ORDER as u8 {
        let size = Order(order).pages();
        let mut blocks = Vec::new();
        while let Some(run) = zone.on(platform).claim_order(Order(order)) {
            assert!(run.start.0.is_multiple_of(size.0) && run.pages == size);
            blocks.push(run);
        }
        assert_eq!(blocks.len() as u32, PAGES / size.0, "order {order} fills the zone");
        blocks.sort_by_key(|run| run.start);
        assert!(blocks.windows(2).all(|two| two[0].start.0 + size.0 <= two[1].start.0));
        assert_eq!(zone.free_pages(), 0);
        for run in blocks {
            zone.give(run).expect("not free yet");
        }
        assert_eq!(zone.free_pages(), u64::from(PAGES));
        assert_eq!(zone.validate(), Ok(()));
    }
}

#[test]
fn pages_returned_twice_are_found_and_the_counts_stay_right() {
    let (zone, platform) = zone();
    let run = zone.on(platform).claim(PageCount(10), PageCount(1)).expect("room");
    zone.give(Run { pages: PageCount(4), ..run }).expect("not free yet");
    let twice = zone.give(run).expect_err("four of them are free");
    assert_eq!(twice.0, run.start);
    assert_eq!(zone.validate(), Ok(()));
    assert_eq!(zone.free_pages(), u64::from(zone.committed().0));
}

#[test]
fn a_run_beyond_the_zone_is_refused() {
    let (zone, platform) = zone();
    assert!(zone.on(platform).claim(PageCount(PAGES + 1), PageCount(1)).is_none());
    assert!(zone.on(platform).claim(PageCount(PAGES), PageCount(1)).is_some());
    assert!(zone.on(platform).claim(PageCount(1), PageCount(1)).is_none());
}

/// The first partly used pageblock in which a run can be found: inside a row, or from the start of
/// a row on. `None`, too, for a run of a pageblock or more.
fn first_with_run(taken: &BTreeMap<u32, u32>, pages: u32) -> Option<u32> {
    let mut free = vec![true; PAGES as usize];
    for (&start, &pages) in taken {
        free[start as usize..(start + pages) as usize].fill(false);
    }
    if pages >= 512 {
        return None;
    }
    let has = |block: &[bool]| {
        let is_run = |run: &[bool]| run.iter().all(|free| *free);
        let pages = pages as usize;
        block.contains(&false)
            && if pages <= 64 {
                block.chunks(64).any(|row| row.windows(pages).any(is_run))
            } else {
                (0..=512 - pages).step_by(64).any(|start| is_run(&block[start..start + pages]))
            }
    };
    free.chunks(512).position(has).map(|block| block as u32)
}

fn run_of(start: u32, pages: u32) -> Run {
    Run { start: Pfn(start), pages: PageCount(pages) }
}

#[derive(Clone, Debug)]
enum Step {
    Claim { pages: u32, align: u32 },
    Give { which: usize },
    GivePart { which: usize, keep: u32 },
    Lengthen { which: usize, by: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let pages = prop_oneof![4 => 1u32..65, 2 => 65u32..512, 1 => 512u32..2000];
    prop_oneof![
        4 => (pages.clone(), 0u32..12)
            .prop_map(|(pages, shift)| Step::Claim { pages, align: 1 << shift }),
        4 => pages.prop_map(|pages| Step::Claim { pages, align: 1 }),
        3 => any::<usize>().prop_map(|which| Step::Give { which }),
        1 => (any::<usize>(), any::<u32>())
            .prop_map(|(which, keep)| Step::GivePart { which, keep }),
        1 => (any::<usize>(), 1u32..100).prop_map(|(which, by)| Step::Lengthen { which, by }),
    ]
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn runs_never_overlap_and_nothing_is_lost(steps in prop::collection::vec(step(), 1..300)) {
        let (zone, platform) = zone();
        let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
        let overlaps = |taken: &BTreeMap<u32, u32>, start: u32, pages: u32| {
            taken.range(..start + pages).next_back().is_some_and(|(s, p)| s + p > start)
        };
        for step in steps {
            let pick = |which: usize| {
                taken.iter().nth(which % taken.len().max(1)).map(|(start, pages)| (*start, *pages))
            };
            match step {
                Step::Claim { pages, align } => {
                    let first = first_with_run(&taken, pages).filter(|_| align == 1);
                    let claimed = zone.on(platform).claim(PageCount(pages), PageCount(align));
                    if let Some(first) = first {
                        let found = claimed.map(|run| run.start.pageblock().0);
                        prop_assert_eq!(found, Some(first), "the first with {} pages", pages);
                    }
                    if let Some(Run { start, pages: got }) = claimed {
                        prop_assert_eq!(got.0, pages);
                        prop_assert!(start.0.is_multiple_of(align) && start.0 + pages <= PAGES);
                        prop_assert!(!overlaps(&taken, start.0, pages), "{} {}", start.0, pages);
                        taken.insert(start.0, pages);
                    } else {
                        let held: u32 = taken.values().sum();
                        prop_assert!(
                            held + pages + 2 * align > PAGES / 8,
                            "refused with {held} of {PAGES} in use"
                        );
                    }
                }
                Step::Give { which } => {
                    if let Some((start, pages)) = pick(which) {
                        prop_assert!(zone.give(run_of(start, pages)).is_ok());
                        taken.remove(&start);
                    }
                }
                Step::GivePart { which, keep } => {
                    if let Some((start, pages)) = pick(which).filter(|(_, pages)| *pages > 1) {
                        let keep = 1 + keep % (pages - 1);
                        prop_assert!(zone.give(run_of(start + keep, pages - keep)).is_ok());
                        taken.insert(start, keep);
                    }
                }
                Step::Lengthen { which, by } => {
                    if let Some((start, pages)) = pick(which).filter(|(s, p)| s + p + by <= PAGES) {
                        let free = !overlaps(&taken, start + pages, by);
                        let done = zone.claim_at(Pfn(start + pages), PageCount(by));
                        prop_assert!(free || !done, "lengthened into another run");
                        if done {
                            taken.insert(start, pages + by);
                        }
                    }
                }
            }
            let held: u32 = taken.values().sum();
            prop_assert_eq!(zone.free_pages(), u64::from(zone.committed().0 - held));
            prop_assert_eq!(zone.validate(), Ok(()));
        }
    }
}

#[test]
fn a_page_in_use_that_is_free_in_the_zone_is_told() {
    let (zone, platform) = zone();
    let run = zone.on(platform).claim(PageCount(100), PageCount(64)).expect("room");
    assert_eq!(zone.check_taken(run), Ok(()));
    assert_eq!(zone.check_claimed(run), Ok(()));
    let page = run.start + PageCount(70);
    zone.give(Run { start: page, pages: PageCount::ONE }).expect("not free yet");
    assert_eq!(zone.check_taken(run), Err(BadPage { page, bad: Bad::Free, run }));
    let whole = zone.on(platform).claim_order(Order(9)).expect("room");
    assert_eq!(zone.check_taken(whole), Ok(()));
    assert_eq!(zone.check_claimed(whole), Ok(()));
}
