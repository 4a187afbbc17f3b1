//! The loaded objects of the process, as the dynamic linker knows them.
//!
//! glibc 2.35 and later find the object of an address without a lock (`_dl_find_object`). So this
//! works in signal handlers, and while another thread loads an object. All other ways to ask take a
//! lock.
//!
//! Context: any, signal handlers included.

use super::start::auxiliary;
#[cfg(target_arch = "x86_64")]
use super::start::weak;
use crate::os::CodeObject;
use crate::os::functions::ELF_HEADER;
use core::ffi::{CStr, c_char};
use core::ops::Range;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".weak _dl_find_object");

/// `struct dl_find_object` of x86-64.
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
/// library cannot say.
#[cfg(target_arch = "x86_64")]
pub(super) fn with<T>(at: usize, work: impl FnOnce(&CodeObject<'_>) -> T) -> Option<T> {
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
    (result == 0).then(|| work(&object(&found)))
}

/// Returns whether the dynamic linker loaded the program. In a static program the function reads
/// tables that the C library makes after its first allocations.
#[cfg(target_arch = "x86_64")]
fn is_dynamic() -> bool {
    auxiliary(libc::AT_BASE).is_some_and(|base| base != 0)
}

/// `None`: frame pointers are kept in nearly all code of AArch64, so its tables are not read.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn with<T>(_at: usize, _work: impl FnOnce(&CodeObject<'_>) -> T) -> Option<T> {
    None
}

/// The object that the dynamic linker found.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "its tables are not read"))]
fn object(found: &Found) -> CodeObject<'static> {
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
    with_frames(found.eh_frame_hdr, bare).unwrap_or(CodeObject { header: usize::MAX, ..bare })
}

/// Adds the object's readable memory that holds its description of frames. `None`: its program
/// headers are not where they are looked for.
fn with_frames(at: usize, bare: CodeObject<'static>) -> Option<CodeObject<'static>> {
    let segment = readable_segment(bare.head, bare.bias, at)?;
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
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "its tables are not read"))]
fn program(bias: usize) -> Option<(usize, usize)> {
    let start = auxiliary(libc::AT_PHDR)?.checked_sub(ELF_HEADER)?;
    if !start.is_multiple_of(crate::units::PAGE_SIZE) {
        return None;
    }
    // SAFETY: the kernel has mapped the page of the program headers, and it stays mapped.
    let head = unsafe { core::slice::from_raw_parts(start as *const u8, crate::units::PAGE_SIZE) };
    let end = segments(head, bias)?.map(|segment| segment.bytes.end).max()?;
    (start < end).then_some((start, end))
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
    const HEADER: usize = size_of::<libc::Elf64_Phdr>();
    let half = |at: usize| Some(u16::from_ne_bytes(*head.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u64::from_ne_bytes(*head.get(at..)?.first_chunk()?) as usize);
    // e_phoff, e_phentsize and e_phnum.
    let (headers, size, count) = (word(32)?, half(54)?, half(56)?);
    if head.get(..4)? != b"\x7fELF" || usize::from(size) != HEADER {
        return None;
    }
    Some((0..usize::from(count)).filter_map(move |number| {
        let header = headers.checked_add(number * HEADER)?;
        // p_type and p_flags.
        let kind = word(header)?;
        // p_vaddr and p_filesz.
        let start = bias.wrapping_add(word(header.checked_add(16)?)?);
        let end = start.checked_add(word(header.checked_add(32)?)?)?;
        let is_readable = (kind >> 32) as u32 & libc::PF_R != 0;
        (kind as u32 == libc::PT_LOAD).then_some(Segment { bytes: start..end, is_readable })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_object_of_this_code_describes_its_frames() {
        let at = with as fn(usize, fn(&CodeObject<'_>) -> usize) -> Option<usize> as usize;
        let header = |object: &CodeObject<'_>| {
            assert_eq!(object.bytes[object.header], 1, "the version of the header");
            assert!(object.bytes.len() > object.header + 8);
            object.address + object.header
        };
        assert!(with(at, header).is_some());
        assert_eq!(with(0x1000, |_| 0), None);
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
