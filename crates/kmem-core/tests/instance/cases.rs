//! Settings of property tests.

use proptest::test_runner::Config;

/// A number of random cases. Failures are printed, and not stored in a file.
pub(crate) fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}
