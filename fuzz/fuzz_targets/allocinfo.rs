//! Any bytes as allocinfo text, or as JSON of `kmem dump`.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("allocinfo").expect("a reader of this name"), bytes);
});
