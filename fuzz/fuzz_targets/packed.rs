//! Any bytes as a compressed file.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("packed").expect("a reader of this name"), bytes);
});
