//! The reader outside and the census inside agree to the byte, for every tag.

use kmem_core::request::Caller;
use std::collections::BTreeMap;

use kmem_core::Kmem;
use kmem_snapshot::{Process, Snapshot};

static KMEM: Kmem = Kmem::new();

fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize
}

#[test]
fn the_reader_outside_agrees_with_the_census_inside() {
    let mut state = 42;
    let mut held = Vec::new();
    for round in 0..30 {
        for _ in 0..3000 {
            let r = random(&mut state);
            let size = match r % 40 {
                0 => r % 3_000_000,
                1..4 => r % 60_000,
                _ => r % 1200,
            };
            let at = KMEM.alloc(size, Caller::at(0x10_0000 + random(&mut state) % 60));
            assert!(!at.is_null());
            held.push(at);
            if !r.is_multiple_of(3) {
                let gone = held.swap_remove(random(&mut state) % held.len());
                // SAFETY: the object is live, and freed once.
                unsafe { KMEM.free(gone) };
            }
        }
        if round == 20 {
            KMEM.trim();
        }
        let mut inside = BTreeMap::new();
        KMEM.census(|tag, bytes, calls| {
            let sum = inside.entry(tag.0).or_insert((0i64, 0u64));
            *sum = (sum.0 + bytes as i64, sum.1 + calls);
        });
        let process = Process::open(std::process::id()).expect("this process");
        let snapshot = Snapshot::take(&process).expect("its books");
        let outside: BTreeMap<_, _> =
            snapshot.books[0].rows.iter().map(|row| (row.tag, (row.bytes, row.calls))).collect();
        assert_eq!(outside, inside, "round {round}");
        let stats = KMEM.stats();
        assert_eq!(snapshot.totals(), (stats.tracked as i64, stats.objects));
        // Pages that CPUs keep are in the equation, too. The reader's own memory changes meanwhile.
        let other = snapshot.accounting.other().expect("the parts of the rest");
        assert!(other.unsigned_abs() < 1 << 20, "round {round}: {other} bytes without a name");
    }
}
