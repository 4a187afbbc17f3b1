//! Any bytes as texts of `/proc/PID`.
#![no_main]

use kmem_fuzz::{check, reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check(reader("process").expect("a reader of this name"), bytes);
});
