//! Frames and messages of a recording, as they are in the file.
//!
//! ```text
//! file   = MAGIC (8 bytes)  version (u32)  0 (u32)  frame*
//! frame  = length (u32)  crc32 (u32)  kind (u8)  flags (u8)  0 (u16)  0 (u32)  time_ns (u64)
//!          payload (length bytes)
//! ```
//!
//! Numbers are little-endian. The checksum covers the frame from its kind on. A payload is a
//! message of protocol buffers, compressed by zstd where a flag says so. Readers pass over kinds
//! and fields that they do not know.

use std::collections::BTreeMap;

use prost::Message;

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"kmem rec";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes before the first frame.
pub(super) const FILE_HEAD: usize = 16;
/// Bytes of a frame before its payload.
pub(super) const HEAD: usize = 24;
/// Most bytes of a payload, compressed or not.
pub(super) const MAX_PAYLOAD: usize = 16 << 20;
/// Bit of the flags of a compressed payload.
const ZSTD: u8 = 1;
/// Payloads below this size are not compressed: it would make them longer.
const COMPRESSED: usize = 200;
/// Level of the compression: the fastest of the usual ones.
const LEVEL: i32 = 1;

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    About = 1,
    Names = 2,
    Key = 3,
    Change = 4,
    End = 5,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) len: usize,
    pub(super) crc: u32,
    /// None for a kind that this version does not know.
    pub(super) kind: Option<Kind>,
    pub(super) is_compressed: bool,
    pub(super) time_ns: u64,
}

impl Head {
    pub(super) fn parse(bytes: &[u8; HEAD]) -> Self {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |b| u32::from_le_bytes(*b))
        };
        let kind = match bytes[8] {
            1 => Some(Kind::About),
            2 => Some(Kind::Names),
            3 => Some(Kind::Key),
            4 => Some(Kind::Change),
            5 => Some(Kind::End),
            _ => None,
        };
        Self {
            len: word(0) as usize,
            crc: word(4),
            kind,
            is_compressed: bytes[9] & ZSTD != 0,
            time_ns: u64::from(word(16)) | u64::from(word(20)) << 32,
        }
    }
}

/// Checksum of a frame: of its head behind the checksum, and of the payload.
pub(super) fn checksum(head: &[u8; HEAD], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[8..]);
    hasher.update(payload);
    hasher.finalize()
}

/// A whole frame.
pub(super) fn frame(kind: Kind, time_ns: u64, message: &impl Message) -> Vec<u8> {
    let raw = message.encode_to_vec();
    let packed = (raw.len() >= COMPRESSED).then(|| zstd::bulk::compress(&raw, LEVEL).ok());
    let packed = packed.flatten().filter(|packed| packed.len() < raw.len());
    let flags = if packed.is_some() { ZSTD } else { 0 };
    let payload = packed.unwrap_or(raw);
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    (head[8], head[9]) = (kind as u8, flags);
    head[16..].copy_from_slice(&time_ns.to_le_bytes());
    let crc = checksum(&head, &payload);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    [&head[..], &payload].concat()
}

/// The message in a payload.
pub(super) fn message<M: Message + Default>(
    payload: &[u8],
    is_compressed: bool,
) -> Result<M, String> {
    let damaged = |what: &dyn std::fmt::Display| format!("a frame makes no sense: {what}");
    if is_compressed {
        let raw = zstd::bulk::decompress(payload, MAX_PAYLOAD).map_err(|e| damaged(&e))?;
        return M::decode(&raw[..]).map_err(|e| damaged(&e));
    }
    M::decode(payload).map_err(|e| damaged(&e))
}

/// The process or the kernel of a recording. A later one replaces an earlier one, as when a
/// process becomes another program.
#[derive(Clone, PartialEq, Message)]
pub struct About {
    /// Number of the process; 0 for none.
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    /// Path of the executable; empty for none.
    #[prost(string, tag = "2")]
    pub exe: String,
    /// Name of the machine.
    #[prost(string, tag = "3")]
    pub host: String,
    /// Nanoseconds between two moments, as the user asked for it.
    #[prost(uint64, tag = "4")]
    pub every_ns: u64,
    /// Name of a source that is no process.
    #[prost(string, tag = "5")]
    pub source: String,
    /// Build ids in hexadecimal digits, by the paths of files.
    #[prost(btree_map = "string, string", tag = "6")]
    pub build_ids: BTreeMap<String, String>,
}

/// New names. Indexes count from the beginning of the file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Names {
    #[prost(string, repeated, tag = "1")]
    pub(super) strings: Vec<String>,
    #[prost(message, repeated, tag = "2")]
    pub(super) places: Vec<PlaceName>,
    #[prost(message, repeated, tag = "3")]
    pub(super) rows: Vec<RowName>,
    /// Strings.
    #[prost(uint32, repeated, tag = "4")]
    pub(super) groups: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    pub(super) classes: Vec<Class>,
}

/// The place of a call. Names are indexes of strings.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct PlaceName {
    #[prost(uint32, tag = "1")]
    pub(super) module: u32,
    #[prost(bool, tag = "2")]
    pub(super) main: bool,
    #[prost(uint64, tag = "3")]
    pub(super) offset: u64,
    #[prost(uint64, tag = "4")]
    pub(super) address: u64,
    #[prost(uint32, optional, tag = "5")]
    pub(super) function: Option<u32>,
    #[prost(uint32, optional, tag = "6")]
    pub(super) file: Option<u32>,
    #[prost(uint32, tag = "7")]
    pub(super) line: u32,
}

/// The name of a row. One with the number of an earlier row replaces its name.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct RowName {
    #[prost(uint32, tag = "1")]
    pub(super) number: u32,
    /// See [`kind`].
    #[prost(uint32, tag = "2")]
    pub(super) kind: u32,
    /// Index of a place.
    #[prost(uint32, tag = "3")]
    pub(super) place: u32,
    /// Indexes of strings.
    #[prost(uint32, tag = "4")]
    pub(super) module: u32,
    #[prost(uint32, tag = "5")]
    pub(super) file: u32,
    #[prost(uint32, tag = "6")]
    pub(super) function: u32,
    #[prost(uint32, tag = "7")]
    pub(super) line: u32,
    /// Places of the calls, innermost first.
    #[prost(uint32, repeated, tag = "8")]
    pub(super) frames: Vec<u32>,
    /// True for memory outside of the heap.
    #[prost(bool, tag = "9")]
    pub(super) mapped: bool,
    /// True where the kernel could not count all allocations.
    #[prost(bool, tag = "10")]
    pub(super) inaccurate: bool,
}

/// Kinds of rows.
pub(super) mod kind {
    pub(in super::super) const NOT_TAGGED: u32 = 1;
    pub(in super::super) const OTHER_SITES: u32 = 2;
    /// A tag without a site; its number is in `line`.
    pub(in super::super) const UNKNOWN: u32 = 3;
    pub(in super::super) const PLACE: u32 = 4;
    pub(in super::super) const STATIC: u32 = 5;
    /// Memory outside of the heap: its name in `function`, its path in `file`.
    pub(in super::super) const MAPPED: u32 = 6;
}

/// A size class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Class {
    /// Bytes of an object.
    #[prost(uint32, tag = "1")]
    pub size: u32,
    /// Objects in a slab.
    #[prost(uint32, tag = "2")]
    pub objects: u32,
    /// Pages of a slab.
    #[prost(uint32, tag = "3")]
    pub pages: u32,
}

/// A moment: differences from the moment before, or from nothing in a key frame. Of rows, groups
/// and classes only those that differ are there. A number is the count of those passed over.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Changes {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) rows: Vec<u32>,
    #[prost(sint64, repeated, tag = "2")]
    pub(super) bytes: Vec<i64>,
    #[prost(sint64, repeated, tag = "3")]
    pub(super) calls: Vec<i64>,
    /// Address space, of rows that are memory outside of the heap; empty if all are zero.
    #[prost(sint64, repeated, tag = "4")]
    pub(super) mapped: Vec<i64>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) groups: Vec<u32>,
    #[prost(sint64, repeated, tag = "6")]
    pub(super) group_bytes: Vec<i64>,
    #[prost(sint64, repeated, tag = "7")]
    pub(super) group_calls: Vec<i64>,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) classes: Vec<u32>,
    #[prost(sint64, repeated, tag = "9")]
    pub(super) active: Vec<i64>,
    #[prost(sint64, repeated, tag = "10")]
    pub(super) slabs: Vec<i64>,
    #[prost(sint64, repeated, tag = "11")]
    pub(super) active_slabs: Vec<i64>,
    /// Terms of the account; see [`Moment`](super::Moment).
    #[prost(sint64, repeated, tag = "12")]
    pub(super) account: Vec<i64>,
    /// Slabs that changed while they were read.
    #[prost(uint64, tag = "13")]
    pub(super) torn: u64,
}

/// The end of a recording.
#[derive(Clone, PartialEq, Message)]
pub(super) struct End {
    /// How the process ended, in words.
    #[prost(string, tag = "1")]
    pub(super) how: String,
}
