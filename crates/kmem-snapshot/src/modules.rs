//! The modules of a process, and the statistics of its loader: its board, from outside.
//!
//! Layout: [`kmem_module::board`]. Nothing of it is trusted: sizes and counts are checked against the mapping, names are whatever the
//! process wrote there.

use std::mem::{offset_of, size_of};

use kmem_module::board::{
    FAILED, FailedEntry, HEADER, Header, MAGIC, MAPPING_NAME, MODULES, ModuleEntry, STATS, VERSION,
    state,
};
use kmem_module::module::CLOSED;
pub use kmem_module::stats::{Stat, Stats, reason_name};

use crate::books::record::{u32_at, u64_at};
use crate::error::ReadError;
use crate::process::{Mapping, Memory, Process};

/// Largest record accepted.
const MAX_RECORD: u32 = 4096;
/// How often a board that changes is read again.
const TRIES: u32 = 1000;

/// A module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name, as it is in the process.
    pub name: String,
    /// `Loading`, `Live` or `Unloading`.
    pub state: &'static str,
    /// Bytes of its memory.
    pub size: u64,
    /// Bytes of code.
    pub text: u64,
    /// How often it is held.
    pub refcount: u32,
    /// Modules that use it, with commas.
    pub users: String,
    /// Its address.
    pub base: u64,
}

/// What a loader shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// Address of the board.
    pub at: u64,
    /// Its modules, by name.
    pub modules: Vec<Module>,
    /// Its statistics.
    pub stats: Stats,
    /// It changed whenever it was read, or was left half changed: what is here may be of two moments.
    pub torn: bool,
}

impl Process {
    /// The boards of all loaders in the process.
    ///
    /// # Errors
    /// [`ReadError::NoLoader`] if there is none; [`ReadError::BadBoard`]; the process may be gone, or not be read.
    pub fn module_boards(&self) -> Result<Vec<Board>, ReadError> {
        let maps = self.maps()?;
        let name = format!("/memfd:{MAPPING_NAME}");
        let found = maps.all().iter().filter(|m| m.path == name && m.readable && m.offset == 0);
        let boards: Vec<Board> =
            found.map(|mapping| read(&self.memory(), mapping)).collect::<Result<_, _>>()?;
        self.verify()?;
        if boards.is_empty() {
            return Err(ReadError::NoLoader { pid: self.pid(), exe: self.exe() });
        }
        Ok(boards)
    }
}

fn read(memory: &Memory, mapping: &Mapping) -> Result<Board, ReadError> {
    let at = mapping.start;
    let mut latest = None;
    for _ in 0..TRIES {
        let before = Head::read(memory, mapping)?;
        let board = before.board(memory, at)?;
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

/// The header, checked.
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
    fn read(memory: &Memory, mapping: &Mapping) -> Result<Self, ReadError> {
        let at = mapping.start;
        let room = mapping.end - mapping.start;
        let mut bytes = [0; size_of::<Header>()];
        if room < HEADER as u64 {
            return Err(bad(at, format!("its mapping has {room} bytes, a header {HEADER}")));
        }
        memory.read(at, &mut bytes)?;
        macro_rules! word {
            ($field:ident) => {
                u32_at(&bytes, offset_of!(Header, $field))
            };
        }
        macro_rules! long {
            ($field:ident) => {
                u64_at(&bytes, offset_of!(Header, $field))
            };
        }
        if long!(magic) != MAGIC {
            let magic = long!(magic);
            return Err(bad(at, format!("magic is {magic:#x}, not \"kmemmods\"")));
        }
        if word!(version) != VERSION {
            let version = word!(version);
            return Err(bad(at, format!("layout version {version}; this kmem reads {VERSION}")));
        }
        let sizes = [
            ("module_size", word!(module_size), size_of::<ModuleEntry>()),
            ("failed_size", word!(failed_size), size_of::<FailedEntry>()),
        ];
        for (name, size, least) in sizes {
            if (size as usize) < least || size > MAX_RECORD || !size.is_multiple_of(8) {
                return Err(bad(at, format!("{name} is {size}, expected {least}")));
            }
        }
        let counts = [
            ("module_capacity", word!(module_capacity), MODULES),
            ("module_used", word!(module_used), word!(module_capacity) as usize),
            ("failed_capacity", word!(failed_capacity), FAILED),
            ("failed_count", word!(failed_count), word!(failed_capacity) as usize),
            ("stat_count", word!(stat_count), STATS),
        ];
        for (name, count, most) in counts {
            if count as usize > most {
                return Err(bad(at, format!("{name} is {count}, above {most}")));
            }
        }
        let needed = HEADER as u64
            + u64::from(word!(module_capacity)) * u64::from(word!(module_size))
            + u64::from(word!(failed_capacity)) * u64::from(word!(failed_size));
        if needed > room {
            return Err(bad(at, format!("its tables take {needed} bytes, its mapping has {room}")));
        }
        let first = offset_of!(Header, stats);
        let stats = (0..Stat::ALL.len()).map(|number| {
            if number < word!(stat_count) as usize { u64_at(&bytes, first + number * 8) } else { 0 }
        });
        Ok(Self {
            seq: long!(seq),
            module_size: word!(module_size),
            module_used: word!(module_used),
            module_capacity: word!(module_capacity),
            failed_size: word!(failed_size),
            failed_count: word!(failed_count),
            held: long!(held),
            held_peak: long!(held_peak),
            stats: stats.collect(),
        })
    }

    fn board(&self, memory: &Memory, at: u64) -> Result<Board, ReadError> {
        let records = |offset: u64, count: u32, size: u32| -> Result<Vec<u8>, ReadError> {
            let mut bytes = vec![0; count as usize * size as usize];
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
            let count = u64_at(entry, offset_of!(FailedEntry, count));
            (name, count, u32_at(entry, offset_of!(FailedEntry, reason)))
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

fn text(entry: &[u8], offset: usize, room: usize) -> String {
    let bytes = entry.get(offset..offset + room).unwrap_or_default();
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(room);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn module(entry: &[u8]) -> Option<Module> {
    let long = |offset| u64_at(entry, offset);
    Some(Module {
        state: match u32_at(entry, offset_of!(ModuleEntry, state)) {
            state::COMING => "Loading",
            state::LIVE => "Live",
            state::GOING => "Unloading",
            _ => return None,
        },
        name: text(entry, offset_of!(ModuleEntry, name), 56),
        size: long(offset_of!(ModuleEntry, size)),
        text: long(offset_of!(ModuleEntry, text)),
        refcount: u32_at(entry, offset_of!(ModuleEntry, refs)) & !CLOSED,
        users: text(entry, offset_of!(ModuleEntry, users), 160),
        base: long(offset_of!(ModuleEntry, base)),
    })
}
