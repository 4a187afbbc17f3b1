//! Addresses of symbols that the program may have.

/// Defines a static with the address of a symbol, or 0 if the program has no such symbol.
macro_rules! weak_address {
    ($(#[$doc:meta])* $name:ident = $symbol:literal) => {
        core::arch::global_asm!(
            concat!(".weak ", $symbol),
            concat!(".pushsection .data.rel.ro.", stringify!($name), ", \"aw\", %progbits"),
            ".balign 8",
            concat!(".hidden ", stringify!($name)),
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", %object"),
            concat!(".size ", stringify!($name), ", 8"),
            concat!(stringify!($name), ": .quad ", $symbol),
            ".popsection",
        );

        unsafe extern "C" {
            $(#[$doc])*
            safe static $name: usize;
        }
    };
}

pub(crate) use weak_address;
