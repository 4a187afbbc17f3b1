//! `KMEM_CONF=debug`: a count of live objects that falls below zero is told, once per site.
#![cfg(all(target_os = "linux", not(miri)))]

use kmem_core::class::{SIZES, SizeClass};
use kmem_core::{Caller, Kmem};
use kmem_layout::geometry::ClassGeometry;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static A: Kmem = Kmem::new();

/// The extension word of a small object.
fn word(object: *mut u8, size: usize) -> &'static AtomicU32 {
    let size = SIZES[SizeClass::of(size).0 as usize];
    let geometry = ClassGeometry::new(size, true);
    let offset = object as u32 & geometry.slab_mask;
    let at = object as usize - offset as usize + geometry.ext_of(offset) as usize;
    // SAFETY: a live object of that class has its word there.
    unsafe { &*(at as *const AtomicU32) }
}

/// The program: two sites, one of which frees what the other allocated under its name.
#[test]
fn child() {
    if std::env::var_os("KMEM_DEBUG_CHILD").is_none() {
        return;
    }
    for _ in 0..3 {
        let one = A.alloc(64, Caller::at(0x1234_5678));
        let other = A.alloc(64, Caller::at(0x2345_6789));
        // What a stray write might do.
        let theirs = word(other, 64).load(Ordering::Relaxed);
        word(one, 64).store(theirs, Ordering::Relaxed);
        // SAFETY: live, given up.
        unsafe {
            A.free(one);
            A.free(other);
        }
    }
}

#[test]
fn a_count_below_zero_is_told_once() {
    let run = |conf: &str| {
        let output = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child", "--nocapture"])
            .env("KMEM_DEBUG_CHILD", "1")
            .env("KMEM_CONF", conf)
            .output()
            .expect("it runs");
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().filter(|line| line.starts_with("kmem: ")).map(str::to_owned).collect()
    };
    let said: Vec<String> = run("debug");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("more frees than allocations of 0x23456789"), "{said:?}");
    let said: Vec<String> = run("debug:0");
    assert!(said.is_empty(), "{said:?}");
}
