//! Loads of thread-local storage in code for x86-64.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "code of another machine"))]

use super::{GETTER, Load};

/// A load of a word, with distances from its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distance {
    /// At a distance from the thread pointer.
    Offset(u32),
    /// At a distance that lies in a word, which is at a distance from the code.
    Indirect(u32),
    /// By a module and an offset, which lie at a distance from the code, and a further offset.
    Index(u32, u32),
}

/// The first load of thread-local storage in a function at an address.
pub(super) fn load(code: &[u8; GETTER], function: usize) -> Option<Load> {
    let (at, load) = find(code)?;
    let place = |number: u32| function.wrapping_add(at).wrapping_add(number as i32 as usize);
    Some(match load {
        Distance::Offset(offset) => Load::Offset(offset as i32 as usize),
        Distance::Indirect(distance) => Load::Indirect(place(distance)),
        Distance::Index(distance, offset) => Load::Index(place(distance), offset as i32 as usize),
    })
}

/// The first load in code, and the place in the code that its distance counts from.
fn find(code: &[u8; GETTER]) -> Option<(usize, Distance)> {
    (0..GETTER).find_map(|at| {
        let has = |at: usize, bytes: &[u8]| code.get(at..).is_some_and(|it| it.starts_with(bytes));
        let number = |at: usize| Some(u32::from_le_bytes(*code.get(at..)?.first_chunk()?));
        if has(at, &[0x64, 0x48, 0x8b, 0x04, 0x25]) {
            return Some((0, Distance::Offset(number(at + 5)?)));
        }
        if has(at, &[0x48, 0x8b, 0x05]) && has(at + 7, &[0x64, 0x48, 0x8b, 0x00]) {
            return Some((at + 7, Distance::Indirect(number(at + 3)?)));
        }
        let calls = |at| has(at, &[0x66, 0x66, 0x48, 0xe8]) || has(at, &[0x66, 0x48, 0xff, 0x15]);
        if has(at, &[0x66, 0x48, 0x8d, 0x3d]) && calls(at + 8) {
            let offset = has(at + 16, &[0x48, 0x8b, 0x00]).then_some(0)?;
            return Some((at + 8, Distance::Index(number(at + 4)?, offset)));
        }
        if has(at, &[0x48, 0x8d, 0x3d]) && has(at + 7, &[0xe8]) {
            let offset = match () {
                () if has(at + 12, &[0x48, 0x8b, 0x00]) => 0,
                () if has(at + 12, &[0x48, 0x8b, 0x40]) => {
                    i32::from(*code.get(at + 15)? as i8).cast_unsigned()
                }
                () if has(at + 12, &[0x48, 0x8b, 0x80]) => number(at + 15)?,
                () => return None,
            };
            return Some((at + 7, Distance::Index(number(at + 3)?, offset)));
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: &[u8]) -> Option<(usize, Distance)> {
        let mut code = [0x90; GETTER];
        code[..start.len()].copy_from_slice(start);
        find(&code)
    }

    #[test]
    fn loads_of_thread_local_storage_are_known_by_their_code() {
        let executable =
            [0xf3, 0x0f, 0x1e, 0xfa, 0x64, 0x48, 0x8b, 4, 0x25, 0xf8, 0xff, 0xff, 0xff];
        assert_eq!(of(&executable), Some((0, Distance::Offset(-8i32 as u32))));
        let library = [
            [0x48, 0x83, 0xec, 8].as_slice(),
            &[0x66, 0x48, 0x8d, 0x3d, 0xf4, 0xc9, 0x26, 0],
            &[0x66, 0x66, 0x48, 0xe8, 0xdc, 0x10, 0xe3, 0xff],
            &[0x48, 0x8b, 0],
        ]
        .concat();
        assert_eq!(of(&library), Some((12, Distance::Index(0x26_c9f4, 0))));
        let early = [0x48, 0x8b, 5, 1, 2, 0, 0, 0x64, 0x48, 0x8b, 0, 0xc3];
        assert_eq!(of(&early), Some((7, Distance::Indirect(0x201))));
        let local = [0x48, 0x8d, 0x3d, 1, 0, 0, 0, 0xe8, 9, 9, 9, 9, 0x48, 0x8b, 0x40, 0xf8];
        assert_eq!(of(&local), Some((7, Distance::Index(1, -8i32 as u32))));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[0x48, 0x8d, 0x3d, 1, 0, 0, 0, 0xe8, 9, 9, 9, 9, 0xc3]), None);
    }
}
