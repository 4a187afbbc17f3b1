//! Any bytes as the log of a kernel.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("kernel_log").expect("a reader of this name"), bytes);
});
