//! Access to DWARF that draws on a budget.
//!
//! A parser of hostile DWARF can take far more work and memory than the sections have bytes. Units
//! may share one list of ranges or one line program, and a byte of a line program makes a row. So
//! each step of the parser draws work. The memory that the parser keeps is the growth of this
//! process's resident memory, looked at after every batch of steps.

use std::borrow::Cow;
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use gimli::{EndianRcSlice, Error, Reader, ReaderOffsetId, Result, RunTimeEndian};

use crate::budget::{Budget, STEP};
use crate::maps::PAGE;

/// Steps between two looks at the resident memory.
const BATCH: u64 = 1 << 14;

/// The meter of one file.
#[derive(Debug)]
pub(super) struct Meter {
    budget: Budget,
    /// The resident memory of this process is read from it twice in each lookup.
    statm: Option<File>,
    /// Steps that were not drawn yet.
    steps: Cell<u64>,
    /// Resident memory of this process when the present lookup began.
    before: Cell<u64>,
}

impl Meter {
    pub(super) fn new(budget: Budget) -> Rc<Self> {
        let statm = File::open("/proc/self/statm").ok();
        Rc::new(Self { budget, statm, steps: Cell::new(0), before: Cell::new(0) })
    }

    /// Resident memory of this process, in bytes; 0 where it cannot be told.
    fn resident(&self) -> u64 {
        let mut text = [0; 128];
        let len = self.statm.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = str::from_utf8(&text[..len.unwrap_or(0)]).unwrap_or_default();
        let pages = text.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
        pages.unwrap_or(0) * PAGE
    }

    /// Runs a lookup, and draws the memory that it keeps.
    pub(super) fn lookup<T>(&self, look: impl FnOnce() -> T) -> T {
        self.before.set(self.resident());
        let found = look();
        let kept = self.resident().saturating_sub(self.before.get());
        // A lookup may end beyond the limit by what one batch of steps takes.
        let _ = self.budget.memory(kept.min(self.budget.memory_left()));
        found
    }

    fn step(&self, count: u64) -> std::result::Result<(), ()> {
        let steps = self.steps.get().saturating_add(count);
        self.steps.set(steps);
        if steps < BATCH {
            return Ok(());
        }
        self.steps.set(0);
        let kept = self.resident().saturating_sub(self.before.get());
        let fits = self.budget.work(steps.saturating_mul(STEP)).is_ok();
        // Asks for one byte more than is left, so that the refusal is known to the budget.
        let fits =
            fits && (kept < self.budget.memory_left() || self.budget.memory(kept + 1).is_ok());
        // The next step looks again, and fails again.
        self.steps.set(if fits { 0 } else { BATCH });
        if fits { Ok(()) } else { Err(()) }
    }
}

/// Bytes of a section, with the meter of their file.
#[derive(Debug, Clone)]
pub(super) struct Metered {
    bytes: EndianRcSlice<RunTimeEndian>,
    meter: Rc<Meter>,
}

impl Metered {
    pub(super) fn new(bytes: Rc<[u8]>, endian: RunTimeEndian, meter: &Rc<Meter>) -> Self {
        Self { bytes: EndianRcSlice::new(bytes, endian), meter: Rc::clone(meter) }
    }

    fn step(&self, count: usize) -> Result<()> {
        // A step of the parser, and the bytes that it copies or compares.
        let count = 1 + count as u64 / STEP;
        self.meter.step(count).map_err(|()| Error::UnexpectedEof(self.bytes.offset_id()))
    }
}

impl Reader for Metered {
    type Endian = RunTimeEndian;
    type Offset = usize;

    fn endian(&self) -> RunTimeEndian {
        self.bytes.endian()
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn empty(&mut self) {
        self.bytes.empty();
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.bytes.truncate(len)
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.bytes.offset_from(&base.bytes)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.bytes.offset_id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.bytes.lookup_offset_id(id)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let at = self.bytes.find(byte)?;
        self.step(at)?;
        Ok(at)
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.step(0)?;
        self.bytes.skip(len)
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        self.step(0)?;
        Ok(Self { bytes: self.bytes.split(len)?, meter: Rc::clone(&self.meter) })
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.step(self.len())?;
        self.bytes.to_slice()
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        self.step(self.len())?;
        self.bytes.to_string()
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        self.step(self.len())?;
        self.bytes.to_string_lossy()
    }

    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        self.step(buf.len())?;
        self.bytes.read_slice(buf)
    }
}
