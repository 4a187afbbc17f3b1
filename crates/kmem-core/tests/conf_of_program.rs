//! A Rust program that defines its own configuration.

#![cfg(all(target_os = "linux", not(miri)))]

use std::ffi::c_char;
use std::sync::atomic::AtomicPtr;

use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::{Caller, Kmem};

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static kmem_conf: AtomicPtr<c_char> =
    AtomicPtr::new(c"mem_profiling:never,peak:1".as_ptr().cast_mut());

#[test]
fn program_configures_its_instance() {
    static KMEM: Kmem = Kmem::new();
    let block = KMEM.alloc(100, Caller::NOBODY);
    assert!(!block.is_null());
    // Without books there are no groups.
    assert_eq!(KMEM.group_create(GroupId::ROOT, b"tenant"), Err(GroupError::NoBooks));
    // SAFETY: a live allocation, which is not used any more.
    unsafe { KMEM.free(block) };
}
