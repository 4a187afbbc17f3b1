//! C++ names shortened for people: default template arguments are left out.

/// Longest name whose template arguments are all shown, in bytes.
const LONG: usize = 64;

/// `std::string` as libstdc++ spells it.
const STRING: &str =
    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

/// Beginnings of template arguments that are almost always the default.
const DEFAULTS: &[&str] = &[
    "std::allocator<",
    "std::char_traits<",
    "std::less<",
    "std::hash<",
    "std::equal_to<",
    "std::default_delete<",
];

/// Shortens a C++ name: `std::vector<std::string>::push_back` in place of the 200 characters that
/// the compiler spells.
#[must_use]
pub fn short(name: &str) -> String {
    if !name.contains("::") || !name.contains('<') {
        return name.to_owned();
    }
    let mut name = name.replace(STRING, "std::string");
    for default in DEFAULTS {
        // The innermost first, because each removal may complete another default.
        while let Some(at) = name.rfind(&format!(", {default}")) {
            let Some(end) = closing(&name, at + 1 + default.len()) else {
                break;
            };
            name.replace_range(at..end, "");
        }
    }
    let name = name.replace(" >", ">");
    if name.len() <= LONG { name } else { without_arguments(&name) }
}

/// Index one past the `>` that closes the `<` at or before `open`.
fn closing(name: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in name.char_indices().skip_while(|(at, _)| *at < open) {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// Empties every outermost pair of angle brackets. A name that begins with one (a Rust
/// implementation) and a name of an operator stay as they are.
fn without_arguments(name: &str) -> String {
    if name.starts_with('<') || name.contains("operator") || name.contains("->") {
        return name.to_owned();
    }
    let mut out = String::new();
    let mut depth = 0_usize;
    for c in name.chars() {
        match c {
            '<' => {
                if depth == 0 {
                    out.push_str("<..>");
                }
                depth += 1;
            }
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn names_for_people() {
        let string = super::STRING;
        for (long, expected) in [
            ("main", "main"),
            ("a < b", "a < b"),
            ("std::vector<int, std::allocator<int> >::push_back", "std::vector<int>::push_back"),
            (
                &format!(
                    "std::vector<{string}, std::allocator<{string} > >::\
                     _M_realloc_insert<{string} >"
                ),
                "std::vector<std::string>::_M_realloc_insert<std::string>",
            ),
            (
                "std::map<int, app::T, std::less<int>, \
                 std::allocator<std::pair<int const, app::T> > >::f",
                "std::map<int, app::T>::f",
            ),
            (
                "app::Table<app::VeryLongNameOfAKeyType, app::VeryLongNameOfAValueType>::\
                 insert<int>",
                "app::Table<..>::insert<..>",
            ),
            (
                "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
                "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            ),
            ("x::f<, std::allocator<", "x::f<, std::allocator<"),
        ] {
            assert_eq!(short(long), expected);
        }
    }
}
