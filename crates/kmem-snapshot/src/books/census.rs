//! The census: one walk over the extension words of all objects and page allocations.
//!
//! A zone is walked in windows of chunks. The census copies the classes of a window's chunks, and
//! then the extension vectors of its slabs in batches. Each batch ends with a second copy of the
//! classes. A slab whose class differs was given back in between, and is read again.

use std::collections::BTreeSet;

use kmem_layout::cache::RECORD_CACHE_SHIFT;
use kmem_layout::geometry::CHUNK_CLASS_MASK;
use kmem_layout::length;
use kmem_layout::root::zone_purpose;
use kmem_layout::word::{EXT_LIVE, TAG_MASK, TAG_UNTAGGED};

use super::ages::Ages;
use super::caches::Cache;
use super::groups::{Charges, Kind};
use super::objects::{Object, Objects};
use super::pins::{Marks, Pins};
use super::root::Root;
use super::sizes::Sizes;
use super::source::Source;
use super::tables::TagTotal;
use super::tally::Tally;
use super::zone::{CHUNK, Class, PAGES_PER_CHUNK, Zone};
use crate::budget::OverBudget;
use crate::error::ReadError;
use crate::maps::{PAGE, Span};

/// Chunks per window: 1 GiB of address space, a multiple of the largest slab.
const WINDOW: u64 = 1 << 14;
/// Slabs per batch: one system call copies their vectors and their classes.
const BATCH_SLABS: usize = 1000;
/// Most bytes per batch.
const BATCH_BYTES: usize = 4 << 20;
/// Work of counting one slab, in bytes, besides the copy of its extension vector.
const SLAB_WORK: usize = 256;
/// Reads of a slab that keeps changing.
const ROUNDS: u32 = 4;

/// A census under way.
pub(super) struct Census<'a> {
    source: &'a Source<'a>,
    classes: &'a [Option<Class>],
    has_books: bool,
    /// True if records have the caches of their objects.
    records_caches: bool,
    /// Number of the vector of times; 0: there are none.
    time_vector: usize,
    /// By tag, up to the highest one that was met. Most processes use few of all tags.
    pub(super) totals: Vec<TagTotal>,
    /// By group.
    pub(super) charges: Charges,
    /// By size class.
    slabs: Vec<Slabs>,
    pub(super) pins: Pins,
    pub(super) sizes: Sizes,
    pub(super) ages: Ages,
    tally: Tally,
    marks: Marks,
    /// Room for the copies of a batch.
    bytes: Vec<u8>,
    /// The objects, where they are wanted one by one.
    pub(super) objects_met: Option<Objects>,
    /// Live bytes.
    pub(super) live: u64,
    /// Live bytes in slabs.
    pub(super) live_in_slabs: u64,
    /// Bytes of all objects of all slabs, free ones included; 0 without books, because the
    /// reader cannot tell free objects then.
    pub(super) objects: u64,
    /// Bytes of slabs that are not objects.
    pub(super) slab_overhead: u64,
    /// By zone: bytes of slabs and of live page allocations. None where not all were counted.
    pub(super) placed: Vec<Option<u64>>,
    /// Bytes of slabs and of live page allocations in the zone that is counted.
    placed_here: u64,
    /// Slabs and page allocations that could not be counted.
    pub(super) torn: u64,
}

/// Reason for which the census of a zone ends early.
enum Stop {
    /// The rest of the zone does not fit in the budget.
    Over(OverBudget),
    Failed(ReadError),
}

impl From<OverBudget> for Stop {
    fn from(over: OverBudget) -> Self {
        Self::Over(over)
    }
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

/// The live words of a vector, each with the word of its object in another vector. Nothing where
/// that is empty.
fn live_with<'a>(vector: &'a [u8], other: &'a [u8]) -> impl Iterator<Item = (u32, u32)> + 'a {
    let words =
        |vector: &'a [u8]| vector.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    words(vector).zip(words(other)).filter(|(word, _)| word & EXT_LIVE != 0)
}

/// Counts of slabs of one size class.
#[derive(Debug, Clone, Copy, Default)]
struct Slabs {
    all: u64,
    /// Slabs with at least one live object.
    active: u64,
}

/// The error for a chunk with a size class that is not part of a whole slab.
struct NotASlab;

impl<'a> Census<'a> {
    pub(super) fn new(source: &'a Source<'a>, classes: &'a [Option<Class>], root: &Root) -> Self {
        Self {
            source,
            classes,
            has_books: root.has_books(),
            records_caches: root.has_books() && root.records_caches,
            time_vector: if root.has_times() { root.times.0 as usize } else { 0 },
            totals: Vec::new(),
            charges: Charges::new(classes.len()),
            slabs: vec![Slabs::default(); classes.len()],
            pins: Pins::with_room(source.budget.memory_left() / 2),
            sizes: Sizes::with_room(classes, source.budget.memory_left() / 4),
            ages: Ages::of_root(root, source.memory, source.budget.memory_left() / 8),
            tally: Tally::new(),
            marks: Marks::new(),
            bytes: Vec::new(),
            objects_met: None,
            live: 0,
            live_in_slabs: 0,
            objects: 0,
            slab_overhead: 0,
            placed: Vec::new(),
            placed_here: 0,
            torn: 0,
        }
    }

    /// The caches of all size classes. `active` returns the live objects of a class.
    pub(super) fn caches(&self, active: impl Fn(usize) -> u64) -> Vec<Cache> {
        let of = |class: &Class| {
            let slabs = self.slabs.get(class.number).copied().unwrap_or_default();
            Cache {
                size: class.size,
                request: if class.is_of_no_bytes { 0 } else { class.size },
                objects_per_slab: u32::try_from(class.limit / u64::from(class.size)).unwrap_or(0),
                pages_per_slab: u32::try_from(class.slab_size / PAGE).unwrap_or(0),
                limit: class.cap,
                batch: class.batch,
                active: active(class.number),
                slabs: slabs.all,
                active_slabs: slabs.active,
            }
        };
        self.classes.iter().flatten().map(of).collect()
    }

    /// Counts `calls` allocations with this extension word, `bytes` together.
    fn count(&mut self, word: u32, kind: Kind, bytes: u64, calls: u64) {
        let tag = (word & TAG_MASK) as usize;
        if tag >= self.totals.len() {
            self.totals.resize(tag + 1, TagTotal::default());
        }
        let total = &mut self.totals[tag];
        total.bytes += bytes;
        total.calls += calls;
        self.live += bytes;
        self.charges.add(word, kind, bytes, calls);
    }

    /// Counts one zone, as far as the budget allows.
    ///
    /// # Errors
    ///
    /// Fails when the process has ended or the zone's tables cannot be read.
    pub(super) fn zone(&mut self, zone: &Zone) -> Result<(), ReadError> {
        self.placed_here = 0;
        match self.windows(zone) {
            Ok(()) => {
                self.placed.push(Some(self.placed_here));
                Ok(())
            }
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::Over(over)) => {
                self.placed.push(None);
                self.source.budget.remark(format!(
                    "zone at {:#x}: memory in use is counted in part, all of it is {over}",
                    zone.base
                ));
                Ok(())
            }
        }
    }

    fn windows(&mut self, zone: &Zone) -> Result<(), Stop> {
        let chunks = zone.chunks();
        let mut classes = vec![0; WINDOW as usize];
        // Pages below this one belong to an allocation that began in an earlier window.
        let mut taken = 0;
        let mut first = 0;
        while first < chunks {
            let count = (chunks - first).min(WINDOW);
            let classes = &mut classes[..count as usize];
            self.source.budget.work(count)?;
            self.source.memory.read(zone.chunk_class + first, classes)?;
            mask(classes);
            self.slabs(zone, first, classes)?;
            self.page_allocations(zone, first, classes, &mut taken)?;
            first += count;
        }
        Ok(())
    }

    /// Counts the slabs among `classes`, which are the classes of the chunks from `first` on.
    fn slabs(&mut self, zone: &Zone, first: u64, classes: &mut [u8]) -> Result<(), Stop> {
        let mut pending: Vec<(usize, Class)> = Vec::new();
        let mut chunk = 0;
        while chunk < classes.len() {
            match self.slab_at(zone, first, chunk, classes) {
                Ok(Some(class)) => {
                    pending.push((chunk, class));
                    chunk += class.chunks() as usize;
                }
                Ok(None) => chunk += 1,
                Err(NotASlab) => {
                    self.torn += 1;
                    chunk += 1;
                }
            }
        }
        for _ in 0..ROUNDS {
            if pending.is_empty() {
                return Ok(());
            }
            let mut changed = BTreeSet::new();
            for batch in batches(&pending) {
                self.batch(zone, first, classes, batch, &mut changed)?;
            }
            // A chunk that changed may now hold pages, or another class, or be free.
            pending = changed
                .into_iter()
                .filter_map(|chunk| Some((chunk, self.slab_at(zone, first, chunk, classes).ok()??)))
                .collect();
        }
        self.torn += pending.len() as u64;
        Ok(())
    }

    /// Class of the slab that starts at `chunk`; none for a chunk of pages.
    fn slab_at(
        &self,
        zone: &Zone,
        first: u64,
        chunk: usize,
        classes: &[u8],
    ) -> Result<Option<Class>, NotASlab> {
        let number = classes[chunk];
        if number == 0 {
            return Ok(None);
        }
        let class = self.classes.get(usize::from(number)).copied().flatten().ok_or(NotASlab)?;
        let addr = zone.base + (first + chunk as u64) * CHUNK;
        let end = chunk + class.chunks() as usize;
        let committed = zone.base + zone.committed * PAGE;
        let is_whole = addr.is_multiple_of(class.slab_size)
            && addr + class.slab_size <= committed
            && classes.get(chunk..end).is_some_and(|c| c.iter().all(|&c| c == number));
        if is_whole { Ok(Some(class)) } else { Err(NotASlab) }
    }

    /// Copies the vectors of some slabs, then their classes again, and counts the slabs that did
    /// not change. Updates `classes`.
    fn batch(
        &mut self,
        zone: &Zone,
        first: u64,
        classes: &mut [u8],
        batch: &[(usize, Class)],
        changed: &mut BTreeSet<usize>,
    ) -> Result<(), Stop> {
        let (Some(&(low, _)), Some(&(last, last_class))) = (batch.first(), batch.last()) else {
            return Ok(());
        };
        let high = last + last_class.chunks() as usize;
        let mut spans: Vec<Span> =
            batch.iter().map(|(chunk, class)| self.vector(zone, first, *chunk, class)).collect();
        let vectors_len = spans.iter().map(|s| s.len).sum();
        spans.push(Span { addr: zone.chunk_class + first + low as u64, len: high - low });
        self.source.budget.work((vectors_len + spans.len() * SLAB_WORK) as u64)?;
        let len = vectors_len + (high - low);
        let mut bytes = std::mem::take(&mut self.bytes);
        // Only spans that were copied whole are looked at, so older bytes may stay in the others.
        bytes.resize(bytes.len().max(len), 0);
        let whole = self.source.memory.read_spans(&spans, &mut bytes[..len])?;
        let (vectors, now) = bytes[..len].split_at_mut(vectors_len);
        mask(now);
        if !whole[batch.len()] {
            self.torn += batch.len() as u64;
            return Ok(());
        }
        let before = classes[low..high].to_vec();
        let now = &*now;
        classes[low..high].copy_from_slice(now);
        let mut counted = Vec::with_capacity(batch.len());
        let mut offset = 0;
        for (i, (chunk, class)) in batch.iter().enumerate() {
            let vector = &vectors[offset..offset + spans[i].len];
            offset += spans[i].len;
            let range = chunk - low..chunk - low + class.chunks() as usize;
            if before[range.clone()] != now[range.clone()] {
                changed.extend(range.map(|c| c + low));
            } else if whole[i] && (!vector.is_empty() || !self.has_books) {
                counted.push((zone.base + (first + *chunk as u64) * CHUNK, class, vector));
            } else {
                self.torn += 1;
            }
        }
        // Objects of one class are added up before they join the books.
        counted.sort_by_key(|(_, class, _)| class.number);
        for of_class in counted.chunk_by(|(_, one, _), (_, other, _)| one.number == other.number) {
            let mut slabs = of_class.iter();
            let all =
                slabs.try_for_each(|(addr, class, vector)| self.slab(zone, *addr, class, vector));
            // Where the budget ends, what was counted before joins the books, too.
            if let Some((_, class, _)) = of_class.first() {
                self.settle(zone, class);
            }
            all?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// The extension vector of a slab, its records where they have caches, and its times; empty
    /// without books, or where it is not mapped.
    fn vector(&self, zone: &Zone, first: u64, chunk: usize, class: &Class) -> Span {
        let slab = zone.base + (first + chunk as u64) * CHUNK;
        // Objects of no bytes cannot be read.
        let vectors = usize::from(self.records_caches).max(self.time_vector) + 1;
        let len = class.ext_words as usize * 4 * vectors;
        let addr = slab + u64::from(class.ext_offset);
        let is_there = self.has_books && self.source.maps.is_readable_memory(addr, len as u64);
        Span { addr, len: if is_there { len } else { 0 } }
    }

    /// Counts the extension words of the slab at `addr`. Its objects join the books at the next
    /// [`Self::settle`].
    fn slab(
        &mut self,
        zone: &Zone,
        addr: u64,
        class: &Class,
        vector: &[u8],
    ) -> Result<(), OverBudget> {
        let is_percpu = zone.purpose == zone_purpose::PERCPU;
        self.slab_overhead += class.slab_size - class.limit;
        self.placed_here += class.slab_size;
        if self.has_books {
            self.objects += class.limit;
        }
        let vectors = || vector.chunks_exact((class.ext_words as usize * 4).max(1));
        let (vector, beside) = (vectors().next().unwrap_or_default(), |nth: usize| {
            vectors().nth(nth).filter(|_| nth > 0).unwrap_or_default()
        });
        for (word, record) in live_with(vector, beside(usize::from(self.records_caches))) {
            let number = record >> RECORD_CACHE_SHIFT;
            if number != 0 && !is_percpu {
                self.charges.add_cache(word, number);
            }
        }
        for (word, time) in live_with(vector, beside(self.time_vector)) {
            // Handles of per-CPU objects have no times.
            let time = if is_percpu { 0 } else { time };
            self.ages.add(word & TAG_MASK, time, class.size.into());
        }
        self.tally.slab(vector.as_chunks().0);
        self.pins.slab(self.tally.here(), &mut self.marks, class.slab_size);
        // Slabs of per-CPU handles belong to no cache.
        if let Some(slabs) = self.slabs.get_mut(class.number).filter(|_| !is_percpu) {
            slabs.all += 1;
            slabs.active += u64::from(!self.tally.here().is_empty());
        }
        match &mut self.objects_met {
            Some(met) => met.slab(addr, class, vector, is_percpu, self.source.budget),
            None => Ok(()),
        }
    }

    /// Adds the objects of all slabs since the last call, which have one class, to the books.
    fn settle(&mut self, zone: &Zone, class: &Class) {
        let is_percpu = zone.purpose == zone_purpose::PERCPU;
        let kind = if is_percpu { Kind::PerCpu } else { Kind::Slab(class.number) };
        for (word, calls) in self.tally.take() {
            let bytes = calls * u64::from(class.size);
            self.count(word, kind, bytes, calls);
            self.sizes.add(word & TAG_MASK, class.number, calls);
            self.live_in_slabs += bytes;
        }
    }

    /// Counts the page allocations that start in the chunks of class 0 of a window.
    fn page_allocations(
        &mut self,
        zone: &Zone,
        first: u64,
        classes: &[u8],
        taken: &mut u64,
    ) -> Result<(), Stop> {
        let mut chunk = 0;
        while chunk < classes.len() {
            if classes[chunk] != 0 {
                chunk += 1;
                continue;
            }
            let run = classes[chunk..].iter().take_while(|&&c| c == 0).count();
            let from = (first + chunk as u64) * PAGES_PER_CHUNK;
            let to = (from + run as u64 * PAGES_PER_CHUNK).min(zone.committed);
            self.page_run(zone, from, to, taken)?;
            chunk += run;
        }
        Ok(())
    }

    /// Counts the page allocations that start at the pages `from..to` of a window.
    fn page_run(&mut self, zone: &Zone, from: u64, to: u64, taken: &mut u64) -> Result<(), Stop> {
        let lengths = zone.page_len + from * 4;
        for part in self.source.touched(lengths, (to - from) * 4) {
            // A part may begin within an entry of a table at an odd address.
            let first = from + (part.start - lengths) / 4;
            let last = from + (part.end - lengths).div_ceil(4);
            self.page_entries(zone, first, last, taken)?;
        }
        Ok(())
    }

    /// Counts the page allocations that start at the pages `from..to`.
    fn page_entries(
        &mut self,
        zone: &Zone,
        from: u64,
        to: u64,
        taken: &mut u64,
    ) -> Result<(), Stop> {
        let len = (to - from) as usize * 4;
        self.source.budget.work(if self.has_books { 2 * len } else { len } as u64)?;
        let mut lengths = vec![0; len];
        let mut words = vec![0; len];
        self.source.memory.read(zone.page_len + from * 4, &mut lengths)?;
        if self.has_books {
            self.source.memory.read(zone.page_ext + from * 4, &mut words)?;
        }
        let mut times = Vec::new();
        if self.time_vector != 0 {
            times.resize(len, 0);
            self.source.budget.work(len as u64)?;
            // Areas have no table.
            if zone.page_time != 0 {
                self.source.memory.read(zone.page_time + from * 4, &mut times)?;
            }
        }
        let mut times = times.as_chunks::<4>().0.iter().map(|time| u32::from_le_bytes(*time));
        let is_area = zone.purpose == zone_purpose::VMALLOC;
        let kind = if is_area { Kind::Vmalloc } else { Kind::Pages };
        let allocations = lengths.as_chunks::<4>().0.iter().zip(words.as_chunks::<4>().0);
        for (page, (pages, word)) in (from..).zip(allocations) {
            let time = times.next();
            let pages = u64::from(length::pages(u32::from_le_bytes(*pages)));
            if pages == 0 || page < *taken {
                continue;
            }
            if page + pages > zone.committed {
                self.torn += 1;
            } else {
                let word = u32::from_le_bytes(*word);
                let word = if self.has_books { word } else { TAG_UNTAGGED };
                self.count(word, kind, pages * PAGE, 1);
                self.placed_here += pages * PAGE;
                self.pins.alone(word & TAG_MASK, pages * PAGE);
                self.sizes.add_pages(word & TAG_MASK, pages * PAGE);
                if let Some(time) = time {
                    self.ages.add(word & TAG_MASK, time, pages * PAGE);
                }
                if let Some(met) = &mut self.objects_met {
                    let (addr, bytes) = (zone.base + page * PAGE, pages * PAGE);
                    let object = Object { addr, bytes, tag: word & TAG_MASK, is_handle: false };
                    met.add(object, self.source.budget)?;
                }
                *taken = page + pages;
            }
        }
        Ok(())
    }
}

/// Clears all but the class in each byte of the table of chunks.
fn mask(classes: &mut [u8]) {
    for class in classes {
        *class &= CHUNK_CLASS_MASK;
    }
}

/// Splits slabs into batches of bounded size.
fn batches(slabs: &[(usize, Class)]) -> impl Iterator<Item = &[(usize, Class)]> {
    let mut rest = slabs;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take(BATCH_SLABS).take_while(|(_, class)| {
            bytes += class.ext_words as usize * 12;
            bytes <= BATCH_BYTES
        });
        // Without books, the words that a class would have may be more than fit.
        let count = fits.count().max(1).min(rest.len());
        let (batch, tail) = rest.split_at(count);
        rest = tail;
        (!batch.is_empty()).then_some(batch)
    })
}
