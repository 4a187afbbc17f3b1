//! Rules of hand-made tables, and of damaged ones.

use super::*;
use proptest::prelude::*;

/// Address of the bytes of the object.
const ADDRESS: usize = 0x7000_0000;
/// Offset of `.eh_frame`.
const FRAMES: usize = 0x40;

const DEF_CFA: u8 = 0x0c;
const DEF_CFA_REGISTER: u8 = 0x0d;
const DEF_CFA_OFFSET: u8 = 0x0e;
const DEF_CFA_EXPRESSION: u8 = 0x0f;
const REMEMBER: u8 = 0x0a;
const RESTORE: u8 = 0x0b;
const UNDEFINED: u8 = 0x07;
const SAME_VALUE: u8 = 0x08;
const EXPRESSION: u8 = 0x10;
const ADVANCE: u8 = 0x40;
const OFFSET: u8 = 0x80;
const POINTER: u8 = FRAME_POINTER as u8;
const STACK: u8 = STACK_POINTER as u8;
const OTHER: u8 = 10;
const RETURN: u8 = RETURN_ADDRESS as u8;

/// A function: its first address, its length, and its instructions.
type Function<'a> = (usize, u32, &'a [u8]);

fn entry(bytes: &mut Vec<u8>, content: &[u8]) {
    let len = content.len().next_multiple_of(4);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len() + len - content.len(), 0);
}

/// The bytes of an object with functions in ascending order, all under one CIE. At their entry the
/// CFA is the stack pointer + 8, and the return address is there, as on x86-64.
fn table(augmentation: &str, functions: &[Function<'_>]) -> Vec<u8> {
    let mut header = vec![1, 0x1b, 0x03, 0x3b];
    header.extend((FRAMES as i32 - 4).to_ne_bytes());
    header.extend((functions.len() as u32).to_ne_bytes());
    let mut frames = Vec::new();
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(augmentation.bytes());
    // Alignments of code and data, the register of the return address, the encoding of pointers.
    cie.extend([0, 1, 0x78, RETURN, 1, 0x1b]);
    cie.extend([DEF_CFA, STACK, 8, OFFSET | RETURN, 1]);
    entry(&mut frames, &cie);
    for (start, len, instructions) in functions {
        let at = FRAMES + frames.len();
        header.extend((start.wrapping_sub(ADDRESS) as i32).to_ne_bytes());
        header.extend((at as i32).to_ne_bytes());
        let mut fde = ((at - FRAMES + 4) as u32).to_ne_bytes().to_vec();
        fde.extend((start.wrapping_sub(ADDRESS + at + 8) as i32).to_ne_bytes());
        fde.extend(len.to_ne_bytes());
        fde.push(0);
        fde.extend(*instructions);
        entry(&mut frames, &fde);
    }
    assert!(header.len() <= FRAMES);
    header.resize(FRAMES, 0);
    frames.extend([0; 4]);
    header.extend(frames);
    header
}

fn object(bytes: &[u8]) -> CodeObject<'_> {
    CodeObject { bytes, address: ADDRESS, header: 0, ..CodeObject::BARE }
}

/// The rule at an offset in a function of 100 bytes with these instructions.
fn rule_of(instructions: &[u8], offset: usize) -> Rule {
    let start = ADDRESS + 0x1000;
    rule(&object(&table("zR", &[(start, 100, instructions)])), start + offset)
}

fn stack(cfa: u32, saved: u32) -> Rule {
    Rule::Constant(Step { base: Base::Stack, cfa, saved })
}

fn frame(cfa: u32, saved: u32) -> Rule {
    Rule::Constant(Step { base: Base::Frame, cfa, saved })
}

#[test]
fn a_rule_is_that_of_the_call_before_the_return_address() {
    // push rbp; sub rsp, 32; ..; add rsp, 32; pop rbp
    let code = [
        ADVANCE | 1,
        DEF_CFA_OFFSET,
        16,
        OFFSET | POINTER,
        2,
        ADVANCE | 4,
        DEF_CFA_OFFSET,
        48,
        ADVANCE | 40,
        DEF_CFA_OFFSET,
        16,
        ADVANCE | 1,
        DEF_CFA_OFFSET,
        8,
    ];
    assert_eq!(rule_of(&code, 1), stack(1, 0));
    assert_eq!(rule_of(&code, 2), stack(2, 2));
    assert_eq!(rule_of(&code, 5), stack(2, 2));
    assert_eq!(rule_of(&code, 6), stack(6, 2));
    assert_eq!(rule_of(&code, 45), stack(6, 2));
    assert_eq!(rule_of(&code, 46), stack(2, 2));
    // A call at the end of the function returns behind it.
    assert_eq!(rule_of(&code, 100), stack(1, 2));
}

#[test]
fn a_frame_may_count_from_the_frame_pointer_and_restore_a_state() {
    // push rbp; mov rbp, rsp; ..; an early return; ..
    let code = [
        ADVANCE | 1,
        DEF_CFA_OFFSET,
        16,
        OFFSET | POINTER,
        2,
        ADVANCE | 3,
        DEF_CFA_REGISTER,
        POINTER,
        ADVANCE | 20,
        REMEMBER,
        DEF_CFA,
        STACK,
        8,
        ADVANCE | 1,
        RESTORE,
    ];
    assert_eq!(rule_of(&code, 10), frame(2, 2));
    assert_eq!(rule_of(&code, 25), stack(1, 2));
    assert_eq!(rule_of(&code, 50), frame(2, 2));
}

#[test]
fn the_longest_distances_are_the_limits_of_a_step() {
    let cfa = |bytes: u32| {
        let low = |shift: u32| (bytes >> shift) as u8 & 0x7f;
        let number = [low(0) | 0x80, low(7) | 0x80, low(14) | 0x80, low(21)];
        rule_of(&[&[DEF_CFA_OFFSET][..], &number].concat(), 10)
    };
    let most = Step::MAX_CFA - 1;
    assert_eq!(cfa(8 * most), stack(most, 0));
    assert_eq!(cfa(8 * most + 8), Rule::End);
    assert_eq!(cfa(0), Rule::End);
    assert_eq!(cfa(12), Rule::End);
    let saved = |words: u32| {
        let number = [words as u8 & 0x7f | 0x80, (words >> 7) as u8];
        let pointer = [&[OFFSET | POINTER][..], &number].concat();
        let above = [(words - 1) as u8 & 0x7f | 0x80, ((words - 1) >> 7) as u8];
        let ret = if IS_AARCH64 { [&[OFFSET | RETURN][..], &above].concat() } else { vec![] };
        rule_of(&[pointer, ret].concat(), 10)
    };
    let most = if IS_AARCH64 { Step::AT_BOTTOM } else { Step::MAX_SAVED } - 1;
    assert_eq!(saved(most), stack(1, most));
    assert_eq!(saved(most + 1), Rule::End);
    // There is the return address.
    assert_eq!(saved(1), Rule::End);
}

#[test]
fn frames_that_take_more_than_constants_end_a_chain() {
    // That of a procedure linkage table.
    let plt = [DEF_CFA_EXPRESSION, 4, 0x77, 8, 0x80, 0];
    assert_eq!(rule_of(&plt, 10), Rule::End);
    // A function that aligns its stack counts from another register.
    assert_eq!(rule_of(&[DEF_CFA, OTHER, 0], 10), Rule::End);
    assert_eq!(rule_of(&[EXPRESSION, POINTER, 2, 0x76, 0], 10), Rule::End);
    assert_eq!(rule_of(&[OFFSET | RETURN, 3], 10), Rule::End);
    // A thread begins here.
    assert_eq!(rule_of(&[UNDEFINED, RETURN], 10), Rule::End);
    assert_eq!(rule_of(&[SAME_VALUE, POINTER], 10), stack(1, 0));
    // A register of a number that no processor has, and an instruction that there is not.
    assert_eq!(rule_of(&[0x3f], 10), Rule::End);
    let start = ADDRESS + 0x1000;
    let signal = table("zRS", &[(start, 100, &[])]);
    assert_eq!(rule(&object(&signal), start + 10), Rule::End);
}

#[test]
#[cfg(target_arch = "aarch64")]
fn a_return_address_is_above_the_frame_pointer_or_at_the_stack_pointer() {
    const SIGNED: u8 = 0x2d;
    // stp x29, x30, [sp, -48]!; str x30, [sp, -32]!
    assert_eq!(
        rule_of(&[DEF_CFA_OFFSET, 48, OFFSET | POINTER, 6, OFFSET | RETURN, 5], 9),
        stack(6, 6)
    );
    let alone = [SIGNED, DEF_CFA_OFFSET, 32, OFFSET | RETURN, 4];
    assert_eq!(rule_of(&alone, 9), stack(4, Step::AT_STACK));
    // str x30, [sp, 8] after sub sp, sp, 32; stp x30, x29
    assert_eq!(rule_of(&[DEF_CFA_OFFSET, 32, OFFSET | RETURN, 3], 9), Rule::End);
    assert_eq!(rule_of(&[OFFSET | POINTER, 5, OFFSET | RETURN, 6], 9), Rule::End);
    // sub sp, sp, 9008; stp x29, x30, [sp], whose distance takes two bytes; and not at the bottom
    let long = [DEF_CFA_OFFSET, 0xb0, 0x46, OFFSET | POINTER, 0xe6, 8, OFFSET | RETURN, 0xe5, 8];
    assert_eq!(rule_of(&long, 9), stack(1126, Step::AT_BOTTOM));
    let above = [DEF_CFA_OFFSET, 0xb0, 0x46, OFFSET | POINTER, 0xe5, 8, OFFSET | RETURN, 0xe4, 8];
    assert_eq!(rule_of(&above, 9), Rule::End);
    // A function that did not save the return address.
    assert_eq!(rule_of(&[SAME_VALUE, RETURN], 9), Rule::End);
    let start = ADDRESS + 0x1000;
    let signed = table("zRB", &[(start, 100, &[])]);
    assert_eq!(rule(&object(&signed), start + 1), stack(1, 0));
}

#[test]
fn code_that_nothing_describes_has_the_rule_of_frame_pointers() {
    let start = ADDRESS + 0x1000;
    let two = table("zR", &[(start, 100, &[]), (start + 200, 50, &[DEF_CFA_OFFSET, 24])]);
    let two = object(&two);
    assert_eq!(rule(&two, start), Rule::FramePointer);
    assert_eq!(rule(&two, start + 1), stack(1, 0));
    assert_eq!(rule(&two, start + 101), Rule::FramePointer);
    assert_eq!(rule(&two, start + 201), stack(3, 0));
    assert_eq!(rule(&two, start + 251), Rule::FramePointer);
    assert_eq!(rule(&two, 0), Rule::FramePointer);
    assert_eq!(rule(&CodeObject::BARE, start), Rule::FramePointer);
    assert_eq!(rule(&object(&table("zR", &[])), start), Rule::FramePointer);
}

#[test]
fn a_table_in_another_encoding_is_not_read() {
    let start = ADDRESS + 0x1000;
    let good = table("zR", &[(start, 100, &[])]);
    assert_eq!(rule(&object(&good), start + 1), stack(1, 0));
    for byte in 0..4 {
        let mut bytes = good.clone();
        bytes[byte] ^= 0x40;
        assert_eq!(rule(&object(&bytes), start + 1), Rule::End, "{byte}");
    }
    let beyond = CodeObject { header: good.len() + 1, ..object(&good) };
    assert_eq!(rule(&beyond, start + 1), Rule::End);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The slice ends where the table ends, so a read beyond it would be a panic.
    #[test]
    fn damaged_tables_are_read_within_their_bytes(
        code in proptest::collection::vec(any::<u8>(), 0..24),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
        header in 0usize..4,
        at in 0usize..400,
    ) {
        let start = ADDRESS + 0x1000;
        let mut bytes = table("zR", &[(start, 100, &code), (start + 200, 100, &code)]);
        let len = bytes.len();
        for (index, byte) in damage {
            bytes[index.index(len)] = byte;
        }
        if cut {
            bytes.truncate(end.index(len));
        }
        // One case in four begins elsewhere, where the magic bytes are not.
        let header = if header == 3 { at } else { 0 };
        let object = CodeObject { header, ..object(&bytes) };
        for ret in [start + at, start + 1, start + 250, at, usize::MAX - at] {
            if let Rule::Constant(step) = rule(&object, ret) {
                prop_assert!(step.cfa > 0 && step.cfa < Step::MAX_CFA);
                prop_assert!(step.saved < Step::MAX_SAVED);
                prop_assert!(IS_AARCH64 || step.saved != Step::AT_STACK);
            }
        }
    }
}
