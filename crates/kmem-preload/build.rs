//! Link options of `libkmem.so`.

fn main() {
    // An installed library has a number in its name, that of the interface. One in the directory of
    // the build has none, and programs can be linked with it there.
    let interface = std::env::var("KMEM_INTERFACE").map(|number| format!(".{number}"));
    let interface = interface.unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkmem.so{interface}");
    println!("cargo:rerun-if-env-changed=KMEM_INTERFACE");
    for arg in [
        // The kernel may look at a restartable section's descriptor after a thread left it, so
        // the library can never go away.
        "-Wl,-z,nodelete",
        // Nothing of ours is bound lazily: binding takes the loader's lock.
        "-Wl,-z,now",
        // The offset of code in the file is its address: perf takes that for granted where it sets
        // a breakpoint at a probe. Linkers that lay a file out so anyway do not know the option.
        "-Wl,-z,separate-loadable-segments",
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
