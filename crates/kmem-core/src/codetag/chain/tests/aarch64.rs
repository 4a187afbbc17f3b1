//! Frames whose return address is above the saved frame pointer.

use super::*;

#[test]
fn a_frame_of_aarch64_may_have_its_record_anywhere() {
    let found = Found::default();
    let mut machine = Machine::of(vec![0; 24]);
    // A's frame is words 3 to 8 with its record at 4. B's is 9 to 12 with a return address alone.
    (machine.words[1], machine.words[2]) = (machine.at(4), A);
    (machine.words[4], machine.words[5]) = (machine.at(14), B);
    machine.words[9] = C;
    // C has no table, and its record is at word 14 of a frame of unknown end. D's is at word 18.
    (machine.words[14], machine.words[15]) = (machine.at(18), D);
    (machine.words[18], machine.words[19]) = (0, E);
    found.rule(A, stack(6, 5));
    found.rule(B, stack(4, Step::AT_STACK));
    found.rule(D, stack(3, 3));
    found.rule(E, Rule::End);
    for _ in 0..2 {
        assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, D, E]);
    }
    // Without a record, the frame of D cannot be found.
    found.rule(D, stack(3, Step::AT_STACK));
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, D]);
    // A frame that begins with its record, which is at word 18.
    found.rule(D, stack(4, Step::AT_BOTTOM));
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B, C, D, E]);
    // The word of B that returns to C is signed.
    found.rule(D, Rule::End);
    machine.words[5] |= 0x55 << 48;
    assert_eq!(found.chain(&machine, A, 1, 3), [A, B, C]);
}

#[test]
fn a_frame_pointer_of_aarch64_does_not_lead_past_a_return_address_of_the_second_frame() {
    let found = Found::default();
    let mut machine = Machine::of(vec![0; 24]);
    // Neither A nor B has a table. A's record is at word 4, and B keeps none.
    (machine.words[1], machine.words[2]) = (machine.at(4), A);
    (machine.words[4], machine.words[5]) = (machine.at(13), B);
    machine.words[8] = C;
    machine.words[14] = D;
    let all = [B, C, D].map(|ret| (ret, Return::AfterCall));
    *machine.returns.borrow_mut() = all.to_vec();
    assert_eq!(found.chain(&machine, A, 1, 8), [A, B]);
}
