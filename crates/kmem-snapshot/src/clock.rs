//! The time of day, and the time since the machine was started.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let ms = |part: i64| u64::try_from(part).unwrap_or(0);
    ms(now.tv_sec).saturating_mul(1000).saturating_add(ms(now.tv_nsec) / 1_000_000)
}

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
