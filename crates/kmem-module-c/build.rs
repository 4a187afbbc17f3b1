//! Link options of `libkmem_modules.so`.

fn main() {
    for arg in [
        "-Wl,-soname,libkmem_modules.so",
        // Modules call functions of the loader for as long as the process lives.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
