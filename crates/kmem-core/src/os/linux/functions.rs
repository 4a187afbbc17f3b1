//! Symbol tables of the files of loaded objects.
//!
//! The dynamic linker maps only the symbols that it needs itself. All others are in the file. It is
//! read, not mapped: a mapped file that another process cuts short ends the program. Where the file
//! has no others, those in memory do.
//!
//! Context: any, signal handlers included. Not in a sandbox, where files are not opened.

use super::Linux;
use super::descriptor::Descriptor;
use super::objects::{names_linker, readable_segment};
use super::start::auxiliary;
use crate::os::functions::{ELF_HEADER, Functions, Tables, sections, tables};
use crate::os::{CodeObject, Memory};
use crate::units::PAGE_SIZE;
use core::ffi::{CStr, c_char};
use core::ops::Range;
use core::ptr::NonNull;

/// Calls `work` with the functions of an object. `None`: its file cannot be read, is not the one
/// that was loaded, or names no functions.
pub(super) fn with<T>(
    linux: &Linux,
    object: &CodeObject<'_>,
    work: impl FnOnce(&Functions<'_>) -> T,
) -> Option<T> {
    if linux.is_in_sandbox() {
        return None;
    }
    let path = if object.path.is_empty() { program_file() } else { object.path };
    let file = Descriptor::open(path, libc::O_RDONLY | libc::O_NONBLOCK).ok()?;
    let (tables, bias) = (places(linux, object, &file)?, object.bias);
    let (symbols, names) = match tables {
        Tables::File(symbols, names) => (symbols, names),
        Tables::Memory(symbols, names) => {
            let (symbols, names) = (mapped(object, &symbols)?, mapped(object, &names)?);
            return Some(work(&Functions { symbols, names, bias }));
        }
    };
    let mut symbol_bytes = Scratch::of(linux, symbols.len())?;
    let mut name_bytes = Scratch::of(linux, names.len())?;
    let symbols = symbol_bytes.read(&file, &symbols)?;
    let names = name_bytes.read(&file, &names)?;
    Some(work(&Functions { symbols, names, bias }))
}

/// A path of the program's file. If the command was the dynamic linker (`ld.so ./program`), the
/// link `/proc/self/exe` leads to that. Then glibc has put the path that it was told into the
/// auxiliary vector. It may be relative to a directory that the program has left.
fn program_file() -> &'static CStr {
    // In a static program, too, the linker has no base. But its file is that of the link.
    let is_command = auxiliary(libc::AT_BASE) == Some(0) && names_linker();
    match auxiliary(libc::AT_EXECFN) {
        // SAFETY: a string on the stack of the main thread that ends with a NUL, and stays.
        Some(path) if is_command && path != 0 => unsafe { CStr::from_ptr(path as *const c_char) },
        _ => c"/proc/self/exe",
    }
}

/// Places of the symbols, by the headers of the file. `None`: it has none, or is another file. Not
/// inlined: callers of `malloc` may have little stack.
#[inline(never)]
fn places(linux: &Linux, object: &CodeObject<'_>, file: &Descriptor) -> Option<Tables> {
    let mut header = [0; ELF_HEADER];
    if !file.read_at(0, &mut header) || header != *object.head.first_chunk()? {
        return None;
    }
    let sections = sections(&header)?;
    tables(Scratch::of(linux, sections.len())?.read(file, &sections)?)
}

/// The bytes of an object in memory, by their addresses without the bias.
fn mapped<'a>(object: &CodeObject<'a>, range: &Range<usize>) -> Option<&'a [u8]> {
    let start = object.bias.wrapping_add(range.start);
    let segment = readable_segment(object.head, object.bias, start)?;
    let is_in = start - segment.start + range.len() <= segment.len()
        && (object.start..object.end).contains(&start)
        && range.len() <= object.end - start;
    // SAFETY: the dynamic linker has mapped this part of the object for reading. A frame on the
    // thread's stack returns into the object, so it stays loaded. Nothing writes to this part.
    is_in.then(|| unsafe { core::slice::from_raw_parts(start as *const u8, range.len()) })
}

/// Memory for parts of a file, given back at the end.
///
/// # Invariants
/// `len` bytes at `at` are committed, and nothing else uses them.
struct Scratch<'a> {
    linux: &'a Linux,
    at: NonNull<u8>,
    len: usize,
}

impl<'a> Scratch<'a> {
    #[inline(never)]
    fn of(linux: &'a Linux, bytes: usize) -> Option<Self> {
        let len = bytes.max(1).next_multiple_of(PAGE_SIZE);
        // INVARIANT: fresh memory of that length.
        Some(Self { linux, at: linux.allocate(len, PAGE_SIZE)?, len })
    }

    /// Reads a range of the file, no longer than the memory. `None`: the file is shorter.
    fn read(&mut self, file: &Descriptor, range: &Range<usize>) -> Option<&[u8]> {
        // SAFETY: committed memory that this value alone uses (invariant), zeroed before.
        let all = unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) };
        let part = all.get_mut(..range.len())?;
        file.read_at(range.start, part).then_some(&*part)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // SAFETY: the reservation of `of`, whole; nothing uses it any more (invariant).
        unsafe { self.linux.release(self.at, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects;
    use super::*;

    #[inline(never)]
    extern "C" fn a_function_with_a_name() {
        std::hint::black_box(());
    }

    #[test]
    fn the_functions_of_this_program_are_those_of_its_file() {
        static LINUX: Linux = Linux::new();
        let at = a_function_with_a_name as extern "C" fn() as usize;
        let found = objects::with(
            at,
            |_, _| false,
            |object| {
                let has_name = |name: &[u8]| {
                    let wanted = b"a_function_with_a_name";
                    name.windows(wanted.len()).any(|part| part == wanted)
                };
                with(&LINUX, object, |functions| {
                    functions.all(|_| true).any(|f| f.code.contains(&at) && has_name(f.name))
                })
            },
        );
        assert_eq!(found.flatten(), Some(true));
        // Another file is in its place.
        let other = objects::with(
            at,
            |_, _| false,
            |object| {
                let object = CodeObject { path: c"/bin/sh", ..*object };
                with(&LINUX, &object, |_| ())
            },
        );
        assert_eq!(other.flatten(), None);
    }
}
