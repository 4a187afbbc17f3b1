//! A host that replaces a plugin while requests run. It shows what the plugin holds, site by site,
//! before, during and after.
//!
//!     cargo run -p kmem-module --example hot_reload
//!
//! The new revision is loaded beside the old one, and requests go to it from then on. The use count
//! of the old one counts the requests in it: the host unloads it as soon as the last one has left.
//! No request fails or waits.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use kmem_core::units::Gfp;
use kmem_core::{Caller, Kmem, StaticTag};
use kmem_module::loader::Symbol;
use kmem_module::symbols::{Core, Definition, Process};
use kmem_module::{Config, Loader};

/// The allocator of the host, and of its plugins.
#[global_allocator]
static KMEM: Kmem = Kmem::new();

unsafe extern "C" fn kmalloc_tag(size: usize, flags: Gfp, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: a plugin gives tags of its own, which are there as long as it is.
    KMEM.kmalloc(size, flags, unsafe { Caller::tagged_by(tag) })
}

unsafe extern "C" fn kfree(at: *mut u8) {
    // SAFETY: a plugin frees what it allocated.
    unsafe { KMEM.free(at) }
}

/// Symbols that plugins find in this program: kmalloc and kfree over its allocator, and the C
/// library.
struct Host;

impl Core for Host {
    fn find(&self, name: &CStr) -> Option<Definition> {
        let value = match name.to_bytes() {
            b"kmem_kmalloc_tag" => kmalloc_tag as *const () as u64,
            b"kmem_kfree" => kfree as *const () as u64,
            _ => return Process.find(name),
        };
        Some(Definition { value, version: None, gpl: false })
    }
}

/// Compiles a revision of the plugin.
fn build(dir: &Path, revision: u64) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = dir.join(format!("handler_{revision}.ko"));
    let status = Command::new("cc")
        .args(["-O2", "-c", "-fPIC", &format!("-DREVISION={revision}")])
        .arg(format!("-DKBUILD_MODNAME=handler_{revision}"))
        .arg("-I")
        .arg(here.join("../../include"))
        .arg(here.join("examples/hot_reload/handler.c"))
        .arg("-o")
        .arg(&path)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    path
}

/// Bytes and objects by module and function.
fn books() -> BTreeMap<(String, String), (u64, u64)> {
    let mut rows = BTreeMap::new();
    KMEM.census(|tag, bytes, calls| {
        let Some(names) = KMEM.sites().names(tag).filter(|_| calls > 0) else { return };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let module = text(names.module);
        if module.starts_with("handler_") {
            rows.insert((module, text(names.function)), (bytes, calls));
        }
    });
    rows
}

fn show(when: &str, loader: &Loader) {
    let modules: Vec<String> = loader.modules(false).iter().map(|m| m.name.clone()).collect();
    println!(
        "{when}: loaded: {}",
        if modules.is_empty() { "none".to_owned() } else { modules.join(", ") }
    );
    for ((module, function), (bytes, calls)) in books() {
        println!("  {bytes:>8} bytes in {calls:>4} objects  {module} {function}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("hot_reload.{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let files = [build(&dir, 1), build(&dir, 2)];
    let loader =
        Loader::new(Config { core: Box::new(Host), books: Arc::new(&KMEM), ..Config::default() })?;
    let handler = |revision: u64| -> Result<Arc<Symbol>, Box<dyn std::error::Error>> {
        let name = format!("handle_{revision}");
        Ok(Arc::new(loader.symbol(&name).ok_or(name)?))
    };
    loader.load_file(&files[0], "room=100")?;
    let current = RwLock::new(handler(1)?);
    let (stop, answered) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);

    let request = |number: u64| {
        // As long as this is held, the plugin is not unloaded.
        let plugin = current.read().expect("no panic").clone();
        // SAFETY: `handle` of the plugin, which is held.
        let handle = unsafe {
            std::mem::transmute::<usize, extern "C" fn(u64) -> u64>(plugin.address as usize)
        };
        let answer = handle(number);
        assert_eq!(answer / 10, number);
        answered[(answer % 10) as usize].fetch_add(1, Ordering::Relaxed);
    };
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        for worker in 0..4_u64 {
            let (request, stop) = (&request, &stop);
            scope.spawn(move || {
                let mut number = worker;
                while !stop.load(Ordering::Relaxed) {
                    request(number);
                    number += 4;
                }
            });
        }
        let wait_for = |revision: usize, count: u64| {
            while answered[revision].load(Ordering::Relaxed) < count {
                std::thread::yield_now();
            }
        };
        let reload = || -> Result<(), Box<dyn std::error::Error>> {
            wait_for(1, 10_000);
            show("before", &loader);
            loader.load_file(&files[1], "room=50")?;
            let old = std::mem::replace(&mut *current.write().expect("no panic"), handler(2)?);
            wait_for(2, 10_000);
            show("during", &loader);
            drop(old);
            // Waits for the last request that is in it.
            loader.delete_module("handler_1", 0)?;
            wait_for(2, 20_000);
            show("after", &loader);
            Ok(())
        };
        let result = reload();
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    assert!(
        books().keys().all(|(module, _)| module == "handler_2"),
        "revision 1 holds nothing any more"
    );
    drop(current);
    loader.delete_module("handler_2", 0)?;
    show("at the end", &loader);
    assert!(books().is_empty() && loader.gauge().now() == 0 && loader.stats().wasted() == 0);
    println!(
        "answered: {} by revision 1, {} by revision 2, none lost",
        answered[1].load(Ordering::Relaxed),
        answered[2].load(Ordering::Relaxed)
    );
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
