//! Frame pointers where no object tells frames: whether one leads to a caller.

use super::up::is_code;
use crate::os::{Platform, Return, return_address};

/// Most bytes of a frame of code that nothing describes.
const MAX_GUESSED: usize = 16 << 10;

/// Place that the frame pointer leads to, from code that nothing describes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lead {
    /// The code does not keep a frame pointer: this one is of a caller further out, or none.
    Nowhere,
    /// It may be the caller, as far as can be seen.
    Maybe,
    /// It is a call in an object.
    ToCaller,
}

/// Finds out whether code without a description keeps a frame pointer. `sp` is the stack pointer
/// after the call in it. If it keeps one, the return address is right above the frame it leads to.
/// If not, the frame pointer belongs to a frame further out, and the return address lies before it.
/// So no word before it may be a return address. This also takes a word of an earlier call for
/// one, which ends a chain early.
#[cold]
#[inline(never)]
pub(super) fn leads(
    platform: &impl Platform,
    sp: usize,
    pointer: usize,
    word: &mut impl FnMut(usize) -> Option<usize>,
) -> Lead {
    // Elsewhere the walk ends anyway.
    if pointer < sp.wrapping_sub(8) || pointer.wrapping_sub(sp) > MAX_GUESSED && pointer >= sp {
        return Lead::Nowhere;
    }
    let Some(next) = word(pointer.wrapping_add(8)).map(return_address) else {
        return Lead::Nowhere;
    };
    let lead = match platform.return_address(next) {
        Return::Unknown => return Lead::Maybe,
        Return::NoCall => return Lead::Nowhere,
        Return::NoObject => Lead::Maybe,
        Return::AfterCall => Lead::ToCaller,
    };
    for at in (sp..pointer).step_by(8) {
        let Some(word) = word(at).map(return_address) else { return Lead::Nowhere };
        let is_far = is_code(word) && !(sp..=pointer).contains(&word);
        if is_far && platform.return_address(word) == Return::AfterCall {
            return Lead::Nowhere;
        }
    }
    lead
}
