//! Link options of `libkmem.so`.

fn main() {
    for arg in [
        "-Wl,-soname,libkmem.so",
        // The kernel may look at a restartable section's descriptor after a thread left it, so
        // the library can never go away.
        "-Wl,-z,nodelete",
        // Nothing of ours is bound lazily: binding takes the loader's lock.
        "-Wl,-z,now",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
