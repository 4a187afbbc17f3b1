//! The library as an ELF file: what it exports, what it must not, and how it is linked.

use std::collections::BTreeSet;

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

use kmem_testing::{not_run, this_test};

use crate::harness::{is_not_kmem, library, released_library};

/// Every way C and C++ programs of this platform ask for memory or give it back. One that is
/// missing falls through to the C library, and its blocks then reach our free.
const REQUIRED: &[&str] = &[
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "aligned_alloc",
    "memalign",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "cfree",
    "malloc_usable_size",
    "malloc_trim",
    "malloc_stats",
    "malloc_info",
    "mallinfo",
    "mallinfo2",
    "mallopt",
    "free_sized",
    "free_aligned_sized",
    "__libc_malloc",
    "__libc_free",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__libc_valloc",
    "__libc_pvalloc",
    // operator new, new[]: plain, nothrow, aligned, aligned and nothrow.
    "_Znwm",
    "_Znam",
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
    "_ZnwmSt11align_val_t",
    "_ZnamSt11align_val_t",
    "_ZnwmSt11align_val_tRKSt9nothrow_t",
    "_ZnamSt11align_val_tRKSt9nothrow_t",
    // operator delete, delete[]: plain, sized, nothrow, aligned, sized and aligned, aligned and
    // nothrow.
    "_ZdlPv",
    "_ZdaPv",
    "_ZdlPvm",
    "_ZdaPvm",
    "_ZdlPvRKSt9nothrow_t",
    "_ZdaPvRKSt9nothrow_t",
    "_ZdlPvSt11align_val_t",
    "_ZdaPvSt11align_val_t",
    "_ZdlPvmSt11align_val_t",
    "_ZdaPvmSt11align_val_t",
    "_ZdlPvSt11align_val_tRKSt9nothrow_t",
    "_ZdaPvSt11align_val_tRKSt9nothrow_t",
];

/// `kmem/group.h`.
const GROUPS: &[&str] = &[
    "kmem_group_create",
    "kmem_group_find",
    "kmem_group_delete",
    "kmem_group_name",
    "kmem_group_parent",
    "kmem_group_dying",
    "kmem_group_set",
    "kmem_group_stat",
    "kmem_group_kinds",
    "kmem_group_reset_peak",
    "kmem_group_notify",
    "kmem_group_enter",
    "kmem_group_leave",
    "kmem_group_pin",
    "kmem_group_unpin",
    "kmem_group_switch",
    "kmem_group_current",
    "kmem_group_of",
    "kmem_group_of_address",
    "kmem_group_try_charge",
    "kmem_group_uncharge",
    "kmem_group_add_shrinker",
    "kmem_group_remove_shrinker",
];

/// `kmem/refusal.h`.
const REFUSALS: &[&str] = &["kmem_on_refusal", "kmem_refusal_site"];

/// `kmem/rhashtable.h`.
const TABLES: &[&str] = &[
    "kmem_rhashtable_init_tag",
    "kmem_rhashtable_init_noprof",
    "kmem_rhashtable_lookup",
    "kmem_rhashtable_insert",
    "kmem_rhashtable_remove",
    "kmem_rhashtable_replace",
    "kmem_rhashtable_nelems",
    "kmem_rhashtable_read_lock",
    "kmem_rhashtable_read_unlock",
    "kmem_rhashtable_walk_next",
    "kmem_rhashtable_free_and_destroy",
    "kmem_rhltable_insert",
    "kmem_rhltable_lookup",
    "kmem_rhltable_next",
];

/// Other symbols that may be exported. The library interposes some to take RTLD_DEEPBIND away, and
/// to tell its unloading from the end of the process. It interposes others to report at that end,
/// to learn the names of threads, and to see filters of system calls. It interposes functions that
/// map memory to name that memory. The rest are names that other allocators have, too.
const ALLOWED: &[&str] = &[
    "_exit",
    "_Exit",
    "dlopen",
    "dlclose",
    "vfork",
    "pthread_create",
    "pthread_exit",
    "thrd_exit",
    "thrd_create",
    "pthread_setname_np",
    "prctl",
    "prlimit",
    "prlimit64",
    "setrlimit",
    "setrlimit64",
    "syscall",
    "mmap",
    "mmap64",
    "mremap",
    "munmap",
    "brk",
    "sbrk",
    "shmat",
    "shmdt",
    "dlmopen",
    "__posix_memalign",
    "__libc_memalign",
    "__libc_reallocarray",
    "__malloc_hook",
    "mallctl",
    "malloc_stats_print",
    "nallocx",
    "sallocx",
    "rallocx",
    "sdallocx",
];

/// The library's own namespace.
const OWN_PREFIXES: &[&str] = &["kmem_", "KMEM_", "__kmem_"];

fn image() -> Option<Vec<u8>> {
    if is_not_kmem() {
        return None;
    }
    let path = library()?;
    Some(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn exported(image: &[u8]) -> BTreeSet<String> {
    let file = ElfFile64::<Endianness>::parse(image).expect("the library is a 64-bit ELF file");
    file.dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().expect("symbol names are text").to_owned())
        .collect()
}

#[test]
fn all_of_the_allocation_interface_is_exported() {
    let Some(image) = image() else { return };
    let exported = exported(&image);
    let missing: Vec<_> = REQUIRED.iter().filter(|name| !exported.contains(**name)).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}

/// The header's functions are weak: one that is missing would not be found out by a linker.
#[test]
fn all_functions_of_groups_are_declared_and_exported() {
    let Some(image) = image() else { return };
    let exported = exported(&image);
    for (header, functions) in [
        (include_str!("../../../../include/kmem/group.h"), GROUPS),
        (include_str!("../../../../include/kmem/refusal.h"), REFUSALS),
    ] {
        let macros = header.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("#define ")?.split_once('(')?;
            name.starts_with("kmem_").then_some(name)
        });
        assert_eq!(macros.collect::<Vec<_>>(), functions);
        let missing: Vec<_> = functions.iter().filter(|name| !exported.contains(**name)).collect();
        assert!(missing.is_empty(), "not exported: {missing:?}");
    }
}

#[test]
fn all_functions_of_hash_tables_are_declared_and_exported() {
    let Some(image) = image() else { return };
    let exported = exported(&image);
    let header = include_str!("../../../../include/kmem/rhashtable.h");
    let declared = header.lines().filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = &before[before.find("kmem_rh")?..];
        (!line.starts_with('#') && !line.starts_with('\t')).then_some(name)
    });
    assert_eq!(declared.collect::<Vec<_>>(), TABLES);
    let missing: Vec<_> = TABLES.iter().filter(|name| !exported.contains(**name)).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}

#[test]
fn nothing_else_is_exported() {
    let Some(image) = image() else { return };
    let expected = |name: &String| {
        REQUIRED.contains(&name.as_str())
            || ALLOWED.contains(&name.as_str())
            || OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let unexpected: Vec<_> = exported(&image).into_iter().filter(|name| !expected(name)).collect();
    assert!(unexpected.is_empty(), "exported without need: {unexpected:?}");
}

/// Program headers of one type, as (flags, size in memory).
fn segments(image: &[u8], wanted: u32) -> Vec<(u32, u64)> {
    let header = elf::FileHeader64::<Endianness>::parse(image).expect("an ELF header");
    let endian = header.endian().expect("a known byte order");
    header
        .program_headers(endian, image)
        .expect("program headers")
        .iter()
        .filter(|segment| segment.p_type(endian) == wanted)
        .map(|segment| (segment.p_flags(endian), segment.p_memsz(endian)))
        .collect()
}

fn dynamic_entries(image: &[u8]) -> Vec<(u64, u64)> {
    let header = elf::FileHeader64::<Endianness>::parse(image).expect("an ELF header");
    let endian = header.endian().expect("a known byte order");
    let segments = header.program_headers(endian, image).expect("program headers");
    segments
        .iter()
        .find_map(|segment| segment.dynamic(endian, image).expect("a sound dynamic section"))
        .expect("a dynamic section")
        .iter()
        .map(|entry| (entry.d_tag(endian), entry.d_val(endian)))
        .collect()
}

#[test]
fn thread_local_storage_fits_where_it_is_scarce() {
    if is_not_kmem() {
        return;
    }
    // A library that cargo builds for tests can unwind, and so holds the standard library, with
    // thread-local variables of its own.
    let Some(path) = released_library() else {
        not_run(&this_test(), "there is no release build of the library");
        return;
    };
    let image = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let size: u64 = segments(&image, elf::PT_TLS).iter().map(|(_, size)| size).sum();
    assert!(
        size <= 64,
        "{size} bytes of static thread-local storage in {}: dlopen of the library may fail",
        path.display()
    );
}

#[test]
fn library_cannot_be_unloaded() {
    let Some(image) = image() else { return };
    let flags = dynamic_entries(&image)
        .into_iter()
        .find(|(tag, _)| *tag == u64::from(elf::DT_FLAGS_1))
        .map_or(0, |(_, flags)| flags);
    assert!(
        flags & u64::from(elf::DF_1_NODELETE) != 0,
        "linked without -z nodelete: flags are {flags:#x}"
    );
}

#[test]
fn no_segment_is_writable_and_executable() {
    let Some(image) = image() else { return };
    let both = elf::PF_W | elf::PF_X;
    assert!(segments(&image, elf::PT_LOAD).iter().all(|(flags, _)| flags & both != both));
    assert!(segments(&image, elf::PT_GNU_STACK).iter().all(|(flags, _)| flags & elf::PF_X == 0));
    assert!(dynamic_entries(&image).iter().all(|(tag, _)| *tag != u64::from(elf::DT_TEXTREL)));
}

#[test]
fn only_the_c_library_is_needed() {
    let Some(image) = image() else { return };
    let file = ElfFile64::<Endianness>::parse(&*image).expect("the library is a 64-bit ELF file");
    let libstdcxx = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined() && !symbol.is_weak())
        .filter_map(|symbol| symbol.name().ok())
        .find(|name| name.starts_with("_Z") || name.starts_with("__cxa_throw"));
    assert_eq!(libstdcxx, None, "a program without the C++ library could not load this");
}
