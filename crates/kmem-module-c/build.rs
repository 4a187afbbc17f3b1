//! Link options of `libkmem_modules.so`.

fn main() {
    // An installed library has a number in its name, that of the interface. One in the directory of
    // the build has none, and programs can be linked with it there.
    let interface = std::env::var("KMEM_INTERFACE").map(|number| format!(".{number}"));
    let interface = interface.unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkmem_modules.so{interface}");
    println!("cargo:rerun-if-env-changed=KMEM_INTERFACE");
    // Modules call functions of the loader for as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
