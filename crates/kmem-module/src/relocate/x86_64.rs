//! Relocations of x86-64 (System V ABI, AMD64 supplement, table 4.10).

use super::{Arch, Need, Refusal, Site, elf};
use crate::layout::VENEER;

pub(super) const ARCH: Arch = Arch { need, apply, veneer };

fn need(kind: u32) -> Need {
    match kind {
        elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => Need::Got,
        elf::R_X86_64_PLT32 => Need::Veneer,
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
        elf::R_X86_64_PC32 => site.write(&signed(site.relative_to(site.symbol))?),
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
        let mut site =
            Site { bytes: &mut bytes, place, symbol, addend, got: Some(place + 0x100), veneer };
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
