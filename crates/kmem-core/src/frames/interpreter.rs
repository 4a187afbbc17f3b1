//! The interpreter among the objects of a program, by its symbols.

use super::getter;
use super::layout::{COOKIE, FREE_THREADED, Layout, OFFSETS, VERSION};
use super::word;
use crate::os::Platform;
use crate::os::functions::Functions;

/// Places in an interpreter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) place: Place,
    /// The type of code objects.
    pub(super) code_type: usize,
    pub(super) layout: Layout,
}

/// The word that leads to the state of the thread that holds the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A global one, at an address.
    Global(usize),
    /// One of each thread.
    Thread(ThreadWord),
}

/// A word of thread-local storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadWord {
    /// At a distance from the thread pointer.
    Static(usize),
    /// In the storage of a module, at an offset.
    Module(usize, usize),
}

const STRANGE: &[u8] = b"kmem: python: lines are not named: this version is not known\n";

/// Finds the interpreter in an object by its symbols. `None`: the object is none. The inner error
/// is the reason why its frames are not read, as a line of text.
pub(super) fn find(
    platform: &impl Platform,
    functions: &Functions<'_>,
) -> Option<Result<Found, &'static [u8]>> {
    let names: [&[u8]; 8] = [
        b"_PyRuntime",
        b"PyCode_Type",
        b"Py_Version",
        b"Py_NewRef",
        b"PyFrame_GetCode",
        b"_PyThreadState_UncheckedGet",
        b"PyThreadState_GetUnchecked",
        b"Py_InitializeFromConfig",
    ];
    let [runtime, code_type, version, new_ref, get_code, old_get, new_get, start] =
        functions.places(&names);
    if runtime == 0 || start == 0 {
        return None;
    }
    let words = |at, to: &mut [u8]| platform.peek(at, to) == to.len();
    let mut hex = [0; 8];
    let minor = match version {
        // Functions that came with 3.9 and 3.10.
        0 if new_ref != 0 => 10,
        0 if get_code != 0 => 9,
        0 => 8,
        _ if !words(version, &mut hex) => 0,
        _ => match u64::from_ne_bytes(hex) {
            // Released: not an alpha or beta.
            hex if hex >> 24 == 3 && hex >> 4 & 15 >= 0xc => hex as u32 >> 16 & 255,
            _ => 0,
        },
    };
    if code_type == 0 {
        return Some(Err(STRANGE));
    }
    let found = |place, layout| Found { place, code_type, layout };
    let of_getter = |layout, is_global| {
        let get = if new_get != 0 { new_get } else { old_get };
        match getter::place(platform, get) {
            Some(place) if matches!(place, Place::Global(_)) == is_global => {
                Ok(found(place, layout))
            }
            _ => Err(&b"kmem: python: lines are not named: no thread state is found\n"[..]),
        }
    };
    Some(match Layout::of_minor(minor) {
        Some((0, layout)) => of_getter(layout, false),
        // Locks of the C library lie before it. They have another size than on x86-64.
        Some((_, layout)) if cfg!(target_arch = "aarch64") => of_getter(layout, true),
        Some((at, layout)) => Ok(found(Place::Global(runtime.wrapping_add(at)), layout)),
        None => match layout_of_runtime(platform, runtime, minor, hex) {
            Ok(layout) => of_getter(layout, false),
            Err(reason) => Err(reason),
        },
    })
}

/// The layout that the runtime itself describes, from 3.13 on. `hex` has the bytes of
/// `Py_Version`. Not inlined: programs without an interpreter may have little stack.
#[inline(never)]
fn layout_of_runtime(
    platform: &impl Platform,
    runtime: usize,
    minor: u32,
    hex: [u8; 8],
) -> Result<Layout, &'static [u8]> {
    let mut bytes = [0; 8 * OFFSETS];
    let is_read = minor >= 13 && platform.peek(runtime, &mut bytes) == bytes.len();
    if !is_read || !bytes.starts_with(COOKIE) {
        return Err(STRANGE);
    }
    let mut offsets = [0; OFFSETS];
    for (offset, bytes) in offsets.iter_mut().zip(bytes.as_chunks().0) {
        *offset = u64::from_ne_bytes(*bytes);
    }
    if offsets[FREE_THREADED] != 0 {
        return Err(b"kmem: python: lines are not named: this build has no global lock\n");
    }
    let layout = Layout::of_offsets(minor, &offsets);
    layout.filter(|_| offsets[VERSION] == u64::from_ne_bytes(hex)).ok_or(STRANGE)
}

/// Bytes from the thread pointer to the word that leads to a thread's table of storage.
const TABLE: usize = if cfg!(target_arch = "aarch64") { 0 } else { 8 };

/// The address of a word of the calling thread's storage. `None`: the thread has none yet.
pub(super) fn word_of_thread(platform: &impl Platform, place: ThreadWord) -> Option<usize> {
    let thread = word::pointer();
    let read = |at| platform.peek_word(at);
    match place {
        ThreadWord::Static(offset) => Some(thread.wrapping_add(offset)),
        ThreadWord::Module(module, offset) => {
            // glibc: a word of a thread leads to its table of storage, which has two words for each
            // module. The number of modules is in front of it.
            let table = read(thread.wrapping_add(TABLE))?;
            if module > read(table.wrapping_sub(16))? {
                return None;
            }
            let storage = read(table.wrapping_add(16 * module))?;
            super::is_address(storage).then(|| storage.wrapping_add(offset))
        }
    }
}
