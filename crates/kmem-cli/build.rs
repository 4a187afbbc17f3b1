//! Tells the command where cargo leaves the library that belongs to it.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    // target/PROFILE/build/kmem-cli-HASH/out
    let profile = Path::new(&out).ancestors().nth(3).expect("a directory of the profile");
    println!("cargo::rustc-env=KMEM_BUILT={}", profile.join("deps/libkmem.so").display());
}
