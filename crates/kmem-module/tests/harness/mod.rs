//! Modules compiled from C, and a loader whose core is this test program with an instance of kmem.

// Each test program uses its part.
#![allow(dead_code)]

pub(crate) mod file;

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kmem_core::units::{CpuId, Gfp};
use kmem_core::{Caller, Kmem, StaticTag};
use kmem_module::symbols::{Core, Definition, Process};
use kmem_module::{Config, Loader, Result};
use kmem_testing::Compiler;
pub(crate) use kmem_testing::directory;

/// Text of a module that does nothing.
pub(crate) const EMPTY: &str = "static int __init go(void) { return 0; } module_init(go);
    static void stop(void) { } module_exit(stop);";

/// The allocator that modules of this program allocate from.
pub(crate) static KMEM: Kmem = Kmem::new();

unsafe extern "C" fn kmalloc_tag(size: usize, flags: Gfp, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: modules give tags of theirs.
    KMEM.kmalloc(size, flags, unsafe { Caller::tagged_by(tag) })
}

unsafe extern "C" fn kfree(at: *mut u8) {
    // SAFETY: modules free what they allocated.
    unsafe { KMEM.free(at) }
}

extern "C" fn per_cpu_ptr(object: *mut u8, cpu: u32) -> *mut u8 {
    if cpu == KMEM.possible_cpus() { object } else { KMEM.per_cpu_ptr(object, CpuId(cpu)) }
}

extern "C" fn nr_cpu_ids() -> u32 {
    KMEM.possible_cpus() + 1
}

unsafe extern "C" fn this_cpu_add(word: *mut u64, by: u64) {
    // SAFETY: modules give words of theirs.
    unsafe { KMEM.this_cpu_add(word, by) }
}

unsafe extern "C" fn this_cpu_add_4(word: *mut u32, by: u32) {
    // SAFETY: modules give words of theirs.
    unsafe { KMEM.this_cpu_add(word, by) }
}

unsafe extern "C" fn this_cpu_xchg(word: *mut u64, new: u64) -> u64 {
    // SAFETY: modules give words of theirs.
    unsafe { KMEM.this_cpu_xchg(word, new) }
}

unsafe extern "C" fn percpu_sum(word: *mut u64) -> u64 {
    // SAFETY: modules give words of theirs.
    unsafe { KMEM.percpu_sum(word) }
}

unsafe extern "C" fn percpu_sum_4(word: *mut u32) -> u32 {
    // SAFETY: modules give words of theirs.
    unsafe { KMEM.percpu_sum(word) }
}

/// Symbols of the core: those of `libkmem.so`, from this program, and all others of the program.
pub(crate) struct Host;

impl Core for Host {
    fn find(&self, name: &CStr) -> Option<Definition> {
        let value = match name.to_bytes() {
            b"kmem_kmalloc_tag" => kmalloc_tag as *const () as u64,
            b"kmem_kfree" => kfree as *const () as u64,
            b"kmem_per_cpu_ptr" => per_cpu_ptr as *const () as u64,
            b"kmem_nr_cpu_ids" => nr_cpu_ids as *const () as u64,
            b"kmem_this_cpu_add_8" => this_cpu_add as *const () as u64,
            b"kmem_this_cpu_add_4" => this_cpu_add_4 as *const () as u64,
            b"kmem_this_cpu_xchg_8" => this_cpu_xchg as *const () as u64,
            b"kmem_percpu_sum_8" => percpu_sum as *const () as u64,
            b"kmem_percpu_sum_4" => percpu_sum_4 as *const () as u64,
            _ => return Process.find(name),
        };
        Some(Definition { value, version: None, gpl: false })
    }
}

/// How a loader of a test is made.
pub(crate) fn config() -> Config {
    Config { core: Box::new(Host), books: Arc::new(&KMEM), ..Config::default() }
}

pub(crate) fn loader() -> Loader {
    Loader::new(config()).unwrap()
}

/// Functions of the loader in whose name it bills memory of modules.
const LOADERS: [&str; 2] = ["module_memory_alloc", "percpu_modalloc"];

/// Live bytes and objects that a module itself allocated, by function.
pub(crate) fn books(module: &str) -> BTreeMap<String, (u64, u64)> {
    let mut rows = all_books(module);
    rows.retain(|function, _| !LOADERS.contains(&&**function));
    rows
}

/// Live bytes and objects of a module, with its own memory, by function.
pub(crate) fn all_books(module: &str) -> BTreeMap<String, (u64, u64)> {
    let mut rows = BTreeMap::new();
    KMEM.census(|tag, bytes, calls| {
        let Some(names) = KMEM.sites().names(tag) else { return };
        if names.module == module.as_bytes() && calls > 0 {
            let function = String::from_utf8_lossy(names.function).into_owned();
            let row = rows.entry(function).or_insert((0, 0));
            *row = (row.0 + bytes, row.1 + calls);
        }
    });
    rows
}

/// Compiles a source of `tests/modules` into the directory.
pub(crate) fn compile(dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/modules/{name}.c"));
    compile_file(dir, name, &source, flags)
}

/// Compiles a module whose text is given, without its `#include`.
pub(crate) fn module(dir: &Path, name: &str, text: &str) -> PathBuf {
    module_with(dir, name, text, &[])
}

pub(crate) fn module_with(dir: &Path, name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let source = dir.join(format!("{name}.c"));
    fs::write(&source, format!("#include \"kmem_module.h\"\nMODULE_LICENSE(\"GPL\");\n{text}\n"))
        .unwrap();
    compile_file(dir, name, &source, flags)
}

#[track_caller]
pub(crate) fn compile_file(dir: &Path, name: &str, source: &Path, flags: &[&str]) -> PathBuf {
    let compiler = Compiler::c().strict().args(["-Wno-misleading-indentation", "-O1"]);
    let compiler = compiler.args(["-c", "-fPIC"]).include().args(flags);
    compiler.arg(source).compile(dir.join(format!("{name}.ko")))
}

/// Loads a file as `insmod` does.
pub(crate) fn insmod(loader: &Loader, path: &Path, args: &str) -> Result<()> {
    let file = fs::File::open(path).unwrap();
    loader.finit_module(file.as_raw_fd(), args, 0)
}

/// Calls a function without arguments that a live module exports.
pub(crate) fn call(loader: &Loader, name: &str) -> i64 {
    let symbol = loader.symbol(name).unwrap_or_else(|| panic!("no symbol {name}"));
    // SAFETY: the tests' modules export such functions under the names that are called.
    let function =
        unsafe { std::mem::transmute::<usize, extern "C" fn() -> i64>(symbol.address as usize) };
    function()
}

/// Nothing of the loader's is left: no module, no byte.
#[track_caller]
pub(crate) fn nothing_is_left(loader: &Loader) {
    assert!(loader.modules(false).is_empty(), "{:?}", loader.modules(false));
    assert_eq!(loader.gauge().now(), 0);
}

/// The value of a C `int` that a module exports.
pub(crate) fn int(loader: &Loader, name: &str) -> i32 {
    let symbol = loader.symbol(name).unwrap();
    // SAFETY: an int of a module that is held.
    unsafe { *(symbol.address as *const i32) }
}
