//! Any bytes as an ELF file with symbols.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("symbols").expect("a reader of this name"), bytes);
});
