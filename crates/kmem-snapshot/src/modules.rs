//! The modules of a process and the statistics of its loader, read from the loader's board.
//!
//! Layout: [`kmem_layout::board`]. The reader trusts nothing on it: it checks sizes and counts
//! against the mapping, and names may hold any characters.

use std::mem::offset_of;

use kmem_layout::board::{
    self, CLOSED, FAILED, FailedEntry, HEADER, Header, MAGIC, MAPPING_NAME, MODULES, ModuleEntry,
    STATS, VERSION, state,
};
pub use kmem_layout::board::{Stat, reason_name};

use crate::budget::Budget;
use crate::error::ReadError;
use crate::maps::Mapping;
use crate::memory::{LiveMemory, field, u64_at};
use crate::process::Process;

/// Largest record accepted, in bytes.
const MAX_RECORD: u32 = 4096;
/// Reads of a board that keeps changing.
const TRIES: u32 = 1000;

/// A module of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Name, not yet safe to print.
    pub name: String,
    /// `Loading`, `Live` or `Unloading`.
    pub state: &'static str,
    /// Bytes of its memory.
    pub size: u64,
    /// Bytes of code.
    pub text: u64,
    /// Count of references to it.
    pub refcount: u32,
    /// Names of the modules that use it, separated by commas; not yet safe to print.
    pub users: String,
    /// First address of its memory.
    pub base: u64,
    /// Address of its symbols, an ELF file in its memory; 0 for none.
    pub symbols: u64,
}

/// Statistics of a loader at one moment, with name, count and reason of duplicate loads.
pub type Stats = board::Stats<Vec<(String, u64, u32)>>;

/// The board of one loader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// Address of the board.
    pub at: u64,
    /// Modules, in order of name.
    pub modules: Vec<Module>,
    /// Statistics of the loader.
    pub stats: Stats,
    /// True when the board changed during every read, or was left half changed. Its content may be
    /// of two moments.
    pub torn: bool,
}

impl Process {
    /// Reads the boards of all loaders in the process.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoLoader`] when there is none; [`ReadError::BadBoard`] when one cannot be
    /// followed; [`ReadError::NoProcess`], [`ReadError::Recycled`], [`ReadError::Permission`].
    pub fn module_boards(&self) -> Result<Vec<Board>, ReadError> {
        let (maps, budget) = (self.maps()?, Budget::default());
        let name = format!("/memfd:{MAPPING_NAME}");
        let found = maps.all().iter().filter(|m| m.path == name && m.readable && m.offset == 0);
        let boards: Vec<Board> = found
            .map(|mapping| read(&self.memory(), mapping, &budget))
            .collect::<Result<_, _>>()?;
        self.verify()?;
        if boards.is_empty() {
            return Err(ReadError::NoLoader { pid: self.pid(), exe: self.exe() });
        }
        Ok(boards)
    }
}

/// Reads one board, again while it changes.
fn read(memory: &LiveMemory, mapping: &Mapping, budget: &Budget) -> Result<Board, ReadError> {
    let at = mapping.start;
    let mut latest = None;
    for _ in 0..TRIES {
        let before = Head::read(memory, mapping)?;
        let board = before.board(memory, at, budget)?;
        let after = Head::read(memory, mapping)?;
        if before.seq == after.seq && before.seq.is_multiple_of(2) {
            return Ok(board);
        }
        latest = Some(board);
    }
    let torn = latest.map(|board| Board { torn: true, ..board });
    torn.ok_or_else(|| bad(at, "could not be read".to_owned()))
}

fn bad(at: u64, what: String) -> ReadError {
    ReadError::BadBoard { at, what }
}

/// The header of a board, checked.
struct Head {
    seq: u64,
    module_size: u32,
    module_used: u32,
    module_capacity: u32,
    failed_size: u32,
    failed_count: u32,
    held: u64,
    held_peak: u64,
    stats: Vec<u64>,
}

impl Head {
    fn read(memory: &LiveMemory, mapping: &Mapping) -> Result<Self, ReadError> {
        let at = mapping.start;
        let room = mapping.end - mapping.start;
        if room < HEADER as u64 {
            return Err(bad(at, format!("its mapping has {room} bytes, a header {HEADER}")));
        }
        let mut bytes = [0; size_of::<Header>()];
        memory.read(at, &mut bytes)?;
        check(&bytes, room).map_err(|what| bad(at, what))?;
        let count = field!(&bytes, Header.stat_count: u32) as usize;
        let stat = |number: usize| match number {
            number if number < count => u64_at(&bytes, offset_of!(Header, stats) + number * 8),
            _ => 0,
        };
        Ok(Self {
            seq: field!(&bytes, Header.seq: u64),
            module_size: field!(&bytes, Header.module_size: u32),
            module_used: field!(&bytes, Header.module_used: u32),
            module_capacity: field!(&bytes, Header.module_capacity: u32),
            failed_size: field!(&bytes, Header.failed_size: u32),
            failed_count: field!(&bytes, Header.failed_count: u32),
            held: field!(&bytes, Header.held: u64),
            held_peak: field!(&bytes, Header.held_peak: u64),
            stats: (0..Stat::ALL.len()).map(stat).collect(),
        })
    }

    fn board(&self, memory: &LiveMemory, at: u64, budget: &Budget) -> Result<Board, ReadError> {
        let records = |offset: u64, count: u32, size: u32| -> Result<Vec<u8>, ReadError> {
            // A process may have any number of boards, and change all of them without end.
            let len = count as usize * size as usize;
            let over = |over| bad(at, format!("its tables are {over}"));
            budget.work(HEADER as u64 + len as u64).map_err(over)?;
            let mut bytes = vec![0; len];
            memory.read(at + offset, &mut bytes)?;
            Ok(bytes)
        };
        let first = HEADER as u64;
        let bytes = records(first, self.module_used, self.module_size)?;
        let entries = bytes.chunks_exact(self.module_size as usize);
        let mut modules: Vec<Module> = entries.filter_map(module).collect();
        modules.sort_by(|a, b| a.name.cmp(&b.name));
        let after = first + u64::from(self.module_capacity) * u64::from(self.module_size);
        let bytes = records(after, self.failed_count, self.failed_size)?;
        let failed = bytes.chunks_exact(self.failed_size as usize).map(|entry| {
            let name = text(entry, offset_of!(FailedEntry, name), 56);
            let count = field!(entry, FailedEntry.count: u64);
            (name, count, field!(entry, FailedEntry.reason: u32))
        });
        let mut stats = Stats {
            failed: failed.collect(),
            held: self.held,
            held_peak: self.held_peak,
            ..Stats::default()
        };
        stats.values.copy_from_slice(&self.stats);
        Ok(Board { at, modules, stats, torn: false })
    }
}

/// Checks magic, version, sizes and counts of a header whose mapping has `room` bytes.
fn check(bytes: &[u8], room: u64) -> Result<(), String> {
    let magic = field!(bytes, Header.magic: u64);
    if magic != MAGIC {
        return Err(format!("magic is {magic:#x}, not \"kmemmods\""));
    }
    let version = field!(bytes, Header.version: u32);
    if version != VERSION {
        return Err(format!("layout version {version}; this kmem reads {VERSION}"));
    }
    let module_size = field!(bytes, Header.module_size: u32);
    let failed_size = field!(bytes, Header.failed_size: u32);
    for (name, size, least) in [
        ("module_size", module_size, size_of::<ModuleEntry>()),
        ("failed_size", failed_size, size_of::<FailedEntry>()),
    ] {
        if (size as usize) < least || size > MAX_RECORD || !size.is_multiple_of(8) {
            return Err(format!("{name} is {size}, expected {least}"));
        }
    }
    let module_capacity = field!(bytes, Header.module_capacity: u32);
    let failed_capacity = field!(bytes, Header.failed_capacity: u32);
    for (name, count, most) in [
        ("module_capacity", module_capacity, MODULES),
        ("module_used", field!(bytes, Header.module_used: u32), module_capacity as usize),
        ("failed_capacity", failed_capacity, FAILED),
        ("failed_count", field!(bytes, Header.failed_count: u32), failed_capacity as usize),
        ("stat_count", field!(bytes, Header.stat_count: u32), STATS),
    ] {
        if count as usize > most {
            return Err(format!("{name} is {count}, above {most}"));
        }
    }
    let needed = HEADER as u64
        + u64::from(module_capacity) * u64::from(module_size)
        + u64::from(failed_capacity) * u64::from(failed_size);
    if needed > room {
        return Err(format!("its tables take {needed} bytes, its mapping has {room}"));
    }
    Ok(())
}

/// Decodes a text that ends at a zero byte or after `room` bytes.
fn text(entry: &[u8], offset: usize, room: usize) -> String {
    let bytes = entry.get(offset..offset + room).unwrap_or_default();
    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Parses the entry of a module; none for an entry without one.
fn module(entry: &[u8]) -> Option<Module> {
    Some(Module {
        state: match field!(entry, ModuleEntry.state: u32) {
            state::COMING => "Loading",
            state::LIVE => "Live",
            state::GOING => "Unloading",
            _ => return None,
        },
        name: text(entry, offset_of!(ModuleEntry, name), 56),
        size: field!(entry, ModuleEntry.size: u64),
        text: field!(entry, ModuleEntry.text: u64),
        refcount: field!(entry, ModuleEntry.refs: u32) & !CLOSED,
        users: text(entry, offset_of!(ModuleEntry, users), 160),
        base: field!(entry, ModuleEntry.base: u64),
        symbols: field!(entry, ModuleEntry.symbols: u64),
    })
}
