//! Any bytes as the indexes of a directory of modules.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("depmod").expect("a reader of this name"), bytes);
});
