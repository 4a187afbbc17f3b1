//! The words of a root block that may be written from outside, and how they are written.
//!
//! ```text
//! word:   profiling | depth | deep_depth | deep_tag      one aligned write of 4 bytes each
//! cache:  zeroes                                         afterwards: the next call from every
//!                                                        site looks at the words again
//! group:  max | high | low                               one aligned write of 8 bytes each; see `limit`
//! ```
//!
//! The process is not stopped. A thread that looked at the words just before they were written
//! and enters what it found into the cache just after it was emptied keeps the old setting for
//! that one call site; so the cache is emptied a second time, a little later.

mod limit;

use std::mem::{offset_of, size_of};
use std::time::Duration;

pub use kmem::root::MAX_DEPTH;
use kmem::root::{RootBlock, TAG_FIRST_SITE, TAG_MASK, profiling};

use crate::books::{Profiling, Root, root_addresses};
use crate::error::ReadError;
use crate::process::{Maps, Memory, Process};

/// Largest cache that is filled with zeroes, in bytes.
const MAX_CACHE: u64 = 1 << 20;
/// From emptying the cache to emptying it again: longer than the slow path of a call takes.
const AGAIN: Duration = Duration::from_millis(2);

/// The present setting of one root block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Where the root block is.
    pub root: u64,
    /// The switch.
    pub profiling: Profiling,
    /// Callers that are told apart at every site; 0 and 1 are one.
    pub depth: u32,
    /// The same for the site `deep_tag`.
    pub deep_depth: u32,
    /// The site whose callers are told apart to `deep_depth`; 0: none.
    pub deep_tag: u32,
}

/// A door to the words of a process's root blocks.
#[derive(Debug)]
pub struct Control {
    process: Process,
    memory: Memory,
    maps: Maps,
    roots: Vec<Root>,
}

impl Process {
    /// Opens the door to the words that may be written. Nothing is written yet.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone, has no kmem in it, may not be read, or shows a root block
    /// that cannot be followed.
    pub fn control(&self) -> Result<Control, ReadError> {
        let memory = self.memory();
        let maps = self.maps()?;
        let addresses = root_addresses(&maps);
        if addresses.is_empty() {
            self.verify()?;
            return Err(ReadError::NotInstrumented { pid: self.pid(), exe: self.exe() });
        }
        let roots = addresses
            .iter()
            .map(|&at| Root::read(&crate::memory::Memory::Live(memory.clone()), at))
            .collect::<Result<_, _>>()?;
        self.verify()?;
        Ok(Control { process: self.clone(), memory, maps, roots })
    }
}

impl Control {
    /// The settings as they are now, one per root block.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone or may not be read.
    pub fn settings(&self) -> Result<Vec<Setting>, ReadError> {
        self.roots
            .iter()
            .map(|root| {
                let now = Root::read(&crate::memory::Memory::Live(self.memory.clone()), root.at)?;
                Ok(Setting {
                    root: now.at,
                    profiling: now.profiling,
                    depth: now.depth,
                    deep_depth: now.deep_depth,
                    deep_tag: now.deep_tag,
                })
            })
            .collect()
    }

    /// Switches profiling, in every root block: [`profiling::OFF`] or [`profiling::ON`].
    ///
    /// # Errors
    ///
    /// Fails for other values, when the process keeps no books, and as all writing does: the
    /// process is gone, may not be written, or names a cache that is not its own.
    pub fn set_profiling(&self, value: u32) -> Result<(), ReadError> {
        if !matches!(value, profiling::OFF | profiling::ON) {
            let what = format!("profiling can be switched to 0 or 1, not to {value}");
            return Err(ReadError::BadSetting(what));
        }
        self.write(&self.all()?, &[(offset_of!(RootBlock, profiling), value)])
    }

    /// Sets how many callers are told apart at every site, in every root block: at most
    /// [`MAX_DEPTH`]; 0 and 1 are one.
    ///
    /// # Errors
    ///
    /// As [`Self::set_profiling`].
    pub fn set_depth(&self, depth: u32) -> Result<(), ReadError> {
        check_depth(depth)?;
        self.write(&self.all()?, &[(offset_of!(RootBlock, depth), depth)])
    }

    /// Tells the callers of one site of the root block at `root` apart, `depth` of them; a tag
    /// of 0 ends it.
    ///
    /// # Errors
    ///
    /// As [`Self::set_profiling`]; also when there is no root block at `root`.
    pub fn set_deep(&self, root: u64, tag: u32, depth: u32) -> Result<(), ReadError> {
        check_depth(depth)?;
        if tag != 0 && !(TAG_FIRST_SITE..=TAG_MASK).contains(&tag) {
            let what = format!("tag {tag} is no call site: {TAG_FIRST_SITE} to {TAG_MASK} are");
            return Err(ReadError::BadSetting(what));
        }
        let roots: Vec<&Root> = self.all()?.into_iter().filter(|r| r.at == root).collect();
        if roots.is_empty() {
            return Err(ReadError::BadSetting(format!("there is no root block at {root:#x}")));
        }
        let tag = (offset_of!(RootBlock, deep_tag), tag);
        let depth = (offset_of!(RootBlock, deep_depth), depth);
        // While a depth holds for a tag, it is that tag's own.
        self.write(&roots, &[(tag.0, 0), depth, tag])
    }

    /// All root blocks; they must have books.
    fn all(&self) -> Result<Vec<&Root>, ReadError> {
        if self.roots.iter().any(|root| root.profiling == Profiling::Never) {
            return Err(ReadError::ProfilingNever { pid: self.process.pid() });
        }
        Ok(self.roots.iter().collect())
    }

    /// Writes words, each at its offset, in order, and then empties the cache. All is checked
    /// before anything is written.
    fn write(&self, roots: &[&Root], words: &[(usize, u32)]) -> Result<(), ReadError> {
        for root in roots {
            self.check(root)?;
        }
        self.process.verify()?;
        for root in roots {
            for &(offset, value) in words {
                self.memory.write(root.at + offset as u64, &value.to_le_bytes())?;
            }
            self.empty_cache(root)?;
        }
        std::thread::sleep(AGAIN);
        for root in roots {
            self.empty_cache(root)?;
        }
        self.process.verify()
    }

    fn check(&self, root: &Root) -> Result<(), ReadError> {
        let bad = |what| Err(ReadError::BadBooks { root: root.at, what });
        let (cache, len) = root.cache;
        if len == 0 || len > MAX_CACHE || !len.is_multiple_of(8) {
            return bad(format!("cache_len is {len}, expected a multiple of 8 up to {MAX_CACHE}"));
        }
        if !cache.is_multiple_of(8) || !self.maps.is_writable_memory(cache, len) {
            return bad(format!(
                "cache at {cache:#x}, {len} bytes, is not in the process's writable memory"
            ));
        }
        if !self.maps.is_writable_memory(root.at, size_of::<RootBlock>() as u64) {
            return bad("not in the process's writable memory".to_owned());
        }
        Ok(())
    }

    fn empty_cache(&self, root: &Root) -> Result<(), ReadError> {
        let (cache, len) = root.cache;
        self.memory.write(cache, &vec![0; usize::try_from(len).unwrap_or(0)])
    }
}

fn check_depth(depth: u32) -> Result<(), ReadError> {
    if depth > MAX_DEPTH {
        let what = format!("a depth of {depth} is too much: at most {MAX_DEPTH} callers");
        return Err(ReadError::BadSetting(what));
    }
    Ok(())
}
