//! Damaged modules: a good one with each byte flipped, or cut off at each length, and files made of
//! random parts of it. The loader returns an error or a module. It never crashes, and leaves
//! nothing. No code of a module is run.

mod harness;

use std::fs;

use harness::file::try_bytes;
use harness::{compile, directory};
use proptest::prelude::*;

fn good() -> Vec<u8> {
    let dir = directory();
    let bytes = fs::read(compile(dir.path(), "everything", &[])).unwrap();
    try_bytes(&bytes).unwrap();
    bytes
}

#[test]
fn every_byte_may_be_flipped() {
    let good = good();
    let (mut refused, mut taken) = (0, 0);
    for at in 0..good.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            match try_bytes(&bytes) {
                Ok(_) => taken += 1,
                Err(error) => {
                    assert!(!error.what.is_empty());
                    refused += 1;
                }
            }
        }
    }
    // Code, strings and fields that are not read may change; most of tables and headers may not.
    assert!(refused > good.len() / 2 && taken > good.len() / 2, "{refused} refused, {taken} taken");
}

#[test]
fn every_length_may_be_cut_off_and_is_refused() {
    let good = good();
    for len in 0..good.len() {
        try_bytes(&good[..len]).unwrap_err();
    }
}

/// How a file is damaged.
#[derive(Debug, Clone)]
enum Damage {
    /// A number where one may be.
    Number(usize, u64, usize),
    /// A piece of the file over another.
    Copy(usize, usize, usize),
    /// A piece less.
    Remove(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let number = prop_oneof![
        any::<u64>(),
        0..0x4000_u64,
        Just(u64::MAX),
        Just(1 << 63),
        Just(1 << 31),
        Just(0xff00),
    ];
    prop_oneof![
        (any::<usize>(), number, prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)])
            .prop_map(|(at, value, len)| Damage::Number(at, value, len)),
        (any::<usize>(), any::<usize>(), 1..256_usize).prop_map(|(a, b, n)| Damage::Copy(a, b, n)),
        (any::<usize>(), 1..64_usize).prop_map(|(at, len)| Damage::Remove(at, len)),
    ]
}

/// Headers and tables are where damage tells: half of it goes there.
fn place(at: usize, file: &[u8]) -> usize {
    let tables = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    match at % 4 {
        0 if tables < file.len() => tables + (at >> 2) % (file.len() - tables),
        1 => (at >> 2) % 64,
        _ => (at >> 2) % file.len(),
    }
}

fn apply(file: &mut Vec<u8>, damage: &Damage) {
    if file.len() < 64 {
        return;
    }
    match *damage {
        Damage::Number(at, value, len) => {
            let at = place(at, file) / len * len;
            let end = (at + len).min(file.len());
            file[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        Damage::Copy(from, to, len) => {
            let (from, to) = (place(from, file), place(to, file));
            let len = len.min(file.len() - from.max(to));
            file.copy_within(from..from + len, to);
        }
        Damage::Remove(at, len) => {
            let at = place(at, file);
            file.drain(at..(at + len).min(file.len()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn files_of_random_damage_are_refused_or_taken(list in prop::collection::vec(damage(), 1..6)) {
        thread_local!(static GOOD: Vec<u8> = good());
        let mut file = GOOD.with(Vec::clone);
        list.iter().for_each(|damage| apply(&mut file, damage));
        let _ = try_bytes(&file);
    }
}

/// `PROPTEST_CASES`, for longer runs.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}
