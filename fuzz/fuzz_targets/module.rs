//! Any bytes as a module.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("module").expect("a reader of this name"), bytes);
});
