//! Chains over made-up stacks and rules.

#[cfg(target_arch = "aarch64")]
mod aarch64;

use super::*;
use crate::os::{ADDRESS_BITS, Budget, Clock, CodeObject, Console, Cpus, Memory, Process};
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// A thread whose stack is `words`, and a program whose rules the tests put into the cache.
struct Machine {
    words: Vec<usize>,
    /// True if the thread does not know its stack.
    foreign: Cell<bool>,
    /// True if there is no memory.
    is_full: bool,
    /// Objects that the platform was asked for.
    asked: Cell<u32>,
    /// Answers about words. Of others, nothing is known.
    returns: RefCell<Vec<(usize, Return)>>,
}

// SAFETY: its memory is the standard allocator's, zeroed, and usable from the start.
unsafe impl Memory for Machine {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, align).expect("a layout");
        // SAFETY: the size is not zero.
        if self.is_full { None } else { NonNull::new(unsafe { alloc_zeroed(layout) }) }
    }
    unsafe fn release(&self, _: NonNull<u8>, _: usize) {
        unreachable!("one thread makes the caches")
    }
    unsafe fn commit(&self, _: NonNull<u8>, _: usize) -> bool {
        true
    }
    fn budget(&self) -> Budget {
        Budget::of(0, 1)
    }
}
// SAFETY: each test has a machine of its own, and one thread.
unsafe impl Sync for Machine {}
impl Cpus for Machine {}
impl Clock for Machine {}
impl Console for Machine {}
impl Process for Machine {
    fn stack(&self, at: usize) -> Option<Stack> {
        let (start, end) = (self.at(0), self.at(self.words.len()));
        let own = !self.foreign.get() && (start..end).contains(&at);
        // SAFETY: the words live as long as the machine.
        own.then(|| unsafe { Stack::new(at..end) })
    }
    fn peek(&self, at: usize, buf: &mut [u8]) -> usize {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let Some(from) = at.checked_sub(self.at(0)).filter(|&from| from < bytes.len()) else {
            return 0;
        };
        let len = buf.len().min(bytes.len() - from);
        buf[..len].copy_from_slice(&bytes[from..from + len]);
        len
    }
    fn with_object<T>(&self, _: usize, work: impl FnOnce(&CodeObject<'_>) -> T) -> Option<T> {
        self.asked.set(self.asked.get() + 1);
        let _ = work;
        None
    }
    fn return_address(&self, word: usize) -> Return {
        let returns = self.returns.borrow();
        let known = returns.iter().find(|(known, _)| *known == word);
        known.map_or(Return::Unknown, |&(_, answer)| answer)
    }
}

impl Machine {
    fn of(words: Vec<usize>) -> Self {
        let returns = RefCell::new(Vec::new());
        Self { words, foreign: Cell::new(false), is_full: false, asked: Cell::new(0), returns }
    }

    /// Address of a word.
    fn at(&self, word: usize) -> usize {
        self.words.as_ptr() as usize + 8 * word
    }
}

/// An unwinder, and the chains it has found. A tag is one more than the number of its chain.
#[derive(Default)]
struct Found {
    unwinder: Unwinder,
    chains: RefCell<Vec<&'static [u64]>>,
    /// Chains that were walked, not found by their trails.
    walks: Cell<u32>,
    /// Frames of the last chain that are in wrappers, and those that were chosen.
    skipped: Cell<(usize, usize)>,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        fn free<T: Sync>(table: &Made<T>) {
            if let Some(table) = table.get() {
                let at = std::ptr::from_ref(table).cast_mut().cast();
                // SAFETY: memory of the machine, with this layout, which nothing uses any more.
                unsafe { dealloc(at, Layout::new::<T>()) };
            }
        }
        free(&self.unwinder.rules);
        free(&self.unwinder.passages);
        free(&self.unwinder.trails);
    }
}

impl Found {
    fn rule(&self, ret: usize, rule: Rule) {
        self.code(ret, rule, Wrapper::No);
    }

    fn code(&self, ret: usize, rule: Rule, wrapper: Wrapper) {
        let Unwinder { unloads, rules, .. } = &self.unwinder;
        let rules = rules.get_or_make(&Machine::of(Vec::new())).expect("memory");
        let code = Code { rule, wrapper };
        rules.keep(ret, code, unloads, unloads.generation());
    }

    /// The chain of a call that returns to `ret`, whose record is at a word of the stack.
    fn chain(&self, machine: &Machine, ret: usize, record: usize, depth: u32) -> Vec<usize> {
        let caller = CallSite { address: ret, frame: machine.at(record) };
        let tag = self.unwinder.find_chain(machine, caller, depth, |tag| self.known(tag));
        let tag = tag.unwrap_or_else(|| self.walk(machine, caller, depth, depth));
        self.known(tag).iter().map(|&ret| ret as usize).collect()
    }

    fn known(&self, tag: TagId) -> &'static [u64] {
        self.chains.borrow().get(tag.0 as usize - 1).copied().unwrap_or_default()
    }

    /// The tag of the chain that a walk finds. It is kept for who asks for depth `asked`.
    fn walk(&self, machine: &Machine, caller: CallSite, calls: u32, asked: u32) -> TagId {
        self.walk_to(machine, caller, Depth { asked, ..Depth::of(calls) })
    }

    fn walk_to(&self, machine: &Machine, caller: CallSite, depth: Depth) -> TagId {
        self.unwinder.tag_of_chain(machine, caller, depth, |chain: &Chain| {
            self.walks.set(self.walks.get() + 1);
            let key = chain.key();
            self.skipped.set((key.wrappers, key.chosen));
            let frames = if key.frames.is_empty() { &[key.address] } else { key.frames };
            let frames: Vec<u64> = frames.iter().map(|&ret| ret as u64).collect();
            let mut chains = self.chains.borrow_mut();
            match chains.iter().position(|chain| **chain == *frames) {
                Some(at) => super::Found::Again(TagId(at as u32 + 1)),
                None => {
                    chains.push(frames.leak());
                    super::Found::New(TagId(chains.len() as u32))
                }
            }
        })
    }
}

fn stack(cfa: u32, saved: u32) -> Rule {
    Rule::Constant(Step { base: Base::Stack, cfa, saved })
}

/// Code at the highest addresses of a program.
const A: usize = (1 << ADDRESS_BITS) - 0xf0;
const B: usize = A + 16;
const C: usize = B + 16;
const D: usize = C + 16;
const E: usize = D + 16;

/// A chain of four calls. The frame at A has 4 words and saves the frame pointer. That at B has 3
/// words. That at C counts from the frame pointer, and D is where the thread begins.
fn four_frames(found: &Found) -> Machine {
    found.rule(A, stack(4, 2));
    found.rule(B, stack(3, 0));
    found.rule(C, Rule::Constant(Step { base: Base::Frame, cfa: 2, saved: 2 }));
    found.rule(D, Rule::End);
    let mut machine = Machine::of(vec![0; 24]);
    // The record of the call, at word 1.
    machine.words[2] = A;
    // A's frame is words 3 to 6, B's 7 to 9, C's 10 to 15.
    machine.words[5] = machine.at(14);
    machine.words[6] = B;
    machine.words[9] = C;
    machine.words[14] = 0x1234;
    machine.words[15] = D;
    machine
}

#[test]
fn a_chain_follows_the_rules_of_its_return_addresses() {
    let found = Found::default();
    let machine = four_frames(&found);
    for depth in 1..=4 {
        assert_eq!(found.chain(&machine, A, 1, depth), [A, B, C, D][..depth as usize]);
    }
    assert_eq!(found.chain(&machine, A, 1, 32), [A, B, C, D], "a thread begins in D");
    machine.foreign.set(true);
    assert_eq!(found.chain(&machine, A, 1, 32), [A, B, C, D], "by copies of the words");
    assert_eq!(machine.asked.get(), 0, "all rules were known");
}

#[test]
fn a_chain_that_was_walked_is_found_by_its_trail_as_long_as_all_words_are_the_same() {
    let found = Found::default();
    let mut machine = four_frames(&found);
    for _ in 0..5 {
        assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, D]);
    }
    assert_eq!(found.walks.get(), 2, "a chain that comes again is kept");
    // Another depth is another chain.
    assert_eq!(found.chain(&machine, A, 1, 3), [A, B, C]);
    assert_eq!(found.walks.get(), 3);
    // Each word that matters, changed: the outermost first, so that all others are as they were.
    found.rule(E, Rule::End);
    machine.words[15] = E;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, E]);
    machine.words[9] = E;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, E]);
    machine.words[6] = E;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, E]);
    assert_eq!(found.walks.get(), 6);
    machine.words[6] = B;
    machine.words[9] = C;
    machine.words[15] = D;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, D]);
    assert_eq!(found.walks.get(), 6, "the chain that was kept is still known");
    for _ in 0..3 {
        machine.words[6] = E;
        assert_eq!(found.chain(&machine, A, 1, 8), [A, E]);
        machine.words[6] = B;
        assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, D]);
    }
    assert_eq!(found.walks.get(), 7, "two chains of one place are both known");
    // The frame pointer leads to another frame, with the same words in the old place.
    machine.words[5] = machine.at(20);
    machine.words[21] = E;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, E]);
}

#[test]
fn a_trail_does_not_outlive_an_unload() {
    let found = Found::default();
    let mut machine = four_frames(&found);
    machine.words[7] = E;
    for _ in 0..2 {
        assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, D]);
    }
    found.unwinder.begin_unload();
    found.unwinder.end_unload();
    // Another object is there now, with another frame at A.
    found.rule(A, stack(5, 0));
    found.rule(E, Rule::End);
    assert_eq!(found.chain(&machine, A, 1, 8), [A, E]);
    // While an object is unloaded nothing is known. Without a table the frame pointer leads on, and
    // this one leads nowhere.
    found.unwinder.begin_unload();
    assert_eq!(found.chain(&machine, A, 1, 8), [A]);
    assert!(machine.asked.get() > 0);
    found.unwinder.end_unload();
}

#[test]
fn without_memory_for_the_caches_a_chain_is_walked_each_time() {
    let found = Found::default();
    let mut machine = Machine { is_full: true, ..Machine::of(vec![0; 16]) };
    machine.words[2] = A;
    machine.words[1] = machine.at(6);
    machine.words[7] = B;
    for walks in 1..3 {
        assert_eq!(found.chain(&machine, A, 1, 8), [A, B]);
        assert_eq!(found.walks.get(), walks);
    }
}

#[test]
fn a_chain_leads_through_wrappers_to_the_calls_that_count() {
    let found = Found::default();
    let machine = four_frames(&found);
    found.code(A, stack(4, 2), Wrapper::Known);
    assert_eq!(found.chain(&machine, A, 1, 1), [A, B]);
    assert_eq!(found.skipped.get(), (1, 0));
    for _ in 0..3 {
        assert_eq!(found.chain(&machine, A, 1, 2), [A, B, C]);
    }
    assert_eq!(found.walks.get(), 3, "the last one was found by its trail");
    found.code(B, stack(3, 0), Wrapper::Chosen);
    found.unwinder.begin_unload();
    found.unwinder.end_unload();
    four_frames(&found);
    found.code(A, stack(4, 2), Wrapper::Known);
    found.code(B, stack(3, 0), Wrapper::Chosen);
    assert_eq!(found.chain(&machine, A, 1, 1), [A, B, C]);
    assert_eq!(found.skipped.get(), (2, 2));
    // A wrapper behind other code has no effect.
    found.code(A, stack(4, 2), Wrapper::No);
    found.unwinder.begin_unload();
    found.unwinder.end_unload();
    four_frames(&found);
    found.code(B, stack(3, 0), Wrapper::Known);
    assert_eq!(found.chain(&machine, A, 1, 1), [A]);
    assert_eq!(found.chain(&machine, A, 1, 2), [A, B]);
    assert_eq!(found.skipped.get(), (0, 0));
}

#[test]
fn a_site_that_is_told_apart_is_so_by_a_call_that_is_in_no_wrapper() {
    let through = Depth { through: true, ..Depth::of(2) };
    let chain = |found: &Found, machine: &Machine, depth| {
        let caller = CallSite { address: A, frame: machine.at(1) };
        let tag = found.walk_to(machine, caller, depth);
        found.known(tag).iter().map(|&ret| ret as usize).collect::<Vec<_>>()
    };
    let found = Found::default();
    let machine = four_frames(&found);
    assert_eq!(chain(&found, &machine, through), [A, B]);
    found.code(B, stack(3, 0), Wrapper::Known);
    assert_eq!(chain(&found, &machine, Depth::of(2)), [A, B]);
    assert_eq!(chain(&found, &machine, through), [A, B, C]);
    assert_eq!(found.skipped.get(), (0, 0), "none of them comes before the site");
    // The site itself goes through a wrapper.
    found.code(A, stack(4, 2), Wrapper::Known);
    found.code(B, stack(3, 0), Wrapper::No);
    found.code(C, Rule::Constant(Step { base: Base::Frame, cfa: 2, saved: 2 }), Wrapper::Known);
    assert_eq!(chain(&found, &machine, through), [A, B, C, D]);
    assert_eq!(found.skipped.get(), (1, 0));
}

#[test]
fn a_chain_of_wrappers_alone_has_them_all() {
    let found = Found::default();
    let machine = four_frames(&found);
    let frame = Rule::Constant(Step { base: Base::Frame, cfa: 2, saved: 2 });
    for (ret, rule) in [(A, stack(4, 2)), (B, stack(3, 0)), (C, frame), (D, Rule::End)] {
        found.code(ret, rule, Wrapper::Known);
    }
    for walks in [1, 2, 2] {
        assert_eq!(found.chain(&machine, A, 1, 1), [A, B, C, D]);
        assert_eq!(found.walks.get(), walks);
    }
    machine.foreign.set(true);
    assert_eq!(found.chain(&machine, A, 1, 1), [A], "another stack is not read for this");
}

#[test]
fn a_call_in_a_wrapper_is_found_by_its_caller_at_any_depth_of_the_stack() {
    let found = Found::default();
    let mut machine = four_frames(&found);
    found.code(A, stack(4, 2), Wrapper::Known);
    // An equal call further down has its record at word 16.
    (machine.words[17], machine.words[20], machine.words[21]) = (A, machine.at(22), B);
    for walks in [1, 2, 2] {
        assert_eq!(found.chain(&machine, A, 1, 1), [A, B]);
        assert_eq!(found.walks.get(), walks);
    }
    assert_eq!(found.chain(&machine, A, 16, 1), [A, B]);
    assert_eq!(found.walks.get(), 2, "known by its addresses");
    machine.words[21] = C;
    assert_eq!(found.chain(&machine, A, 16, 1), [A, C]);
    assert_eq!(found.walks.get(), 3, "another caller");
    found.unwinder.begin_unload();
    found.unwinder.end_unload();
    found.code(A, stack(4, 2), Wrapper::Known);
    found.code(B, stack(3, 0), Wrapper::No);
    assert_eq!(found.chain(&machine, A, 1, 1), [A, B]);
    assert_eq!(found.walks.get(), 4, "an unload ends what is known");
}

#[test]
fn a_longer_chain_takes_the_place_of_a_shorter_one_that_was_forgotten() {
    let found = Found::default();
    let machine = four_frames(&found);
    for walks in [1, 2, 2] {
        assert_eq!(found.chain(&machine, A, 1, 1), [A]);
        assert_eq!(found.walks.get(), walks);
    }
    let caller = CallSite { address: A, frame: machine.at(1) };
    found.unwinder.forget_chain(&machine, caller, 1, TagId(1));
    let tags = [(); 2].map(|()| found.walk(&machine, caller, 2, 1));
    assert_eq!(tags, [TagId(2); 2]);
    assert_eq!(found.chain(&machine, A, 1, 1), [A, B]);
    assert_eq!(found.walks.get(), 4, "the chain is found by its trail");
}

#[test]
fn a_record_of_another_call_tells_nothing_of_the_callers() {
    let found = Found::default();
    let machine = four_frames(&found);
    assert_eq!(found.chain(&machine, B, 1, 8), [B]);
    assert_eq!(found.chain(&machine, A, 23, 8), [A]);
    let nowhere = CallSite { address: A, frame: 0 };
    let tag = found.unwinder.tag_of_chain(&machine, nowhere, Depth::of(8), |chain| {
        assert_eq!(chain.key().address, A);
        super::Found::New(TagId(1))
    });
    assert_eq!(tag, TagId(1));
}

#[test]
fn a_chain_ends_at_what_cannot_be_a_frame() {
    let found = Found::default();
    let good = |machine: &mut Machine| {
        machine.words = vec![0; 16];
        machine.words[2] = A;
        machine.words[5] = B;
    };
    let mut machine = Machine::of(Vec::new());
    // The frame ends at the top of the stack, above it, and where no code is.
    for (cfa, last) in [(13, Some(0)), (13, Some(4095)), (13, Some(1 << ADDRESS_BITS)), (14, None)]
    {
        good(&mut machine);
        found.rule(A, stack(3, 0));
        found.rule(B, stack(cfa - 3, 0));
        if let Some(last) = last {
            machine.words[15] = last;
        }
        assert_eq!(found.chain(&machine, A, 1, 8), [A, B], "{cfa} {last:?}");
        machine.foreign.set(true);
        assert_eq!(found.chain(&machine, A, 1, 8), [A, B], "{cfa} {last:?}, copied");
        machine.foreign.set(false);
    }
    good(&mut machine);
    found.rule(B, stack(10, 0));
    machine.words[15] = C;
    found.rule(C, Rule::End);
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C]);
}

#[test]
fn without_a_table_the_frame_pointer_leads_on_if_it_leads_upwards() {
    let found = Found::default();
    let mut machine = Machine::of(vec![0; 16]);
    machine.words[2] = A;
    machine.words[1] = machine.at(6);
    machine.words[6] = machine.at(10);
    machine.words[7] = B;
    machine.words[11] = C;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C]);
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C]);
    assert_eq!(found.walks.get(), 2, "other code may come there, so it is walked each time");
    assert!(machine.asked.get() >= 6);
    for pointer in [0, 1, machine.at(6) + 4, machine.at(2), machine.at(16), usize::MAX - 7] {
        machine.words[1] = pointer;
        assert_eq!(found.chain(&machine, A, 1, 8), [A], "{pointer:#x}");
    }
}

#[test]
fn a_frame_pointer_does_not_lead_past_a_return_address() {
    let found = Found::default();
    let mut machine = Machine::of(vec![0; 16]);
    // The code at A has no table. Its frame begins at word 3, and the pointer leads to word 8.
    machine.words[2] = A;
    machine.words[1] = machine.at(8);
    machine.words[9] = C;
    found.rule(C, Rule::End);
    let all = [(B, Return::AfterCall), (C, Return::AfterCall), (D, Return::NoCall)];
    *machine.returns.borrow_mut() = all.to_vec();
    // Data: zero, an address of the stack, and an address that follows no call.
    machine.words[4] = machine.at(10);
    machine.words[5] = D;
    for _ in 0..3 {
        assert_eq!(found.chain(&machine, A, 1, 8), [A, C]);
    }
    for at in 3..8 {
        let before = std::mem::replace(&mut machine.words[at], B);
        assert_eq!(found.chain(&machine, A, 1, 8), [A], "{at}");
        machine.foreign.set(true);
        assert_eq!(found.chain(&machine, A, 1, 8), [A], "{at}, copied");
        machine.foreign.set(false);
        machine.words[at] = before;
    }
    machine.words[10] = B;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, C], "the caller's words do not matter");
}

#[test]
fn a_frame_pointer_leads_to_a_call_or_out_of_all_objects() {
    let found = Found::default();
    let mut machine = Machine::of(vec![0; 16]);
    machine.words[2] = A;
    machine.words[1] = machine.at(6);
    machine.words[7] = B;
    for (answer, chain) in [
        (Return::AfterCall, &[A, B][..]),
        (Return::NoObject, &[A, B]),
        (Return::Unknown, &[A, B]),
        (Return::NoCall, &[A]),
    ] {
        *machine.returns.borrow_mut() = vec![(B, answer)];
        assert_eq!(found.chain(&machine, A, 1, 8), chain, "{answer:?}");
    }
}

#[test]
fn code_of_an_object_that_has_led_on_is_trusted() {
    let found = Found::default();
    let mut machine = Machine::of(vec![0; 16]);
    machine.words[2] = A;
    machine.words[1] = machine.at(8);
    machine.words[9] = C;
    found.rule(C, Rule::End);
    machine.words[5] = B;
    let returns = [A, B, C].map(|ret| (ret, Return::AfterCall));
    *machine.returns.borrow_mut() = returns.to_vec();
    assert_eq!(found.chain(&machine, A, 1, 8), [A]);
    machine.words[5] = 0;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, C]);
    // A word of an earlier call.
    machine.words[5] = B;
    assert_eq!(found.chain(&machine, A, 1, 8), [A, C]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is on the stack and in the rules, a walk stays on the stack. It finds the same
    /// chain each time, also by copies of the words.
    #[test]
    fn a_hostile_stack_gives_one_chain(
        words in proptest::collection::vec((0u8..6, 0usize..40), 8..40),
        rules in proptest::collection::vec((0u8..6, 1u32..12, 0u32..8), 6),
        depth in 1u32..33,
    ) {
        let found = Found::default();
        for (i, &(kind, cfa, saved)) in rules.iter().enumerate() {
            let saved = if saved == 1 { 0 } else { saved };
            found.rule(A + 16 * i, match kind {
                0 => Rule::FramePointer,
                1 => Rule::End,
                2 | 3 => Rule::Constant(Step { base: Base::Frame, cfa, saved }),
                _ => stack(cfa, saved),
            });
        }
        let mut machine = Machine::of(vec![0; words.len()]);
        for (i, &(kind, value)) in words.iter().enumerate() {
            machine.words[i] = match kind {
                0 => value,
                1 => machine.at(value),
                2 => machine.at(value) + 3,
                3 => usize::MAX - value,
                _ => A + 16 * (value % 7),
            };
        }
        machine.words[2] = A;
        let first = found.chain(&machine, A, 1, depth);
        prop_assert!(!first.is_empty() && first.len() <= depth as usize);
        prop_assert_eq!(&found.chain(&machine, A, 1, depth), &first);
        machine.foreign.set(true);
        prop_assert_eq!(&found.chain(&machine, A, 1, depth), &first);
    }
}
