//! The console of instances under test.

/// Prints a message of the allocator.
pub(crate) fn print(text: &[u8]) {
    eprint!("{}", String::from_utf8_lossy(text));
}

/// Ends a test whose allocator found a misuse.
pub(crate) fn fatal() -> ! {
    panic!("the allocator gave up")
}
