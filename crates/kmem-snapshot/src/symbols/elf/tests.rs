use super::*;

#[test]
fn names_of_three_languages() {
    assert_eq!(demangle("main"), "main");
    assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
    assert_eq!(demangle("_RNvCskwGfYPst2Cb_3foo16example_function"), "foo::example_function");
    assert_eq!(
        demangle("_ZNSt6vectorIiSaIiEE9push_backERKi"),
        "std::vector<int, std::allocator<int> >::push_back"
    );
    assert_eq!(demangle("_Znwm"), "operator new");
    assert_eq!(demangle("_Z3fooIiET_S0_"), "foo<int>");
}

#[test]
fn hostile_names_stay_bounded() {
    assert_eq!(demangle("_Z"), "_Z");
    assert!(demangle(&"a".repeat(1 << 20)).len() < 100);
    // Each level doubles the length of the one before.
    let mut bomb = "_Z1fI".to_owned();
    for level in 0..60 {
        bomb.push_str(&format!(
            "1AI{0}{0}E",
            if level == 0 { "i".into() } else { format!("S{}_", radix36(level)) }
        ));
    }
    bomb.push_str("Evv");
    assert!(demangle(&bomb).len() <= MAX_DEMANGLED.max(bomb.len()));
}

fn radix36(n: u32) -> String {
    char::from_digit(n % 36, 36).map(|c| c.to_ascii_uppercase().to_string()).unwrap_or_default()
}

#[test]
fn library_code() {
    for name in [
        "std::vector<int, std::allocator<int> >::push_back",
        "std::__detail::_Hashtable_alloc<X>::_M_allocate_node",
        "__gnu_cxx::new_allocator<int>::allocate",
        "operator new",
        "operator new[]",
        "alloc::raw_vec::finish_grow",
        "<alloc::vec::Vec<app::T> as core::clone::Clone>::clone",
        "<[T] as alloc::slice::hack::ConvertVec>::to_vec",
        "<T as alloc::string::ToString>::to_string",
        "hashbrown::raw::RawTable<T>::reserve_rehash",
        "ggc_internal_alloc",
        "va_gc::reserve<cp_token, va_gc>",
        "calloc",
        "__rust_alloc",
        "__rustc::__rust_alloc",
        "<kmem_core::instance::Instance<P> as kmem_core::heap::Owner>::age",
        "<app::Counted as core::alloc::global::GlobalAlloc>::alloc",
    ] {
        assert!(is_library(name, ""), "{name}");
    }
    assert!(is_library("allocate", "/usr/include/c++/12/bits/new_allocator.h"));
    assert!(is_library("f", "/rustc/0123/library/alloc/src/vec.rs"));
    // Without names of types, as in a program with tables of lines alone.
    assert!(is_library("alloc", "/registry/src/kmem-core-0.1.0/src/instance/global.rs"));
    assert!(!is_library("alloc", "/src/kmem-core/examples/pool.rs"));
}

#[test]
fn library_modules() {
    assert!(is_library_module("libstdc++.so.6.0.30"));
    assert!(is_library_module("libstd-0123456789abcdef.so"));
    assert!(is_library_module("libc.so.6"));
    assert!(!is_library_module("libcrypto.so.3"));
    assert!(!is_library_module(""));
}

#[test]
fn the_programs_own_code() {
    for name in [
        "main",
        "app::index::build",
        "<app::Tree as core::clone::Clone>::clone",
        "standard::f",
        "stdx",
        "core_dump",
        "mallocate",
        "my::std::f",
        "Operator newer",
    ] {
        assert!(!is_library(name, "/src/app.cc"), "{name}");
    }
}

#[test]
fn build_ids_of_garbage() {
    assert_eq!(build_id_in(&[0; 4096]), None);
    assert_eq!(build_id_in(b"\x7fELF"), None);
    let exe = std::fs::read("/proc/self/exe").unwrap();
    for len in (0..4096).step_by(7) {
        let _ = build_id_in(&exe[..len]);
    }
}
