//! The allocinfo reader against a real kernel's file and against random text.

use std::io::Write as _;

use kmem_snapshot::allocinfo::{Reader, Row, Tag, Version, merge, write_header, write_row};
use proptest::prelude::*;

const KERNEL: &str = include_str!("data/allocinfo-6.12.txt");

fn read_all(text: &[u8]) -> Vec<Row> {
    Reader::new(text).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_real_kernels_file_comes_back_byte_for_byte() {
    let rows = read_all(KERNEL.as_bytes());
    assert_eq!(rows.len(), KERNEL.lines().count() - 2);
    let mut out = Vec::new();
    write_header(&mut out, Version::V1).unwrap();
    for row in &rows {
        write_row(&mut out, row.bytes, row.calls, &row.tag).unwrap();
    }
    assert_eq!(String::from_utf8(out).unwrap(), KERNEL);
    // Summed by tag, nothing is lost.
    let bytes: i64 = rows.iter().map(|r| r.bytes).sum();
    let merged = merge(rows.clone());
    assert!(merged.len() < rows.len());
    assert_eq!(merged.iter().map(|r| r.bytes).sum::<i64>(), bytes);
    assert_eq!(merged.iter().map(|r| r.lines).sum::<u64>(), rows.len() as u64);
}

fn tag() -> impl Strategy<Value = Tag> {
    let name = "[^\\n]{1,30}";
    (name, any::<u32>(), proptest::option::of("[a-zA-Z0-9_.+ -]{1,20}"), name)
        .prop_map(|(file, line, module, function)| Tag { file, line, module, function })
}

proptest! {
    #[test]
    fn what_is_written_is_read(rows in proptest::collection::vec((any::<i64>(), any::<u64>(), tag()), 0..20)) {
        let mut text = Vec::new();
        write_header(&mut text, Version::V2).unwrap();
        for (bytes, calls, tag) in &rows {
            write_row(&mut text, *bytes, *calls, tag).unwrap();
        }
        let read = read_all(&text);
        prop_assert_eq!(read.len(), rows.len());
        for (row, (bytes, calls, tag)) in read.iter().zip(&rows) {
            // Only the space after a comma is not kept.
            let squeezed = |s: &str| s.replace(", ", ",");
            prop_assert_eq!(row.bytes, *bytes);
            prop_assert_eq!(row.calls, *calls);
            prop_assert_eq!(row.tag.line, tag.line);
            prop_assert_eq!(squeezed(&row.tag.file), squeezed(&tag.file));
            prop_assert_eq!(squeezed(&row.tag.function), squeezed(&tag.function));
            prop_assert_eq!(&row.tag.module, &tag.module);
        }
    }

    #[test]
    fn any_bytes_are_survived(mut body in proptest::collection::vec(any::<u8>(), 0..4000)) {
        let mut text = b"allocinfo - version: 2.0\n".to_vec();
        text.append(&mut body);
        let _ = Reader::new(&text[..]).unwrap().count();
        let _ = Reader::new(&text[25..]).map(Iterator::count);
    }

    #[test]
    fn lines_of_the_right_shape_are_survived(lines in proptest::collection::vec("[ 0-9:\\[\\]a-z#-]{0,12} {0,3}[0-9]{0,22} {0,2}[a-z/:0-9.]{0,20}( \\[[a-z]{0,4}\\]?)? (func:)?[a-z: 0-9<>]{0,20}", 0..50)) {
        let mut text = b"allocinfo - version: 1.0\n".to_vec();
        for line in &lines {
            writeln!(text, "{line}").unwrap();
        }
        let rows: Vec<Row> = Reader::new(&text[..]).unwrap().filter_map(Result::ok).collect();
        let count = rows.len() as u64;
        prop_assert_eq!(merge(rows).iter().map(|r| r.lines).sum::<u64>(), count);
    }
}
