//! Which functions are the language's own library: a row that says `std::vector::push_back`
//! tells nothing, its caller does.

/// Beginnings of readable names (template arguments and all).
const PREFIXES: &[&str] = &[
    // C++
    "std::",
    "__gnu_cxx::",
    "__cxxabiv1::",
    "operator new",
    "boost::container::",
    "boost::intrusive",
    // Rust
    "alloc::",
    "core::",
    "hashbrown::",
    "__rust_alloc",
    "__rust_realloc",
    "__rustc::",
    "__rg_",
    "__rdl_",
    "indexmap::",
    "smallvec::",
];

/// Functions that do nothing but allocate; seen here when they are inlined wrappers.
const ALLOCATORS: &[&str] =
    &["malloc", "calloc", "realloc", "reallocarray", "memalign", "aligned_alloc", "posix_memalign"];

/// Parts of source paths under which only library code lives.
const PATHS: &[&str] = &["/include/c++/", "/lib/rustlib/src/rust/library/", "/hashbrown-"];

/// True for the names, and source files, of library code.
pub(super) fn is_library(function: &str, file: &str) -> bool {
    name_is_library(function)
        || PATHS.iter().any(|part| file.contains(part))
        // Paths of the toolchain's own build: /rustc/<hash>/library/..
        || file.starts_with("/rustc/") && file.contains("/library/")
}

/// Modules that hold nothing but library code, by the beginning of their names.
const MODULES: &[&str] = &["libstdc++.so", "libc++.so", "libc++abi.so", "libstd-"];

/// True for modules that hold nothing but library code.
pub(super) fn module_is_library(module: &str) -> bool {
    MODULES.iter().any(|beginning| module.starts_with(beginning))
}

fn name_is_library(function: &str) -> bool {
    // `<alloc::vec::Vec<T> as ..>::f`, `<&mut alloc::..>`, `<[T] as alloc::..>`: the type decides,
    // and for a blanket implementation the trait.
    if let Some(inner) = function.strip_prefix('<') {
        let inner = inner.trim_start_matches(['&', '*', '[', '(', '<']);
        let inner = inner.strip_prefix("mut ").unwrap_or(inner);
        let inner = inner.strip_prefix("const ").unwrap_or(inner);
        if has_prefix(inner) {
            return true;
        }
        return match inner.split_once(" as ") {
            // `<T as alloc::string::ToString>`: generic or primitive type, library trait.
            Some((of, by)) => has_prefix(by) && !of.contains("::"),
            None => false,
        };
    }
    has_prefix(function) || ALLOCATORS.contains(&function)
}

fn has_prefix(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::is_library;

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
            "calloc",
            "__rust_alloc",
            "__rustc::__rust_alloc",
        ] {
            assert!(is_library(name, ""), "{name}");
        }
        assert!(is_library("allocate", "/usr/include/c++/12/bits/new_allocator.h"));
        assert!(is_library("f", "/rustc/0123/library/alloc/src/vec.rs"));
    }

    #[test]
    fn library_modules() {
        assert!(super::module_is_library("libstdc++.so.6.0.30"));
        assert!(super::module_is_library("libstd-0123456789abcdef.so"));
        assert!(!super::module_is_library("libc.so.6"));
        assert!(!super::module_is_library(""));
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
}
