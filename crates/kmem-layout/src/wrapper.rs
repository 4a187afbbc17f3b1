//! Allocation wrappers: functions whose caller tells more about an allocation than they do.
//!
//! Such are the libraries of C, C++ and Rust, and functions of well-known programs that pass a
//! request on. The allocator and its readers agree on them by this list.
//!
//! A function is known by its linkage name, as the symbol table has it.
//!
//! | names                  | source                                                          |
//! |------------------------|-----------------------------------------------------------------|
//! | `_ZN2v8..`             | V8 of Node.js 18, by its symbol table                           |
//! | `_Z18ggc_..` and such  | GCC 12, by the symbol table of cc1plus                          |
//! | `_ZN..E`, `_ZSt..`     | Itanium C++ ABI, 5.1                                            |
//! | `_ZN..17h..E`, `_R..`  | Rust: legacy names, and symbol name mangling v0 (RFC 2603)      |

mod names;

use names::{GCC, NAMES, V8};

/// Prefixes of base names of objects that are wrappers as a whole.
const OBJECTS: &[&str] =
    &["ld-linux", "ld-musl", "libc++", "libc.", "libgcc_s.", "libkmem", "libstd-", "libstdc++"];

/// Crates of Rust that are wrappers as a whole.
const CRATES: &[&str] =
    &["alloc", "core", "hashbrown", "indexmap", "kmem_core", "smallvec", "std", "__rustc"];

/// Prefixes of names of the C++ library, and of the memory resource in the headers of kmem.
const CXX: &[&str] = &[
    "_ZN4kmem15memory_resource",
    "_ZN9__gnu_cxx",
    "_ZNK9__gnu_cxx",
    "_ZNKSt",
    "_ZNSt",
    "_ZSt",
    "_Zna",
    "_Znw",
];

/// Parts of names of library functions that do nothing but run code of the program. Compilers
/// inline that code into them.
const RUNNERS: &[&str] =
    &["3ops8function", "__rust_begin_short_backtrace", "9_M_invoke", "6_M_run", "13__invoke_impl"];

/// Parts of names of the methods of a global allocator, in both kinds of names.
const GLOBAL_ALLOCATOR: &[&str] =
    &["$u20$as$u20$core..alloc..global..GlobalAlloc$GT$", "5alloc6global11GlobalAlloc"];

/// Returns whether an object is a wrapper as a whole, by its base name.
pub fn is_wrapper_object(name: &[u8]) -> bool {
    OBJECTS.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// Returns whether a function is a wrapper, by its linkage name.
#[inline(never)]
pub fn is_wrapper(symbol: &[u8]) -> bool {
    if !may_be_wrapper(symbol) {
        return false;
    }
    if RUNNERS.iter().any(|part| contains(symbol, part.as_bytes())) {
        return false;
    }
    if let Some(name) = crate_of(symbol) {
        // An allocator of the program is between it and the allocator below.
        if GLOBAL_ALLOCATOR.iter().any(|part| contains(symbol, part.as_bytes())) {
            return true;
        }
        return CRATES.iter().any(|of| of.as_bytes() == name);
    }
    if let Some(name) = symbol.strip_prefix(b"_ZN2v8") {
        return V8.iter().any(|prefix| name.starts_with(prefix.as_bytes()));
    }
    if let Some(name) = symbol.strip_prefix(b"_Z") {
        if may_be_of_gcc(name) {
            return GCC.iter().any(|prefix| name.starts_with(prefix.as_bytes()));
        }
        return CXX.iter().any(|prefix| symbol.starts_with(prefix.as_bytes()));
    }
    // A compiler adds a suffix to the name of a part or a variant: `xmalloc.constprop.0`.
    let symbol = symbol.split(|&byte| byte == b'.').next().unwrap_or(symbol);
    // The last name that is not behind the symbol is the only one that may begin it.
    let behind = NAMES.partition_point(|name| stem(name) <= symbol);
    let Some(name) = behind.checked_sub(1).map(|at| NAMES[at]) else { return false };
    if name.ends_with('*') { symbol.starts_with(stem(name)) } else { symbol == name.as_bytes() }
}

/// Returns false for most names of functions that are no wrappers, by the first bytes. A symbol
/// table has many thousands. `symbol` may have further bytes behind the name, from a NUL on.
#[inline]
pub fn may_be_wrapper(symbol: &[u8]) -> bool {
    match *symbol {
        [b'_', b'Z', b'N', b'K', ref rest @ ..] | [b'_', b'Z', b'N', ref rest @ ..] => {
            match *rest {
                [b'2', b'v', b'8', ref rest @ ..] => may_be_of_v8(rest),
                [b'5' | b'7', b'v', b'a', b'_', ..] => true,
                [b'S', b't' | b's' | b'a', ..] | [b'0'..=b'9', b'0'..=b'9', b'_', b'$', ..] => true,
                [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'_', b'$', ..] => true,
                [b'0'..=b'9', first, second, ..] => {
                    CRATES.iter().any(|name| name.as_bytes()[..2] == [first, second])
                        || [first, second] == *b"__"
                }
                _ => false,
            }
        }
        [b'_', b'Z', b'1'..=b'9', ..] => may_be_of_gcc(&symbol[2..]),
        [b'_', b'Z', second, ..] => matches!(second, b'S' | b'n'),
        [b'_', b'R', ..] => true,
        [a, b, c, d, ..] => {
            let bit = bit_of([a, b, c, d]);
            FIRST[bit / 64] >> (bit % 64) & 1 != 0
        }
        _ => false,
    }
}

/// [`may_be_wrapper`] for a name in GCC. `name` is behind `_Z`.
#[inline]
fn may_be_of_gcc(name: &[u8]) -> bool {
    matches!(
        *name,
        [b'1'..=b'3', b'0'..=b'9', b'g', b'g', b'c', b'_', ..]
            | [b'N', b'5' | b'7', b'v', b'a', b'_', ..]
    )
}

/// [`may_be_wrapper`] for a name in V8, which has tens of thousands. `name` is behind `_ZN2v8`.
#[inline]
fn may_be_of_v8(name: &[u8]) -> bool {
    match *name {
        [b'4', ..] => true,
        // Behind `8internal`.
        [b'8', _, _, _, _, _, _, _, _, a, b, c, ..] => {
            matches!([a, b, c], [b'1', b'3' | b'4', b'A' | b'V'] | [b'1', b'5', b'M'])
                || [a, b, c] == *b"21A"
        }
        _ => false,
    }
}

/// Bits for the first four bytes of names in C. Other bytes may have the same bit, but few do.
static FIRST: [u64; FIRST_BITS / 64] = {
    let mut first = [0; FIRST_BITS / 64];
    let mut at = 0;
    while at < NAMES.len() {
        let name = NAMES[at].as_bytes();
        let bit = bit_of([name[0], name[1], name[2], name[3]]);
        first[bit / 64] |= 1 << (bit % 64);
        at += 1;
    }
    first
};
const FIRST_BITS: usize = 1 << 12;

/// The bit of four bytes.
#[inline]
const fn bit_of(bytes: [u8; 4]) -> usize {
    (u32::from_le_bytes(bytes).wrapping_mul(0x9E37_79B1) >> 20) as usize
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    position(text, part).is_some()
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// A name without its star.
fn stem(name: &str) -> &[u8] {
    name.strip_suffix('*').unwrap_or(name).as_bytes()
}

/// The crate that defines a function of Rust: for a method of a trait, that of the type. `None`: it
/// is no such function.
fn crate_of(symbol: &[u8]) -> Option<&[u8]> {
    match symbol.strip_prefix(b"_R") {
        Some(path) => crate_of_v0(path),
        None => crate_of_legacy(symbol),
    }
}

/// `_ZN`, names with their lengths, and a hash: `17h0123456789abcdefE`. A linker that optimises
/// adds a suffix: `.llvm.123`.
fn crate_of_legacy(symbol: &[u8]) -> Option<&[u8]> {
    let names = symbol.strip_prefix(b"_ZN")?;
    let names = &names[..=names.iter().rposition(|&byte| byte == b'E')?];
    let (names, hash) = names.split_at_checked(names.len().checked_sub(20)?)?;
    if !hash.starts_with(b"17h") {
        return None;
    }
    let (mut name, _) = split_name(names)?;
    // `<&mut alloc::vec::Vec<T> as ..>`: the type decides. `<T as core::..>`: the trait.
    while let Some(rest) = TYPES.iter().find_map(|part| name.strip_prefix(part.as_bytes())) {
        name = rest;
    }
    // A trait of the program for a type of the library is the program's.
    if let Some(at) = position(name, b"$u20$as$u20$") {
        let by = first_part(&name[at + b"$u20$as$u20$".len()..]);
        if !CRATES.iter().any(|of| of.as_bytes() == by) {
            return Some(by);
        }
    }
    Some(first_part(name))
}

/// The first part of a path in a legacy name.
fn first_part(path: &[u8]) -> &[u8] {
    &path[..position(path, b"..").unwrap_or(path.len())]
}

/// Parts of a type in a legacy name, before its path: `_<`, `<`, `&`, `*`, `[`, `(`, `mut `,
/// `const `, and `T as `.
const TYPES: &[&str] =
    &["_$LT$", "$LT$", "$RF$", "$BP$", "$u5b$", "$LP$", "mut$u20$", "const$u20$", "T$u20$as$u20$"];

/// A path in prefix order. The first crate root in it is the crate of the function, or of the
/// `impl` block that has it.
fn crate_of_v0(mut path: &[u8]) -> Option<&[u8]> {
    loop {
        let (&letter, rest) = path.split_first()?;
        path = match letter {
            // A name in a namespace.
            b'N' => rest.get(1..)?,
            // An `impl` block, which may be the n-th one of its module.
            b'M' | b'X' => after_disambiguator(rest),
            b'I' | b'Y' | b'R' | b'Q' | b'P' | b'O' | b'S' => rest,
            b'C' => return split_name(after_disambiguator(rest)).map(|(name, _)| name),
            _ => return None,
        };
    }
}

/// The rest of a path behind a disambiguator, `s..._`, if there is one.
fn after_disambiguator(path: &[u8]) -> &[u8] {
    let end = || path.iter().position(|&letter| letter == b'_');
    match path.first() {
        Some(b's') => end().map_or(path, |end| &path[end + 1..]),
        _ => path,
    }
}

/// A name that begins with its length, and the bytes behind it.
fn split_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = text.iter().take_while(|digit| digit.is_ascii_digit()).count();
    let len = core::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    let rest = &text[digits..];
    // v0 puts a line between the length and a name that begins with a digit or a line.
    let rest = rest.strip_prefix(b"_").filter(|rest| rest.len() >= len).unwrap_or(rest);
    rest.split_at_checked(len)
}

/// Returns whether patterns, separated by plus signs, have one for a function. In a pattern a star
/// stands for any bytes, and a question mark for one. It is compared with the linkage name and, for
/// C++ and Rust, with the path: `space::Type::function`.
#[inline(never)]
pub fn matches_any(patterns: &[u8], symbol: &[u8]) -> bool {
    let mut buffer = [0; 128];
    let path = path_of(symbol, &mut buffer);
    patterns
        .split(|&byte| byte == b'+')
        .any(|pattern| matches(pattern, symbol) || path.is_some_and(|path| matches(pattern, path)))
}

/// Returns whether a text is one that a pattern stands for.
fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // Where to go on if the text does not match: behind the last star, one byte later.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern, text) {
            ([], []) => return true,
            ([b'*', rest @ ..], _) => {
                again = Some((rest, text));
                pattern = rest;
                continue;
            }
            ([one, rest @ ..], [byte, behind @ ..]) if one == byte || *one == b'?' => {
                (pattern, text) = (rest, behind);
                continue;
            }
            _ => {}
        }
        let Some((rest, [_, behind @ ..])) = again else { return false };
        again = Some((rest, behind));
        (pattern, text) = (rest, behind);
    }
}

/// The path of a function of C++ or Rust, joined by `::`, up to the first part that is no plain
/// name. `None`: there is no such part, or no room.
fn path_of<'a>(symbol: &[u8], buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut rest = match symbol.strip_prefix(b"_R") {
        Some(path) => {
            let root = path.iter().position(|&letter| letter == b'C')?;
            after_disambiguator(&path[root + 1..])
        }
        None => {
            let names = symbol.strip_prefix(b"_ZN")?;
            names.strip_prefix(b"K").unwrap_or(names)
        }
    };
    let mut len = 0;
    while let Some((name, behind)) = split_name(rest) {
        let is_hash = name.len() == 17 && name[0] == b'h' && behind == b"E";
        if is_hash {
            break;
        }
        for part in [if len == 0 { &b""[..] } else { b"::" }, name] {
            buffer.get_mut(len..len + part.len())?.copy_from_slice(part);
            len += part.len();
        }
        rest = after_disambiguator(behind);
    }
    (len > 0).then(|| &buffer[..len])
}

const _: () = {
    let mut at = 0;
    while at < NAMES.len() {
        let name = NAMES[at].as_bytes();
        assert!(name.len() > 3 && name[3] != b'*', "the filter takes four bytes");
        at += 1;
    }
    let mut at = 1;
    while at < NAMES.len() {
        assert!(is_less(NAMES[at - 1].as_bytes(), NAMES[at].as_bytes()), "names are not in order");
        at += 1;
    }
};

/// Compares stems at compile time. No name begins with the one before, if that has a star.
const fn is_less(before: &[u8], name: &[u8]) -> bool {
    let mut at = 0;
    while at < before.len() && at < name.len() {
        if before[at] == b'*' {
            return false;
        }
        if before[at] != name[at] {
            return name[at] == b'*' || before[at] < name[at];
        }
        at += 1;
    }
    before.len() <= name.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_c_are_known_by_name() {
        for name in
            ["zmalloc", "zmalloc_usable", "g_malloc0", "xmalloc.part.0", "l_alloc", "strdup"]
        {
            assert!(is_wrapper(name.as_bytes()), "{name}");
        }
        for name in ["PyMem_RawMalloc", "CRYPTO_malloc", "sqlite3Malloc", "luaM_malloc_"] {
            assert!(is_wrapper(name.as_bytes()), "{name}");
        }
        for name in ["", "main", "hsetCommand", "strdup_all", "PyObject_Call", "z", "zz", "A"] {
            assert!(!is_wrapper(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_first_bytes_leave_out_most_names_and_no_wrapper() {
        for name in NAMES {
            assert!(may_be_wrapper(stem(name)), "{name}");
            assert!(is_wrapper(stem(name)), "{name}");
        }
        let others = (0..26 * 26 * 26).filter(|n| {
            let letter = |n: u32| b'a' + (n % 26) as u8;
            may_be_wrapper(&[b's', letter(*n), letter(n / 26), letter(n / 676), 0, b'x'])
        });
        // One in 26 would be left by the first byte alone.
        let count = others.count();
        assert!(count < 26 * 26 * 26 / 20, "{count}");
    }

    #[test]
    fn functions_of_v8_that_map_memory_for_its_heaps_are_known() {
        for name in [
            "_ZN2v84base2OS8AllocateEPvmmNS1_16MemoryPermissionE",
            "_ZN2v84base13PageAllocator13AllocatePagesEPvmmNS_13PageAllocator10PermissionE",
            "_ZN2v84base20BoundedPageAllocator13AllocatePagesEPvmmNS_13PageAllocator10PermissionE",
            "_ZN2v88internal13AllocatePagesEPNS_13PageAllocatorEPvmmNS1_10PermissionE",
            "_ZN2v88internal13VirtualMemoryC2EPNS_13PageAllocatorEmPvmNS0_3JitE",
            "_ZN2v88internal15MemoryAllocator20AllocateAlignedChunkEv",
            "_ZN2v88internal14AllocWithRetryEmPFPvmE",
            "_ZN2v88internal21AlignedAllocWithRetryEmm",
        ] {
            assert!(is_wrapper(name.as_bytes()), "{name}");
        }
        for name in [
            "_ZN2v88internal4Heap15ConfigureHeapERKNS_19ResourceConstraintsE",
            "_ZN2v88internal10PagedSpace6ExpandEv",
            "_ZN2v84base5MutexC1Ev",
            "_ZN2v8",
            "_ZN2v88internal1",
        ] {
            assert!(!is_wrapper(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn functions_of_gcc_that_allocate_trees_and_grow_vectors_are_known() {
        for name in [
            "_Z18ggc_internal_allocmPFvPvEmm",
            "_Z26ggc_internal_cleared_allocmPFvPvEmm",
            "_Z34ggc_cleared_alloc_htab_ignore_argsmm",
            "_Z36ggc_cleared_alloc_ptr_array_two_argsmm",
            "_Z11ggc_reallocPvm",
            "_Z15ggc_splay_allociPv",
            "_Z16ggc_alloc_stringPKci",
            "_ZN5va_gc7reserveI8cp_tokenS_EEvRP3vecIT_T0_8vl_embedEjb",
            "_ZN7va_heap7reserveIiEEvRP3vecIT_S_8vl_embedEjb",
        ] {
            assert!(is_wrapper(name.as_bytes()), "{name}");
        }
        for name in [
            "_Z9make_node9tree_code",
            "_Z11ggc_collectb",
            "_Z12c_parse_filev",
            "_ZN5va_gc7releaseEv",
            "_Z",
            "_Z1",
            "_Z18",
        ] {
            assert!(!is_wrapper(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn functions_of_rust_are_known_by_their_crate() {
        for name in [
            "_ZN5alloc7raw_vec11finish_grow17h0123456789abcdefE",
            "_ZN4core4iter6traits8iterator8Iterator4fold17h0123456789abcdefE",
            "_ZN63_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..clone..Clone$GT$5clone\
             17h0123456789abcdefE",
            "_ZN45_$LT$T$u20$as$u20$alloc..string..ToString$GT$9to_string17h0123456789abcdefE",
            "_RNvNtCs1234_5alloc7raw_vec11finish_grow",
            "_RNvMs_NtCs5678abcd_5alloc7raw_vecINtB4_6RawVecjE8grow_one",
            "_RNvCsdjh_7___rustc12___rust_alloc",
            "_ZN9hashbrown3raw8RawTable14reserve_rehash17h0123456789abcdefE.llvm.54",
            "__rust_alloc",
            "_ZN66_$LT$orders..Counted$u20$as$u20$core..alloc..global..GlobalAlloc$GT$5alloc\
             17h0123456789abcdefE",
            "_RNvXCs1_6ordersNtB2_7CountedNtNtNtCs2_4core5alloc6global11GlobalAlloc5alloc",
        ] {
            assert!(is_wrapper(name.as_bytes()), "{name}");
        }
        for name in [
            "_ZN6orders5parse17h0123456789abcdefE",
            "_ZN52_$LT$orders..Line$u20$as$u20$core..clone..Clone$GT$5clone17h0123456789abcdefE",
            "_RNvNtCs1234_6orders5parse5lines",
            "_RNvXs_Cs1234_6ordersNtB4_4LineNtNtCs9_4core5clone5Clone5clone",
            "_ZN52_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$orders..Encode$GT$6encode\
             17h0123456789abcdefE",
            "_R",
            "_RNv",
            "_ZN17h0123456789abcdefE",
            "_ZN4core3ops8function6FnOnce9call_once17h0123456789abcdefE",
            "_RINvNtNtCs1_3std3sys9backtrace28___rust_begin_short_backtraceNvB4_4mainuEB4_",
        ] {
            assert!(!is_wrapper(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn functions_of_the_cxx_library_are_known_by_their_namespace() {
        assert!(is_wrapper(b"_ZNSt6vectorIiSaIiEE17_M_realloc_insertIJiEEEvv"));
        assert!(is_wrapper(b"_Znwm"));
        assert!(is_wrapper(b"_ZN4kmem15memory_resource11do_allocateEmm"));
        // A namespace of a program.
        assert!(!is_wrapper(b"_ZN4core5Store3addEv"));
        assert!(!is_wrapper(b"_ZN5Store3addEv"));
    }

    #[test]
    fn patterns_match_linkage_names_and_paths() {
        let one = |pattern: &str, symbol: &str| matches_any(pattern.as_bytes(), symbol.as_bytes());
        assert!(one("my_*", "my_alloc"));
        assert!(one("a+my_alloc", "my_alloc"));
        assert!(one("*all?c", "my_alloc"));
        assert!(!one("my_*", "not_my_alloc"));
        assert!(!one("", "my_alloc"));
        assert!(!one("my_allo", "my_alloc"));
        assert!(one("*a*b*c", "xxaxxbxxbxc"));
        assert!(!one("*a*b*c", "xxaxxcxxb"));
        assert!(one("Pool::*", "_ZN4Pool5allocEm"));
        assert!(one("orders::pool::*", "_ZN6orders4pool3get17h0123456789abcdefE"));
        assert!(one("orders::pool::get", "_RNvNtCs1234_6orders4pool3get"));
        assert!(!one("orders::pool::get", "_RNvNtCs1234_6orders4pool3put"));
    }

    #[test]
    fn any_bytes_are_a_name() {
        for len in 0..40 {
            for byte in [b'_', b'N', b'Z', b'R', b'9', b's', 0xff] {
                let mut name = [byte; 40];
                name[..3].copy_from_slice(b"_ZN");
                let _ = (is_wrapper(&name[..len]), matches_any(b"*x", &name[..len]));
                name[..2].copy_from_slice(b"_R");
                let _ = (is_wrapper(&name[..len]), matches_any(b"*x", &name[..len]));
            }
        }
    }
}
