//! Writes to a root block from outside: its settings, limits of groups, and requests for groups.
//!
//! ```text
//! word:   profiling | depth | deep_depth | deep_tag   one aligned write of 4 bytes each
//! cache:  zeroes                                      after the words: the next call from each
//!                                                     site reads them again
//! group:  max | high | low                            one aligned write of 8 bytes each: `limit`
//! request: action | group | limits | name, number     the number last: `request`
//! ```
//!
//! The process is not stopped. A thread may read the words before they are written, and enter the
//! result into the cache after it was emptied. Its call site then keeps the old setting. So the
//! writer empties the cache a second time, 2 ms later.

mod limit;
mod request;

use std::mem::offset_of;
use std::time::Duration;

use kmem_layout::root::{RootBlock, profiling};
pub use kmem_layout::site::MAX_DEPTH;
use kmem_layout::word::{TAG_FIRST_SITE, TAG_MASK};

use crate::books::{Profiling, Root, root_addresses};
use crate::error::ReadError;
use crate::maps::Maps;
use crate::memory::{LiveMemory, Memory};
use crate::process::Process;

/// Largest cache that the writer empties, in bytes.
const MAX_CACHE: u64 = 1 << 20;
/// Pause before the cache is emptied again. It is longer than the slow path of a call.
const AGAIN: Duration = Duration::from_millis(2);

/// Settings of one root block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Address of the root block.
    pub root: u64,
    /// The profiling switch.
    pub profiling: Profiling,
    /// Callers told apart at every site; 0 and 1 both mean one.
    pub depth: u32,
    /// Callers told apart at the site `deep_tag`.
    pub deep_depth: u32,
    /// Tag of the site whose callers are told apart to `deep_depth`; 0 for none.
    pub deep_tag: u32,
}

/// Write access to the settings in a process's root blocks.
///
/// ```no_run
/// use kmem_snapshot::Process;
///
/// let control = Process::open(1234)?.control()?;
/// control.set_profiling(0)?;
/// # Ok::<(), kmem_snapshot::ReadError>(())
/// ```
#[derive(Debug)]
pub struct Control {
    process: Process,
    memory: LiveMemory,
    maps: Maps,
    roots: Vec<Root>,
}

impl Process {
    /// Finds the root blocks that can be written. Writes nothing yet.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`], [`ReadError::Recycled`], [`ReadError::Permission`];
    /// [`ReadError::NotInstrumented`] without a root block; [`ReadError::BadBooks`] when a root
    /// block cannot be followed.
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
            .map(|&at| Root::read(&Memory::Live(memory.clone()), at))
            .collect::<Result<_, _>>()?;
        self.verify()?;
        Ok(Control { process: self.clone(), memory, maps, roots })
    }
}

impl Control {
    /// Reads the present settings, one per root block.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`]; [`ReadError::BadBooks`] when a root block can no longer be
    /// followed.
    pub fn settings(&self) -> Result<Vec<Setting>, ReadError> {
        self.roots
            .iter()
            .map(|root| {
                let now = Root::read(&Memory::Live(self.memory.clone()), root.at)?;
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

    /// Switches profiling in every root block, to [`profiling::OFF`] or [`profiling::ON`].
    ///
    /// # Errors
    ///
    /// - [`ReadError::BadSetting`] for other values; nothing is written.
    /// - [`ReadError::ProfilingNever`] when a root block has no books; nothing is written.
    /// - [`ReadError::BadBooks`] when the words or the cache are not in the process's writable
    ///   memory; nothing is written.
    /// - [`ReadError::NoProcess`], [`ReadError::Recycled`], [`ReadError::Permission`],
    ///   [`ReadError::Memory`]: the process has ended or may not be written.
    pub fn set_profiling(&self, value: u32) -> Result<(), ReadError> {
        if !matches!(value, profiling::OFF | profiling::ON) {
            let what =
                format!("profiling can be switched to 0 or 1, not to {value}: choose one of these");
            return Err(ReadError::BadSetting(what));
        }
        self.write(&self.all()?, &[(offset_of!(RootBlock, profiling), value)])
    }

    /// Sets the count of callers told apart at every site, in every root block: at most
    /// [`MAX_DEPTH`]; 0 and 1 both mean one.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::set_profiling`].
    pub fn set_depth(&self, depth: u32) -> Result<(), ReadError> {
        check_depth(depth)?;
        self.write(&self.all()?, &[(offset_of!(RootBlock, depth), depth)])
    }

    /// Tells `depth` callers apart at the site `tag` of the root block at `root`. A tag of 0 ends
    /// this.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::set_profiling`]; [`ReadError::BadSetting`] when there is no root block
    /// at `root`.
    pub fn set_deep(&self, root: u64, tag: u32, depth: u32) -> Result<(), ReadError> {
        check_depth(depth)?;
        if tag != 0 && !(TAG_FIRST_SITE..=TAG_MASK).contains(&tag) {
            let what = format!(
                "tag {tag} is no call site: {TAG_FIRST_SITE} to {TAG_MASK} are: choose one of these"
            );
            return Err(ReadError::BadSetting(what));
        }
        let roots: Vec<&Root> = self.all()?.into_iter().filter(|r| r.at == root).collect();
        if roots.is_empty() {
            return Err(ReadError::BadSetting(format!(
                "there is no root block at {root:#x}: read the process again"
            )));
        }
        let tag = (offset_of!(RootBlock, deep_tag), tag);
        let depth = (offset_of!(RootBlock, deep_depth), depth);
        // The tag is cleared first, so that the old tag never has the new depth.
        self.write(&roots, &[(tag.0, 0), depth, tag])
    }

    /// All root blocks. Fails when one of them has no books.
    fn all(&self) -> Result<Vec<&Root>, ReadError> {
        if self.roots.iter().any(|root| root.profiling == Profiling::Never) {
            return Err(ReadError::ProfilingNever { pid: self.process.pid() });
        }
        Ok(self.roots.iter().collect())
    }

    /// Writes words in order, each at its offset, and then empties the cache. Checks all root
    /// blocks before it writes to any.
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
        let what = format!("a depth of {depth} is too much: choose at most {MAX_DEPTH} callers");
        return Err(ReadError::BadSetting(what));
    }
    Ok(())
}
