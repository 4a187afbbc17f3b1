//! The time that a variant spends in sections, which only one CPU at a time can be in. A model
//! extends it to more CPUs than the machine has.
//!
//! For the classic allocator a section is the time for which the zone's lock is held. In kmem, CPUs
//! work in a zone side by side without a lock, and only wait for each other's cache lines. The time
//! of all work in the zone is used there, as an upper bound.
//!
//! With `n` threads a block takes at least the time with two threads, and at least the sections of
//! all threads: `t(n) = max(t(2), n * section)`. The model leaves out cache lines of more CPUs,
//! which favours variants with long sections.

use super::contender::{Contender, Lists, Variant, zone};
use super::pattern::{Pages, Pattern, blocks};
use super::report::Row;
use crate::affinity::{Places, allowed, pin};
use crate::statistics::rounded;
use kmem_buddy::{Checks, Pcp};
use kmem_core::os::regions::Regions;
use kmem_core::page::{Reserve, SLAB_TABLES, Table, Zone};
use kmem_core::units::{Item, Order, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE, PageCount};
use kmem_layout::root::ZoneBlock;
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// Nanoseconds per block in sections, of allocations and of frees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Section {
    pub(super) alloc: f64,
    pub(super) free: f64,
}

/// Number of repetitions, of which the shortest counts.
const ROUNDS: usize = 20;

/// Measures the sections of a variant.
pub(super) fn measure(contender: &Contender, order: u8) -> Section {
    let cpus = allowed();
    pin(&[Places::among(&cpus).single]);
    let once = match contender.variant.reference() {
        Some(checks) => reference(checks, order),
        None => of_kmem(order),
    };
    pin(&cpus);
    once
}

fn least(mut once: impl FnMut() -> (f64, f64)) -> Section {
    (0..ROUNDS).map(|_| once()).fold(
        Section { alloc: f64::INFINITY, free: f64::INFINITY },
        |least, (alloc, free)| Section {
            alloc: least.alloc.min(alloc),
            free: least.free.min(free),
        },
    )
}

/// Measures the time for which the lock is held, without the time of reading the clock.
fn reference(checks: Checks, order: u8) -> Section {
    let mut zone = zone(checks);
    zone.time_sections();
    let clock = clock_ns();
    let count = blocks(order);
    least(|| {
        let mut lists = Lists(Pcp::new(&zone));
        let part = |body: &mut dyn FnMut()| {
            let before = zone.sections();
            body();
            let after = zone.sections();
            let sections = (after.1 - before.1) as f64;
            ((after.0 - before.0) as f64 - sections * clock).max(0.0) / count as f64
        };
        let mut out = Vec::with_capacity(count);
        let alloc = part(&mut || out.extend((0..count).map(|_| lists.alloc(order))));
        let free = part(&mut || out.iter().for_each(|&block| lists.free(block, order)));
        (alloc, free)
    })
}

/// Nanoseconds that reading the clock adds between two readings.
fn clock_ns() -> f64 {
    let samples = (0..1000).map(|_| Instant::now().elapsed().as_nanos() as f64);
    samples.fold(f64::INFINITY, f64::min)
}

/// Measures all work in a zone for refills and flushes of CPUs' arrays, in full batches.
fn of_kmem(order: u8) -> Section {
    let pages = (2 * blocks(9) as u32) * PAGEBLOCK_PAGES;
    let (zone, platform) = bare(pages);
    let (count, batch) = (blocks(order), if order < 9 { 127 >> order } else { 16 });
    let mut out = vec![Item::NONE; count];
    // Commits all pages before the measurement.
    let all = zone.on(platform).claim(PageCount(pages), PageCount(1)).expect("an empty zone");
    assert_eq!(zone.give(all), Ok(()));
    let mut reserve = Reserve::NONE;
    let section = least(|| {
        let on = zone.on(platform);
        let start = Instant::now();
        for out in out.chunks_mut(batch) {
            let got = match order {
                9 => on.claim_pageblocks_bulk(out),
                _ => on.claim_bulk(Order(order), &mut reserve, out),
            };
            assert_eq!(got, out.len(), "the zone is large enough");
        }
        let alloc = start.elapsed();
        let start = Instant::now();
        for out in out.chunks(batch) {
            let given = match order {
                // SAFETY: blocks of this zone, which are claimed above.
                9 => unsafe { zone.give_pageblocks_bulk(out) },
                // SAFETY: blocks of this zone, which are claimed above.
                _ => unsafe { zone.give_bulk(Order(order), out) },
            };
            assert_eq!(given, Ok(()));
        }
        let free = start.elapsed();
        (alloc.as_nanos() as f64 / count as f64, free.as_nanos() as f64 / count as f64)
    });
    zone.unreserve(reserve);
    section
}

/// A zone with tables that are never freed. Its pages are no memory.
pub(super) fn bare(pages: u32) -> (&'static Zone, &'static Regions) {
    let memory = |bytes| {
        let layout = Layout::from_size_align(bytes, 4096).expect("a small table");
        // SAFETY: the size is not zero.
        unsafe { alloc_zeroed(layout) }
    };
    let tables = memory(Zone::metadata_bytes(pages));
    let [ext, len] = [(); 2].map(|()| memory(Zone::word_bytes(pages)));
    let words = [ext, len, std::ptr::null_mut(), std::ptr::null_mut()];
    // SAFETY: all zero is a valid block.
    let block: &'static ZoneBlock = Box::leak(unsafe { Box::new_zeroed().assume_init() });
    let used = Box::leak(Box::new(AtomicU32::new(0)));
    let none = [Table::empty(tables as usize); SLAB_TABLES];
    // Only the addresses are used.
    let base = NonNull::new((64 * PAGEBLOCK_SIZE) as *mut u8).expect("not null");
    // SAFETY: zeroed tables of the right size, which no other zone uses.
    let zone = unsafe { Zone::new(base, PageCount(pages), tables, words, none, block, used) };
    let fatal = || std::process::abort();
    // SAFETY: the platform accesses no memory.
    let platform = unsafe { Regions::of(std::ptr::null_mut(), 0, 1, |_| (), fatal) };
    (Box::leak(Box::new(zone)), Box::leak(Box::new(platform)))
}

/// The rows of 3 to 24 threads.
pub(super) fn model(
    rows: &[Row],
    variant: Variant,
    pattern: Pattern,
    order: u8,
    section: &Section,
) -> Vec<Row> {
    let two = rows.iter().find(|row| {
        (row.variant, row.pattern, row.order) == (variant.name(), pattern.name(), order)
            && row.threads == 2
    });
    // A pair does not leave the CPU's array.
    let sections = if pattern == Pattern::Pair { 0.0 } else { 1.0 };
    let rows = two.into_iter().flat_map(|two| {
        (3..=24).map(move |threads| Row {
            threads,
            alloc_ns: rounded(two.alloc_ns.max(threads as f64 * sections * section.alloc), 3),
            free_ns: rounded(two.free_ns.max(threads as f64 * sections * section.free), 3),
            measured: false,
            ..two.clone()
        })
    });
    rows.collect()
}
