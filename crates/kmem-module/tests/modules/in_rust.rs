//! A module in Rust: `rustc --crate-type=lib --emit=obj -C relocation-model=pic -C panic=abort -O`.
#![no_std]

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// `struct kmem_alloc_tag`.
#[repr(C)]
struct Tag {
    module: *const c_char,
    file: *const c_char,
    function: *const c_char,
    line: u32,
    flags: u32,
}

// SAFETY: constants.
unsafe impl Sync for Tag {}

/// `struct kmem_export`.
#[repr(C)]
struct Export {
    value: *const c_void,
    name: *const c_char,
    version: u32,
    flags: u32,
}

// SAFETY: constants.
unsafe impl Sync for Export {}

unsafe extern "C" {
    fn kmem_kmalloc_tag(size: usize, flags: u32, tag: *const Tag) -> *mut u8;
    fn kmem_kfree(at: *mut u8);
}

#[used]
#[unsafe(link_section = ".modinfo")]
static INFO: [u8; 57] = *b"license=Dual MIT/GPL\0name=in_rust\0vermagic=kmem 1 x86_64\0";

#[unsafe(link_section = "kmem_alloc_tags")]
static TAG: Tag = Tag {
    module: core::ptr::null(),
    file: c"in_rust.rs".as_ptr(),
    function: c"start".as_ptr(),
    line: line!(),
    flags: 0,
};

static HELD: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

extern "C" fn answer() -> i64 {
    if HELD.load(Ordering::Relaxed).is_null() { 0 } else { 42 }
}

#[used]
#[unsafe(link_section = "kmem_exports")]
static EXPORT: Export =
    Export { value: answer as *const c_void, name: c"rust_answer".as_ptr(), version: 0, flags: 0 };

#[unsafe(no_mangle)]
extern "C" fn init_module() -> c_int {
    // SAFETY: as kmem.h declares it.
    let at = unsafe { kmem_kmalloc_tag(32, 0, &TAG) };
    HELD.store(at, Ordering::Relaxed);
    if at.is_null() { -12 } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn cleanup_module() {
    // SAFETY: init allocated it, and this is its only free.
    unsafe { kmem_kfree(HELD.swap(core::ptr::null_mut(), Ordering::Relaxed)) };
}
