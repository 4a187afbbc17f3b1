//! Objects by address, and what words lead to.

use std::ops::Range;

use super::roots::present;
use crate::books::Object;
use crate::error::ReadError;
use crate::maps::{PAGE, Span};
use crate::memory::{LiveMemory, PageMap};

/// Most bytes that are copied at once.
const BLOCK: u64 = 4 << 20;
/// Of an object above this length, in bytes, pages that were never touched are not read.
const LARGE: u64 = 1 << 20;
/// Most objects that are copied at once.
const BATCH: usize = 1000;
/// Bytes of a pointer.
const WORD: u64 = 8;

/// State of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No pointer to it has been found.
    Unknown,
    /// A root leads to it.
    Reached,
    /// It is leaked.
    Direct,
    /// It is leaked, and another leaked object leads to it.
    Indirect,
}

/// All live objects, and what is known of each.
#[derive(Debug)]
pub(super) struct Reach<'a> {
    memory: LiveMemory,
    /// Which pages may hold a word; none where that is not known.
    touched: Option<&'a PageMap>,
    /// By address, with the index of their books.
    objects: Vec<(Object, u32)>,
    states: Vec<State>,
    /// Objects that were reached, and whose words were not looked at yet.
    pending: Vec<usize>,
    /// From the first to the last object.
    heap: Range<u64>,
}

impl<'a> Reach<'a> {
    pub(super) fn new<'b>(
        memory: LiveMemory,
        touched: Option<&'a PageMap>,
        books: impl Iterator<Item = &'b [Object]>,
    ) -> Self {
        let mut objects: Vec<(Object, u32)> = Vec::new();
        for (at, of) in (0..).zip(books) {
            objects.extend(of.iter().map(|object| (*object, at)));
        }
        objects.sort_unstable_by_key(|(object, _)| object.addr);
        let start = objects.first().map_or(0, |(object, _)| object.addr);
        let end = objects.last().map_or(0, |(object, _)| object.addr.saturating_add(object.bytes));
        // A handle may be kept in any form, so nothing is said of per-CPU objects.
        let state = |(object, _): &(Object, u32)| {
            if object.is_handle { State::Reached } else { State::Unknown }
        };
        let states = objects.iter().map(state).collect();
        Self { memory, touched, objects, states, pending: Vec::new(), heap: start..end }
    }

    /// The object that holds an address.
    fn at(&self, address: u64) -> Option<usize> {
        if !self.heap.contains(&address) {
            return None;
        }
        let after = self.objects.partition_point(|(object, _)| object.addr <= address);
        let at = after.checked_sub(1)?;
        let object = self.objects[at].0;
        (address - object.addr < object.bytes).then_some(at)
    }

    /// Takes a word of a root.
    pub(super) fn word(&mut self, word: u64) {
        if let Some(at) = self.at(word).filter(|&at| self.states[at] == State::Unknown) {
            self.states[at] = State::Reached;
            self.pending.push(at);
        }
    }

    /// Takes all aligned words of a part of the memory. What is no longer there holds none.
    pub(super) fn scan(&mut self, part: Range<u64>) -> Result<(), ReadError> {
        let memory = self.memory.clone();
        each_word(&memory, part, |word| self.word(word))
    }

    /// Follows the words of all objects that were reached. Objects that these lead to, and whose
    /// state is not final, get the state. The head of a ring of leaks stays a direct one.
    pub(super) fn follow(&mut self, state: State, head: Option<usize>) -> Result<(), ReadError> {
        let memory = self.memory.clone();
        let mut bytes = Vec::new();
        while !self.pending.is_empty() {
            let mut spans: Vec<Span> = Vec::new();
            let mut total = 0;
            while let Some(&at) = self.pending.last() {
                let object = self.objects[at].0;
                if object.bytes <= LARGE && (spans.len() == BATCH || total + object.bytes > BLOCK) {
                    break;
                }
                self.pending.pop();
                if object.bytes > LARGE {
                    self.large(object, state, head)?;
                } else {
                    total += object.bytes;
                    spans.push(Span { addr: object.addr, len: object.bytes as usize });
                }
            }
            bytes.resize(total as usize, 0);
            let whole = memory.read_spans(&spans, &mut bytes)?;
            let mut rest = &mut bytes[..];
            for (span, whole) in spans.iter().zip(whole) {
                let (here, behind) = rest.split_at_mut(span.len);
                let lead = |word| self.lead(word, state, head);
                if whole {
                    words(span.addr, here).for_each(lead);
                } else {
                    each_page(&memory, *span, here, lead)?;
                }
                rest = behind;
            }
        }
        Ok(())
    }

    /// Follows the words of a large object.
    fn large(
        &mut self,
        object: Object,
        state: State,
        head: Option<usize>,
    ) -> Result<(), ReadError> {
        let memory = self.memory.clone();
        let mut parts = Vec::new();
        present(self.touched, object.addr..object.addr.saturating_add(object.bytes), &mut parts);
        for part in parts {
            each_word(&memory, part, |word| self.lead(word, state, head))?;
        }
        Ok(())
    }

    /// Takes a word of an object that was reached.
    fn lead(&mut self, word: u64, state: State, head: Option<usize>) {
        let Some(at) = self.at(word) else { return };
        match (self.states[at], state) {
            (State::Unknown, _) => {
                self.states[at] = state;
                self.pending.push(at);
            }
            // Its own words were looked at when it became a leak.
            (State::Direct, State::Indirect) if head != Some(at) => {
                self.states[at] = State::Indirect;
            }
            _ => {}
        }
    }

    /// Makes a leak of each object that was not reached. It is direct, unless another leak leads
    /// to it.
    pub(super) fn leaks(&mut self) -> Result<(), ReadError> {
        for at in 0..self.objects.len() {
            if self.states[at] != State::Unknown {
                continue;
            }
            self.states[at] = State::Direct;
            self.pending.push(at);
            self.follow(State::Indirect, Some(at))?;
        }
        Ok(())
    }

    /// Index of the books, tag and bytes of the objects in a state.
    pub(super) fn in_state(&self, state: State) -> impl Iterator<Item = (usize, u32, u64)> {
        let all = self.objects.iter().zip(&self.states).filter(move |(_, of)| **of == state);
        all.map(|((object, books), _)| (*books as usize, object.tag, object.bytes))
    }
}

/// Calls `each` with all aligned words of a part of the memory.
fn each_word(
    memory: &LiveMemory,
    part: Range<u64>,
    mut each: impl FnMut(u64),
) -> Result<(), ReadError> {
    let mut bytes = vec![0; BLOCK.min(part.end.saturating_sub(part.start)) as usize];
    let mut at = part.start;
    while at < part.end {
        let len = BLOCK.min(part.end - at) as usize;
        let span = Span { addr: at, len };
        if memory.read_spans(&[span], &mut bytes[..len])?[0] {
            words(at, &bytes[..len]).for_each(&mut each);
        } else {
            each_page(memory, span, &mut bytes[..len], &mut each)?;
        }
        at += len as u64;
    }
    Ok(())
}

/// Calls `each` with all aligned words of the pages of a span that can be read.
fn each_page(
    memory: &LiveMemory,
    span: Span,
    bytes: &mut [u8],
    mut each: impl FnMut(u64),
) -> Result<(), ReadError> {
    let mut pages: Vec<Span> = Vec::new();
    let (mut at, end) = (span.addr, span.addr.saturating_add(span.len as u64));
    while at < end {
        let len = (PAGE - at % PAGE).min(end - at);
        pages.push(Span { addr: at, len: len as usize });
        at += len;
    }
    let whole = memory.read_spans(&pages, bytes)?;
    for (page, _) in pages.iter().zip(whole).filter(|(_, whole)| *whole) {
        let from = (page.addr - span.addr) as usize;
        words(page.addr, &bytes[from..from + page.len]).for_each(&mut each);
    }
    Ok(())
}

/// The aligned words of some bytes that were copied from `addr`.
fn words(addr: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let skip = (addr.wrapping_neg() % WORD) as usize;
    let aligned = bytes.get(skip..).unwrap_or_default();
    aligned.as_chunks::<{ WORD as usize }>().0.iter().map(|word| u64::from_le_bytes(*word))
}
