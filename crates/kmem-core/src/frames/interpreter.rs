//! The interpreter among the objects of a program, by its symbols.

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
    let of_thread = |layout| {
        let get = if new_get != 0 { new_get } else { old_get };
        match thread_word(platform, get) {
            Some(word) => Ok(found(Place::Thread(word), layout)),
            None => Err(&b"kmem: python: lines are not named: no thread state is found\n"[..]),
        }
    };
    Some(match Layout::of_minor(minor) {
        Some((0, layout)) => of_thread(layout),
        Some((at, layout)) => Ok(found(Place::Global(runtime.wrapping_add(at)), layout)),
        None => match layout_of_runtime(platform, runtime, minor, hex) {
            Ok(layout) => of_thread(layout),
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

/// Bytes of a function that returns the thread state.
const GETTER: usize = 40;

/// The word that a function loads and returns, by its code. The function is not called.
fn thread_word(platform: &impl Platform, function: usize) -> Option<ThreadWord> {
    let mut code = [0; GETTER];
    if function == 0 || platform.peek(function, &mut code) != GETTER {
        return None;
    }
    let (at, what) = load(&code)?;
    let place = |number: u32| function.wrapping_add(at).wrapping_add(number as i32 as usize);
    let mut pair = [0; 16];
    match what {
        Load::Offset(offset) => Some(ThreadWord::Static(offset as i32 as usize)),
        Load::Indirect(distance) => {
            let mut word = [0; 8];
            let done = platform.peek(place(distance), &mut word) == word.len();
            done.then(|| ThreadWord::Static(usize::from_ne_bytes(word)))
        }
        Load::Index(distance, offset) => {
            let done = platform.peek(place(distance), &mut pair) == pair.len();
            let [module, base] = [0, 8].map(|at| {
                let bytes = pair[at..].first_chunk().copied().unwrap_or_default();
                usize::from_ne_bytes(bytes)
            });
            let offset = base.wrapping_add(offset as i32 as usize);
            (done && module != 0).then_some(ThreadWord::Module(module, offset))
        }
    }
}

/// A load of a word of thread-local storage (ELF handling for thread-local storage, x86-64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// At a distance from the thread pointer.
    Offset(u32),
    /// At a distance that lies in a word, which is at a distance from the code.
    Indirect(u32),
    /// By a module and an offset, which lie at a distance from the code, and a further offset.
    Index(u32, u32),
}

/// The first load of thread-local storage in code, and the place in the code that its distance
/// counts from.
fn load(code: &[u8; GETTER]) -> Option<(usize, Load)> {
    (0..GETTER).find_map(|at| {
        let has = |at: usize, bytes: &[u8]| code.get(at..).is_some_and(|it| it.starts_with(bytes));
        let number = |at: usize| Some(u32::from_le_bytes(*code.get(at..)?.first_chunk()?));
        if has(at, &[0x64, 0x48, 0x8b, 0x04, 0x25]) {
            return Some((0, Load::Offset(number(at + 5)?)));
        }
        if has(at, &[0x48, 0x8b, 0x05]) && has(at + 7, &[0x64, 0x48, 0x8b, 0x00]) {
            return Some((at + 7, Load::Indirect(number(at + 3)?)));
        }
        let calls = |at| has(at, &[0x66, 0x66, 0x48, 0xe8]) || has(at, &[0x66, 0x48, 0xff, 0x15]);
        if has(at, &[0x66, 0x48, 0x8d, 0x3d]) && calls(at + 8) {
            let offset = has(at + 16, &[0x48, 0x8b, 0x00]).then_some(0)?;
            return Some((at + 8, Load::Index(number(at + 4)?, offset)));
        }
        if has(at, &[0x48, 0x8d, 0x3d]) && has(at + 7, &[0xe8]) {
            let offset = match () {
                () if has(at + 12, &[0x48, 0x8b, 0x00]) => 0,
                () if has(at + 12, &[0x48, 0x8b, 0x40]) => {
                    i32::from(*code.get(at + 15)? as i8).cast_unsigned()
                }
                () if has(at + 12, &[0x48, 0x8b, 0x80]) => number(at + 15)?,
                () => return None,
            };
            return Some((at + 7, Load::Index(number(at + 3)?, offset)));
        }
        None
    })
}

/// The address of a word of the calling thread's storage. `None`: the thread has none yet.
pub(super) fn word_of_thread(platform: &impl Platform, place: ThreadWord) -> Option<usize> {
    let thread = word::thread();
    let read = |at: usize| {
        let mut bytes = [0; 8];
        (platform.peek(at, &mut bytes) == bytes.len()).then(|| usize::from_ne_bytes(bytes))
    };
    match place {
        ThreadWord::Static(offset) => Some(thread.wrapping_add(offset)),
        ThreadWord::Module(module, offset) => {
            // glibc: the second word of a thread leads to its table of storage, which has two words
            // for each module. The number of modules is in front of it.
            let table = read(thread.wrapping_add(8))?;
            if module > read(table.wrapping_sub(16))? {
                return None;
            }
            let storage = read(table.wrapping_add(16 * module))?;
            super::is_address(storage).then(|| storage.wrapping_add(offset))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: &[u8]) -> Option<(usize, Load)> {
        let mut code = [0x90; GETTER];
        code[..start.len()].copy_from_slice(start);
        load(&code)
    }

    #[test]
    fn loads_of_thread_local_storage_are_known_by_their_code() {
        let executable =
            [0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 4, 0x25, 0xf8, 0xff, 0xff, 0xff];
        assert_eq!(of(&executable), Some((0, Load::Offset(-8i32 as u32))));
        let library = [
            [0x48, 0x83, 0xec, 8].as_slice(),
            &[0x66, 0x48, 0x8d, 0x3d, 0xf4, 0xc9, 0x26, 0],
            &[0x66, 0x66, 0x48, 0xe8, 0xdc, 0x10, 0xe3, 0xff],
            &[0x48, 0x8b, 0],
        ]
        .concat();
        assert_eq!(of(&library), Some((12, Load::Index(0x26_c9f4, 0))));
        let early = [0x48, 0x8b, 5, 1, 2, 0, 0, 0x64, 0x48, 0x8b, 0, 0xc3];
        assert_eq!(of(&early), Some((7, Load::Indirect(0x201))));
        let local = [0x48, 0x8d, 0x3d, 1, 0, 0, 0, 0xe8, 9, 9, 9, 9, 0x48, 0x8b, 0x40, 0xf8];
        assert_eq!(of(&local), Some((7, Load::Index(1, -8i32 as u32))));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[0x48, 0x8d, 0x3d, 1, 0, 0, 0, 0xe8, 9, 9, 9, 9, 0xc3]), None);
    }
}
