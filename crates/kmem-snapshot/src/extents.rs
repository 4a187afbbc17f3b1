//! Parts of a sparse file that are not holes (`SEEK_DATA`, `SEEK_HOLE`; lseek(2)).

use std::fs::File;
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};

/// Calls `each` with the ranges of `within` that hold data. On a file system without holes that is
/// all of it.
pub(crate) fn data(file: &File, within: Range<u64>, mut each: impl FnMut(Range<u64>)) {
    let mut at = within.start;
    while at < within.end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.max(at),
            // There is no data from here to the end.
            Err(rustix::io::Errno::NXIO) => return,
            Err(_) => at,
        };
        if start >= within.end {
            return;
        }
        let end = match seek(file, SeekFrom::Hole(start)) {
            Ok(end) if end > start => end.min(within.end),
            _ => within.end,
        };
        each(start..end);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn holes_are_left_out() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        let mut found = Vec::new();
        data(&file, 0..64 << 20, |range| found.push(range));
        let sparse = found.is_empty();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        file.write_all_at(&[1; 4096], 32 << 20).unwrap();
        found.clear();
        data(&file, 0..64 << 20, |range| found.push(range));
        if sparse {
            assert_eq!(found.len(), 2);
            assert!(found[0].contains(&(1 << 20)) && found[1].contains(&(32 << 20)));
            found.clear();
            data(&file, (1 << 20) + 8..(1 << 20) + 16, |range| found.push(range));
            assert!(found.len() == 1 && found[0] == ((1 << 20) + 8..(1 << 20) + 16));
        } else {
            assert!(found.len() == 1 && found[0] == (0..64 << 20));
        }
    }
}
