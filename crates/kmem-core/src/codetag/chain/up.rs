//! The caller of a frame, by the rule of its return address.

use super::super::unwind::{Base, Step};
use crate::os::{is_address, return_address};

/// Most bytes from one frame to the next.
const MAX_FRAME: usize = 1 << 20;

/// The caller of a frame.
pub(super) struct Up {
    /// The stack pointer behind the frame.
    pub(super) cfa: usize,
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
        let ret = Self::ret(cfa, &mut word)?;
        let mut saved = None;
        if step.saved != 0 {
            let at = cfa.wrapping_sub(8 * step.saved as usize);
            saved = Some((at, word(at).filter(|_| at >= sp)?));
        }
        Some(Self { cfa, ret, saved })
    }

    /// The stack pointer behind a frame, from the value of the step's register. `None`: it cannot
    /// be one.
    #[inline(always)]
    pub(super) fn cfa(step: Step, sp: usize, base: usize) -> Option<usize> {
        let cfa = base.wrapping_add(8 * step.cfa as usize);
        (cfa >= sp + 8 && cfa - sp <= MAX_FRAME).then_some(cfa)
    }

    /// The return address below a stack pointer. `None`: it cannot be one.
    #[inline(always)]
    pub(super) fn ret(cfa: usize, mut word: impl FnMut(usize) -> Option<usize>) -> Option<usize> {
        word(cfa - 8).map(return_address).filter(|&ret| is_address(ret))
    }
}
