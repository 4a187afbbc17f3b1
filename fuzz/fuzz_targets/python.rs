//! Any bytes as tables of CPython.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("python").expect("a reader of this name"), bytes);
});
