//! The classic zone against a plain map of pages, and its checks of pages.

use kmem_buddy::{BadPage, Checks, MAX_ORDER, Pcp, Zone};
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGES: u32 = 4 << MAX_ORDER;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_aligned_apart_and_join_again(
        steps in prop::collection::vec((0..=MAX_ORDER, any::<bool>(), any::<usize>()), 1..300),
        lists in any::<bool>(),
    ) {
        let zone = Zone::new(PAGES, Checks::Default);
        let mut pcp = Pcp::new(&zone);
        let mut held: BTreeMap<u32, u8> = BTreeMap::new();
        for (order, alloc, which) in steps {
            if alloc {
                let got =
                    if lists { pcp.alloc(order).expect("good pages") } else { zone.alloc(order) };
                let Some(first) = got else { continue };
                prop_assert!(first.is_multiple_of(1 << order));
                let before = held.range(..first + (1 << order)).next_back();
                prop_assert!(before.is_none_or(|(at, order)| at + (1 << order) <= first));
                held.insert(first, order);
            } else if let Some((&first, &order)) = held.iter().nth(which % held.len().max(1)) {
                let given = if lists { pcp.free(first, order) } else { zone.free(first, order) };
                prop_assert_eq!(given, Ok(()));
                held.remove(&first);
            }
            let out: u32 = held.values().map(|order| 1 << order).sum();
            prop_assert_eq!(zone.free_pages() + pcp.pages() + out, PAGES);
        }
        for (first, order) in held {
            prop_assert_eq!(pcp.free(first, order), Ok(()));
        }
        drop(pcp);
        prop_assert_eq!(zone.free_blocks(MAX_ORDER), PAGES >> MAX_ORDER);
    }
}

#[test]
fn a_run_takes_no_more_than_its_length() {
    let zone = Zone::new(PAGES, Checks::Default);
    let first = zone.alloc_exact(700).expect("room");
    assert_eq!(zone.free_pages(), PAGES - 700);
    assert_eq!(zone.free_exact(first, 700), Ok(()));
    assert_eq!(zone.free_blocks(MAX_ORDER), PAGES >> MAX_ORDER);
}

#[test]
fn a_block_freed_twice_is_refused() {
    let zone = Zone::new(PAGES, Checks::Off);
    let first = zone.alloc(3).expect("room");
    assert_eq!(zone.free(first, 3), Ok(()));
    assert_eq!(zone.free(first, 3), Err(BadPage(first)));
    assert_eq!(zone.free_pages(), PAGES);
}

#[test]
fn a_spoilt_page_is_found_where_pages_are_checked() {
    for (checks, found) in [(Checks::Default, true), (Checks::Patched, true), (Checks::Off, false)]
    {
        let zone = Zone::new(PAGES, checks);
        for page in 0..PAGES {
            zone.spoil(page);
        }
        assert_eq!(Pcp::new(&zone).alloc(9).is_err(), found, "{checks:?}");
    }
}

#[test]
fn a_refill_leaves_a_bad_block_out_and_hands_out_the_others() {
    for (checks, bad) in [(Checks::Default, 1), (Checks::Patched, 1), (Checks::Off, 0)] {
        let zone = Zone::new(PAGES, checks);
        zone.spoil(17);
        let mut pcp = Pcp::new(&zone);
        let got: Vec<u32> =
            (0..40).map(|_| pcp.alloc(0).expect("good pages").expect("room")).collect();
        assert_eq!(zone.bad_blocks(), bad, "{checks:?}");
        // One refill is enough, and the bad block is no longer free.
        let out = got.len() as u32 + pcp.pages() + zone.bad_blocks();
        assert_eq!((got.contains(&17), out), (bad == 0, PAGES - zone.free_pages()), "{checks:?}");
    }
}
