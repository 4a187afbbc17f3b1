//! Names the two facts about the target that code outside `os` depends on.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(kmem_linux)");
    println!("cargo:rustc-check-cfg=cfg(kmem_rseq)");
    // Models run on no particular machine: a checker does not see what a kernel does.
    let model =
        ["CARGO_CFG_LOOM", "CARGO_CFG_SHUTTLE"].iter().any(|cfg| env::var_os(cfg).is_some());
    let linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") && !model;
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if linux {
        println!("cargo:rustc-cfg=kmem_linux");
    }
    if linux && ["x86_64", "aarch64"].contains(&&*arch) {
        println!("cargo:rustc-cfg=kmem_rseq");
    }
}
