//! Loads of thread-local storage in code for AArch64 (Arm Architecture Reference Manual, C6.2).

#![cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "code of another machine"))]

use super::{GETTER, Load};

/// Value of a register, as far as the code says it.
#[derive(Clone, Copy)]
enum Value {
    Unknown,
    /// The thread pointer and a distance.
    Thread(usize),
    Address(usize),
    /// The word at an address, and a distance.
    Word(usize, usize),
    /// The word there.
    WordBehind(usize, usize),
    /// The result of a descriptor at an address, which is a distance from the thread pointer.
    Descriptor(usize),
}

/// The first load of thread-local storage in a function at an address, or the load of the word that
/// it returns. Instructions that are no part of such a load have no effect.
pub(super) fn load(code: &[u8; GETTER], function: usize) -> Option<Load> {
    let mut values = [Value::Unknown; 32];
    for (number, code) in code.as_chunks().0.iter().enumerate() {
        let (code, at) = (u32::from_le_bytes(*code), function.wrapping_add(4 * number));
        let register = |shift: u32| (code >> shift) as usize & 31;
        let immediate = (code >> 10) as usize & 0xfff;
        let (to, base, index) = (register(0), values[register(5)], values[register(16)]);
        match code {
            // mrs, of tpidr_el0
            _ if code & 0xffff_ffe0 == 0xd53b_d040 => values[to] = Value::Thread(0),
            // adrp
            _ if code & 0x9f00_0000 == 0x9000_0000 => {
                let high = (code << 8) as i32 >> 13 << 2;
                let pages = high | (code >> 29 & 3) as i32;
                let page = (at & !0xfff).wrapping_add_signed((pages as isize) << 12);
                values[to] = Value::Address(page);
            }
            // add, of a number that may be shifted by 12 bits
            _ if code & 0xff80_0000 == 0x9100_0000 => {
                let number = if code >> 22 & 1 == 0 { immediate } else { immediate << 12 };
                values[to] = match base {
                    Value::Thread(distance) => Value::Thread(distance.wrapping_add(number)),
                    Value::Address(at) => Value::Address(at.wrapping_add(number)),
                    Value::Word(at, distance) => Value::Word(at, distance.wrapping_add(number)),
                    _ => Value::Unknown,
                };
            }
            // ldr, at a distance
            _ if code & 0xffc0_0000 == 0xf940_0000 => match base {
                Value::Thread(distance) => {
                    return Some(Load::Offset(distance.wrapping_add(8 * immediate)));
                }
                Value::Address(at) => values[to] = Value::Word(at.wrapping_add(8 * immediate), 0),
                Value::Word(at, distance) => {
                    values[to] = Value::WordBehind(at, distance.wrapping_add(8 * immediate));
                }
                _ => values[to] = Value::Unknown,
            },
            // ldr, of two registers
            _ if code & 0xffe0_fc00 == 0xf860_6800 => match (base, index) {
                (Value::Thread(0), other) | (other, Value::Thread(0)) => return loaded(other),
                _ => values[to] = Value::Unknown,
            },
            // blr: the function of a descriptor changes no other register
            _ if code & 0xffff_fc1f == 0xd63f_0000 => {
                values[0] = match values[0] {
                    Value::Address(at) => Value::Descriptor(at),
                    _ => Value::Unknown,
                };
            }
            // ret
            0xd65f_03c0 => {
                return match values[0] {
                    Value::Word(at, 0) => Some(Load::Global(at)),
                    Value::WordBehind(at, distance) => Some(Load::Behind(at, distance)),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    None
}

/// A load at a distance from the thread pointer.
fn loaded(distance: Value) -> Option<Load> {
    match distance {
        Value::Word(at, 0) => Some(Load::Indirect(at)),
        Value::Descriptor(at) => Some(Load::Descriptor(at)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: &[u32]) -> Option<Load> {
        let mut code = [0; GETTER];
        for (to, from) in code.as_chunks_mut().0.iter_mut().zip(start) {
            *to = from.to_le_bytes();
        }
        load(&code, 0x2a_4cc0)
    }

    #[test]
    fn loads_of_thread_local_storage_are_known_by_their_code() {
        // mrs x0, tpidr_el0; add x0, x0, 0, lsl 12; add x0, x0, 0x18; ldr x0, [x0]; ret
        let executable =
            [0xd503_245f, 0xd53b_d040, 0x9140_0000, 0x9100_6000, 0xf940_0000, 0xd65f_03c0];
        assert_eq!(of(&executable), Some(Load::Offset(0x18)));
        let far = [0xd53b_d040, 0x9140_0400, 0xf940_0800, 0xd65f_03c0];
        assert_eq!(of(&far), Some(Load::Offset(0x1010)));
        // paciasp; mrs x1; ..; adrp x0; ldr x2, [x0, 176]; add x0, x0, 176; blr x2;
        // ldr x0, [x1, x0]
        let library = [
            0xd503_233f,
            0xd53b_d041,
            0xa9bf_7bfd,
            0x9100_03fd,
            0xb000_1fe0,
            0xf940_5802,
            0x9102_c000,
            0xd63f_0040,
            0xf860_6820,
        ];
        assert_eq!(of(&library), Some(Load::Descriptor(0x6a_10b0)));
        // adrp x1; mrs x0; ldr x1, [x1, 8]; ldr x0, [x0, x1]
        let early = [0xb000_1fe1, 0xd53b_d040, 0xf940_0421, 0xf861_6800];
        assert_eq!(of(&early), Some(Load::Indirect(0x6a_1008)));
        // adrp of a page before the code
        let before = [0xf0ff_ffe1, 0xd53b_d040, 0xf940_0421, 0xf861_6800];
        assert_eq!(of(&before), Some(Load::Indirect(0x2a_3008)));
        // adrp x0; add x0, x0, 8; ldr x0, [x0]; ret
        let global = [0xb000_1fe0, 0x9100_2000, 0xf940_0000, 0xd65f_03c0];
        assert_eq!(of(&global), Some(Load::Global(0x6a_1008)));
        // adrp x0; ldr x0, [x0, 3264]; add x0, x0, 0x250; ldr x0, [x0]; ret
        let imported = [0xb000_1fe0, 0xf946_6000, 0x9109_4000, 0xf940_0000, 0xd65f_03c0];
        assert_eq!(of(&imported), Some(Load::Behind(0x6a_1cc0, 0x250)));
        assert_eq!(of(&[0xd65f_03c0, 0xd53b_d040, 0xf940_0000]), None);
        assert_eq!(of(&[]), None);
    }
}
