//! Rules of frames: where the caller's frame is, for a return address.
//!
//! The tables that a compiler writes for exceptions (`.eh_frame`, DWARF 5, 6.4) say this for all
//! code, with and without frame pointers. In nearly all of it a frame's size is a constant at each
//! return address. A [`Rule`] is that constant. Frames that take more to describe end a chain.
//!
//! Nothing here allocates or panics. Where a table is damaged, or has what no compiler writes for
//! the machine, the chain ends.
//!
//! | part                        | source                                               |
//! |-----------------------------|------------------------------------------------------|
//! | `.eh_frame_hdr`, `.eh_frame`| Linux Standard Base 5.0, Core, 10.6                  |
//! | instructions                | DWARF 5, 6.4.2; `DW_CFA_GNU_*` of GCC                |
//! | registers                   | psABI of x86-64, 3.6.2; DWARF for AArch64 (aadwarf64)|

use crate::os::CodeObject;

mod cfa;
mod reader;

use cfa::{Place, Row};
use reader::{Pointers, Reader};

/// A frame of AArch64 has the return address above the caller's frame pointer, and anywhere. One of
/// x86-64 has it at the end.
pub(super) const IS_AARCH64: bool = cfg!(target_arch = "aarch64");

const FRAME_POINTER: u64 = if IS_AARCH64 { 29 } else { 6 };
const STACK_POINTER: u64 = if IS_AARCH64 { 31 } else { 7 };
const RETURN_ADDRESS: u64 = if IS_AARCH64 { 30 } else { 16 };

/// The start of an `.eh_frame_hdr` in the form that all linkers write. That is version 1, a pointer
/// of four bytes from its own place, a count of four bytes, and a sorted table. The table has pairs
/// of distances from the header, of four bytes each.
const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// Steps from the frame of a function to that of its caller, at one return address. The canonical
/// frame address (CFA) is the caller's stack pointer when the function has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The CFA is a register plus a constant.
    Constant(Step),
    /// Nothing describes the code. The frame pointer leads on if it leads to a frame.
    FramePointer,
    /// No caller is known: a thread begins here, or the frame takes more to describe.
    End,
}

/// The numbers of a [`Rule::Constant`], in words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The register below.
    pub(super) base: Base,
    /// Words from the register to the CFA.
    pub(super) cfa: u32,
    /// Words from the place where the caller's frame pointer is saved to the CFA. 0 or
    /// [`Self::AT_STACK`]: it is still in the register. [`Self::AT_BOTTOM`]: as many as `cfa`.
    pub(super) saved: u32,
}

/// A register that a CFA is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The stack pointer.
    Stack,
    /// The frame pointer.
    Frame,
}

impl Step {
    /// Value of `saved` for a frame whose return address is at the stack pointer. On AArch64 alone.
    pub(super) const AT_STACK: u32 = 1;
    /// Value of `saved` for a frame that begins with the record, at the stack pointer. On AArch64
    /// alone, for frames that are too long for the number.
    pub(super) const AT_BOTTOM: u32 = Self::MAX_SAVED - 1;
    /// Fewer words than this to a CFA.
    pub(super) const MAX_CFA: u32 = 1 << 17;
    /// Fewer words than this to a saved frame pointer.
    pub(super) const MAX_SAVED: u32 = 1 << 10;
    /// A function that begins by saving its caller's frame pointer and making its own.
    pub(super) const RECORD: Self = Self { base: Base::Frame, cfa: 2, saved: 2 };

    /// Words from the return address to the CFA. `None`: it is at the stack pointer.
    #[inline(always)]
    pub(super) fn ret(self) -> Option<u32> {
        match self.saved_words() {
            _ if !IS_AARCH64 || self.saved == 0 => Some(1),
            Some(saved) => Some(saved - 1),
            None => None,
        }
    }

    /// Words from the place where the caller's frame pointer is saved to the CFA. `None`: it is
    /// still in the register.
    #[inline(always)]
    pub(super) fn saved_words(self) -> Option<u32> {
        match self.saved {
            0 | Self::AT_STACK => None,
            Self::AT_BOTTOM if IS_AARCH64 => Some(self.cfa),
            saved => Some(saved),
        }
    }

    /// The step of a frame whose stack pointer is not known. `None`: there is none. The frame
    /// pointer leads to where it saved that of its caller.
    #[inline(always)]
    pub(super) fn by_pointer(self) -> Option<Self> {
        match self.base {
            Base::Stack => Some(Self { base: Base::Frame, cfa: self.saved_words()?, ..self }),
            Base::Frame => Some(self),
        }
    }
}

/// The rule for a function of `object`, at the call in it that returns to `ret`.
#[cold]
#[inline(never)]
pub(super) fn rule(object: &CodeObject<'_>, ret: usize) -> Rule {
    try_rule(object, ret).unwrap_or(Rule::End)
}

fn try_rule(object: &CodeObject<'_>, ret: usize) -> Option<Rule> {
    let header = object.bytes.get(object.header..)?;
    if header.is_empty() {
        return Some(Rule::FramePointer);
    }
    let header = Header::of(header, object.address.wrapping_add(object.header))?;
    // A call may be the last instruction of a function.
    let call = ret.wrapping_sub(1);
    let Some(found) = header.find(call) else { return Some(Rule::FramePointer) };
    let function = Function::at(object, found)?;
    if call.wrapping_sub(function.start) >= function.len {
        return Some(Rule::FramePointer);
    }
    if function.common.is_signal {
        return None;
    }
    simple(&function.row(call)?).map(Rule::Constant)
}

/// The part that descriptions of functions share: a CIE.
struct Common<'a> {
    code_align: u64,
    data_align: i64,
    pointers: Pointers,
    /// Descriptions of functions have further data, of a length that they say.
    has_data: bool,
    /// The frame is that of a signal handler's return.
    is_signal: bool,
    instructions: Reader<'a>,
}

impl<'a> Common<'a> {
    fn at(object: &CodeObject<'a>, address: usize) -> Option<Self> {
        let mut entry = Reader::entry(object, address)?;
        let (id, version) = (entry.u32()?, entry.u8()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let augmentation = entry.text()?;
        let (code_align, data_align) = (entry.unsigned()?, entry.signed()?);
        let ret = if version == 1 { entry.u8()?.into() } else { entry.unsigned()? };
        if ret != RETURN_ADDRESS {
            return None;
        }
        let mut pointers = Pointers::ABSOLUTE;
        let mut is_signal = false;
        let has_data = augmentation.first() == Some(&b'z');
        if has_data {
            let mut data = entry.part()?;
            for letter in &augmentation[1..] {
                match letter {
                    b'R' => pointers = Pointers(data.u8()?),
                    // The function that looks for handlers of exceptions.
                    b'P' => {
                        let encoding = Pointers(data.u8()?);
                        data.skip(encoding.size()?)?;
                    }
                    b'L' => data.skip(1)?,
                    b'S' => is_signal = true,
                    // Return addresses are signed with the second key. Frames have tagged memory.
                    b'B' | b'G' if IS_AARCH64 => {}
                    _ => return None,
                }
            }
        } else if !augmentation.is_empty() {
            return None;
        }
        Some(Self { code_align, data_align, pointers, has_data, is_signal, instructions: entry })
    }
}

/// The description of a function: an FDE.
struct Function<'a> {
    common: Common<'a>,
    start: usize,
    len: usize,
    instructions: Reader<'a>,
}

impl<'a> Function<'a> {
    fn at(object: &CodeObject<'a>, address: usize) -> Option<Self> {
        let mut entry = Reader::entry(object, address)?;
        let back = entry.address();
        let back = back.wrapping_sub(entry.u32()? as usize);
        let common = Common::at(object, back)?;
        let start = entry.pointer(common.pointers)?;
        let len = entry.pointer(common.pointers.without_base())?;
        if common.has_data {
            entry.part()?;
        }
        Some(Self { common, start, len, instructions: entry })
    }

    /// The row of the instruction at an address in the function.
    fn row(&self, at: usize) -> Option<Row> {
        let (common, always) = (&self.common, usize::MAX);
        let first = Row::START.after(common.instructions, common, &Row::START, 0, always)?;
        first.after(self.instructions, common, &first, self.start, at)
    }
}

/// An `.eh_frame_hdr`.
struct Header<'a> {
    address: usize,
    /// Pairs of numbers of four bytes, in ascending order: the first address of a function, and the
    /// address of its description. Both are distances from the header.
    table: &'a [[[u8; 4]; 2]],
}

impl<'a> Header<'a> {
    /// `None`: it is of another form, or damaged.
    fn of(bytes: &'a [u8], address: usize) -> Option<Self> {
        let bytes = bytes.strip_prefix(&HEADER)?;
        // The address of `.eh_frame` is not needed: the table has that of each description.
        let (_, bytes) = bytes.split_first_chunk::<4>()?;
        let (count, bytes) = bytes.split_first_chunk()?;
        let table = bytes.get(..8_usize.checked_mul(u32::from_ne_bytes(*count) as usize)?)?;
        let (table, _) = table.as_chunks::<4>().0.as_chunks::<2>();
        Some(Self { address, table })
    }

    fn from(base: usize, distance: &[u8; 4]) -> usize {
        base.wrapping_add_signed(i32::from_ne_bytes(*distance) as isize)
    }

    /// Address of the last description that begins at or below an address.
    fn find(&self, at: usize) -> Option<usize> {
        let is_below = |pair: &[[u8; 4]; 2]| Self::from(self.address, &pair[0]) <= at;
        let behind = self.table.partition_point(is_below);
        Some(Self::from(self.address, &self.table[behind.checked_sub(1)?][1]))
    }
}

/// The numbers of a row. `None`: it takes more than constants.
fn simple(row: &Row) -> Option<Step> {
    let (register, offset) = row.cfa?;
    let base = match register {
        STACK_POINTER => Base::Stack,
        FRAME_POINTER => Base::Frame,
        _ => return None,
    };
    let cfa = words(offset, 1..Step::MAX_CFA)?;
    let Place::Saved(ret) = row.ret else { return None };
    let saved = match row.pointer {
        Place::Same if ret == -8 => 0,
        Place::Same if IS_AARCH64 && base == Base::Stack && ret.checked_neg()? == offset => {
            Step::AT_STACK
        }
        Place::Saved(pointer) if ret == if IS_AARCH64 { pointer.checked_add(8)? } else { -8 } => {
            let most = if IS_AARCH64 { Step::AT_BOTTOM } else { Step::MAX_SAVED };
            match words(pointer.checked_neg()?, 2..Step::MAX_CFA)? {
                words if words < most => words,
                words if IS_AARCH64 && base == Base::Stack && words == cfa => Step::AT_BOTTOM,
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Step { base, cfa, saved })
}

/// A distance in words, if it is a whole number of words in this range.
fn words(bytes: i64, range: core::ops::Range<u32>) -> Option<u32> {
    let words = u32::try_from(bytes / 8).ok()?;
    (bytes % 8 == 0 && range.contains(&words)).then_some(words)
}

#[cfg(test)]
mod tests;
