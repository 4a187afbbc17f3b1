//! The allocinfo reader against a real kernel's file and against random text.

use std::io::Write as _;

use kmem_snapshot::allocinfo::{Reader, Row, Tag, Version, merge, write_header, write_row};
use proptest::prelude::*;

const KERNEL: &str = include_str!("data/allocinfo-6.12.txt");

fn read_all(text: &[u8]) -> Vec<Row> {
    Reader::new(text).unwrap().map(Result::unwrap).collect()
}

/// Reads a whole text and writes it again from its rows.
fn rewritten(text: &str, version: Version) -> String {
    let reader = Reader::new(text.as_bytes()).unwrap();
    assert_eq!(reader.version(), version.to_string());
    let mut out = Vec::new();
    write_header(&mut out, version).unwrap();
    for row in reader {
        row.unwrap().write(&mut out).unwrap();
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn a_real_kernels_file_comes_back_byte_for_byte() {
    assert_eq!(rewritten(KERNEL, Version::V1), KERNEL);
    let second = KERNEL.replacen("version: 1.0", "version: 2.0", 1);
    assert_eq!(rewritten(&second, Version::V2), second);
    let rows = read_all(KERNEL.as_bytes());
    assert_eq!(rows.len(), KERNEL.lines().count() - 2);
    // Sums by tag lose nothing.
    let bytes: i64 = rows.iter().map(|r| r.bytes).sum();
    let merged = merge(rows.clone());
    assert!(merged.len() < rows.len());
    assert_eq!(merged.iter().map(|r| r.bytes).sum::<i64>(), bytes);
    assert_eq!(merged.iter().map(|r| r.lines).sum::<u64>(), rows.len() as u64);
}

#[test]
fn odd_lines_come_back_byte_for_byte() {
    let body = "\
#     <size>  <calls> <tag info>
        4096        1 mm/slub.c:1 func:a 
        -128 18446744073709551615 ./include/linux/x.h:7 [nf_tables] func:f 
           0        0 drivers/iommu/amd/../iommu-pages.h:94 func:g accurate:no 
-9223372036854775808 18446744073709551615 a.c:4294967295 func:f 
9223372036854775807 123456789 a.c:1 [m] func:f.isra.0 new_key:1 a.b:x:y empty: group:a\\040b 7 
        4096        1 mm/slub.c:1 func:a 
      315456     9858 kernel/irq/irqdesc.c:425 func:alloc_desc accurate:no 
        nid0   94912   2966
        nid1   -128   18446744073709551615
           5        6 mm/slub.c:1 func:a 
";
    for version in [Version::V1, Version::V2] {
        let text = format!("allocinfo - version: {version}\n{body}");
        assert_eq!(rewritten(&text, version), text);
    }
}

fn tag() -> impl Strategy<Value = Tag> {
    let name = "[^\\n]{1,30}";
    (name, any::<u32>(), proptest::option::of("[a-zA-Z0-9_.+ -]{1,20}"), name)
        .prop_map(|(file, line, module, function)| Tag { file, line, module, function })
}

/// Lines that resemble rows.
const LINE: &str = "[ 0-9:\\[\\]a-z#-]{0,12} {0,3}[0-9]{0,22} {0,2}[a-z/:0-9.]{0,20}\
                    ( \\[[a-z]{0,4}\\]?)? (func:)?[a-z: 0-9<>]{0,20}";

proptest! {
    #[test]
    fn what_is_written_is_read(
        rows in proptest::collection::vec((any::<i64>(), any::<u64>(), tag()), 0..20),
    ) {
        let mut text = Vec::new();
        write_header(&mut text, Version::V2).unwrap();
        for (bytes, calls, tag) in &rows {
            write_row(&mut text, *bytes, *calls, tag).unwrap();
        }
        let read = read_all(&text);
        prop_assert_eq!(read.len(), rows.len());
        for (row, (bytes, calls, tag)) in read.iter().zip(&rows) {
            // The writer drops the space after a comma. Another one may come behind it.
            let squeezed = |s: &str| {
                let words: Vec<&str> = s.split(',').collect();
                let (first, rest) = words.split_first().expect("one word at least");
                let rest = rest.iter().map(|word| word.trim_start_matches(' '));
                [*first].into_iter().chain(rest).collect::<Vec<_>>().join(",")
            };
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
    fn lines_of_the_right_shape_are_survived(lines in proptest::collection::vec(LINE, 0..50)) {
        let mut text = b"allocinfo - version: 1.0\n".to_vec();
        for line in &lines {
            writeln!(text, "{line}").unwrap();
        }
        let rows: Vec<Row> = Reader::new(&text[..]).unwrap().filter_map(Result::ok).collect();
        let count = rows.len() as u64;
        prop_assert_eq!(merge(rows).iter().map(|r| r.lines).sum::<u64>(), count);
    }
}
