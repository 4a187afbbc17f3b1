//! Any bytes as `/proc/slabinfo` and `/proc/zoneinfo`.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("kernel_tables").expect("a reader of this name"), bytes);
});
