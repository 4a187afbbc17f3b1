//! Any bytes as the board of a loader of modules.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("board").expect("a reader of this name"), bytes);
});
