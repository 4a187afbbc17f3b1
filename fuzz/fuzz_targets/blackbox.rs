//! Changes to the black box of a process.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("blackbox").expect("a reader of this name"), bytes);
});
