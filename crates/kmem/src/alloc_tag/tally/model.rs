//! A model of the peak table: its writers are the real ones; the reader does what one outside
//! the process does, who copies the table between two looks at its sequence number.

use std::sync::Arc;

use loom::thread;

use super::begin_peak;
use crate::root::{PeakEntry, PeakTable, RootBlock};
use crate::sync::model::check;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::TagId;

#[repr(C)]
struct Peak {
    table: PeakTable,
    entries: [PeakEntry; 1],
}

struct Model {
    root: RootBlock,
    peak: Peak,
}

const USED: u32 = 1000;

impl Model {
    fn new() -> Arc<Self> {
        let word = || AtomicU64::new(0);
        let half = |value| AtomicU32::new(value);
        let root = RootBlock {
            magic: word(),
            version: 0,
            size: 0,
            page_shift: 0,
            chunk_shift: 0,
            tag_bits: 0,
            class_count: 0,
            class_size: 0,
            zone_size: 0,
            site_size: 0,
            site_capacity: 1,
            classes: 0,
            zones: 0,
            sites: 0,
            peak: 0,
            meta_base: 0,
            meta_len: 0,
            zone_count: half(0),
            site_count: half(1),
            profiling: half(0),
            used_pages: half(0),
            texts: 0,
            texts_len: word(),
            cache: 0,
            cache_len: 0,
            depth: half(0),
            deep_depth: half(0),
            deep_tag: half(0),
            group_capacity: 0,
            groups: 0,
            group_count: half(0),
            group_size: 0,
        };
        let table = PeakTable { seq: word(), used_pages: word(), len: word(), reserved: 0 };
        let entries = [PeakEntry { bytes: word(), calls: word() }];
        Arc::new(Self { root, peak: Peak { table, entries } })
    }

    /// Uses more memory, which may be a new peak.
    fn rise(&self) {
        self.root.used_pages.fetch_add(USED, Ordering::Relaxed);
        if let Some(mut update) = begin_peak(&self.root, &self.peak.table) {
            let used = update.used;
            update.tally.add(TagId(0), used, used);
            update.finish();
        }
    }

    /// Reads the table, if it is whole: used pages, bytes and calls.
    fn read(&self) -> Option<[u64; 3]> {
        let table = &self.peak.table;
        let seq = table.seq.load(Ordering::Acquire);
        if seq == 0 || seq % 2 == 1 {
            return None;
        }
        let entry = &self.peak.entries[0];
        let read =
            [&table.used_pages, &entry.bytes, &entry.calls].map(|at| at.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (table.seq.load(Ordering::Relaxed) == seq).then_some(read)
    }
}

#[test]
fn a_peak_table_is_read_whole_or_not_at_all() {
    check(4, &["first", "none", "second"], |outcomes| {
        let model = Model::new();
        // The reader, not the writers, in a thread of its own: loom runs this one first, and
        // looks for races of a load with stores that came before it.
        let reader = {
            let model = model.clone();
            thread::spawn(move || model.read())
        };
        model.rise();
        model.rise();
        outcomes.note(match reader.join().expect("it ends") {
            None => "none",
            Some([used, bytes, calls]) => {
                assert_eq!((used, used), (bytes, calls), "torn");
                if used == USED.into() { "first" } else { "second" }
            }
        });
    });
}

#[test]
fn of_two_who_find_a_new_peak_each_writes_alone() {
    check(4, &["one", "two"], |outcomes| {
        let model = Model::new();
        let other = model.clone();
        let writer = thread::spawn(move || other.rise());
        model.rise();
        writer.join().expect("it ends");
        let [used, bytes, calls] = model.read().expect("whole once all are done");
        assert_eq!((used, used), (bytes, calls));
        outcomes.note(if used == USED.into() { "one" } else { "two" });
    });
}
