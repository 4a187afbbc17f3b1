//! `kmem buddyinfo` of a program that knows its free pages.

mod program;

use program::{Program, text};
use serde_json::Value;

/// Free blocks of an order, over all zones.
fn free(json: &Value, order: usize) -> u64 {
    let zones = json["zones"].as_array().unwrap();
    zones.iter().map(|zone| zone["free"][order].as_u64().unwrap()).sum()
}

fn free_pages(json: &Value) -> u64 {
    let zones = json["zones"].as_array().unwrap();
    zones.iter().map(|zone| zone["free_pages"].as_u64().unwrap()).sum()
}

#[test]
fn free_blocks_are_those_that_the_program_left() {
    let mut program = Program::start("pages", &[], &[], "decay_ms:3600000");
    let before = program.json(&["buddyinfo", "--json"]);
    // Every second page of 4096, so that no two are neighbours.
    assert!((2040..=2056).contains(&free(&before, 0)), "{before}");
    let zone = &before["zones"][0];
    let committed: u64 = zone["pages"].as_u64().unwrap();
    assert!(free_pages(&before) < committed);
    for order in 0..12 {
        let blocks: u64 = (order..12).map(|order| free(&before, order)).sum();
        let index = zone["fragmentation_index"][order].as_i64().unwrap();
        assert_eq!(index == -1000, blocks > 0, "order {order}: {before}");
    }

    let kernel = text(&program.kmem(&["buddyinfo"]).stdout);
    let fields: Vec<&str> = kernel.split_whitespace().collect();
    assert_eq!(fields[..4], ["Node", "0,", "zone", "Normal"], "{kernel}");
    let counts: Vec<u64> = fields[4..].iter().map(|field| field.parse().unwrap()).collect();
    let json: Vec<u64> = (0..12).map(|order| free(&before, order)).collect();
    assert_eq!(counts, json);

    let index = text(&program.kmem(&["buddyinfo", "--index"]).stdout);
    assert!(index.contains("\nfragmentation index\nNode 0, zone   Normal -1.000 "), "{index}");
    assert!(index.contains("\nunusable free space index\nNode 0, zone   Normal 0.000 "), "{index}");

    program.tell(b'x');
    let after = program.json(&["buddyinfo", "--json"]);
    assert!(free(&after, 0) < 16, "they joined again: {after}");
    assert_eq!(free_pages(&after), free_pages(&before) + 4096 - 2048, "{before} {after}");
}
