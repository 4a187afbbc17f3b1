//! Lines of instructions, by the table of a code object.

use super::layout::Lines;

/// A table, which comes byte by byte. `None`: it ended, or could not be read.
pub(super) trait Table {
    /// The next byte.
    fn next(&mut self) -> Option<u8>;
}

/// The line of an instruction, `offset` bytes behind the first one. `None`: the table has none for
/// it. A table is not trusted: a damaged one has wrong lines.
pub(super) fn line(kind: Lines, table: &mut impl Table, first: u32, offset: usize) -> Option<u32> {
    let line = match kind {
        Lines::Starts => starts(table, first, offset),
        Lines::Ranges => ranges(table, first, offset),
        Lines::Locations => locations(table, first, offset),
    }?;
    u32::try_from(line).ok()
}

/// Distances in bytes and lines from the beginning of one line to that of the next
/// (`Objects/lnotab_notes.txt` of 3.9).
fn starts(table: &mut impl Table, first: u32, offset: usize) -> Option<i64> {
    let (mut line, mut at) = (i64::from(first), 0);
    while let (Some(bytes), Some(lines)) = (table.next(), table.next()) {
        at += usize::from(bytes);
        if at > offset {
            break;
        }
        line += i64::from(lines as i8);
    }
    Some(line)
}

/// Ranges: their lengths in bytes, and the distances of their lines. -128: no line
/// (`Objects/lnotab_notes.txt` of 3.10, PEP 626).
fn ranges(table: &mut impl Table, first: u32, offset: usize) -> Option<i64> {
    let (mut line, mut end) = (i64::from(first), 0);
    loop {
        let (bytes, lines) = (table.next()?, table.next()? as i8);
        let has_line = lines != i8::MIN;
        if has_line {
            line += i64::from(lines);
        }
        end += usize::from(bytes);
        if offset < end {
            return has_line.then_some(line);
        }
    }
}

/// Entries of a first byte, which has bit 7 set, and others, which have not
/// (`Objects/locations.md` of 3.11).
fn locations(table: &mut impl Table, first: u32, offset: usize) -> Option<i64> {
    let (mut line, mut end) = (i64::from(first), 0);
    let mut byte = table.next()?;
    loop {
        // Code units of two bytes.
        end += 2 * (usize::from(byte & 7) + 1);
        let mut delta = None;
        let kind = byte >> 3 & 15;
        let mut rest = table.next();
        match kind {
            15 => {}
            13 | 14 => {
                let (mut number, mut shift) = (0i64, 0);
                while let Some(part) = rest {
                    if part & 0x80 != 0 {
                        break;
                    }
                    if shift < 60 {
                        number |= i64::from(part & 63) << shift;
                    }
                    shift += 6;
                    rest = table.next();
                    if part & 64 == 0 {
                        break;
                    }
                }
                delta = Some(if number & 1 != 0 { -(number >> 1) } else { number >> 1 });
            }
            10..=12 => delta = Some(i64::from(kind) - 10),
            _ => delta = Some(0),
        }
        line = line.checked_add(delta.unwrap_or(0))?;
        if offset < end {
            return delta.map(|_| line);
        }
        // The columns do not matter.
        byte = loop {
            match rest? {
                next if next & 0x80 != 0 => break next,
                _ => rest = table.next(),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes<'a>(&'a [u8]);

    impl Table for Bytes<'_> {
        fn next(&mut self) -> Option<u8> {
            let (&first, rest) = self.0.split_first()?;
            self.0 = rest;
            Some(first)
        }
    }

    fn all(kind: Lines, table: &[u8], first: u32, offsets: &[usize]) -> Vec<Option<u32>> {
        offsets.iter().map(|&at| line(kind, &mut Bytes(table), first, at)).collect()
    }

    #[test]
    fn lines_before_3_10_are_distances_between_beginnings() {
        // A line, then one 300 lines further on, then one back.
        let table = [0, 1, 6, 127, 0, 127, 0, 46, 8, 0xff];
        let lines = all(Lines::Starts, &table, 10, &[0, 4, 6, 13, 14, 200]);
        assert_eq!(lines, [11, 11, 311, 311, 310, 310].map(Some));
        assert_eq!(all(Lines::Starts, &[], 7, &[0, 8]), [Some(7); 2]);
    }

    #[test]
    fn lines_of_3_10_are_ranges_of_which_some_have_none() {
        let table = [4, 1, 6, 0x80, 2, 3, 0, 5, 2, 0xff];
        let lines = all(Lines::Ranges, &table, 10, &[0, 2, 4, 8, 10, 12, 14]);
        let (eleven, fourteen) = (Some(11), Some(14));
        assert_eq!(lines, [eleven, eleven, None, None, fourteen, Some(18), None]);
    }

    #[test]
    fn lines_since_3_11_are_locations_of_six_shapes() {
        let entry = |kind: u8, units: u8| 0x80 | kind << 3 | (units - 1);
        let table = [
            [entry(0, 1), 0x11].as_slice(),     // a short form on the first line
            &[entry(11, 2), 5, 9],              // one line on
            &[entry(15, 1)],                    // no line
            &[entry(14, 1), 2 << 1, 0, 1, 2],   // long: two lines on
            &[entry(13, 1), 3 << 1 | 1],        // no column: three lines back
            &[entry(13, 8), 0x40 | 8, 0x40, 1], // 4096 / 2 + 4 lines on
        ]
        .concat();
        let lines = all(Lines::Locations, &table, 10, &[0, 2, 4, 6, 8, 10, 12, 26, 28]);
        let far = Some(10 + 2048 + 4);
        let expected = [Some(10), Some(11), Some(11), None, Some(13), Some(10), far, far, None];
        assert_eq!(lines, expected);
    }

    #[test]
    fn damaged_tables_end() {
        let mut random = 1u64;
        for _ in 0..20_000 {
            let table: Vec<u8> = (0..40)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) as u8
                })
                .collect();
            for kind in [Lines::Starts, Lines::Ranges, Lines::Locations] {
                let _ = line(kind, &mut Bytes(&table), u32::MAX, usize::MAX);
            }
        }
    }
}
