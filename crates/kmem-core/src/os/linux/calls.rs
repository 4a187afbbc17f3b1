//! Instructions for calls, by the bytes before a return address.

/// Bytes of the longest call of x86-64: an opcode, two bytes that say where the address lies, and a
/// distance. A prefix may come before.
const X86_64: usize = 7;
/// Bytes of each instruction of AArch64.
const AARCH64: usize = 4;

/// Bytes before a return address that tell whether a call is there.
pub(super) const CALL: usize = if cfg!(target_arch = "aarch64") { AARCH64 } else { X86_64 };

/// Returns whether code may end with a call.
pub(super) fn ends_with_call(code: [u8; CALL]) -> bool {
    if cfg!(target_arch = "aarch64") {
        code.last_chunk().is_some_and(|code| ends_with_call_of_aarch64(*code))
    } else {
        code.first_chunk().is_some_and(|code| ends_with_call_of_x86_64(*code))
    }
}

/// [`ends_with_call`] for AArch64 (Arm Architecture Reference Manual, C6.2): `BL`, and `BLR` with
/// and without a signed address.
fn ends_with_call_of_aarch64(code: [u8; AARCH64]) -> bool {
    let code = u32::from_le_bytes(code);
    code & 0xfc00_0000 == 0x9400_0000 || code & 0xfeff_f000 == 0xd63f_0000
}

/// [`ends_with_call`] for x86-64 (Intel SDM, volume 2, `CALL`). A distance of four bytes follows
/// the opcode `E8`. After `FF /2` the byte `ModRM` says what follows: no, one or four bytes of
/// distance, and a byte before them for the register 4.
fn ends_with_call_of_x86_64(code: [u8; X86_64]) -> bool {
    let is_call = |len: usize| {
        let code = &code[X86_64 - len..];
        let modrm = code[1];
        let (kind, register) = (modrm >> 6, modrm & 7);
        let has_more = kind != 3 && register == 4;
        // In place of register 5, a distance alone.
        let base = if has_more { code.get(2).map_or(0, |more| more & 7) } else { register };
        let distance = match kind {
            0 if base == 5 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        code[0] == 0xff && modrm >> 3 & 7 == 2 && 2 + usize::from(has_more) + distance == len
    };
    code[X86_64 - 5] == 0xe8 || (2..=X86_64).any(is_call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_x86_64_are_known_by_their_last_bytes() {
        let calls: [&[u8]; 12] = [
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd7],
            &[0xff, 0x10],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x14, 0xc3],
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],
            &[0xff, 0x50, 8],
            &[0xff, 0x54, 0x24, 8],
            &[0xff, 0x90, 1, 2, 3, 4],
            &[0xff, 0x94, 0x24, 1, 2, 3, 4],
            &[0x41, 0xff, 0x54, 0x24, 8],
        ];
        let after = |bytes: &[u8]| {
            let mut code = [0x90; X86_64];
            let len = bytes.len().min(X86_64);
            code[X86_64 - len..].copy_from_slice(&bytes[bytes.len() - len..]);
            ends_with_call_of_x86_64(code)
        };
        for call in calls {
            assert!(after(call), "{call:x?}");
            assert!(!after(&call[..call.len() - 1]), "{call:x?}, cut off");
        }
        // Jumps, a push, and padding.
        let others: [&[u8]; 5] =
            [&[0xe9, 1, 2, 3, 4], &[0xff, 0xe0], &[0xff, 0x25, 1, 2, 3, 4], &[0xff, 0x75, 8], &[]];
        for other in others {
            assert!(!after(other), "{other:x?}");
        }
    }

    #[test]
    fn calls_of_aarch64_are_known() {
        // bl, blr x0, blr x30, blraa x3, x4, blrabz x5
        for call in [0x97ff_fff0, 0xd63f_0000, 0xd63f_03c0, 0xd73f_0864, 0xd63f_0cbf_u32] {
            assert!(ends_with_call_of_aarch64(call.to_le_bytes()), "{call:#x}");
        }
        // b, br x0, ret, cbz, nop, svc
        let others = [0x17ff_fff0, 0xd61f_0000, 0xd65f_03c0, 0x3400_0040, 0xd503_201f, 0xd400_0001];
        for other in others {
            assert!(!ends_with_call_of_aarch64(u32::to_le_bytes(other)), "{other:#x}");
        }
    }
}
