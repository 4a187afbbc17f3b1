//! The instructions that describe a function, one row of registers after the other.

use super::reader::Reader;
use super::{Common, FRAME_POINTER, IS_AARCH64, RETURN_ADDRESS};

/// States that a function remembers at a time; compilers nest one.
const REMEMBERED: usize = 4;

/// The place of a caller's register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The register itself.
    Same,
    /// Memory, at this distance from the CFA in bytes.
    Saved(i64),
    /// Nowhere, or what takes more to describe.
    Other,
}

/// The places of the registers that matter, at an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// A register, and the distance from it to the CFA in bytes. `None`: it takes more to describe.
    pub(super) cfa: Option<(u64, i64)>,
    /// The caller's frame pointer.
    pub(super) pointer: Place,
    /// The return address.
    pub(super) ret: Place,
}

impl Row {
    /// A row before any instruction. Functions keep the frame pointer for their callers.
    pub(super) const START: Self = Self { cfa: None, pointer: Place::Same, ret: Place::Other };

    fn set(&mut self, register: u64, place: Place) {
        match register {
            FRAME_POINTER => self.pointer = place,
            RETURN_ADDRESS => self.ret = place,
            _ => {}
        }
    }

    fn place(&self, register: u64) -> Place {
        if register == RETURN_ADDRESS { self.ret } else { self.pointer }
    }

    /// The row at address `at` in code that begins at `start` with this row. `first` is the row
    /// that registers can be restored to.
    pub(super) fn after(
        mut self,
        mut code: Reader<'_>,
        common: &Common<'_>,
        first: &Self,
        start: usize,
        at: usize,
    ) -> Option<Self> {
        let mut here = start;
        let mut remembered = [*first; REMEMBERED];
        let mut depth = 0;
        let scaled = |number: i64| number.wrapping_mul(common.data_align);
        while !code.is_empty() {
            let instruction = code.u8()?;
            let low = u64::from(instruction & 0x3f);
            let advance = |here: usize, by: u64| {
                here.wrapping_add(by.wrapping_mul(common.code_align) as usize)
            };
            let next = match (instruction & 0xc0, instruction) {
                (0x40, _) => advance(here, low),
                (0x80, _) => {
                    let distance = scaled(code.unsigned()? as i64);
                    self.set(low, Place::Saved(distance));
                    here
                }
                (0xc0, _) => {
                    self.set(low, first.place(low));
                    here
                }
                (_, 0x01) => code.pointer(common.pointers)?,
                (_, 0x02) => advance(here, code.u8()?.into()),
                (_, 0x03) => advance(here, code.u16()?.into()),
                (_, 0x04) => advance(here, code.u32()?.into()),
                (_, 0x0a) => {
                    *remembered.get_mut(depth)? = self;
                    depth += 1;
                    here
                }
                (_, 0x0b) => {
                    depth = depth.checked_sub(1)?;
                    self = remembered[depth];
                    here
                }
                (_, other) => {
                    self.change(other, &mut code, scaled, first)?;
                    here
                }
            };
            if next > at {
                break;
            }
            here = next;
        }
        Some(self)
    }

    /// An instruction that changes the row alone. `None`: there is no such instruction.
    fn change(
        &mut self,
        instruction: u8,
        code: &mut Reader<'_>,
        scaled: impl Fn(i64) -> i64,
        first: &Self,
    ) -> Option<()> {
        match instruction {
            // nop
            0x00 => {}
            // offset_extended, _sf, and negative_offset_extended
            0x05 | 0x11 | 0x2f => {
                let register = code.unsigned()?;
                let distance = scaled(match instruction {
                    0x05 => code.unsigned()? as i64,
                    0x11 => code.signed()?,
                    _ => (code.unsigned()? as i64).wrapping_neg(),
                });
                self.set(register, Place::Saved(distance));
            }
            // restore_extended
            0x06 => {
                let register = code.unsigned()?;
                self.set(register, first.place(register));
            }
            // undefined, same_value. A caller's frame pointer that is lost is one that it does not
            // need.
            0x07 | 0x08 => match code.unsigned()? {
                RETURN_ADDRESS => self.ret = Place::Other,
                register => self.set(register, Place::Same),
            },
            // register
            0x09 => {
                self.set(code.unsigned()?, Place::Other);
                code.unsigned()?;
            }
            // def_cfa, _register, _offset
            0x0c => self.cfa = Some((code.unsigned()?, code.unsigned()? as i64)),
            0x0d => {
                let register = code.unsigned()?;
                self.cfa = self.cfa.map(|(_, distance)| (register, distance));
            }
            0x0e => {
                let distance = code.unsigned()? as i64;
                self.cfa = self.cfa.map(|(register, _)| (register, distance));
            }
            // def_cfa_expression
            0x0f => {
                code.part()?;
                self.cfa = None;
            }
            // expression, val_expression
            0x10 | 0x16 => {
                self.set(code.unsigned()?, Place::Other);
                code.part()?;
            }
            // def_cfa_sf, def_cfa_offset_sf
            0x12 => self.cfa = Some((code.unsigned()?, scaled(code.signed()?))),
            0x13 => {
                let distance = scaled(code.signed()?);
                self.cfa = self.cfa.map(|(register, _)| (register, distance));
            }
            // val_offset, _sf
            0x14 | 0x15 => {
                self.set(code.unsigned()?, Place::Other);
                code.unsigned()?;
            }
            // AARCH64_negate_ra_state, _with_pc: the return address is signed from here on.
            0x2c | 0x2d if IS_AARCH64 => {}
            // GNU_args_size
            0x2e => {
                code.unsigned()?;
            }
            _ => return None,
        }
        Some(())
    }
}
