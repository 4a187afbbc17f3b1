//! Mangled names of Rust and C++ to readable ones, bounded in length.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Longest readable name: hostile symbols can grow without end when demangled.
const MAX_LEN: usize = 4096;
/// Longest mangled name looked at.
const MAX_MANGLED: usize = 64 << 10;

#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_LEN {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// A readable name without parameters, return type and hash; the name itself when it is not
/// mangled or makes no sense.
pub(super) fn demangle(name: &str) -> String {
    if name.len() > MAX_MANGLED {
        return name.chars().take(64).chain("...".chars()).collect();
    }
    let mut out = Bounded::default();
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        if write!(out, "{rust:#}").is_ok() {
            return out.0;
        }
        return name.to_owned();
    }
    if name.starts_with("_Z") || name.starts_with("___Z") {
        let options = DemangleOptions::new().no_params().no_return_type();
        if let Ok(symbol) = Symbol::new(name)
            && symbol.structured_demangle(&mut out, &options).is_ok()
        {
            return out.0;
        }
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
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
        // Each level doubles what the one before stands for.
        let mut bomb = "_Z1fI".to_owned();
        for level in 0..60 {
            bomb.push_str(&format!(
                "1AI{0}{0}E",
                if level == 0 { "i".into() } else { format!("S{}_", radix36(level)) }
            ));
        }
        bomb.push_str("Evv");
        assert!(demangle(&bomb).len() <= MAX_LEN.max(bomb.len()));
    }

    fn radix36(n: u32) -> String {
        char::from_digit(n % 36, 36).map(|c| c.to_ascii_uppercase().to_string()).unwrap_or_default()
    }
}
