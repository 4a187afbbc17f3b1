//! The extension word: the tag of an object's or a run's holder, and the group that pays for it.
//!
//! ```text
//! | objcg:14 | live:1 | tag:17 |
//! ```

/// Width of the tag, the lowest field of an extension word, in bits.
pub const TAG_BITS: u32 = 17;
/// Mask of the tag in an extension word.
pub const TAG_MASK: u32 = (1 << TAG_BITS) - 1;
/// Bit of a live object. A free object's word keeps the tag of the last owner without this bit, so
/// a report of a double free can name the owner. Zero: never allocated.
pub const EXT_LIVE: u32 = 1 << TAG_BITS;
/// Lowest bit of the group's objcg id in an extension word.
pub const OBJCG_SHIFT: u32 = TAG_BITS + 1;
/// No tag.
pub const TAG_NONE: u32 = 0;
/// Allocated while profiling was switched off.
pub const TAG_UNTAGGED: u32 = 1;
/// Allocated from a call site that found the site table full.
pub const TAG_OTHER: u32 = 2;
/// First tag that stands for a call site; smaller ones are reserved.
pub const TAG_FIRST_SITE: u32 = 8;
/// Bits of a group's objcg id.
pub const OBJCG_BITS: u32 = 32 - OBJCG_SHIFT;
/// Bytes that a group is charged for the metadata of an object, or of a page: its extension word.
pub const CHARGED_METADATA: u64 = 4;
