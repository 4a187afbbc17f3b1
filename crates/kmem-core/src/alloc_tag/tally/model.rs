//! A model of the peak table, for loom. Its writers are the real ones. Its reader does what a
//! reader outside the process does: it copies the table between two reads of its sequence number.

use std::sync::Arc;

use loom::thread;

use super::{PEAK_STEP, begin_peak};
use crate::sync::model::check;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::TagId;
use kmem_layout::root::RootBlock;
use kmem_layout::site::{PeakEntry, PeakTable};

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
            mappings: word(),
            own: 0,
            own_capacity: 0,
            mapping_capacity: half(0),
            slab_caches: 0,
            slab_cache_capacity: 0,
            records_caches: 0,
            request: kmem_layout::group::GroupRequest::none(),
            time_vector: 0,
            newest_time: half(0),
            started_ms: 0,
        };
        let table = PeakTable {
            seq: word(),
            used_pages: word(),
            len: word(),
            highest_pages: word(),
            highest_ms: word(),
            written_ms: word(),
        };
        let entries = [PeakEntry { bytes: word(), calls: word() }];
        Arc::new(Self { root, peak: Peak { table, entries } })
    }

    /// Raises the pages in use, and writes the table if that is a new peak.
    fn rise(&self) {
        self.root.used_pages.fetch_add(USED, Ordering::Relaxed);
        let used = u64::from(self.root.used_pages.load(Ordering::Relaxed));
        let (root, table, step) = (&self.root, &self.peak.table, Some(PEAK_STEP));
        // SAFETY: the one entry lies behind the table.
        if let Some(mut update) = unsafe { begin_peak(root, table, 1, used, step) } {
            update.tally.add(TagId(0), used, used);
            update.finish(0);
        }
    }

    /// Reads used pages, bytes and calls. `None`: the table is empty, or is being written.
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
        // The reader, not the writer, is spawned. Loom runs the first thread first, and looks for
        // races of a load with stores that came before it.
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
fn two_threads_that_find_a_new_peak_never_write_together() {
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
