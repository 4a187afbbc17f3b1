use std::collections::BTreeSet;

use super::*;
use proptest::prelude::*;

/// Tags of live objects and bytes, slab by slab; runs are slabs of one object.
type Heap = Vec<(Vec<u32>, u64)>;

fn pins(heap: &Heap, room: usize) -> Pins {
    let mut pins = Pins { room, ..Pins::default() };
    let mut marks = Marks::new();
    for (tags, bytes) in heap {
        let mut distinct: Vec<u32> = Vec::new();
        for &tag in tags {
            if !distinct.contains(&tag) {
                distinct.push(tag);
            }
        }
        pins.slab(&distinct, &mut marks, *bytes);
    }
    pins
}

fn model(heap: &Heap, row_of: impl Fn(u32) -> Option<usize>, rows: usize) -> Vec<Pinned> {
    let mut out = vec![Pinned::default(); rows];
    for (tags, bytes) in heap {
        let here: BTreeSet<_> = tags.iter().map(|&tag| row_of(tag)).collect();
        for row in here.iter().flatten() {
            out[*row].pinned += bytes;
            if here.len() == 1 {
                out[*row].sole += bytes;
            }
        }
    }
    out
}

fn heap() -> impl Strategy<Value = Heap> {
    let tags = proptest::collection::vec(0_u32..12, 0..20);
    let slab = prop_oneof![
        // Slabs of all sorts, of few neighbours, of one.
        tags,
        proptest::collection::vec(prop_oneof![Just(3_u32), Just(7)], 0..6),
        (0_u32..12, 0_usize..5).prop_map(|(tag, count)| vec![tag; count]),
    ];
    proptest::collection::vec((slab, 1_u64..9), 0..60)
}

proptest! {
    #[test]
    fn rows_pin_what_a_plain_count_says(
        heap in heap(),
        rows in proptest::collection::vec(proptest::option::of(0_usize..5), 12),
    ) {
        let row_of = |tag: u32| rows[tag as usize];
        let mut got = vec![Pinned::default(); 5];
        let pins = pins(&heap, usize::MAX);
        pins.by_row(row_of, &mut got);
        prop_assert_eq!(&got, &model(&heap, row_of, 5));
        prop_assert!(pins.is_exact());
        let total: u64 = heap.iter().map(|(_, bytes)| bytes).sum();
        prop_assert!(got.iter().map(|p| p.sole).sum::<u64>() <= total);
    }

    #[test]
    fn tags_stay_exact_when_there_is_no_room_for_sets(heap in heap(), room in 0_usize..40) {
        let alone = |tag: u32| Some(tag as usize);
        let mut got = vec![Pinned::default(); 12];
        pins(&heap, room).by_row(alone, &mut got);
        prop_assert_eq!(got, model(&heap, alone, 12));
    }
}

#[test]
fn a_set_that_comes_again_is_kept_once() {
    let heap = vec![(vec![9, 8, 8, 9], 4), (vec![8, 9], 4), (vec![], 4)];
    let pins = pins(&heap, 2);
    assert_eq!((pins.shared.len(), pins.room, pins.is_exact()), (1, 0, true));
}
