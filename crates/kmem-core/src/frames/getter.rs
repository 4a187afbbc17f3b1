//! The word that a function returns, by the function's code: a global one, or one of each thread.

mod aarch64;
mod x86_64;

use super::interpreter::{Place, ThreadWord};
use crate::os::Platform;

/// Bytes of a function that returns the thread state.
const GETTER: usize = 48;

/// The place of the word that a function loads and returns, by its code. The function is not
/// called.
pub(super) fn place(platform: &impl Platform, function: usize) -> Option<Place> {
    let mut code = [0; GETTER];
    if function == 0 || platform.peek(function, &mut code) != GETTER {
        return None;
    }
    let load = if cfg!(target_arch = "aarch64") {
        aarch64::load(&code, function)?
    } else {
        x86_64::load(&code, function)?
    };
    let word = |at| platform.peek_word(at);
    let index = |at: usize, offset: usize| {
        let (module, base) = (word(at)?, word(at.wrapping_add(8))?);
        (module != 0).then_some(ThreadWord::Module(module, base.wrapping_add(offset)))
    };
    let found = match load {
        Load::Global(at) => return Some(Place::Global(at)),
        Load::Behind(at, distance) => {
            return Some(Place::Global(word(at)?.wrapping_add(distance)));
        }
        Load::Offset(offset) => Some(ThreadWord::Static(offset)),
        Load::Indirect(at) => word(at).map(ThreadWord::Static),
        Load::Index(at, offset) => index(at, offset),
        Load::Descriptor(at) => match word(at.wrapping_add(8))? {
            distance if distance < LONGEST => Some(ThreadWord::Static(distance)),
            at => index(at, 0),
        },
    };
    found.map(Place::Thread)
}

/// Fewer bytes than this are a distance from the thread pointer. No program's data lies as low.
const LONGEST: usize = 1 << 20;

/// A load of a word (ELF handling for thread-local storage).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// A word at an address. On AArch64 alone.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "not looked for"))]
    Global(usize),
    /// A word at a distance from an address, which lies in a word. On AArch64 alone.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "not looked for"))]
    Behind(usize, usize),
    /// At a distance from the thread pointer.
    Offset(usize),
    /// At a distance that lies in a word.
    Indirect(usize),
    /// By a module and an offset, which lie at an address, and a further offset.
    Index(usize, usize),
    /// By a descriptor: a function, and its argument. That is a distance from the thread pointer,
    /// or the address of a module and an offset.
    Descriptor(usize),
}
