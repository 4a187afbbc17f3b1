//! Any bytes as a map of code made at run time.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("perf_map").expect("a reader of this name"), bytes);
});
