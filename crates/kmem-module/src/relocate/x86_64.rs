//! Relocations of x86-64 (System V ABI, AMD64 supplement, table 4.10).

use super::{Arch, Need, Refusal, Site, elf};
use crate::layout::VENEER;

pub(super) const ARCH: Arch = Arch { need, apply, veneer };

fn need(kind: u32) -> Need {
    match kind {
        elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => Need::Got,
        elf::R_X86_64_PLT32 => Need::Veneer,
        // The place is the last of its instruction, and the value relative to the next one.
        elf::R_X86_64_PC32 => Need::Near(4),
        _ => Need::Nothing,
    }
}

/// `jmp *0(%rip)`, followed by the target and two bytes that trap.
fn veneer(target: u64) -> [u8; VENEER as usize] {
    let mut code = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xcc, 0xcc];
    code[6..14].copy_from_slice(&target.to_le_bytes());
    code
}

fn signed(value: i64) -> Result<[u8; 4], Refusal> {
    i32::try_from(value).map(i32::to_le_bytes).map_err(|_| Refusal::Overflow(value))
}

/// Makes `mov table(%rip), %reg` of `lea variable(%rip), %reg`, which has the same length.
fn load(site: &mut Site<'_>, far: u64) -> Result<(), Refusal> {
    // `vpermb`, whose last bytes are those of lea. Its first ones are the prefix EVEX.
    if let Some([0x62, map, prefix, ..]) = site.before.last_chunk::<6>()
        && map & 0xf == 2
        && prefix & 7 == 5
    {
        return Err(Refusal::Direct);
    }
    // REX.W, the opcode of lea, and a ModRM for %rip.
    match site.before.last_chunk_mut::<3>() {
        Some([rex, code @ 0x8d, register]) if *rex & 0xf8 == 0x48 && *register & 0xc7 == 5 => {
            *code = 0x8b;
        }
        _ => return Err(Refusal::Direct),
    }
    let next = site.place.wrapping_add(4);
    site.write(&signed(far.wrapping_sub(next).cast_signed())?)
}

fn apply(kind: u32, site: &mut Site<'_>) -> Result<(), Refusal> {
    match kind {
        elf::R_X86_64_NONE => Ok(()),
        elf::R_X86_64_64 => site.write(&site.absolute().to_le_bytes()),
        elf::R_X86_64_32 => {
            let value = site.absolute();
            let short = u32::try_from(value).map_err(|_| Refusal::Overflow(value))?;
            site.write(&short.to_le_bytes())
        }
        elf::R_X86_64_32S => site.write(&signed(site.absolute())?),
        elf::R_X86_64_PC32 => match site.far {
            Some(far) => load(site, far),
            None => site.write(&signed(site.relative_to(site.symbol))?),
        },
        elf::R_X86_64_PC64 => site.write(&site.relative_to(site.symbol).to_le_bytes()),
        elf::R_X86_64_PLT32 => {
            let value = match (signed(site.relative_to(site.symbol)), site.veneer) {
                (Err(_), Some(veneer)) => signed(site.relative_to(veneer)),
                (value, _) => value,
            };
            site.write(&value?)
        }
        elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => {
            let got = site.got.ok_or(Refusal::Changed)?;
            site.write(&signed(site.relative_to(got))?)
        }
        other => Err(Refusal::Kind(name(other))),
    }
}

fn name(kind: u32) -> &'static str {
    match kind {
        elf::R_X86_64_COPY => "R_X86_64_COPY",
        elf::R_X86_64_GLOB_DAT => "R_X86_64_GLOB_DAT",
        elf::R_X86_64_JUMP_SLOT => "R_X86_64_JUMP_SLOT",
        elf::R_X86_64_RELATIVE => "R_X86_64_RELATIVE",
        elf::R_X86_64_IRELATIVE => "R_X86_64_IRELATIVE",
        elf::R_X86_64_16 => "R_X86_64_16",
        elf::R_X86_64_8 => "R_X86_64_8",
        elf::R_X86_64_PC16 => "R_X86_64_PC16",
        elf::R_X86_64_PC8 => "R_X86_64_PC8",
        elf::R_X86_64_DTPMOD64
        | elf::R_X86_64_DTPOFF64
        | elf::R_X86_64_TPOFF64
        | elf::R_X86_64_TLSGD
        | elf::R_X86_64_TLSLD
        | elf::R_X86_64_DTPOFF32
        | elf::R_X86_64_GOTTPOFF
        | elf::R_X86_64_TPOFF32
        | elf::R_X86_64_GOTPC32_TLSDESC
        | elf::R_X86_64_TLSDESC_CALL
        | elf::R_X86_64_TLSDESC => "thread-local storage (R_X86_64_TLS..)",
        elf::R_X86_64_GOTOFF64
        | elf::R_X86_64_GOTPC32
        | elf::R_X86_64_GOT64
        | elf::R_X86_64_GOTPCREL64
        | elf::R_X86_64_GOTPC64
        | elf::R_X86_64_PLTOFF64
        | elf::R_X86_64_GOT32 => "the large code model (R_X86_64_GOT..)",
        _ => "an unknown type of relocation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: u32, symbol: u64, addend: i64, veneer: Option<u64>) -> Result<Vec<u8>, String> {
        let mut bytes = [0_u8; 8];
        let place = 0x1_0000_0000;
        let (before, got) = (&mut [][..], Some(place + 0x100));
        let bytes_of = &mut bytes;
        let mut site =
            Site { before, bytes: bytes_of, place, symbol, addend, got, veneer, far: None };
        match apply(kind, &mut site) {
            Ok(()) => Ok(bytes.to_vec()),
            Err(Refusal::Overflow(value)) => Err(format!("overflow {value:#x}")),
            Err(Refusal::Kind(name)) => Err(name.to_owned()),
            Err(_) => Err("other".to_owned()),
        }
    }

    #[test]
    fn values_are_those_of_the_psabi() {
        let near = 0x1_0000_0000 + 0x1000;
        let bytes = |value: i32| [&value.to_le_bytes()[..], &[0; 4]].concat();
        assert_eq!(run(elf::R_X86_64_64, near, 8, None).unwrap(), (near + 8).to_le_bytes());
        assert_eq!(run(elf::R_X86_64_PC32, near, -4, None).unwrap(), bytes(0xffc));
        assert_eq!(run(elf::R_X86_64_PLT32, near, -4, None).unwrap(), bytes(0xffc));
        assert_eq!(run(elf::R_X86_64_GOTPCRELX, 5, -4, None).unwrap(), bytes(0xfc));
        assert_eq!(run(elf::R_X86_64_32, 0xffff_fff0, 0xf, None).unwrap(), bytes(-1));
        assert_eq!(run(elf::R_X86_64_32S, u64::MAX, 0, None).unwrap(), bytes(-1));
        assert_eq!(run(elf::R_X86_64_PC64, near, 0, None).unwrap(), 0x1000_u64.to_le_bytes());
    }

    #[test]
    fn the_address_of_a_far_variable_is_loaded_and_no_other_instruction_has_it() {
        let run = |code: &[u8]| {
            let (mut before, mut bytes) = (code.to_vec(), [0; 4]);
            let (before_of, place) = (&mut before[..], 0x1000);
            let mut site = Site {
                before: before_of,
                bytes: &mut bytes,
                place,
                symbol: 1 << 40,
                addend: -4,
                got: None,
                veneer: None,
                far: Some(0x2000),
            };
            let done = apply(elf::R_X86_64_PC32, &mut site);
            done.is_ok().then_some([before, bytes.to_vec()].concat())
        };
        // lea x(%rip), %rdi; lea x(%rip), %r9; with bytes of the instruction before it.
        assert_eq!(
            run(&[0xc3, 0x48, 0x8d, 0x3d]),
            Some(vec![0xc3, 0x48, 0x8b, 0x3d, 0xfc, 15, 0, 0])
        );
        assert!(run(&[0x62, 0, 0, 0x48, 0x8d, 0x3d]).is_some());
        assert_eq!(run(&[0x4c, 0x8d, 0x0d]), Some(vec![0x4c, 0x8b, 0x0d, 0xfc, 15, 0, 0]));
        // mov x(%rip), %rax; lea x(%rip), %eax; lea x(%rax), %rdi; incq x(%rip); nothing before;
        // vpermb x(%rip), %zmm0, %zmm0.
        for other in [
            &[0x48, 0x8b, 5][..],
            &[0x90, 0x8d, 5],
            &[0x48, 0x8d, 0xb8],
            &[0x48, 0xff, 5],
            &[],
            &[0x62, 0xf2, 0x7d, 0x48, 0x8d, 5],
        ] {
            assert_eq!(run(other), None, "{other:x?}");
        }
    }

    #[test]
    fn what_is_out_of_reach_goes_through_the_veneer_or_is_refused() {
        let far = 0x7fff_0000_0000;
        let veneer = 0x1_0000_2000;
        let bytes = [&0x1ffc_i32.to_le_bytes()[..], &[0; 4]].concat();
        assert_eq!(run(elf::R_X86_64_PLT32, far, -4, Some(veneer)).unwrap(), bytes);
        for kind in [elf::R_X86_64_PLT32, elf::R_X86_64_PC32, elf::R_X86_64_32, elf::R_X86_64_32S] {
            assert!(run(kind, far, -4, None).unwrap_err().starts_with("overflow"), "{kind}");
        }
        assert!(run(elf::R_X86_64_32, 0, -1, None).is_err());
        assert!(run(elf::R_X86_64_PC32, far, i64::MIN, None).is_err());
        assert!(run(elf::R_X86_64_TPOFF32, 0, 0, None).unwrap_err().contains("thread-local"));
    }
}
