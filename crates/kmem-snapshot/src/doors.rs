//! Readers that have no door of their own, for the fuzz targets: no part of the interface.

use crate::error::ReadError;

/// Reads the text of `/proc/slabinfo` in another file.
///
/// # Errors
///
/// [`ReadError::File`], [`ReadError::BadFile`].
pub fn slabinfo(path: &str) -> Result<String, ReadError> {
    crate::kernel::slabinfo(path).map(|sums| format!("{sums:?}"))
}

/// Reads the text of `/proc/zoneinfo` in another file.
///
/// # Errors
///
/// [`ReadError::File`], [`ReadError::BadFile`].
pub fn zoneinfo(path: &str) -> Result<String, ReadError> {
    crate::kernel::zoneinfo(path).map(|sums| format!("{sums:?}"))
}

/// Finds the name of an address in the text of `/tmp/perf-PID.map`.
#[must_use]
pub fn perf_map(text: &str, address: u64) -> Option<String> {
    crate::symbols::named_by_map(text, address)
}
