//! The cache of rules, by return address.
//!
//! ```text
//! slots[ret >> 2 & 16383]   rest of ret : 33 | wrapper : 2 | base : 2 | saved : 10 | cfa : 17
//! used    a bit for each page of slots that has one
//! ```
//!
//! A rule of an object must not outlive the object: another may be loaded in its place. So while an
//! object is unloaded the cache is neither read nor filled, and it is empty afterwards. A thread
//! that stores a rule looks afterwards whether an unload began, and then takes its rule back.

use super::unloads::{Generation, Unloads};
use super::unwind::{Base, Rule, Step};
use super::wrappers::Wrapper;
use crate::os::{ADDRESS_BITS, RETURN_UNIT};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::PAGE_SIZE;

const SLOTS: usize = 1 << 14;
/// Bytes of code for a slot. No instruction for calls is shorter, but it may cross the bound.
const NEAR: usize = 4;
/// Slots of a page.
const PER_PAGE: usize = PAGE_SIZE / size_of::<AtomicU64>();
/// Bits of a rule in a slot.
const RULE: u32 = 31;
const SAVED: u32 = 17;
const BASE: u32 = 27;
const WRAPPER: u32 = 29;
/// Values of `base`. 0 marks an empty slot.
const STACK: u64 = 1;
const FRAME: u64 = 2;
const OTHER: u64 = 3;
/// Values of `cfa` for [`OTHER`].
const END: u64 = 0;
const FRAME_POINTER: u64 = 1;

/// Bits of a return address that a slot has.
const REST: u32 = u64::BITS - RULE;

/// The slot of a return address, and the bits of the address that the slot's number does not have.
/// Calls that are near to each other have near slots, so that a short program uses few pages.
#[inline(always)]
fn place(ret: usize) -> (usize, u64) {
    let rest = ret / (NEAR * SLOTS) * (NEAR / RETURN_UNIT) + ret % NEAR / RETURN_UNIT;
    (ret / NEAR % SLOTS, rest as u64)
}

/// The step in a word.
#[inline(always)]
fn step(word: u64, base: Base) -> Step {
    let cfa = word as u32 & (Step::MAX_CFA - 1);
    Step { base, cfa, saved: (word >> SAVED) as u32 & (Step::MAX_SAVED - 1) }
}

/// The rule of a return address, and whether it lies in a wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) rule: Rule,
    pub(super) wrapper: Wrapper,
}

/// The cache. Zeroed, it is empty.
#[repr(C)]
pub(super) struct Rules {
    slots: [AtomicU64; SLOTS],
    /// Pages of slots that have a rule. A look at the others would touch their memory, and storing
    /// a rule there would then touch it a second time.
    used: AtomicU32,
}

impl Rules {
    /// The word of a return address; 0 if the slot is empty. `None`: nothing is kept of it.
    #[inline(always)]
    fn word(&self, ret: usize) -> Option<u64> {
        if !ret.is_multiple_of(RETURN_UNIT) {
            return None;
        }
        let (slot, rest) = place(ret);
        if self.used.load(Ordering::Relaxed) >> (slot / PER_PAGE) & 1 == 0 {
            return None;
        }
        let word = self.slots[slot].load(Ordering::Relaxed);
        (word >> RULE == rest).then_some(word)
    }

    /// The step from a frame to its caller, if the return address lies in a wrapper and its rule is
    /// constant.
    #[inline(always)]
    pub(super) fn step_from_wrapper(&self, ret: usize) -> Option<Step> {
        let word = self.word(ret)?;
        let base = word >> BASE & 3;
        if word >> WRAPPER & 3 == 0 || base == OTHER || base == 0 {
            return None;
        }
        let base = if base == STACK { Base::Stack } else { Base::Frame };
        Some(step(word, base))
    }

    /// Finds a return address. `None`: nothing is kept of it.
    #[inline(always)]
    pub(super) fn find(&self, ret: usize) -> Option<Code> {
        let word = self.word(ret)?;
        let cfa = word as u32 & (Step::MAX_CFA - 1);
        let rule = match word >> BASE & 3 {
            STACK => Rule::Constant(step(word, Base::Stack)),
            FRAME => Rule::Constant(step(word, Base::Frame)),
            OTHER if u64::from(cfa) == END => Rule::End,
            OTHER => Rule::FramePointer,
            _ => return None,
        };
        let wrapper = match word >> WRAPPER & 3 {
            0 => Wrapper::No,
            1 => Wrapper::Known,
            _ => Wrapper::Chosen,
        };
        Some(Code { rule, wrapper })
    }

    /// Keeps what was read in a generation.
    pub(super) fn keep(&self, ret: usize, code: Code, unloads: &Unloads, read_in: Generation) {
        let (slot, rest) = place(ret);
        if read_in.settled().is_none() || rest >> REST != 0 || !ret.is_multiple_of(RETURN_UNIT) {
            return;
        }
        let rule = match code.rule {
            Rule::Constant(Step { base, cfa, saved }) => {
                let base = if base == Base::Stack { STACK } else { FRAME };
                base << BASE | u64::from(saved) << SAVED | u64::from(cfa)
            }
            Rule::FramePointer => OTHER << BASE | FRAME_POINTER,
            Rule::End => OTHER << BASE | END,
        };
        // The fence below is for this word, too.
        if self.used.load(Ordering::Relaxed) >> (slot / PER_PAGE) & 1 == 0 {
            self.used.fetch_or(1 << (slot / PER_PAGE), Ordering::Relaxed);
        }
        let slot = &self.slots[slot];
        let wrapper = (code.wrapper as u64) << WRAPPER;
        slot.store(rest << RULE | wrapper | rule, Ordering::Relaxed);
        // Pairs with the fence of `Unloads::end`. Either that one empties the cache of this rule,
        // or this thread sees that an unload began.
        fence(Ordering::SeqCst);
        if unloads.generation() != read_in {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Empties the cache, at the end of an unload.
    pub(super) fn forget(&self) {
        let used = self.used.load(Ordering::Relaxed);
        for (page, slots) in self.slots.chunks(PER_PAGE).enumerate() {
            if used >> page & 1 != 0 {
                slots.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
            }
        }
    }
}

const _: () = {
    assert!(SLOTS == PER_PAGE * u32::BITS as usize);
    // The address, the wrapper, the base, and both distances fill a word.
    assert!(ADDRESS_BITS - (SLOTS * RETURN_UNIT).trailing_zeros() <= REST && WRAPPER + 2 == RULE);
    assert!(Step::MAX_CFA == 1 << SAVED && Step::MAX_SAVED == 1 << (BASE - SAVED));
    assert!(Wrapper::Known as u64 == 1 && Wrapper::Chosen as u64 == 2);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Both, as an unwinder has them.
    struct Known {
        rules: Box<Rules>,
        unloads: Unloads,
    }

    impl Known {
        fn nothing() -> Self {
            // SAFETY: zeroed, the cache is empty.
            let rules = unsafe { Box::new_zeroed().assume_init() };
            Self { rules, unloads: Unloads::new() }
        }

        fn end_unload(&self) {
            self.unloads.end(|| self.rules.forget());
        }

        fn keep(&self, ret: usize, code: Code, read_in: Generation) {
            self.rules.keep(ret, code, &self.unloads, read_in);
        }
    }

    fn code(rule: Rule) -> Code {
        Code { rule, wrapper: Wrapper::No }
    }

    fn constant(base: Base, cfa: u32, saved: u32) -> Code {
        code(Rule::Constant(Step { base, cfa, saved }))
    }

    #[test]
    fn each_rule_is_found_by_its_address_alone() {
        let known = Known::nothing();
        let (max_cfa, max_saved) = (Step::MAX_CFA - 1, Step::MAX_SAVED - 1);
        let all = [
            constant(Base::Stack, 1, 0),
            constant(Base::Stack, max_cfa, max_saved),
            constant(Base::Frame, 2, 2),
            constant(Base::Frame, max_cfa, 0),
            Code { wrapper: Wrapper::Known, ..constant(Base::Stack, max_cfa, max_saved) },
            Code { wrapper: Wrapper::Chosen, ..constant(Base::Frame, 7, 0) },
            code(Rule::FramePointer),
            Code { wrapper: Wrapper::Known, ..code(Rule::End) },
        ];
        let base = 0x7fff_ffff_ff00;
        for (i, &rule) in all.iter().enumerate() {
            known.keep(base + 5 * RETURN_UNIT * i, rule, known.unloads.generation());
        }
        for (i, &rule) in all.iter().enumerate() {
            assert_eq!(known.rules.find(base + 5 * RETURN_UNIT * i), Some(rule));
            let step = match rule {
                Code { rule: Rule::Constant(step), wrapper } if wrapper != Wrapper::No => {
                    Some(step)
                }
                _ => None,
            };
            assert_eq!(known.rules.step_from_wrapper(base + 5 * RETURN_UNIT * i), step);
            assert_eq!(known.rules.find(base + 5 * RETURN_UNIT * i - NEAR * SLOTS), None);
            assert_eq!(known.rules.find((base + 5 * RETURN_UNIT * i) ^ 1), None);
        }
        assert_eq!(known.rules.find(0), None);
        assert_eq!(known.rules.find(1), None);
    }

    #[test]
    fn rules_of_an_unloaded_object_are_gone() {
        let known = Known::nothing();
        let rule = constant(Base::Stack, 3, 2);
        let before = known.unloads.generation();
        known.keep(0x1000, rule, before);
        known.unloads.begin();
        assert_eq!(known.unloads.generation().settled(), None);
        // Two at a time.
        known.unloads.begin();
        known.end_unload();
        assert_eq!(known.unloads.generation().settled(), None);
        known.end_unload();
        assert!(known.unloads.generation().settled().is_some());
        assert_eq!(known.rules.find(0x1000), None);
        // One that was read before, and is kept late.
        known.keep(0x1000, rule, before);
        assert_eq!(known.rules.find(0x1000), None);
        known.keep(0x1000, rule, known.unloads.generation());
        assert_eq!(known.rules.find(0x1000), Some(rule));
    }

    #[test]
    fn an_unload_that_a_fork_cut_off_does_not_last() {
        let known = Known::nothing();
        known.unloads.begin();
        known.unloads.forget();
        assert!(known.unloads.generation().settled().is_some());
        // The forking thread itself may be in it.
        known.end_unload();
        assert!(known.unloads.generation().settled().is_some());
    }
}
