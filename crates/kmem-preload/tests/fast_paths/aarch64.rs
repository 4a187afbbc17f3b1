//! Instructions of AArch64. Only branches matter here, and there are few kinds of them (Arm
//! Architecture Reference Manual, C4.1, "Branches, Exception Generating and System instructions").

use super::{Flow, Step};

pub(crate) fn decode(code: &[u8], offset: usize, address: u64) -> Step {
    let at = address + offset as u64;
    let next = at + 4;
    let Some(word) = word(code, offset) else { return Step { flow: Flow::End, next } };
    // The distance is a field of `bits` bits that begins at bit `low`, in instructions.
    let to = |low: u32, bits: u32| {
        let distance = ((word << (32 - low - bits)) as i32 >> (32 - bits)) as i64;
        at.wrapping_add_signed(4 * distance)
    };
    let flow = match word >> 24 {
        // B, BL
        0x14..=0x17 => Flow::Jump(to(0, 26)),
        0x94..=0x97 => Flow::Call(to(0, 26)),
        // CBZ and CBNZ, B.cond
        0x34 | 0x35 | 0xb4 | 0xb5 | 0x54 => Flow::Branch(to(5, 19)),
        // TBZ and TBNZ
        0x36 | 0x37 | 0xb6 | 0xb7 => Flow::Branch(to(5, 14)),
        // BRK, SVC and others that enter the kernel
        0xd4 => Flow::End,
        0xd6 => match word & 0xffff_fc1f {
            0xd65f_0000 => Flow::Return,
            0xd61f_0000 => stub(code, offset, address).map_or(Flow::End, Flow::Bound),
            _ => Flow::End,
        },
        _ => Flow::Next,
    };
    Step { flow, next }
}

fn word(code: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(code.get(offset..offset + 4)?.try_into().ok()?))
}

/// The word through which a stub of the procedure linkage table jumps. The stub is `adrp x16`,
/// `ldr x17, [x16, n]`, `add x16`, `br x17`, and `offset` is that of its last instruction.
fn stub(code: &[u8], offset: usize, address: u64) -> Option<u64> {
    let first = offset.checked_sub(12)?;
    let (page, load) = (word(code, first)?, word(code, first + 4)?);
    if page & 0x9f00_001f != 0x9000_0010 || load & 0xffc0_03ff != 0xf940_0211 {
        return None;
    }
    // 21 bits of distance in pages: the two low ones are bits 29 and 30.
    let high = (page >> 5 & 0x7_ffff) << 2;
    let pages = ((high | page >> 29 & 3) << 11) as i32 >> 11;
    let here = (address + first as u64) & !0xfff;
    let within = u64::from(load >> 10 & 0xfff) * 8;
    Some(here.wrapping_add_signed(i64::from(pages) << 12) + within)
}
