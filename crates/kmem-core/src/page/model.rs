//! Models of the page zone, for loom: credit, pageblocks as a whole, hints, growth, purge.

use std::boxed::Box;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::space::Turn;
use super::{Pcp, Reserve, Run, TABLES, Table, Zone, fit, huge, lane, purge};
use crate::class::PageClass;
use crate::os::regions::Regions;
use crate::row::Row;
use crate::row::maxima::{self, Maxima};
use crate::row::summary::{Summary, words_for};
use crate::sync::model::{Owned, check};
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::units::{Item, Order, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE, PageCount, Pageblock, Pfn};
use kmem_layout::root::ZoneBlock;

const SINGLE: PageClass = PageClass::of(Order(0)).expect("single pages");

/// A zone of one or two pageblocks over tables of its own.
struct Model {
    zone: Zone,
    platform: Regions,
    /// Memory for a few pages of each row, to which only the owner of the page may write.
    owned: Vec<Owned>,
    _tables: Tables,
}

struct Tables {
    _rows: Vec<Row>,
    _credits: Vec<AtomicU64>,
    _dirty: Vec<AtomicU64>,
    _stamp: Vec<AtomicU16>,
    _huge: Vec<AtomicU64>,
    _sets: Vec<AtomicU64>,
    _fits: Vec<AtomicU64>,
    _block: Box<ZoneBlock>,
    _used: Box<AtomicU32>,
}

/// Returns whether a page has memory for its owner to write to: the first and the last of each row.
fn has_memory(page: u32) -> bool {
    matches!(page % 64, 0 | 63)
}

impl Model {
    /// A zone of `pageblocks` pageblocks, of which the first `committed` are committed and free.
    fn new(pageblocks: u32, committed: u32) -> Self {
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let rows: Vec<_> = words(pageblocks * 8).into_iter().map(Row).collect();
        let (credits, dirty) = (words(pageblocks.div_ceil(4)), words(pageblocks * 8));
        let stamp: Vec<_> = (0..pageblocks).map(|_| AtomicU16::new(0)).collect();
        let huge = words(pageblocks.div_ceil(64));
        let sets = words(words_for(pageblocks, lane::COUNT) as u32);
        let fits = words(maxima::words_for(pageblocks, fit::lane::COUNT) as u32);
        let block = Box::new(ZoneBlock {
            purpose: 0,
            node: 0,
            base: 0,
            pages: 0,
            committed: AtomicU64::new(0),
            chunk_class: 0,
            page_ext: 0,
            page_len: 0,
            page_time: 0,
            rows: 0,
            dirty: 0,
            meta_base: 0,
            meta_len: 0,
            credit: 0,
        });
        let used = Box::new(AtomicU32::new(0));
        let zone = Zone {
            // Only addresses matter: the pages themselves are not memory.
            base: 64 * PAGEBLOCK_SIZE,
            pages: PageCount::of_pageblocks(pageblocks),
            rows: rows.as_ptr(),
            credits: credits.as_ptr(),
            dirty: dirty.as_ptr(),
            // The models do not read page words.
            ext: core::ptr::null(),
            len: core::ptr::null(),
            bounds: core::ptr::null(),
            time: core::ptr::null(),
            stamp: stamp.as_ptr(),
            huge: huge.as_ptr(),
            // SAFETY: the vector has the right length; its elements stay when it is moved.
            pageblocks: unsafe { Summary::new(sets.as_ptr(), pageblocks, lane::COUNT) },
            // SAFETY: the vector has the right length; its elements stay when it is moved.
            fits: unsafe { Maxima::new(fits.as_ptr(), pageblocks, fit::lane::COUNT) },
            block: &raw const *block,
            used: &raw const *used,
            decay: purge::Decay::new(),
            backing: huge::Backing::new(),
            tables: [Table::empty(0); TABLES],
            // All tables are committed.
            described: AtomicU32::new(u32::MAX),
            space: super::space::Space::new(PageCount::of_pageblocks(pageblocks)),
            next_span: AtomicU32::new(0),
            hides: AtomicU32::new(0),
        };
        zone.publish(PageCount::ZERO, PageCount::of_pageblocks(committed), || {});
        Self {
            zone,
            platform: Regions::empty(),
            owned: (0..pageblocks * 8 * 2).map(|_| Owned::default()).collect(),
            _tables: Tables {
                _rows: rows,
                _credits: credits,
                _dirty: dirty,
                _stamp: stamp,
                _huge: huge,
                _sets: sets,
                _fits: fits,
                _block: block,
                _used: used,
            },
        }
    }

    fn write(&self, run: Run) {
        for page in run.start.0..run.start.0 + run.pages.0 {
            if has_memory(page) {
                self.owned[(page / 32) as usize].write();
            }
        }
    }

    fn claim(&self, pages: u32) -> Option<Run> {
        let run = self.zone.on(&self.platform).claim(PageCount(pages), PageCount(1))?;
        self.write(run);
        Some(run)
    }

    /// Takes the first pageblock page by page.
    fn use_up(&self) {
        self.claim(PAGEBLOCK_PAGES).expect("a free pageblock");
        self.zone.trim(Pageblock(0), PageCount::PAGEBLOCK);
    }

    fn give(&self, run: Run) {
        self.write(run);
        assert_eq!(self.zone.give(run), Ok(()));
    }

    /// Asserts, once all threads are done, that all pages but those of `held` are free. Gives those
    /// back, and claims all pages as one run.
    fn finish(&self, held: impl IntoIterator<Item = Run>) {
        let mut out = 0;
        let held: Vec<_> = held.into_iter().collect();
        held.iter().for_each(|run| out += run.pages.0);
        assert_eq!(self.zone.validate(), Ok(()));
        assert_eq!(self.zone.free_pages(), u64::from(self.zone.committed().0 - out));
        for run in held {
            self.give(run);
        }
        assert_eq!(self.zone.validate(), Ok(()));
        assert_eq!(self.zone.free_pages(), u64::from(self.zone.committed().0));
        let all = self.claim(self.zone.committed().0).expect("all of it as one run");
        self.write(all);
    }
}

impl Model {
    /// Takes single pages, by way of a CPU's reserve.
    fn refill(&self, reserve: &mut Reserve, count: usize) -> Vec<Run> {
        let mut items = [Item::NONE; 4];
        let out = &mut items[..count];
        let got = self.zone.on(&self.platform).claim_bulk(Order(0), reserve, out);
        self.taken(&out[count - got..], 1)
    }

    /// Takes whole pageblocks, several at once.
    fn pageblocks(&self, count: usize) -> Vec<Run> {
        let mut items = [Item::NONE; 4];
        let out = &mut items[..count];
        let got = self.zone.on(&self.platform).claim_pageblocks_bulk(out);
        self.taken(&out[count - got..], PAGEBLOCK_PAGES)
    }

    fn taken(&self, items: &[Item], pages: u32) -> Vec<Run> {
        let start = |item: &Item| self.zone.pfn(item.address()).expect("a page of the zone");
        let runs = items.iter().map(|item| Run { start: start(item), pages: PageCount(pages) });
        runs.inspect(|run| self.write(*run)).collect()
    }

    fn items(&self, runs: &[Run]) -> Vec<Item> {
        runs.iter().for_each(|run| self.write(*run));
        runs.iter().map(|run| Item::at(self.zone.address(run.start))).collect()
    }
}

fn run(start: u32, pages: u32) -> Run {
    Run { start: Pfn(start), pages: PageCount(pages) }
}

/// A thread that grows a zone and one that cuts its space off: growth never ends behind the cut.
#[test]
fn no_page_is_committed_behind_the_space_that_is_left() {
    check(3, &["cut", "grown"], |outcomes| {
        let space = Arc::new(super::space::Space::new(PageCount(2)));
        let grown = Arc::new(AtomicU32::new(0));
        let thread = thread::spawn({
            let (space, grown) = (Arc::clone(&space), Arc::clone(&grown));
            move || {
                if space.enter() == PageCount(2) {
                    grown.store(1, Ordering::Relaxed);
                }
                space.leave();
            }
        });
        let is_cut = space.cut(PageCount(1)).is_some();
        // From here on no thread commits pages behind the cut, and those that are can be seen.
        let seen = grown.load(Ordering::Relaxed);
        thread.join().expect("no panic");
        if is_cut {
            assert_eq!(grown.load(Ordering::Relaxed), seen, "grown behind the cut");
        }
        outcomes.note(if is_cut && seen == 0 { "cut" } else { "grown" });
    });
}

/// Threads that commit pages in turn: none commits what another has published.
#[test]
fn pages_are_committed_once() {
    check(3, &["in turn", "at once"], |outcomes| {
        let space = Arc::new(super::space::Space::new(PageCount(2)));
        let published = Arc::new(AtomicU32::new(0));
        let platform = Arc::new(Regions::empty());
        let grow = {
            let (space, published, platform) = (space, published.clone(), platform);
            move |thread: u32| {
                let turn = space.take_turn(thread);
                if turn != Turn::Taken {
                    return false;
                }
                let old = published.load(Ordering::Relaxed);
                // Here the pages from `old` on are committed.
                let moved =
                    published.compare_exchange(old, old + 1, Ordering::Relaxed, Ordering::Relaxed);
                assert!(moved.is_ok(), "committed once more");
                space.end_turn(thread, &*platform);
                true
            }
        };
        let other = thread::spawn({
            let grow = grow.clone();
            move || grow(1)
        });
        let both = grow(2) & other.join().expect("no panic");
        assert_eq!(published.load(Ordering::Relaxed), 1 + u32::from(both));
        outcomes.note(if both { "in turn" } else { "at once" });
    });
}

#[test]
fn a_pageblock_is_taken_as_a_whole_only_after_its_last_page_came_back() {
    check(5, &["last page first", "whole"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        model.use_up();
        model.give(run(0, PAGEBLOCK_PAGES - 1));
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(PAGEBLOCK_PAGES));
        model.give(run(PAGEBLOCK_PAGES - 1, 1));
        let claimed = claimer.join().expect("it ends");
        outcomes.note(if claimed.is_some() { "whole" } else { "last page first" });
        model.finish(claimed);
    });
}

#[test]
fn a_pageblock_is_taken_as_a_whole_or_in_part_but_not_both() {
    check(5, &["part", "whole"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(PAGEBLOCK_PAGES));
        let part = model.claim(64);
        let whole = claimer.join().expect("it ends");
        assert!(whole.is_none() || part.is_none());
        outcomes.note(if whole.is_some() { "whole" } else { "part" });
        model.finish(whole.into_iter().chain(part));
    });
}

#[test]
fn a_pageblock_used_in_part_concurrently_is_taken_with_its_last_users_writes() {
    check(4, &["none", "whole"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(PAGEBLOCK_PAGES));
        if let Some(part) = model.claim(1) {
            model.give(part);
        }
        let whole = claimer.join().expect("it ends");
        outcomes.note(if whole.is_some() { "whole" } else { "none" });
        model.finish(whole);
    });
}

#[test]
fn the_rest_of_a_long_runs_last_pageblock_is_claimed_apart_from_it() {
    check(2, &["both", "the long", "the short"], |outcomes| {
        let model = Arc::new(Model::new(2, 2));
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(64));
        let long = model.claim(PAGEBLOCK_PAGES + 64);
        let short = claimer.join().expect("it ends");
        outcomes.note(match (long, short) {
            (Some(_), Some(_)) => "both",
            (Some(_), None) => "the long",
            (None, _) => "the short",
        });
        assert!(long.is_some() || short.is_some());
        model.finish(long.into_iter().chain(short));
    });
}

#[test]
fn a_pageblock_broken_up_while_another_thread_claims_keeps_its_count() {
    check(5, &["0", "64", "65"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        let whole = model.claim(PAGEBLOCK_PAGES).expect("a free pageblock");
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(65).or_else(|| other.claim(64)));
        // The first 65 pages go back, the rest stays.
        model.give(Run { pages: PageCount(65), ..whole });
        let claimed = claimer.join().expect("it ends");
        outcomes.note(format!("{}", claimed.map_or(0, |run| run.pages.0)));
        model.finish(claimed.into_iter().chain([run(65, PAGEBLOCK_PAGES - 65)]));
    });
}

#[test]
fn a_full_pageblock_that_gets_pages_back_is_found() {
    check(4, &["0", "1", "2"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        model.use_up();
        let other = model.clone();
        let claimer = thread::spawn(move || [other.claim(1), other.claim(1)]);
        model.give(run(63, 1));
        model.give(run(127, 1));
        let claimed = claimer.join().expect("it ends");
        let count = claimed.iter().flatten().count() as u32;
        outcomes.note(format!("{count}"));
        assert_eq!(model.zone.validate(), Ok(()));
        // The other pages can be claimed, and then no page is left.
        let rest: Vec<_> = core::iter::from_fn(|| model.claim(1)).collect();
        assert_eq!(rest.len() as u32 + count, 2);
        let used = (0..PAGEBLOCK_PAGES / 64).flat_map(|row| match row {
            0 | 1 => [run(row * 64, 63)],
            _ => [run(row * 64, 64)],
        });
        model.finish(used.chain(rest).chain(claimed.into_iter().flatten()));
    });
}

#[test]
fn a_page_that_comes_back_to_a_pageblock_after_a_failed_search_is_found() {
    check(4, &["failed", "found"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        model.use_up();
        model.give(run(63, 1));
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(1));
        if let Some(last) = model.claim(1) {
            model.give(last);
        }
        let claimed = claimer.join().expect("it ends");
        outcomes.note(if claimed.is_some() { "found" } else { "failed" });
        let claimed = claimed.or_else(|| model.claim(1));
        assert!(claimed.is_some(), "the page is not found any more");
        model.finish(claimed.into_iter().chain([run(0, 63), run(64, PAGEBLOCK_PAGES - 64)]));
    });
}

#[test]
fn a_run_and_a_page_out_of_it_are_not_both_taken() {
    check(5, &["page", "run"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        model.use_up();
        model.give(run(64, 64));
        let at = {
            let model = model.clone();
            thread::spawn(move || {
                let there = run(64, 64);
                let taken = model.zone.claim_at(there.start, there.pages);
                taken.then(|| model.write(there)).map(|()| there)
            })
        };
        let page = model.claim(1);
        let at = at.join().expect("it ends");
        let held: Vec<_> = page.into_iter().chain(at).collect();
        assert_eq!(held.len(), 1);
        outcomes.note(if page.is_some() { "page" } else { "run" });
        model.finish(held.into_iter().chain([run(0, 64), run(128, PAGEBLOCK_PAGES - 128)]));
    });
}

#[test]
fn a_pageblock_in_which_no_run_was_found_can_be_found_as_it_is() {
    check(3, &["row", "run"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        // One row of every run of five rows among the eight.
        let row = run(3 * 64, 64);
        let other = model.clone();
        let at = thread::spawn(move || {
            let taken = other.zone.claim_at(row.start, row.pages);
            taken.then(|| other.write(row)).map(|()| row)
        });
        let found = model.claim(5 * 64 - 10);
        let at = at.join().expect("it ends");
        assert!(found.is_some() != at.is_some());
        outcomes.note(if found.is_some() { "run" } else { "row" });
        model.finish(found.into_iter().chain(at));
    });
}

#[test]
fn a_run_at_a_place_and_a_run_found_come_out_of_one_row() {
    check(5, &["both"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        model.use_up();
        model.give(run(64, 64));
        let other = model.clone();
        let claimer = thread::spawn(move || {
            let there = run(96, 32);
            let taken = other.zone.claim_at(there.start, there.pages);
            taken.then(|| other.write(there)).map(|()| there)
        });
        let found = model.claim(32);
        let at = claimer.join().expect("it ends");
        assert!(found.is_some() && at.is_some());
        outcomes.note("both");
        let used = [run(0, 64), run(128, PAGEBLOCK_PAGES - 128)];
        model.finish(found.into_iter().chain(at).chain(used));
    });
}

#[test]
fn one_of_two_threads_that_grow_a_zone_publishes_pages_for_both() {
    check(3, &["1", "2"], |outcomes| {
        let model = Arc::new(Model::new(2, 0));
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(PAGEBLOCK_PAGES));
        let mine = model.claim(PAGEBLOCK_PAGES);
        let theirs = claimer.join().expect("it ends");
        let held: Vec<_> = mine.into_iter().chain(theirs).collect();
        // One thread may find the end of the zone while the other still publishes the rest.
        outcomes.note(format!("{}", held.len()));
        assert!(!held.is_empty());
        model.finish(held);
    });
}

#[test]
fn a_purge_keeps_nothing_from_a_claim_that_moves_on_from_row_to_row() {
    check(3, &["claimed", "none"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        // Two rows stay in use, so the pageblock is purged page by page.
        let held = model.claim(PAGEBLOCK_PAGES).expect("a free pageblock");
        model.give(Run { pages: PageCount(PAGEBLOCK_PAGES - 128), ..held });
        let other = model.clone();
        let purger = thread::spawn(move || {
            other.zone.on(&other.platform).purge(purge::Keep::NOTHING, 1);
        });
        let claimed = model.claim(128);
        purger.join().expect("it ends");
        outcomes.note(if claimed.is_some() { "claimed" } else { "none" });
        model.finish(claimed.into_iter().chain([run(PAGEBLOCK_PAGES - 128, 128)]));
    });
}

#[test]
fn reserved_pages_are_taken_once_and_found_once_unreserved() {
    check(3, &["1", "2"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        model.use_up();
        model.give(run(63, 2));
        let other = model.clone();
        let cpu = thread::spawn(move || {
            let mut reserve = Reserve::NONE;
            let pages = other.refill(&mut reserve, 1);
            // A drain gives back the pages that the CPU did not take.
            other.zone.unreserve(reserve);
            pages
        });
        let mine = model.claim(1);
        let theirs = cpu.join().expect("it ends");
        let held: Vec<_> = mine.into_iter().chain(theirs).collect();
        outcomes.note(format!("{}", held.len()));
        assert_eq!(model.zone.validate(), Ok(()));
        let rest: Vec<_> = core::iter::from_fn(|| model.claim(1)).collect();
        assert_eq!(rest.len() + held.len(), 2);
        let used = [run(0, 63), run(65, PAGEBLOCK_PAGES - 65)];
        model.finish(held.into_iter().chain(rest).chain(used));
    });
}

#[test]
fn pages_come_back_in_bulk_while_a_cpu_refills() {
    check(3, &["1", "2"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        model.use_up();
        model.give(run(10, 1));
        let other = model.clone();
        let giver = thread::spawn(move || {
            let items = other.items(&[run(11, 1), run(64, 1)]);
            // SAFETY: claimed blocks of the zone.
            let given = unsafe { other.zone.give_bulk(Order(0), &items) };
            assert_eq!(given, Ok(()));
        });
        let mut reserve = Reserve::NONE;
        let mut held = model.refill(&mut reserve, 2);
        giver.join().expect("it ends");
        outcomes.note(format!("{}", held.len()));
        model.zone.unreserve(reserve);
        assert_eq!(model.zone.validate(), Ok(()));
        held.extend(core::iter::from_fn(|| model.claim(1)));
        assert_eq!(held.len(), 3);
        let used = [run(0, 10), run(12, 52), run(65, PAGEBLOCK_PAGES - 65)];
        model.finish(held.into_iter().chain(used));
    });
}

#[test]
fn a_reserve_is_stolen_or_kept_but_not_both() {
    check(5, &["kept", "stolen"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        let pcp = Arc::new(Pcp::new());
        let mut reserve = Reserve::NONE;
        let mut held = model.refill(&mut reserve, 1);
        assert!(pcp.put_reserve(SINGLE, 0, reserve));
        let (other, stolen) = (model.clone(), pcp.clone());
        let thief = thread::spawn(move || {
            let (_, reserve) = stolen.take_reserve(SINGLE);
            other.zone.unreserve(reserve);
            reserve.credit > 0
        });
        let (_, mut reserve) = pcp.take_reserve(SINGLE);
        held.extend(model.refill(&mut reserve, 1));
        if !pcp.put_reserve(SINGLE, 0, reserve) {
            model.zone.unreserve(reserve);
        }
        let early = thief.join().expect("it ends");
        outcomes.note(if early { "stolen" } else { "kept" });
        model.zone.unreserve(pcp.take_reserve(SINGLE).1);
        model.finish(held);
    });
}

#[test]
fn pageblocks_are_taken_and_given_in_bulk_beside_a_page() {
    check(3, &["1 and a page", "2"], |outcomes| {
        let model = Arc::new(Model::new(2, 2));
        let other = model.clone();
        let cpu = thread::spawn(move || {
            let pageblocks = other.pageblocks(2);
            let items = other.items(&pageblocks);
            // SAFETY: claimed blocks of the zone.
            let given = unsafe { other.zone.give_pageblocks_bulk(&items) };
            assert_eq!(given, Ok(()));
            pageblocks.len()
        });
        let page = model.claim(1);
        let pageblocks = cpu.join().expect("it ends");
        // If the page was claimed first, one whole pageblock was left.
        outcomes.note(if pageblocks == 2 { "2" } else { "1 and a page" });
        assert!(page.is_some() || pageblocks == 2);
        model.finish(page);
    });
}

#[test]
fn a_pageblock_given_in_bulk_can_be_taken_at_once_and_keeps_its_hint() {
    check(3, &["failed", "whole"], |outcomes| {
        let model = Arc::new(Model::new(1, 1));
        let pageblocks = model.pageblocks(1);
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(PAGEBLOCK_PAGES));
        let items = model.items(&pageblocks);
        // SAFETY: claimed blocks of the zone.
        let given = unsafe { model.zone.give_pageblocks_bulk(&items) };
        assert_eq!(given, Ok(()));
        let claimed = claimer.join().expect("it ends");
        outcomes.note(if claimed.is_some() { "whole" } else { "failed" });
        model.finish(claimed);
    });
}
