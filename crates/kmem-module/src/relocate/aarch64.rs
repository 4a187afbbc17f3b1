//! Relocations of AArch64 (ELF for the Arm 64-bit Architecture, section 5.7).

use super::{Arch, Need, Refusal, Site, elf};
use crate::layout::VENEER;

pub(super) const ARCH: Arch = Arch { need, apply, veneer };

fn need(kind: u32) -> Need {
    match kind {
        elf::R_AARCH64_ADR_GOT_PAGE | elf::R_AARCH64_LD64_GOT_LO12_NC => Need::Got,
        elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26 => Need::Veneer,
        elf::R_AARCH64_ADR_PREL_LO21
        | elf::R_AARCH64_LD_PREL_LO19
        | elf::R_AARCH64_ADR_PREL_PG_HI21
        | elf::R_AARCH64_ADR_PREL_PG_HI21_NC
        | elf::R_AARCH64_ADD_ABS_LO12_NC
        | elf::R_AARCH64_LDST8_ABS_LO12_NC
        | elf::R_AARCH64_LDST16_ABS_LO12_NC
        | elf::R_AARCH64_LDST32_ABS_LO12_NC
        | elf::R_AARCH64_LDST64_ABS_LO12_NC
        | elf::R_AARCH64_LDST128_ABS_LO12_NC => Need::Near(0),
        _ => Need::Nothing,
    }
}

/// `ldr x16, #8; br x16`, followed by the target. A call may change x16.
fn veneer(target: u64) -> [u8; VENEER as usize] {
    let mut code = [0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6, 0, 0, 0, 0, 0, 0, 0, 0];
    code[8..].copy_from_slice(&target.to_le_bytes());
    code
}

/// Checks that `value` fits a signed number of `bits` bits.
fn fits(value: i64, bits: u32) -> Result<i64, Refusal> {
    let most = 1_i64 << (bits - 1);
    if (-most..most).contains(&value) { Ok(value) } else { Err(Refusal::Overflow(value)) }
}

/// Writes the low `bits` bits of `value` at bit `at` of the instruction, where they must be zero.
fn field(site: &mut Site<'_>, value: i64, at: u32, bits: u32) -> Result<(), Refusal> {
    let place = site.bytes.first_chunk_mut::<4>().ok_or(Refusal::Outside)?;
    let mask = ((1_u64 << bits) - 1) as u32;
    let word = u32::from_le_bytes(*place);
    if word & mask << at != 0 {
        return Err(Refusal::NotZero);
    }
    *place = (word | (value as u32 & mask) << at).to_le_bytes();
    Ok(())
}

/// Writes a branch over `value` bytes: the number of words, in `bits` bits at bit `at`.
fn branch(site: &mut Site<'_>, value: i64, at: u32, bits: u32) -> Result<(), Refusal> {
    if value & 3 != 0 {
        return Err(Refusal::Misaligned(value));
    }
    fits(value >> 2, bits)?;
    field(site, value >> 2, at, bits)
}

/// Writes the number of pages from the place's page to that of `target`, for ADRP.
fn pages(site: &mut Site<'_>, target: i64, check: bool) -> Result<(), Refusal> {
    let value = (target >> 12) - (site.place.cast_signed() >> 12);
    if check {
        fits(value, 21)?;
    }
    field(site, value, 29, 2)?;
    field(site, value >> 2, 5, 19)
}

/// Writes the offset of `target` in its page, in units of `1 << shift` bytes.
fn in_page(site: &mut Site<'_>, target: i64, shift: u32) -> Result<(), Refusal> {
    let value = target & 0xfff;
    if value & ((1 << shift) - 1) != 0 {
        return Err(Refusal::Misaligned(value));
    }
    field(site, value >> shift, 10, 12)
}

/// Makes `ldr x, [page, table]` of `add x, page, variable`. Its ADRP has the page of the table.
fn load(site: &mut Site<'_>, far: u64) -> Result<(), Refusal> {
    let place = site.bytes.first_chunk_mut::<4>().ok_or(Refusal::Outside)?;
    let word = u32::from_le_bytes(*place);
    if word & 0xffff_fc00 != 0x9100_0000 {
        return Err(Refusal::Direct);
    }
    *place = (0xf940_0000 | word & 0x3ff).to_le_bytes();
    in_page(site, far.cast_signed(), 3)
}

/// Applies a relocation for a per-CPU variable that is out of reach.
fn apply_far(kind: u32, site: &mut Site<'_>, far: u64) -> Result<(), Refusal> {
    match kind {
        elf::R_AARCH64_ADR_PREL_PG_HI21 | elf::R_AARCH64_ADR_PREL_PG_HI21_NC => {
            pages(site, far.cast_signed(), true)
        }
        elf::R_AARCH64_ADD_ABS_LO12_NC => load(site, far),
        _ => Err(Refusal::Direct),
    }
}

fn apply(kind: u32, site: &mut Site<'_>) -> Result<(), Refusal> {
    if let Some(far) = site.far {
        return apply_far(kind, site, far);
    }
    let absolute = site.absolute();
    let relative = site.relative_to(site.symbol);
    let word = |value: i64| -> Result<[u8; 4], Refusal> {
        // The ABI accepts signed and unsigned values of 32 bits.
        if (-(1_i64 << 31)..1_i64 << 32).contains(&value) {
            Ok((value as u32).to_le_bytes())
        } else {
            Err(Refusal::Overflow(value))
        }
    };
    match kind {
        elf::R_AARCH64_NONE | 256 => Ok(()),
        elf::R_AARCH64_ABS64 => site.write(&absolute.to_le_bytes()),
        elf::R_AARCH64_PREL64 => site.write(&relative.to_le_bytes()),
        elf::R_AARCH64_ABS32 => site.write(&word(absolute)?),
        elf::R_AARCH64_PREL32 => site.write(&word(relative)?),
        elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26 => {
            let value = match (fits(relative, 28), site.veneer) {
                (Err(_), Some(veneer)) => site.relative_to(veneer),
                _ => relative,
            };
            branch(site, value, 0, 26)
        }
        elf::R_AARCH64_CONDBR19 | elf::R_AARCH64_LD_PREL_LO19 => branch(site, relative, 5, 19),
        elf::R_AARCH64_TSTBR14 => branch(site, relative, 5, 14),
        elf::R_AARCH64_ADR_PREL_LO21 => {
            fits(relative, 21)?;
            field(site, relative, 29, 2)?;
            field(site, relative >> 2, 5, 19)
        }
        elf::R_AARCH64_ADR_PREL_PG_HI21 => pages(site, absolute, true),
        elf::R_AARCH64_ADR_PREL_PG_HI21_NC => pages(site, absolute, false),
        elf::R_AARCH64_ADD_ABS_LO12_NC | elf::R_AARCH64_LDST8_ABS_LO12_NC => {
            in_page(site, absolute, 0)
        }
        elf::R_AARCH64_LDST16_ABS_LO12_NC => in_page(site, absolute, 1),
        elf::R_AARCH64_LDST32_ABS_LO12_NC => in_page(site, absolute, 2),
        elf::R_AARCH64_LDST64_ABS_LO12_NC => in_page(site, absolute, 3),
        elf::R_AARCH64_LDST128_ABS_LO12_NC => in_page(site, absolute, 4),
        elf::R_AARCH64_ADR_GOT_PAGE => {
            let got = site.got.ok_or(Refusal::Changed)?.cast_signed();
            pages(site, got.wrapping_add(site.addend), true)
        }
        elf::R_AARCH64_LD64_GOT_LO12_NC => {
            let got = site.got.ok_or(Refusal::Changed)?.cast_signed();
            in_page(site, got.wrapping_add(site.addend), 3)
        }
        elf::R_AARCH64_COPY => Err(Refusal::Kind("R_AARCH64_COPY")),
        elf::R_AARCH64_JUMP_SLOT => Err(Refusal::Kind("R_AARCH64_JUMP_SLOT")),
        elf::R_AARCH64_RELATIVE => Err(Refusal::Kind("R_AARCH64_RELATIVE")),
        512..=573 => Err(Refusal::Kind("thread-local storage (R_AARCH64_TLS..)")),
        _ => Err(Refusal::Kind("an unknown type of relocation")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The instruction `code` at 0x10_0000 after relocation.
    fn run(code: u32, kind: u32, symbol: u64, veneer: Option<u64>) -> Option<u32> {
        let mut bytes = code.to_le_bytes();
        let (before, place, got) = (&mut [][..], 0x10_0000, Some(0x20_0018));
        let bytes_of = &mut bytes;
        let mut site =
            Site { before, bytes: bytes_of, place, symbol, addend: 0, got, veneer, far: None };
        apply(kind, &mut site).ok().map(|()| u32::from_le_bytes(bytes))
    }

    #[test]
    fn the_address_of_a_far_variable_is_loaded_and_no_other_instruction_has_it() {
        let run = |code: u32, kind: u32| {
            let (mut bytes, before) = (code.to_le_bytes(), &mut [][..]);
            let (place, symbol, far) = (0x10_0000, 1 << 40, Some(0x20_0018));
            let bytes_of = &mut bytes;
            let mut site = Site {
                before,
                bytes: bytes_of,
                place,
                symbol,
                addend: 0,
                got: None,
                veneer: None,
                far,
            };
            apply(kind, &mut site).ok().map(|()| u32::from_le_bytes(bytes))
        };
        // adrp x1, variable; add x2, x1, :lo12:variable: ldr x2, [x1, #0x18]
        assert_eq!(run(0x9000_0001, elf::R_AARCH64_ADR_PREL_PG_HI21), Some(0x9000_0801));
        assert_eq!(run(0x9100_0022, elf::R_AARCH64_ADD_ABS_LO12_NC), Some(0xf940_0c22));
        // add w2, w1, ..; ldr x2, [x1, :lo12:variable]; adr x1, variable
        assert_eq!(run(0x1100_0022, elf::R_AARCH64_ADD_ABS_LO12_NC), None);
        assert_eq!(run(0xf940_0022, elf::R_AARCH64_LDST64_ABS_LO12_NC), None);
        assert_eq!(run(0x1000_0001, elf::R_AARCH64_ADR_PREL_LO21), None);
    }

    #[test]
    fn instructions_are_as_an_assembler_makes_them() {
        // bl .+0x1000; b .-4; b.eq .+8; tbz w0, #0, .+8; adr x0, .+5
        assert_eq!(run(0x9400_0000, elf::R_AARCH64_CALL26, 0x10_1000, None), Some(0x9400_0400));
        assert_eq!(run(0x1400_0000, elf::R_AARCH64_JUMP26, 0x0f_fffc, None), Some(0x17ff_ffff));
        assert_eq!(run(0x5400_0000, elf::R_AARCH64_CONDBR19, 0x10_0008, None), Some(0x5400_0040));
        assert_eq!(run(0x3600_0000, elf::R_AARCH64_TSTBR14, 0x10_0008, None), Some(0x3600_0040));
        assert_eq!(
            run(0x1000_0000, elf::R_AARCH64_ADR_PREL_LO21, 0x10_0005, None),
            Some(0x3000_0020)
        );
        // adrp x0, 0x200000; add x0, x0, #0x123; ldr x0, [x0, #0x18]
        assert_eq!(
            run(0x9000_0000, elf::R_AARCH64_ADR_PREL_PG_HI21, 0x20_0123, None),
            Some(0x9000_0800)
        );
        assert_eq!(
            run(0x9100_0000, elf::R_AARCH64_ADD_ABS_LO12_NC, 0x20_0123, None),
            Some(0x9104_8c00)
        );
        assert_eq!(
            run(0xf940_0000, elf::R_AARCH64_LDST64_ABS_LO12_NC, 0x20_0018, None),
            Some(0xf940_0c00)
        );
        assert_eq!(run(0x9000_0000, elf::R_AARCH64_ADR_GOT_PAGE, 0, None), Some(0x9000_0800));
        assert_eq!(run(0xf940_0000, elf::R_AARCH64_LD64_GOT_LO12_NC, 0, None), Some(0xf940_0c00));
    }

    #[test]
    fn what_is_out_of_reach_goes_through_the_veneer_or_is_refused() {
        let far = 0x1000_0000_0000;
        let call = elf::R_AARCH64_CALL26;
        assert_eq!(run(0x9400_0000, call, far, Some(0x10_1000)), Some(0x9400_0400));
        assert_eq!(run(0x9400_0000, call, far, None), None);
        assert_eq!(run(0x9400_0000, call, 0x10_1002, None), None);
        assert_eq!(run(0x9000_0000, elf::R_AARCH64_ADR_PREL_PG_HI21, far, None), None);
        assert_eq!(run(0xf940_0000, elf::R_AARCH64_LDST64_ABS_LO12_NC, 0x20_0014, None), None);
        assert_eq!(run(0, elf::R_AARCH64_TLSLE_ADD_TPREL_HI12, 0, None), None);
        // ldr x16, #8; br x16
        assert_eq!(&veneer(0x1122)[..8], [0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6]);
    }
}
