//! Any bytes as a compressed file.
#![no_main]

use std::sync::Arc;

use kmem_module::decompress::Packed;
use kmem_module::os::{Account, Gauge, Linux};
use kmem_module::source::Source;
use libfuzzer_sys::fuzz_target;

const MOST: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let gauge = Arc::<Gauge>::default();
    let account = Account::new(Arc::new(Linux), gauge.clone()).unwrap();
    if let Ok(packed) = Packed::open(Source::Bytes(bytes), &account, MOST) {
        let expanded = packed.expand(&account).expect("what was whole is whole");
        assert!(expanded.len() as u64 <= MOST);
    }
    assert_eq!(gauge.now(), 0);
});
