//! The loaded objects of the process, as the dynamic linker knows them.
//!
//! glibc 2.35 and later find the object of an address without a lock (`_dl_find_object`). So this
//! works in signal handlers, and while another thread loads an object. All other ways to ask take a
//! lock.
//!
//! Context: any, signal handlers included.

use super::calls::{CALL, ends_with_call};
use super::start::{auxiliary, weak};
use crate::os::functions::ELF_HEADER;
use crate::os::{CodeObject, Return};
use core::ffi::{CStr, c_char};
use core::ops::Range;

/// `struct dl_find_object` of x86-64 and AArch64.
#[repr(C)]
struct Found {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: *const LinkMap,
    eh_frame_hdr: usize,
    reserved: [u64; 7],
}

/// The beginning of `struct link_map`.
#[repr(C)]
struct LinkMap {
    /// Distance from the addresses in the file to those in memory.
    bias: usize,
    /// Path of the file; empty for the program itself.
    path: *const c_char,
}

/// Calls `work` with the object that has the code at an address. `None`: there is none, or the C
/// library cannot say. `peek` copies memory that may not be there, and returns whether all of it
/// could be read.
pub(super) fn with<T>(
    at: usize,
    peek: impl Fn(usize, &mut [u8]) -> bool,
    work: impl FnOnce(&CodeObject<'_>) -> T,
) -> Option<T> {
    find(at)?.map(|found| work(&object(&found, peek)))
}

/// Finds the object that has an address. This reads no memory of the object. The inner `None`:
/// there is none. The outer one: the C library cannot say.
#[inline(always)]
fn find(at: usize) -> Option<Option<Found>> {
    type Find = unsafe extern "C" fn(*mut core::ffi::c_void, *mut Found) -> i32;
    let find = weak!("_dl_find_object");
    if find == 0 || !is_dynamic() {
        return None;
    }
    let mut found = core::mem::MaybeUninit::<Found>::zeroed();
    // SAFETY: the C library's function, which fills `found` in if it returns 0. All bytes of it are
    // initialised before.
    let (result, found) = unsafe {
        let find = core::mem::transmute::<usize, Find>(find);
        let result = find(at as *mut core::ffi::c_void, found.as_mut_ptr());
        (result, found.assume_init())
    };
    Some((result == 0).then_some(found))
}

/// Tells a return address from other words. `peek` copies memory that may be gone, and returns
/// whether all of it could be read.
#[inline(never)]
pub(super) fn return_address(word: usize, peek: impl Fn(usize, &mut [u8]) -> bool) -> Return {
    // The call is the last instruction before the address.
    let before = word.wrapping_sub(1);
    match find(before) {
        None => Return::Unknown,
        Some(None) => Return::NoObject,
        Some(Some(_)) => {
            let mut bytes = [0; CALL];
            match peek(word.wrapping_sub(CALL), &mut bytes) {
                true if ends_with_call(bytes) => Return::AfterCall,
                _ => Return::NoCall,
            }
        }
    }
}

/// Returns whether the dynamic linker loaded the program. In a static program the function reads
/// tables that the C library makes after its first allocations.
///
/// The kernel says where it put the linker (`AT_BASE`), but not if the linker is the command:
/// `ld.so ./program`. Then the vector has the program's own headers, which name a linker. glibc
/// puts them there.
fn is_dynamic() -> bool {
    auxiliary(libc::AT_BASE).is_some_and(|base| base != 0 || names_linker())
}

/// Returns whether the program's headers name a dynamic linker.
pub(super) fn names_linker() -> bool {
    let kinds = program_head().and_then(|(_, head)| program_headers(head, 0));
    kinds.is_some_and(|mut kinds| kinds.any(|(kind, _)| kind == libc::PT_INTERP))
}

/// The object that the dynamic linker found.
fn object(found: &Found, peek: impl Fn(usize, &mut [u8]) -> bool) -> CodeObject<'static> {
    if found.link_map.is_null() {
        return CodeObject::BARE;
    }
    // SAFETY: the path ends with a NUL. A frame on the thread's stack returns into the object, so
    // it stays loaded, and its description with it.
    let (bias, path) = unsafe {
        let LinkMap { bias, path } = *found.link_map;
        (bias, if path.is_null() { c"" } else { CStr::from_ptr(path) })
    };
    let whole = if path.is_empty() { program(bias) } else { None };
    let (start, end) = whole.unwrap_or((found.map_start, found.map_end));
    let first = (end - start).min(crate::units::PAGE_SIZE);
    // SAFETY: the dynamic linker has mapped the first page of the object's first segment there.
    let head = unsafe { core::slice::from_raw_parts(start as *const u8, first) };
    let bare = CodeObject { path, start, end, bias, head, ..CodeObject::BARE };
    if found.eh_frame_hdr == 0 {
        return bare;
    }
    let frames = with_frames(found.eh_frame_hdr, bare, peek);
    frames.unwrap_or(CodeObject { header: usize::MAX, ..bare })
}

/// Adds the object's readable memory that holds its description of frames. `None`: its program
/// headers are not where they are looked for.
fn with_frames(
    at: usize,
    bare: CodeObject<'static>,
    peek: impl Fn(usize, &mut [u8]) -> bool,
) -> Option<CodeObject<'static>> {
    let first = readable_segment(bare.head, bare.bias, at);
    let segment = first.or_else(|| moved_segment(bare.head, bare.bias, at, peek))?;
    if segment.start < bare.start || segment.end > bare.end {
        return None;
    }
    // SAFETY: the dynamic linker has mapped this part of the object for reading, and it stays
    // loaded. Programs do not write to their tables of frames.
    let bytes = unsafe { core::slice::from_raw_parts(segment.start as *const u8, segment.len()) };
    Some(CodeObject { bytes, address: segment.start, header: at - segment.start, ..bare })
}

/// Bounds of the program itself. There may be gaps between its segments, and then the dynamic
/// linker knows it as several parts. `None`: its program headers are not in its first page.
fn program(bias: usize) -> Option<(usize, usize)> {
    let (start, head) = program_head()?;
    let end = segments(head, bias)?.map(|segment| segment.bytes.end).max()?;
    (start < end).then_some((start, end))
}

/// First address and first page of the program itself. `None`: its program headers are elsewhere.
fn program_head() -> Option<(usize, &'static [u8])> {
    let start = auxiliary(libc::AT_PHDR)?.checked_sub(ELF_HEADER)?;
    if start == 0 || !start.is_multiple_of(crate::units::PAGE_SIZE) {
        return None;
    }
    // SAFETY: the kernel or the dynamic linker has mapped the page of the program headers, and it
    // stays mapped.
    let head = unsafe { core::slice::from_raw_parts(start as *const u8, crate::units::PAGE_SIZE) };
    Some((start, head))
}

/// A loaded segment of an object.
struct Segment {
    bytes: Range<usize>,
    is_readable: bool,
}

/// The bounds of the readable segment that holds an address, by the first page of an object.
pub(super) fn readable_segment(head: &[u8], bias: usize, at: usize) -> Option<Range<usize>> {
    let holds = |segment: &Segment| segment.is_readable && segment.bytes.contains(&at);
    Some(segments(head, bias)?.find(holds)?.bytes)
}

/// The segments of an object, by the ELF header and the program headers in its first page. `None`:
/// they are not there.
fn segments(head: &[u8], bias: usize) -> Option<impl Iterator<Item = Segment>> {
    let is_loaded = |(kind, segment)| (kind == libc::PT_LOAD).then_some(segment);
    Some(program_headers(head, bias)?.filter_map(is_loaded))
}

/// Kind and bounds of each program header in the first page of an object. `None`: they are not
/// there.
fn program_headers(head: &[u8], bias: usize) -> Option<impl Iterator<Item = (u32, Segment)>> {
    let (offset, count) = headers(head)?;
    Some((0..count).filter_map(move |number| {
        let at = offset.checked_add(number * HEADER)?;
        Segment::of(head.get(at..)?.first_chunk()?, bias)
    }))
}

/// Bytes of a program header.
const HEADER: usize = size_of::<libc::Elf64_Phdr>();

/// Offset in the file and number of the program headers, by the first page of an object.
fn headers(head: &[u8]) -> Option<(usize, usize)> {
    let half = |at: usize| Some(u16::from_ne_bytes(*head.get(at..)?.first_chunk()?));
    // e_phoff, e_phentsize and e_phnum.
    let (offset, size, count) = (word(head, 32)?, half(54)?, half(56)?);
    let is_elf = head.get(..4)? == b"\x7fELF" && usize::from(size) == HEADER;
    is_elf.then_some((offset, count.into()))
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}

impl Segment {
    /// Kind and bounds of a segment, by its program header.
    fn of(header: &[u8; HEADER], bias: usize) -> Option<(u32, Self)> {
        // p_type and p_flags, p_vaddr, p_filesz.
        let (kind, start, len) = (word(header, 0)?, word(header, 16)?, word(header, 32)?);
        let start = bias.wrapping_add(start);
        let is_readable = (kind >> 32) as u32 & libc::PF_R != 0;
        Some((kind as u32, Self { bytes: start..start.checked_add(len)?, is_readable }))
    }
}

/// Program headers that are copied at once.
const AT_ONCE: usize = 6;

/// [`readable_segment`] of an object whose program headers are in a later segment. BOLT puts them
/// there, at an address that is their offset in the file. They hold if the first one says so.
/// Not inlined: callers of `malloc` may have little stack.
#[cold]
#[inline(never)]
fn moved_segment(
    head: &[u8],
    bias: usize,
    at: usize,
    peek: impl Fn(usize, &mut [u8]) -> bool,
) -> Option<Range<usize>> {
    let (offset, count) = headers(head)?;
    let place = bias.wrapping_add(offset);
    let mut copy = [[0; HEADER]; AT_ONCE];
    for number in (0..count).step_by(AT_ONCE) {
        let some = copy.get_mut(..AT_ONCE.min(count - number))?;
        if !peek(place.checked_add(number * HEADER)?, some.as_flattened_mut()) {
            return None;
        }
        for (i, header) in some.iter().enumerate() {
            let (kind, segment) = Segment::of(header, bias)?;
            let is_own = kind == libc::PT_PHDR && segment.bytes.start == place;
            if number + i == 0 && !is_own {
                return None;
            }
            if kind == libc::PT_LOAD && segment.is_readable && segment.bytes.contains(&at) {
                return Some(segment.bytes);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_of_this_code_describes_its_frames() {
        let at = readable_segment as fn(_, _, _) -> _ as usize;
        let header = |object: &CodeObject<'_>| {
            assert_eq!(object.bytes[object.header], 1, "the version of the header");
            assert!(object.bytes.len() > object.header + 8);
            object.address + object.header
        };
        let peek = |_, _: &mut [u8]| false;
        assert!(with(at, peek, header).is_some());
        assert_eq!(with(0x1000, peek, |_| 0), None);
    }

    #[test]
    fn program_headers_in_a_later_segment_are_found_and_checked() {
        let (bias, offset) = (0x7000_0000, 0x8000);
        let mut head = vec![0u8; 4096];
        head[..4].copy_from_slice(b"\x7fELF");
        head[32..40].copy_from_slice(&(offset as u64).to_ne_bytes());
        head[54] = HEADER as u8;
        head[56] = 9;
        let header = |kind: u32, flags: u32, start: u64, len: u64| {
            let mut header = [0u8; HEADER];
            header[..4].copy_from_slice(&kind.to_ne_bytes());
            header[4..8].copy_from_slice(&flags.to_ne_bytes());
            header[16..24].copy_from_slice(&start.to_ne_bytes());
            header[32..40].copy_from_slice(&len.to_ne_bytes());
            header
        };
        let mut later = [header(libc::PT_NOTE, 4, 0, 0); 9];
        later[0] = header(libc::PT_PHDR, 4, offset as u64, 9 * HEADER as u64);
        later[1] = header(libc::PT_LOAD, 1, 0x1000, 0x1000);
        later[8] = header(libc::PT_LOAD, 5, 0x8000, 0x2000);
        let found = |later: &[[u8; HEADER]], at: usize| {
            let peek = |from: usize, buf: &mut [u8]| {
                let from = from.wrapping_sub(bias + offset);
                let bytes = later.as_flattened().get(from..).and_then(|rest| rest.get(..buf.len()));
                bytes.map(|bytes| buf.copy_from_slice(bytes)).is_some()
            };
            moved_segment(&head, bias, at, peek)
        };
        assert_eq!(readable_segment(&head, bias, bias + 0x9000), None);
        assert_eq!(found(&later, bias + 0x9000), Some(bias + 0x8000..bias + 0xa000));
        assert_eq!(found(&later, bias + 0x1800), None, "not readable");
        assert_eq!(found(&later, bias + 0xa000), None);
        assert_eq!(found(&later[..8], bias + 0x9000), None, "cut off");
        later[0] = header(libc::PT_PHDR, 4, offset as u64 + 8, 9 * HEADER as u64);
        assert_eq!(found(&later, bias + 0x9000), None, "other bytes");
    }

    #[test]
    fn a_damaged_first_page_has_no_segment() {
        let mut head = vec![0u8; 4096];
        let at = 0x7000_1234;
        assert_eq!(readable_segment(&head, 0, at), None);
        head[..4].copy_from_slice(b"\x7fELF");
        head[32] = 64;
        head[54] = 56;
        head[56] = 2;
        let mut segment = |number: usize, flags: u8, start: u64, len: u64| {
            let header = 64 + 56 * number;
            head[header] = 1;
            head[header + 4] = flags;
            head[header + 16..header + 24].copy_from_slice(&start.to_ne_bytes());
            head[header + 32..header + 40].copy_from_slice(&len.to_ne_bytes());
        };
        segment(0, 1, 0x7000_0000, 0x10000);
        segment(1, 4, 0x7000_0000, 0x2000);
        assert_eq!(readable_segment(&head, 0, at), Some(0x7000_0000..0x7000_2000));
        assert_eq!(readable_segment(&head, 0x1000, at), Some(0x7000_1000..0x7000_3000));
        assert_eq!(readable_segment(&head, 0, 0x7000_2000), None);
        for len in 0..64 + 2 * 56 {
            let _ = readable_segment(&head[..len], 0, at);
        }
        // More headers than the page holds, and headers far away.
        head[56..58].fill(0xff);
        assert_eq!(readable_segment(&head, 0, 0x9000_0000), None);
        head[32..40].fill(0xff);
        assert_eq!(readable_segment(&head, 0, at), None);
    }
}
