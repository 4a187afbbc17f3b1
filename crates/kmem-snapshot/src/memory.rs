//! Memory of a process, living or dead: what the census reads, whichever it is.

use std::ops::Range;

use crate::core_file::CoreMemory;
use crate::error::ReadError;
use crate::process::{self, PageMap, PageState, Smaps, Span};

/// Memory of one process.
#[derive(Debug, Clone)]
pub enum Memory {
    /// Of a live process.
    Live(process::Memory),
    /// Of a core file.
    Core(CoreMemory),
}

impl Memory {
    /// Copies `into.len()` bytes from `addr`.
    ///
    /// # Errors
    ///
    /// Fails when part of the range is not there, or may not be read.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), ReadError> {
        match self {
            Self::Live(memory) => memory.read(addr, into),
            Self::Core(memory) => memory.read(addr, into),
        }
    }

    /// Copies spans into `into`, one after the other, in order. Tells for each whether all of
    /// it could be read; one that is absent does not stop the others.
    ///
    /// # Errors
    ///
    /// Fails when nothing can be read any more.
    ///
    /// # Panics
    ///
    /// When `into` is shorter than the spans together.
    pub fn read_spans(&self, spans: &[Span], into: &mut [u8]) -> Result<Vec<bool>, ReadError> {
        match self {
            Self::Live(memory) => memory.read_spans(spans, into),
            Self::Core(memory) => memory.read_spans(spans, into),
        }
    }
}

/// Which pages are in memory.
#[derive(Debug)]
pub enum Pages {
    /// By the page map of a live process.
    Live(PageMap),
    /// By what is in memory of each mapping of a live process, which is an estimate.
    Likely(Smaps),
    /// By the parts of a core file that are not holes.
    Core(CoreMemory),
}

impl Pages {
    /// Calls `each` with the address ranges of `len` bytes at `addr` that are in the state
    /// asked for. Returns `None` when that cannot be told.
    pub fn regions(
        &self,
        addr: u64,
        len: u64,
        state: PageState,
        each: impl FnMut(Range<u64>),
    ) -> Option<()> {
        match self {
            Self::Live(map) => map.regions(addr, len, state, each),
            Self::Likely(smaps) => {
                (state == PageState::Present).then(|| smaps.likely(addr, len, each))
            }
            Self::Core(memory) => {
                // What was in swap has been dumped like the rest.
                if state == PageState::Present {
                    memory.present(addr, len, each);
                }
                Some(())
            }
        }
    }
}
