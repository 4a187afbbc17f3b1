//! Instructions of x86-64.

use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::{Flow, Step};

pub(crate) fn decode(code: &[u8], offset: usize, address: u64) -> Step {
    let at = address + offset as u64;
    let instruction = Decoder::with_ip(64, &code[offset..], at, DecoderOptions::NONE).decode();
    let flow = match instruction.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::UnconditionalBranch => Flow::Jump(instruction.near_branch_target()),
        FlowControl::ConditionalBranch => Flow::Branch(instruction.near_branch_target()),
        FlowControl::Call => Flow::Call(instruction.near_branch_target()),
        FlowControl::Return => Flow::Return,
        FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => {
            Flow::Bound(instruction.ip_rel_memory_address())
        }
        _ => Flow::End,
    };
    Step { flow, next: instruction.next_ip() }
}
