//! The caller of a frame, by the rule of its return address.

use super::super::unwind::{Base, Step};
use crate::os::{RETURN_UNIT, is_address, return_address};

/// Most bytes from one frame to the next.
const MAX_FRAME: usize = 1 << 20;

/// Returns whether a number may be a return address.
#[inline(always)]
pub(super) fn is_code(number: usize) -> bool {
    is_address(number) && number.is_multiple_of(RETURN_UNIT)
}

/// The caller of a frame.
pub(super) struct Up {
    /// The stack pointer behind the frame.
    pub(super) cfa: usize,
    /// Place of the return address.
    pub(super) at: usize,
    /// The return address.
    pub(super) ret: usize,
    /// Place and value of the caller's frame pointer, if the frame saved it.
    pub(super) saved: Option<(usize, usize)>,
}

impl Up {
    /// The caller by a rule, from the stack pointer and the frame pointer of the frame. `None`: it
    /// cannot be one.
    #[inline(always)]
    pub(super) fn by(
        step: Step,
        sp: usize,
        pointer: usize,
        mut word: impl FnMut(usize) -> Option<usize>,
    ) -> Option<Self> {
        let base = if step.base == Base::Stack { sp } else { pointer };
        let cfa = Self::cfa(step, sp, base)?;
        let (at, ret) = Self::ret(step, sp, cfa, &mut word)?;
        let mut saved = None;
        if let Some(words) = step.saved_words() {
            let at = cfa.wrapping_sub(8 * words as usize);
            saved = Some((at, word(at).filter(|_| at >= sp)?));
        }
        Some(Self { cfa, at, ret, saved })
    }

    /// The stack pointer behind a frame, from the value of the step's register. `None`: it cannot
    /// be one.
    #[inline(always)]
    pub(super) fn cfa(step: Step, sp: usize, base: usize) -> Option<usize> {
        let cfa = base.wrapping_add(8 * step.cfa as usize);
        (cfa >= sp + 8 && cfa - sp <= MAX_FRAME).then_some(cfa)
    }

    /// Place and value of the return address of a frame. `None`: it cannot be one.
    #[inline(always)]
    pub(super) fn ret(
        step: Step,
        sp: usize,
        cfa: usize,
        mut word: impl FnMut(usize) -> Option<usize>,
    ) -> Option<(usize, usize)> {
        let at = step.ret().map_or(sp, |words| cfa.wrapping_sub(8 * words as usize));
        let ret = word(at).map(return_address).filter(|&ret| is_code(ret) && at >= sp)?;
        Some((at, ret))
    }
}
