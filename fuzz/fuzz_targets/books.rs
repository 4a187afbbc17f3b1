//! Changes to the memory of a process under kmem.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("books").expect("a reader of this name"), bytes);
});
