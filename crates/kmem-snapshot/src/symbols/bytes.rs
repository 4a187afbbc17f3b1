//! The bytes of an ELF file, read piece by piece. Pieces that are kept draw on a budget.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::rc::Rc;

use object::{ReadCache, ReadRef};

use crate::budget::{Budget, OverBudget};

/// Memory of one piece, in bytes, besides its contents.
const PIECE: u64 = 128;

/// Source that an ELF file is read from.
pub(super) trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// A source with two readers: the cache, and copies of whole sections.
#[derive(Clone)]
struct Shared(Rc<RefCell<Box<dyn ReadSeek>>>);

impl Read for Shared {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(into)
    }
}

impl Seek for Shared {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.borrow_mut().seek(to)
    }
}

/// Bytes of an ELF file.
pub(super) struct Bytes {
    source: Shared,
    cache: ReadCache<Shared>,
    budget: Budget,
    /// Offset and length of the pieces in the cache.
    pieces: RefCell<HashSet<(u64, u64)>>,
}

impl Bytes {
    pub(super) fn new(source: Box<dyn ReadSeek>, budget: &Budget) -> Self {
        let source = Shared(Rc::new(RefCell::new(source)));
        let cache = ReadCache::new(source.clone());
        Self { source, cache, budget: budget.clone(), pieces: RefCell::default() }
    }

    /// Copies `len` bytes at `offset`, which the cache does not keep. None when the
    /// file ends before them.
    ///
    /// # Errors
    ///
    /// The bytes do not fit in the budget.
    pub(super) fn copy(&self, offset: u64, len: u64) -> Result<Option<Rc<[u8]>>, OverBudget> {
        if !self.has(offset, len) {
            return Ok(None);
        }
        self.budget.copy(len)?;
        let mut bytes: Rc<[u8]> =
            std::iter::repeat_n(0, usize::try_from(len).unwrap_or(0)).collect();
        let mut source = self.source.clone();
        let read = source.seek(SeekFrom::Start(offset)).and_then(|_| {
            // Nothing else refers to the new bytes.
            Rc::get_mut(&mut bytes).map_or(Ok(()), |bytes| source.read_exact(bytes))
        });
        Ok(read.is_ok().then_some(bytes))
    }

    /// Number of pieces in the cache.
    #[cfg(test)]
    pub(super) fn pieces(&self) -> usize {
        self.pieces.borrow().len()
    }

    fn has(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        ReadRef::len(&self.cache).is_ok_and(|all| end.is_some_and(|end| end <= all))
    }

    /// Draws a piece that the cache is about to keep, or has just made.
    fn draw(&self, offset: u64, len: u64) -> Result<(), ()> {
        if self.pieces.borrow_mut().insert((offset, len)) {
            self.budget.copy(len.saturating_add(PIECE)).map_err(|_| ())?;
        }
        Ok(())
    }
}

impl<'a> ReadRef<'a> for &'a Bytes {
    fn len(self) -> Result<u64, ()> {
        ReadRef::len(&self.cache)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        // The cache makes room for a piece before it looks at the length of the file.
        if !self.has(offset, size) {
            return Err(());
        }
        self.draw(offset, size)?;
        (&self.cache).read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let start = range.start;
        let found = (&self.cache).read_bytes_at_until(range, delimiter)?;
        self.draw(start, found.len() as u64)?;
        Ok(found)
    }
}
