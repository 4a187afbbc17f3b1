//! Memory of modules in the books of the allocator: text and data, and per-CPU variables. They have
//! the module's name, and the group of the thread that loads the module pays for them.

mod harness;

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{KMEM, all_books, call, config, directory, insmod, loader, module, nothing_is_left};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::{Group, Limit, LiveTag, StaticTag};
use kmem_module::tags::Books;
use kmem_module::{Config, Errno, Error, Loader, Result};

/// A module with text, data of 100 pages, memory of init, and per-CPU variables.
const LARGE: &str = "char large_data[400 << 10] = { 1 }; EXPORT_SYMBOL(large_data);
    static char once[100 << 10] __initdata = { 1 };
    static DEFINE_PER_CPU(unsigned long[64], counts);
    long large_count(void); long large_count(void) {
        this_cpu_inc(counts[0]); return percpu_sum(counts[0]); } EXPORT_SYMBOL(large_count);
    static int __init go(void) { return once[0] - large_data[0]; } module_init(go);
    static void stop(void) { } module_exit(stop);";

#[test]
fn the_memory_of_a_module_has_rows_with_its_name_until_it_is_unloaded() {
    let dir = directory();
    let path = module(dir.path(), "rows", LARGE);
    let loader = loader();
    for _ in 0..2 {
        insmod(&loader, &path, "").unwrap();
        let size = loader.modules(false)[0].size;
        assert!(size > 400 << 10 && size < 500 << 10, "{size}: the memory of init is given back");
        let rows = all_books("rows");
        assert_eq!(rows["module_memory_alloc"], (size, 1), "{rows:?}");
        assert_eq!(rows["percpu_modalloc"], (512, 1), "{rows:?}");
        let area = KMEM.find_area(loader.symbol("large_data").unwrap().address as usize);
        assert_eq!(area.unwrap().pages.bytes() as u64, size);
        assert_eq!(call(&loader, "large_count"), 1);
        loader.delete_module("rows", 0).unwrap();
        assert!(all_books("rows").is_empty());
        nothing_is_left(&loader);
    }
}

/// A group of this name below the root.
fn group(name: &str) -> Group<Linux> {
    KMEM.group(GroupId::ROOT).unwrap().create(name).unwrap()
}

#[test]
fn the_group_of_the_thread_that_loads_a_module_pays_for_it() {
    let dir = directory();
    let path = module(dir.path(), "paid", LARGE);
    let loader = loader();
    let group = group("pays");
    let scope = group.enter();
    insmod(&loader, &path, "").unwrap();
    drop(scope);
    let (size, kinds) = (loader.modules(false)[0].size, group.kinds());
    assert!((size..size + 4096).contains(&kinds.vmalloc), "{kinds:?} for {size} bytes");
    assert!(kinds.percpu >= 512, "{kinds:?}");
    // Any thread may unload it: the group has its memory back.
    loader.delete_module("paid", 0).unwrap();
    assert_eq!(group.stat().current, 0);
    nothing_is_left(&loader);
    group.delete().unwrap();
}

#[test]
fn a_group_at_its_limit_refuses_a_module_and_pays_nothing() {
    let dir = directory();
    let path = module(dir.path(), "too_much", LARGE);
    let loader = loader();
    let group = group("poor");
    group.set(Limit::Max, Some(200 << 10)).unwrap();
    let scope = group.enter();
    let error = insmod(&loader, &path, "").unwrap_err();
    drop(scope);
    assert_eq!(error.errno, Errno::ENOMEM);
    assert!(error.to_string().contains("of the module"), "{error}");
    assert_eq!(group.stat().current, 0);
    assert!(all_books("too_much").is_empty());
    nothing_is_left(&loader);
    group.delete().unwrap();
}

/// The allocator, whose areas are refused or which has none.
struct Partial {
    refuses: AtomicBool,
}

impl Books for Partial {
    unsafe fn register(&self, tags: &Range<u64>, module: &str) {
        // SAFETY: the same contract.
        unsafe { (&KMEM).register(tags, module) }
    }

    unsafe fn unregister(&self, tags: &Range<u64>, module: &str) {
        // SAFETY: the same contract.
        unsafe { (&KMEM).unregister(tags, module) }
    }

    fn live(&self, tags: &Range<u64>, sites: &mut [LiveTag]) -> u64 {
        (&KMEM).live(tags, sites)
    }

    fn area_alloc(&self, len: usize, _: &'static StaticTag) -> Result<Option<NonNull<u8>>> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::nomem(len as u64, "the module"));
        }
        Ok(None)
    }

    unsafe fn area_shrink(&self, _: NonNull<u8>, _: usize, _: &'static StaticTag) -> bool {
        unreachable!("there are no areas")
    }

    unsafe fn area_free(&self, _: NonNull<u8>) {
        unreachable!("there are no areas")
    }

    fn percpu_alloc(
        &self,
        size: usize,
        align: usize,
        tag: &'static StaticTag,
    ) -> Option<NonNull<u8>> {
        (&KMEM).percpu_alloc(size, align, tag)
    }

    unsafe fn percpu_copies(&self, object: NonNull<u8>, each: &mut dyn FnMut(NonNull<u8>)) {
        // SAFETY: the same contract.
        unsafe { (&KMEM).percpu_copies(object, each) }
    }

    unsafe fn percpu_free(&self, object: NonNull<u8>) {
        // SAFETY: the same contract.
        unsafe { (&KMEM).percpu_free(object) }
    }
}

#[test]
fn without_areas_the_system_maps_a_module_and_a_refusal_is_an_error() {
    let dir = directory();
    let path = module(dir.path(), "mapped", LARGE);
    let books = Arc::new(Partial { refuses: AtomicBool::new(true) });
    let loader = Loader::new(Config { books: books.clone(), ..config() }).unwrap();
    assert_eq!(insmod(&loader, &path, "").unwrap_err().errno, Errno::ENOMEM);
    nothing_is_left(&loader);
    books.refuses.store(false, Ordering::Relaxed);
    insmod(&loader, &path, "").unwrap();
    assert_eq!(call(&loader, "large_count"), 1);
    assert!(!all_books("mapped").contains_key("module_memory_alloc"));
    loader.delete_module("mapped", 0).unwrap();
    nothing_is_left(&loader);
}
