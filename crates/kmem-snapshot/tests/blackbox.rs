//! Black boxes, sound, torn, cut off and hostile.

mod fake_box;

use std::mem::offset_of;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fake_box::{CALLER, CHAIN, FakeBox, PID, STATIC, TIME};
use kmem_layout::blackbox::{
    BoxHeader, BoxRecord, BoxSite, FORK_RECORD, LAST_RECORDS, MAPPINGS_AT, PEAK_RECORDS, reason,
};
use kmem_layout::group::group_state;
use kmem_layout::site::Text;
use kmem_layout::word::TAG_OTHER;
use kmem_snapshot::blackbox::{Counts, Reason};
use kmem_snapshot::books::{Key, MappingOwner, SiteRow};
use kmem_snapshot::symbols::{Modules, Symbols};
use kmem_snapshot::{BlackBox, ReadError, Snapshot};

const ROWS: [(u32, u64, u64); 3] = [(CALLER, 7000, 7), (STATIC, 600, 3), (CHAIN, 50, 1)];

fn recorded() -> FakeBox {
    let fake = FakeBox::new(64, 2);
    fake.put_record(1, &[(CALLER, 1, 1)], (1, 1));
    fake.put_record(2, &ROWS, (10_000, 20));
    fake
}

fn read(fake: &FakeBox) -> Result<Snapshot, ReadError> {
    BlackBox::open(fake.path())?.snapshot()
}

fn sums(snapshot: &Snapshot) -> Vec<(u32, i64, u64)> {
    snapshot.books[0].rows.iter().map(|r| (r.tag, r.bytes, r.calls)).collect()
}

#[test]
fn a_record_has_the_groups_of_its_moment() {
    let fake = recorded();
    // The older record has other groups.
    fake.put_group(1, 0, group_state::LIVE, "", 1);
    for (parent, name, slab) in [(0, "", 10), (0, "tenants", 200), (1, "a", 3000)] {
        fake.put_group(2, parent, group_state::LIVE, name, slab);
    }
    let snapshot = read(&fake).unwrap();
    let groups = &snapshot.books[0].groups;
    let names: Vec<&str> = groups.all().iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["", "tenants", "a"]);
    let held: Vec<u64> = groups.all().iter().map(|group| group.usage.current()).collect();
    assert_eq!(held, [3210, 3200, 3000]);
}

#[test]
fn the_newest_record_and_the_peak_are_told_apart_and_what_was_inherited_is_taken_out() {
    let fake = FakeBox::new(64, 0);
    let (fork, peaks, last) = (FORK_RECORD, PEAK_RECORDS, LAST_RECORDS);
    fake.put_record_at(fork, reason::FORK, 1, &[(CALLER, 5000, 5), (CHAIN, 70, 1)], (6000, 8));
    let of = BlackBox::open(fake.path()).unwrap();
    assert_eq!(of.moment().unwrap().reason, Reason::Fork);
    assert_eq!(sums(&of.own_at_peak().unwrap()), []);
    fake.put_record_at(peaks[0], reason::PEAK, 2, &[(CALLER, 9000, 9)], (9500, 11));
    fake.put_record_at(
        peaks[1],
        reason::PEAK,
        3,
        &[(CALLER, 9900, 9), (STATIC, 9, 1)],
        (10_909, 13),
    );
    fake.put_record_at(last[0], reason::TIME, 4, &[(CALLER, 5500, 6)], (6500, 9));
    fake.put_record_at(last[1], reason::MISUSE, 5, &[(CALLER, 5600, 6)], (6600, 9));
    let of = BlackBox::open(fake.path()).unwrap();
    let moments = [of.moment(), of.peak(), of.inherited()].map(|of| of.unwrap().number);
    assert_eq!(moments, [5, 3, 1]);
    assert_eq!(of.moment().unwrap().reason, Reason::Misuse);
    assert_eq!(sums(&of.own().unwrap())[0], (CALLER, 600, 1));
    let peak = of.own_at_peak().unwrap();
    assert_eq!(sums(&peak), [(CALLER, 4900, 4), (STATIC, 9, 1), (TAG_OTHER, 70, 1)]);
    // A reading of the whole process is not changed.
    assert_eq!(sums(&of.snapshot().unwrap())[0], (CALLER, 5600, 6));
    // A program of its own has inherited nothing.
    assert!(BlackBox::open(recorded().path()).unwrap().inherited().is_none());
}

#[test]
fn rows_and_the_rest_add_up_to_the_record() {
    let fake = recorded();
    let black_box = BlackBox::open(fake.path()).unwrap();
    assert!(black_box.remarks().is_empty(), "{:?}", black_box.remarks());
    let moment = black_box.moment().unwrap();
    assert_eq!((moment.number, moment.reason), (2, Reason::OutOfMemory));
    assert_eq!((moment.time_ns, black_box.pid()), (TIME + 2, PID));
    assert_eq!(black_box.exe(), std::env::current_exe().unwrap().to_str().unwrap());
    assert_eq!(black_box.named(), Some((7650, 10_000)));
    let snapshot = black_box.snapshot().unwrap();
    assert_eq!(
        sums(&snapshot),
        [(CALLER, 7000, 7), (STATIC, 600, 3), (CHAIN, 50, 1), (TAG_OTHER, 2350, 9)]
    );
    assert_eq!(snapshot.totals(), (10_000, 20));
    assert!(snapshot.maps.all().len() > 5);
    let rows = &snapshot.books[0].rows;
    let Key::Static(tag) = &rows[1].key else { panic!("{:?}", rows[1]) };
    assert_eq!(
        (tag.module.as_str(), tag.file.as_str(), tag.line),
        ("libplug.so", "src/plug.c", 12)
    );
    assert_eq!(tag.function, "plug_open");
    let Key::Caller(addr) = rows[0].key else { panic!("{:?}", rows[0]) };
    assert_eq!(rows[2].key.addresses(), [addr, 0x77]);
    // A record whose rows name all bytes has no rest.
    fake.put_record(3, &ROWS, (7650, 11));
    assert_eq!(sums(&read(&fake).unwrap()).len(), 3);
}

#[test]
fn the_newest_whole_record_counts() {
    let fake = recorded();
    fake.put_record(3, &[(STATIC, 9, 9)], (9, 9));
    assert_eq!(sums(&read(&fake).unwrap()), [(STATIC, 9, 9)]);
    // The process died while it wrote number 3.
    fake.u64(fake.record(0), 0);
    assert_eq!(read(&fake).unwrap().totals(), (10_000, 20));
    fake.u64(fake.record(1), 0);
    let error = read(&fake).unwrap_err();
    assert!(matches!(error, ReadError::NothingRecorded { .. }) && error.is_absent(), "{error}");
}

/// Ends a writer, also when an assertion of the reader fails: the scope waits for the writer.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_box_that_is_being_written_is_read_whole() {
    let fake = FakeBox::new(64, 0);
    fake.put_record(1, &[(CALLER, 1, 1)], (1, 1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 2.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                fake.put_record(
                    number,
                    &[(CALLER, number, 1), (STATIC, number, 1)],
                    (2 * number, 2),
                );
            }
        });
        let _stop = StopOnDrop(&stop);
        let mut last = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) || last <= 1 {
            let black_box = BlackBox::open(fake.path()).unwrap();
            let Some(moment) = black_box.moment() else { continue };
            let number = moment.number;
            assert!(number >= last);
            last = number;
            if number > 1 {
                let n = number as i64;
                let rows = sums(&black_box.snapshot().unwrap());
                assert_eq!(rows, [(CALLER, n, 1), (STATIC, n, 1)]);
            }
        }
    });
}

#[test]
fn counters_of_all_cpus_add_up() {
    let fake = FakeBox::new(1 << 17, 3);
    fake.put_record(1, &ROWS, (10_000, 20));
    // One CPU allocates and another frees; a third CPU only frees.
    fake.put_counter(0, CALLER, [10, 1000, 0, 0]);
    fake.put_counter(1, CALLER, [5, 500, 12, 1200]);
    fake.put_counter(2, CALLER, [0, 0, 1, 100]);
    fake.put_counter(2, 1, [4, 64, 4, 64]);
    let last = (1 << 17) - 1;
    fake.put_counter(2, last, [1, 7, 0, 0]);
    // Neighbours on both sides of a block boundary of the file.
    for tag in 4000..4300 {
        fake.put_counter(1, tag, [u64::from(tag), 1, 0, 0]);
    }
    let black_box = BlackBox::open(fake.path()).unwrap();
    let start = Instant::now();
    let (snapshot, counts) = black_box.counters().unwrap();
    assert!(start.elapsed() < Duration::from_secs(60));
    let of = |allocations, allocated_bytes, frees, freed_bytes| Counts {
        allocations,
        allocated_bytes,
        frees,
        freed_bytes,
    };
    assert_eq!(counts[&CALLER], of(15, 1500, 13, 1300));
    assert_eq!(counts[&1], of(4, 64, 4, 64));
    assert_eq!(counts[&last], of(1, 7, 0, 0));
    for tag in 4000..4300 {
        assert_eq!(counts[&tag], of(u64::from(tag), 1, 0, 0));
    }
    assert_eq!(counts.len(), 303);
    let row = |tag| snapshot.books[0].rows.iter().find(|r: &&SiteRow| r.tag == tag).unwrap();
    assert_eq!((row(CALLER).bytes, row(CALLER).calls), (200, 2));
    assert_eq!((row(1).bytes, row(1).calls), (0, 0));
    assert!(matches!(row(CALLER).key, Key::Caller(_)));
}

#[test]
fn counters_that_are_absent_or_cut_off() {
    let fake = FakeBox::new(64, 0);
    let error = BlackBox::open(fake.path()).unwrap().counters().unwrap_err();
    assert!(error.is_absent() && error.to_string().contains("cumulative:1"), "{error}");
    let fake = FakeBox::new(64, 2);
    fake.file.set_len(fake.counters() + 100).unwrap();
    let error = BlackBox::open(fake.path()).unwrap().counters().unwrap_err();
    assert!(error.to_string().contains("truncated: 4096 bytes of counters"), "{error}");
    // Impossibly large counts do not overflow.
    let fake = FakeBox::new(64, 2);
    fake.put_counter(0, CALLER, [u64::MAX; 4]);
    fake.put_counter(1, CALLER, [0, 0, u64::MAX, u64::MAX]);
    fake.put_counter(1, STATIC, [1, 1, 2, u64::MAX]);
    let (snapshot, _) = BlackBox::open(fake.path()).unwrap().counters().unwrap();
    assert_eq!(sums(&snapshot), [(CALLER, 0, 0), (STATIC, i64::MIN, 0)]);
}

#[test]
fn hostile_headers_are_refused_by_what_is_wrong() {
    macro_rules! of {
        ($field:ident) => {
            offset_of!(BoxHeader, $field)
        };
    }
    for (at, value, what) in [
        (of!(magic), 7, "magic is 0x"),
        (of!(version), 9, "layout version 9"),
        (of!(size), 8, "size is 8, expected"),
        (of!(size), u32::MAX, "size is 4294967295"),
        (of!(site_size), 4, "site_size is 4"),
        (of!(site_capacity), u32::MAX, "site_capacity is 4294967295"),
        (of!(site_count), u32::MAX, "site_count is 4294967295"),
        (of!(cpus), u32::MAX, "cpus is 4294967295"),
        (of!(file_capacity), u32::MAX, "file_capacity is 4294967295"),
        (of!(record_size), 8, "record_size is 8"),
        (of!(record_size) + 4, u32::MAX, "record_size is 18446"),
    ] {
        let fake = recorded();
        fake.u32(at, value);
        let error = read(&fake).unwrap_err();
        assert!(matches!(error, ReadError::BadFile { .. }), "{what}: {error}");
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
    let fake = recorded();
    fake.u64(of!(magic), 0);
    assert!(read(&fake).unwrap_err().to_string().contains("never finished"));
}

#[test]
fn damaged_parts_are_told_and_the_others_read() {
    let fake = recorded();
    fake.u64(offset_of!(BoxHeader, records) + 8, u64::MAX - 8);
    let black_box = BlackBox::open(fake.path()).unwrap();
    assert!(black_box.remarks()[0].contains("record 1: truncated"), "{:?}", black_box.remarks());
    assert_eq!(black_box.snapshot().unwrap().totals(), (1, 1));

    for (field, what) in [
        (offset_of!(BoxRecord, rows), "4294967295 rows"),
        (offset_of!(BoxRecord, maps_len), "4294967295 bytes of mappings"),
        (offset_of!(BoxRecord, mapping_rows), "4294967295 rows of mappings"),
    ] {
        let fake = recorded();
        fake.u32(fake.record(1) + field, u32::MAX);
        let black_box = BlackBox::open(fake.path()).unwrap();
        assert!(black_box.remarks()[0].contains(what), "{:?}", black_box.remarks());
        assert_eq!(black_box.moment().unwrap().number, 1);
    }

    // The rows hold more than the sum.
    let fake = recorded();
    fake.put_record(3, &[(CALLER, u64::MAX, u64::MAX), (STATIC, 5, 5)], (100, 1));
    let black_box = BlackBox::open(fake.path()).unwrap();
    assert!(black_box.remarks()[0].contains("its sum is 100"), "{:?}", black_box.remarks());
    black_box.snapshot().unwrap();

    // Sites that make no sense are unknown, and their bytes are counted.
    let site = |tag, offset| recorded().site(tag) + offset;
    for (at, value, tag) in [
        (site(CALLER, offset_of!(BoxSite, kind)), 77, CALLER),
        (site(CHAIN, offset_of!(BoxSite, count)), u32::MAX, CHAIN),
        (site(STATIC, offset_of!(BoxSite, tag) + offset_of!(Text, module_len)), u32::MAX, STATIC),
        (offset_of!(BoxHeader, sites) + 4, u32::MAX, STATIC),
    ] {
        let fake = recorded();
        fake.u32(at, value);
        let snapshot = read(&fake).unwrap();
        assert_eq!(snapshot.totals(), (10_000, 20));
        let row = snapshot.books[0].rows.iter().find(|r| r.tag == tag).unwrap();
        assert_eq!(row.key, Key::None);
    }
    let fake = recorded();
    fake.put_record(3, &[(u32::MAX, 5, 5)], (5, 5));
    assert_eq!(read(&fake).unwrap().books[0].rows[0].key, Key::None);
}

/// Rows of mapped memory: owner, address space, bytes in memory.
fn mapped(snapshot: &Snapshot) -> Vec<(MappingOwner, u64, u64)> {
    let rows = &snapshot.mappings.as_ref().unwrap().rows;
    rows.iter().map(|row| (row.owner.clone(), row.mapped, row.resident)).collect()
}

#[test]
fn rows_of_mapped_memory_and_the_rest_add_up_to_the_record() {
    let fake = recorded();
    let rows = [(u64::from(CALLER), 8192, 4096), (0x7f00_0000_1234, 1 << 20, 1 << 19)];
    fake.put_mappings(1, &rows, (2 << 20, 1 << 20));
    let snapshot = read(&fake).unwrap();
    let [caller, address, rest] = &mapped(&snapshot)[..] else { panic!("{snapshot:?}") };
    assert_eq!(*caller, (MappingOwner::Tag(CALLER), 8192, 4096));
    assert_eq!(*address, (MappingOwner::Address(0x7f00_0000_1234), 1 << 20, 1 << 19));
    let missing = ((1 << 20) - 8192, (1 << 19) - 4096);
    assert_eq!(*rest, (MappingOwner::Anonymous, missing.0, missing.1));
    let mappings = snapshot.mappings.as_ref().unwrap();
    assert!(matches!(mappings.rows[0].key, Key::Caller(_)), "{mappings:?}");
    assert_eq!((mappings.parts.mappings, mappings.of_calls()), (1 << 20, (1 << 19) + 4096));
    assert!(snapshot.addresses().contains(&0x7f00_0000_1234));
}

#[test]
fn mapped_memory_counts_for_the_peak_and_is_taken_out_of_what_was_inherited() {
    let fake = FakeBox::new(64, 0);
    let (fork, peaks) = (FORK_RECORD, PEAK_RECORDS);
    fake.put_record_at(fork, reason::FORK, 1, &[(CALLER, 100, 1)], (100, 1));
    fake.put_mappings(fork, &[(CALLER.into(), 4096, 4096)], (4096, 4096));
    fake.put_record_at(peaks[0], reason::PEAK, 2, &[(CALLER, 200, 2)], (200, 2));
    fake.put_mappings(peaks[0], &[(CALLER.into(), 16384, 12288)], (16384, 12288));
    fake.put_record_at(peaks[1], reason::PEAK, 3, &[(CALLER, 900, 9)], (900, 9));
    let of = BlackBox::open(fake.path()).unwrap();
    assert_eq!((of.peak().unwrap().number, of.peak().unwrap().held()), (2, 12488));
    assert_eq!(mapped(&of.own_at_peak().unwrap()), [(MappingOwner::Tag(CALLER), 12288, 8192)]);
    assert_eq!(mapped(&of.own().unwrap()), []);
}

#[test]
fn hostile_rows_of_mapped_memory_are_left_out_and_told() {
    let fake = recorded();
    let all = u64::MAX;
    let rows = [(u64::from(CALLER), all, all), (0, 5, 5), (7, 4096, 8192), (all, all, 1)];
    fake.put_mappings(1, &rows, (all, all));
    let black_box = BlackBox::open(fake.path()).unwrap();
    let told = "2 rows of mappings in record 2 make no sense";
    assert!(black_box.remarks().iter().any(|what| what.contains(told)), "{black_box:?}");
    let snapshot = black_box.snapshot().unwrap();
    let expected = [(MappingOwner::Tag(CALLER), all, all), (MappingOwner::Address(all), all, 1)];
    assert_eq!(mapped(&snapshot), expected);
    assert_eq!(snapshot.mappings.as_ref().unwrap().parts.mappings, all);
    assert_eq!(black_box.peak().unwrap().held(), all);
    // More in memory than is mapped.
    let fake = recorded();
    fake.put_mappings(1, &[], (4096, all));
    assert_eq!(BlackBox::open(fake.path()).unwrap().moment().unwrap().mapped_resident, 4096);
    // Rows that hold more than the sums have no rest.
    let fake = recorded();
    fake.put_mappings(1, &[(9, 8192, 4096)], (1, 0));
    assert_eq!(mapped(&read(&fake).unwrap()), [(MappingOwner::Tag(9), 8192, 4096)]);
}

/// The function of the caller in a box, and what is said of the files that name it.
fn named(fake: &FakeBox) -> (Option<String>, String) {
    let of = BlackBox::open(fake.path()).unwrap();
    let snapshot = of.snapshot().unwrap();
    let addresses = snapshot.addresses();
    let modules = Modules::of_box(&of, &snapshot.maps, &addresses, None, &snapshot.budget);
    let row = snapshot.books[0].rows.iter().find(|row| row.tag == CALLER).unwrap();
    let Key::Caller(at) = row.key else { panic!("{row:?}") };
    (Symbols::new(&modules).resolve(at).function, modules.mismatches().join("; "))
}

/// The first page of this program: its address, the inode number, and the page.
fn first_page() -> ((u64, u64), Vec<u8>) {
    let exe = std::env::current_exe().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with(exe.to_str().unwrap())).unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let inode = std::fs::metadata(&exe).unwrap().ino();
    ((start, inode), std::fs::read(exe).unwrap()[..4096].to_vec())
}

#[test]
fn files_with_other_first_pages_than_those_in_the_box_give_no_names() {
    let fake = recorded();
    let caller = Some("fake_box_caller".to_owned());
    assert_eq!(named(&fake), (caller.clone(), String::new()), "by the inode number");
    let (at, page) = first_page();
    fake.put_file(at, &page);
    assert_eq!(named(&fake), (caller.clone(), String::new()));
    fake.put_file(at, &[&page[..24], &[0xff; 4096 - 24]].concat());
    let (name, what) = named(&fake);
    assert!(what.contains(": not the file that the process ran (build-id "), "{what}");
    assert_eq!(name, None);
    for other in [(at.0 + 4096, at.1), (at.0, at.1 + 1)] {
        fake.put_file(other, &[0xff; 4096]);
        assert_eq!(named(&fake), (caller.clone(), String::new()), "of another file");
    }
    // Pages that are not in the box, and a number of them that is.
    fake.u32(offset_of!(BoxHeader, file_capacity), 2048);
    assert_eq!(named(&fake).0, caller);
    fake.u64(offset_of!(BoxHeader, files), u64::MAX - 100);
    assert_eq!(named(&fake).0, caller);
}

#[test]
fn no_length_and_no_byte_makes_it_crash() {
    let fake = recorded();
    let (at, page) = first_page();
    fake.put_file(at, &page);
    fake.put_mappings(1, &[(CALLER.into(), 8192, 4096)], (8192, 4096));
    let whole = std::fs::read(fake.path()).unwrap();
    let header: Vec<usize> = (0..128).collect();
    let record = fake.record(1);
    let mappings = record + MAPPINGS_AT..record + MAPPINGS_AT + 64;
    let record = record + 1..record + size_of::<BoxRecord>() + 100;
    for at in header.into_iter().chain(record).chain(mappings).chain(4096..7000) {
        fake.bytes(at, &[whole[at] ^ 0xff]);
        let _ = BlackBox::open(fake.path()).map(|b| (b.snapshot().is_ok(), b.counters().is_ok()));
        fake.bytes(at, &whole[at..=at]);
    }
    assert_eq!(read(&fake).unwrap().totals(), (10_000, 20));
    for len in (0..whole.len() as u64).rev().step_by(2999).chain([64, 8, 7, 1, 0]) {
        fake.file.set_len(len).unwrap();
        let _ = BlackBox::open(fake.path()).map(|b| (b.snapshot().is_ok(), b.counters().is_ok()));
    }
    assert!(read(&fake).unwrap_err().to_string().contains("empty file"));
}
