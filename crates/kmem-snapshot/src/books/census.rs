//! The census: one walk over the extension words of all objects and page allocations.
//!
//! A zone is walked in windows of chunks. In each window the classes are copied, then the
//! extension vectors of its slabs in batches that end with a second copy of the classes: a
//! slab whose class differs had been given back in between, and is looked at again.

use std::collections::BTreeSet;

use kmem::root::{CHUNK_CLASS_MASK, EXT_LIVE, TAG_BITS, TAG_MASK, TAG_UNTAGGED, zone_purpose};

use super::Source;
use super::caches::Slabs;
use super::charges::{Charges, Kind};
use super::pinned::{Gather, Pins};
use super::zone::{CHUNK, Class, PAGE, PAGES_PER_CHUNK, Zone};
use crate::error::ReadError;
use crate::process::Span;

/// Chunks per window: 1 GiB of address space; a multiple of the largest slab.
const WINDOW: u64 = 1 << 14;
/// Slabs per batch: their vectors and the classes go through one system call.
const BATCH_SLABS: usize = 1000;
/// Most bytes per batch.
const BATCH_BYTES: usize = 4 << 20;
/// Times a slab that keeps changing is looked at again.
const ROUNDS: u32 = 4;

/// Live bytes and objects of one tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TagTotal {
    /// Live bytes.
    pub bytes: u64,
    /// Live objects.
    pub calls: u64,
}

/// A census under way.
pub(super) struct Census<'a> {
    source: &'a Source<'a>,
    classes: &'a [Option<Class>],
    has_books: bool,
    totals: Vec<TagTotal>,
    /// The same by group.
    pub(super) charges: Charges,
    /// Slabs by class.
    pub(super) slabs: Vec<Slabs>,
    pins: Pins,
    gather: Gather,
    /// Live bytes.
    pub(super) live: u64,
    /// Live bytes in slabs.
    pub(super) live_in_slabs: u64,
    /// Bytes of all objects of all slabs, free ones included; without books nobody knows which
    /// are free, and they stay unaccounted.
    pub(super) objects: u64,
    /// Bytes of slabs that are not objects.
    pub(super) slab_overhead: u64,
    /// What could not be counted.
    pub(super) torn: u64,
}

impl<'a> Census<'a> {
    pub(super) fn new(
        source: &'a Source<'a>,
        classes: &'a [Option<Class>],
        has_books: bool,
    ) -> Self {
        Self {
            source,
            classes,
            has_books,
            totals: vec![TagTotal::default(); 1 << TAG_BITS],
            charges: Charges::new(classes.len()),
            slabs: vec![Slabs::default(); classes.len()],
            pins: Pins::default(),
            gather: Gather::new(),
            live: 0,
            live_in_slabs: 0,
            objects: 0,
            slab_overhead: 0,
            torn: 0,
        }
    }

    /// Totals by tag.
    pub(super) fn totals(&self) -> &[TagTotal] {
        &self.totals
    }

    /// Totals by tag, and what the tags keep from being given back.
    pub(super) fn into_totals(self) -> (Vec<TagTotal>, Pins) {
        (self.totals, self.pins)
    }

    /// Counts `calls` allocations with this extension word.
    fn count(&mut self, word: u32, kind: Kind, bytes: u64, calls: u64) {
        let total = &mut self.totals[(word & TAG_MASK) as usize];
        total.bytes += bytes;
        total.calls += calls;
        self.live += bytes;
        self.charges.add(word, kind, bytes, calls);
    }

    /// Counts one zone.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone or its tables cannot be read.
    pub(super) fn zone(&mut self, zone: &Zone) -> Result<(), ReadError> {
        let chunks = zone.chunks();
        let mut classes = vec![0; WINDOW as usize];
        // A page allocation may reach into later windows; pages before this one are its own.
        let mut taken = 0;
        let mut first = 0;
        while first < chunks {
            let count = (chunks - first).min(WINDOW);
            let classes = &mut classes[..count as usize];
            self.source.memory.read(zone.chunk_class + first, classes)?;
            mask(classes);
            self.slabs(zone, first, classes)?;
            self.page_allocations(zone, first, classes, &mut taken)?;
            first += count;
        }
        Ok(())
    }

    /// Counts the slabs among `classes`, the classes of the chunks from `first`.
    fn slabs(&mut self, zone: &Zone, first: u64, classes: &mut [u8]) -> Result<(), ReadError> {
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
            // Chunks that changed are page allocations, another class, or free by now.
            pending = changed
                .into_iter()
                .filter_map(|chunk| Some((chunk, self.slab_at(zone, first, chunk, classes).ok()??)))
                .collect();
        }
        self.torn += pending.len() as u64;
        Ok(())
    }

    /// The class of the slab that starts at `chunk`; none for a chunk of pages.
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
        let whole = addr.is_multiple_of(class.slab_size)
            && addr + class.slab_size <= committed
            && classes.get(chunk..end).is_some_and(|c| c.iter().all(|&c| c == number));
        if whole { Ok(Some(class)) } else { Err(NotASlab) }
    }

    /// Copies the vectors of some slabs, then the classes again, and counts the slabs that
    /// did not change. `classes` is brought up to date.
    fn batch(
        &mut self,
        zone: &Zone,
        first: u64,
        classes: &mut [u8],
        batch: &[(usize, Class)],
        changed: &mut BTreeSet<usize>,
    ) -> Result<(), ReadError> {
        let (Some(&(low, _)), Some(&(last, last_class))) = (batch.first(), batch.last()) else {
            return Ok(());
        };
        let high = last + last_class.chunks() as usize;
        let mut spans = Vec::with_capacity(batch.len() + 1);
        for (chunk, class) in batch {
            let slab = zone.base + (first + *chunk as u64) * CHUNK;
            let readable =
                self.has_books && self.source.maps.is_readable_memory(slab, class.slab_size);
            spans.push(Span {
                addr: slab + u64::from(class.ext_offset),
                len: if readable { class.ext_words as usize * 4 } else { 0 },
            });
        }
        spans.push(Span { addr: zone.chunk_class + first + low as u64, len: high - low });
        let mut bytes = vec![0; spans.iter().map(|s| s.len).sum()];
        let whole = self.source.memory.read_spans(&spans, &mut bytes)?;
        let (vectors, now) = bytes.split_at_mut(spans[..batch.len()].iter().map(|s| s.len).sum());
        mask(now);
        if !whole[batch.len()] {
            self.torn += batch.len() as u64;
            return Ok(());
        }
        let before = classes[low..high].to_vec();
        let now = &*now;
        classes[low..high].copy_from_slice(now);
        let mut offset = 0;
        for (i, (chunk, class)) in batch.iter().enumerate() {
            let vector = &vectors[offset..offset + spans[i].len];
            offset += spans[i].len;
            let range = chunk - low..chunk - low + class.chunks() as usize;
            if before[range.clone()] != now[range.clone()] {
                changed.extend(range.map(|c| c + low));
            } else if whole[i] && (!vector.is_empty() || !self.has_books) {
                self.slab(zone, class, vector);
            } else {
                self.torn += 1;
            }
        }
        Ok(())
    }

    /// Counts the extension words of one slab.
    fn slab(&mut self, zone: &Zone, class: &Class, vector: &[u8]) {
        let is_percpu = zone.purpose == zone_purpose::PERCPU;
        let kind = if is_percpu { Kind::PerCpu } else { Kind::Slab(class.number) };
        self.slab_overhead += class.slab_size - class.limit;
        if self.has_books {
            self.objects += class.limit;
        }
        let before = self.live;
        // Neighbours mostly share a word.
        let (mut run, mut calls) = (0, 0);
        for word in vector.chunks_exact(4) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if word & EXT_LIVE == 0 {
                continue;
            }
            if word != run {
                self.run(class, kind, run, calls);
                (run, calls) = (word, 0);
            }
            calls += 1;
        }
        self.run(class, kind, run, calls);
        self.gather.end(class.slab_size, &mut self.pins);
        self.live_in_slabs += self.live - before;
        // Slabs of handles belong to no cache.
        if let Some(slabs) = self.slabs.get_mut(class.number).filter(|_| !is_percpu) {
            slabs.all += 1;
            slabs.active += u64::from(self.live != before);
        }
    }

    /// Counts live objects of one slab that share an extension word.
    fn run(&mut self, class: &Class, kind: Kind, word: u32, calls: u64) {
        if calls != 0 {
            self.count(word, kind, calls * u64::from(class.size), calls);
            self.gather.object(word & TAG_MASK);
        }
    }

    /// Counts the page allocations that start in chunks of class 0 of a window.
    fn page_allocations(
        &mut self,
        zone: &Zone,
        first: u64,
        classes: &[u8],
        taken: &mut u64,
    ) -> Result<(), ReadError> {
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

    /// Counts the page allocations that start at pages `from..to`, a window at most.
    fn page_run(
        &mut self,
        zone: &Zone,
        from: u64,
        to: u64,
        taken: &mut u64,
    ) -> Result<(), ReadError> {
        let len = (to - from) as usize * 4;
        let mut lengths = vec![0; len];
        let mut words = vec![0; len];
        self.source.memory.read(zone.page_len + from * 4, &mut lengths)?;
        if self.has_books {
            self.source.memory.read(zone.page_ext + from * 4, &mut words)?;
        }
        for (i, (pages, word)) in lengths.chunks_exact(4).zip(words.chunks_exact(4)).enumerate() {
            let pages = u64::from(u32::from_le_bytes([pages[0], pages[1], pages[2], pages[3]]));
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let pfn = from + i as u64;
            if pages == 0 || pfn < *taken {
                continue;
            }
            if pfn + pages > zone.committed {
                self.torn += 1;
            } else {
                let word = if self.has_books { word } else { TAG_UNTAGGED };
                let is_area = zone.purpose == zone_purpose::VMALLOC;
                let kind = if is_area { Kind::Vmalloc } else { Kind::Pages };
                self.count(word, kind, pages * PAGE, 1);
                self.pins.alone(word & TAG_MASK, pages * PAGE);
                *taken = pfn + pages;
            }
        }
        Ok(())
    }
}

/// Leaves the class in each byte of the table.
fn mask(classes: &mut [u8]) {
    for class in classes {
        *class &= CHUNK_CLASS_MASK;
    }
}

/// A chunk with a class that is not part of a whole slab.
struct NotASlab;

/// Splits slabs into batches of bounded size.
fn batches(slabs: &[(usize, Class)]) -> impl Iterator<Item = &[(usize, Class)]> {
    let mut rest = slabs;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take(BATCH_SLABS).take_while(|(_, class)| {
            bytes += class.ext_words as usize * 4;
            bytes <= BATCH_BYTES
        });
        // A vector is below the largest slab, so one always fits.
        let count = fits.count();
        let (batch, tail) = rest.split_at(count);
        rest = tail;
        (!batch.is_empty()).then_some(batch)
    })
}
